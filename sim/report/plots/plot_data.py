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
    """Return the rows of something to be drawn; all have the keys that it needs, and those of its axes by argument."""
    if isinstance(drawable, str | Mapping) or not isinstance(drawable, Iterable | Result):
        raise InputError(f"rows is {shown(drawable)}, must be {SUCH}")
    one = isinstance(drawable, Sweep | Scaling | Result) or hasattr(drawable, "columns")
    items: Iterable[Any] = (drawable,) if one else drawable  # type: ignore[assignment]
    points: list[ChartRow] = [{**(row.get("options") or {}), **row} for item in items for row in _rows(item)]
    for row in points:
        for key in needs:
            if row.get(key) is None:
                raise InputError(f"a row lacks {key}: give results as they are")
        for name, key in axes.items():
            if key not in row:
                near = near_or_all(str(key), list(row))
                raise InputError(f"{name} is {shown(key)}, which a row lacks; {near}")
    return points


def check_speeds(rows: Iterable[ChartRow]) -> None:
    """Refuse rows without their samples per second, which every result has."""
    if any(row.get("samples_per_s") is None for row in rows):
        raise InputError("a row lacks samples_per_s: give results as they are")


def _rows(item: Any) -> list[ChartRow]:  # noqa: ANN401
    """Return the rows of one item; of a frame without empty cells."""
    match item:
        case Sweep() | Scaling():
            return list(rows(item))
        case Result():
            return [item.to_json()]
        case Mapping():
            return [item]
    if hasattr(item, "columns"):
        return [row.dropna().to_dict() for _, row in item.astype(object).iterrows()]
    raise InputError(f"rows hold a {type(item).__name__}, must be {SUCH}")


def plot_trace(source: Trace | Result) -> Trace:
    """Return the trace of a result, or the trace itself."""
    trace = source.trace if isinstance(source, Result) else source
    if not isinstance(trace, Trace):
        raise InputError(f"trace is {shown(trace)}, must be a result or one of its traces")
    return trace
