"""What is drawn: rows of results, and traces, in whatever they are given."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Union

from profiles.errors import InputError, near_or_all, shown
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.plots.charts import ChartRow
from strategies.plans.traces import Trace

if TYPE_CHECKING:
    from pandas import DataFrame

Drawable = Union[Sweep, Scaling, Result, "DataFrame", Iterable[Sweep | Scaling | Result | ChartRow]]
"""What is drawn: sweeps, results, their rows, or a frame of these."""
SUCH: Final = "sweeps, results, or what their rows() or frame() gives"


def rows_of(asked: Drawable, **keys: str) -> list[ChartRow]:
    """The rows of what is to be drawn, all of which have some keys.

    Raises:
        InputError: something has no rows, or one lacks a key or has what no axis holds; it names the argument.
    """
    found = [row for item in _items(asked) for row in _rows(item)]
    for name, key in keys.items():
        for row in found:
            if isinstance(key, str) and key in row and _fits_axis(row[key]):
                continue
            fit = [known for known, value in row.items() if _fits_axis(value)]
            if not isinstance(key, str) or key not in row:
                raise InputError(f"{name} is {shown(key)}, which a row lacks; {near_or_all(str(key), fit)}")
            rule = f"must be a key of numbers or words; choose from {', '.join(fit)}"
            raise InputError(f"{name} is {shown(key)}, which holds a {type(row[key]).__name__}, {rule}")
    return found


def _fits_axis(value: object) -> bool:
    return not isinstance(value, dict | list | set)


def _items(asked: Any) -> Iterable[Any]:  # noqa: ANN401
    if isinstance(asked, Sweep | Scaling | Result) or hasattr(asked, "to_dict"):
        return (asked,)
    if not isinstance(asked, Iterable) or isinstance(asked, str | Mapping):
        raise InputError(f"rows is {shown(asked)}, must be {SUCH}")
    return asked


def _rows(item: Any) -> list[ChartRow]:  # noqa: ANN401
    """The rows of one thing; of a frame without what a row of it lacks."""
    if isinstance(item, Sweep | Scaling):
        return list(item.rows())
    if isinstance(item, Result):
        return [item.to_json()]
    if isinstance(item, Mapping):
        return [item]
    if hasattr(item, "to_dict") and hasattr(item, "columns"):
        there = item.astype(object).where(item.notna(), None)
        return [{key: v for key, v in row.items() if v is not None} for row in there.to_dict("records")]
    raise InputError(f"rows hold a {type(item).__name__}, must be {SUCH}")


def trace_of(asked: Trace | Result) -> Trace:
    """The trace that is to be drawn; of a result its own.

    Raises:
        InputError: it is something else, or the result came without traces.
    """
    trace = asked.trace if isinstance(asked, Result) else asked
    if not isinstance(trace, Trace):
        raise InputError(f"trace is {shown(trace)}, must be a result or one of its traces")
    return trace
