"""Plot data: rows of results, and traces, in whatever they are given."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Union

from profiles.errors import InputError, near_or_all, shown
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.frames import rows
from sim.report.plots.charts import ChartRow
from strategies.plans.traces import Trace

if TYPE_CHECKING:
    from pandas import DataFrame

Drawable = Union[Sweep, Scaling, Result, "DataFrame", Iterable[Sweep | Scaling | Result | ChartRow]]
"""What is drawn: sweeps, results, their rows, or a frame of these."""
SUCH: Final = "sweeps, results, or what their rows() or frame() gives"


def plot_rows(asked: Drawable, *needs: str, **axes: str) -> list[ChartRow]:
    """The rows of what is to be drawn, all of which have some keys.

    Args:
        asked: what is to be drawn.
        needs: keys that every row has.
        axes: keys of the axes, by the argument that names them.

    Raises:
        InputError: something has no rows, or one lacks a key; of an axis it names the argument.
    """
    if isinstance(asked, Sweep | Scaling | Result) or hasattr(asked, "to_dict"):
        asked = (asked,)  # type: ignore[assignment]
    if not isinstance(asked, Iterable) or isinstance(asked, str | Mapping):
        raise InputError(f"rows is {shown(asked)}, must be {SUCH}")
    found = [row for item in asked for row in _rows(item)]
    for row in found:
        for key in needs:
            if row.get(key) is None:
                raise InputError(f"a row lacks {key}: give results as they are")
        for name, key in axes.items():
            if key not in row:
                raise InputError(
                    f"{name} is {shown(key)}, which a row lacks; {near_or_all(str(key), list(row))}"
                )
    return found


def _rows(item: Any) -> list[ChartRow]:  # noqa: ANN401
    """The rows of one thing; of a frame without what a row of it lacks."""
    if isinstance(item, Sweep | Scaling):
        return list(rows(item))
    if isinstance(item, Result):
        return [item.to_json()]
    if isinstance(item, Mapping):
        return [item]
    if hasattr(item, "to_dict") and hasattr(item, "columns"):
        there = item.astype(object).where(item.notna(), None)
        return [{key: v for key, v in row.items() if v is not None} for row in there.to_dict("records")]
    raise InputError(f"rows hold a {type(item).__name__}, must be {SUCH}")


def plot_trace(asked: Trace | Result) -> Trace:
    """The trace that is to be drawn; of a result its own.

    Raises:
        InputError: it is something else, or the result came without traces.
    """
    trace = asked.trace if isinstance(asked, Result) else asked
    if not isinstance(trace, Trace):
        raise InputError(f"trace is {shown(trace)}, must be a result or one of its traces")
    return trace
