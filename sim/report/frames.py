"""Frames: the rows of a sweep as JSON objects and as a table in a file."""

import json
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError, flag_value
from profiles.outputs import check_ending, whole_file
from sim.explore.legality import NO_RUNTIME, starters
from sim.explore.scaling import Clusters, Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.contents import inputs_of
from sim.outcomes.tasks import TASKS

if TYPE_CHECKING:
    from pandas import DataFrame


def rows(answer: Sweep | Scaling | Clusters, *, best_of_each: bool = False) -> list[dict[str, Any]]:
    """Return all points of sweeps, or the best of each strategy, under their public keys, best first."""
    sweeps = (answer,) if isinstance(answer, Sweep) else answer
    return [row for sweep in sweeps for row in _rows_of(sweep, best_of_each=best_of_each)]


def _rows_of(sweep: Sweep, *, best_of_each: bool) -> Iterator[dict[str, Any]]:
    """Yield the points of a sweep, the recommended one first; a key without a value is left out."""
    scenario, twins, ranked = sweep.scenario, sweep.twins(), sweep.listed()
    inputs = inputs_of(scenario)
    best = {point.name: point for point in reversed(ranked)}
    ties = set(map(id, (sweep.best_point(), *sweep.ties())))
    absent = TASKS[scenario.task].absent
    for point in ranked:
        if best_of_each and best[point.name] is not point:
            continue
        unknown = {
            "task": scenario.task,
            "model": scenario.model_name,
            "cluster": scenario.cluster_name,
            "stack": scenario.stack_name,
            "num_gpus": point.num_gpus,
            "strategy": point.name,
            "parameters": point.parameters,
            "batch_size": scenario.workload.batch_size,
            **scenario.asked,
            "options": scenario.options,
        }
        body = unknown if point.result is None else point.result.to_json()
        twin = twins.get(id(point))
        more = {
            "bound_s": point.bound_s if point.status == "bounded" else None,
            "reason": point.reason,
            "tie": id(point) in ties if point.status == "simulated" else None,
            "same_as": None if twin is None else twin.name,
            "relief": point.checkpointing,
            "seamless": point.recommended,
            "recommended": point.recommended,
            "runs_in": list(starters(point, scenario)),
        }
        known = {key: value for key, value in more.items() if value is not None and key not in absent}
        yield {"status": point.status} | body | {"inputs": dict(inputs)} | known


def check_out(path: Path) -> None:
    """Refuse a file of rows whose ending is unknown."""
    check_ending("`out`", path, (".csv", ".parquet"))
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"`out` is '{path}', but Parquet needs pyarrow: pip install 'diffusim[parquet]'")


def frame_of(items: Iterable[dict[str, Any]]) -> "DataFrame":
    """Return rows under public keys as a frame; each parameter and option has its own column."""
    import pandas as pd

    flat = [_flat(item) for item in items]
    frame = pd.DataFrame(flat)
    for column in map(str, frame.columns):
        values = [value for item in flat if (value := item.get(column)) is not None]
        if values and all(isinstance(value, int) for value in values):
            flags = all(isinstance(value, bool) for value in values)
            frame[column] = frame[column].astype("boolean" if flags else "Int64")
    return frame


def write_rows(sweep: Sweep | Scaling | Clusters, path: Path) -> None:
    """Write all points of a sweep, best first."""
    frame = frame_of(rows(sweep))
    with whole_file(path) as file:
        if path.suffix.lower() == ".parquet":
            frame.to_parquet(file, index=False)
        else:
            frame.to_csv(file, index=False)


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in item.items():
        if key in ("parameters", "options"):
            flat |= {name: flag_value(setting) for name, setting in value.items()}
        elif key in ("stages", "inputs"):
            flat[key] = json.dumps(value)
        elif key == "runs_in":
            flat[key] = flag_value(value) or NO_RUNTIME
        else:
            flat[key] = value
    return flat
