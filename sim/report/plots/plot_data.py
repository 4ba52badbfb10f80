"""Plot data: the rows and traces of results, sweeps and frames."""

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
"""Sweeps, results, their rows, or a frame of these."""
SUCH: Final = "sweeps, results, or what their rows() or frame() gives"


def plot_rows(drawable: Drawable, *needs: str, **axes: str) -> list[ChartRow]:
    """Return the rows of something to be drawn, all of which have some keys.

    Args:
        drawable: sweeps, results, rows or a frame.
        needs: keys that every row has.
        axes: keys of the axes, by the argument that names them.

    Raises:
        InputError: something has no rows, or one lacks a key; of an axis it names the argument.
    """
    if isinstance(drawable, Sweep | Scaling | Result) or hasattr(drawable, "to_dict"):
        drawable = (drawable,)  # type: ignore[assignment]
    if not isinstance(drawable, Iterable) or isinstance(drawable, str | Mapping):
        raise InputError(f"rows is {shown(drawable)}, must be {SUCH}")
    points = [row for item in drawable for row in _rows(item)]
    for row in points:
        for key in needs:
            if row.get(key) is None:
                raise InputError(f"a row lacks {key}: give results as they are")
        for name, key in axes.items():
            if key not in row:
                raise InputError(
                    f"{name} is {shown(key)}, which a row lacks; {near_or_all(str(key), list(row))}"
                )
    return points


def _rows(item: Any) -> list[ChartRow]:  # noqa: ANN401
    """Return the rows of one item; of a frame without empty cells."""
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


def plot_trace(source: Trace | Result) -> Trace:
    """Return the trace of a result, or the trace itself.

    Raises:
        InputError: it is something else, or the result came without traces.
    """
    trace = source.trace if isinstance(source, Result) else source
    if not isinstance(trace, Trace):
        raise InputError(f"trace is {shown(trace)}, must be a result or one of its traces")
    return trace
