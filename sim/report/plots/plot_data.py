"""Plot data: rows of results, and traces, in whatever they are given."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Union

from profiles.architectures.components import TASKS
from profiles.checks import is_one_of
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
KINDS: Final[Mapping[type[Any], tuple[str, tuple[str, ...]]]] = {
    str: ("a name", ("strategy",)),
    Mapping: ("a mapping", ("parameters", "options")),
    Real: (
        "a number",
        (
            *("num_gpus", "batch_size", "samples_per_s", "peak_memory_bytes", "bubble_ratio"),
            *("latency_s", "latency_s_low", "latency_s_high"),
            *("iteration_s", "iteration_s_low", "iteration_s_high"),
        ),
    ),
}
"""What a row holds under the keys that are drawn, where it has them."""
SUCH: Final = "sweeps, results, or what their rows() or frame() gives"


def plot_rows(asked: Drawable, *needs: str, **keys: str) -> list[ChartRow]:
    """The rows of what is to be drawn, all of which have some keys.

    Args:
        asked: what is to be drawn.
        needs: keys that every row has.
        keys: those of the axes, by the argument that names them.

    Raises:
        InputError: something has no rows, or one lacks a key or has what cannot be drawn; of an axis it names the
            argument.
    """
    found = [row for item in _items(asked) for row in _rows(item)]
    for row in found:
        _check(row, needs)
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


def _check(row: ChartRow, needs: Iterable[str]) -> None:
    """Refuse a row that lacks what is drawn, or has it of another kind.

    Raises:
        InputError: it does.
    """
    for key in needs:
        if row.get(key) is None:
            raise InputError(f"a row lacks {key}: give results as they are")
    for kind, (rule, keys) in KINDS.items():
        for key in keys:
            if not isinstance(value := row.get(key), kind | None):
                raise InputError(f"{key} of a row is {shown(value)}, must be {rule}")
    if not is_one_of(task := row.get("task") or TASKS[0], *TASKS):
        raise InputError(f"task of a row is {shown(task)}, must be one of {', '.join(TASKS)}")


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
