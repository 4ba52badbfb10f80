"""Frames: the rows of a sweep as JSON objects and as a table in a file."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from profiles.errors import InputError
from profiles.files import path_kind
from sim.explore.points import Point, task
from sim.explore.sweep import Sweep
from strategies.scenario import SamplingWorkload


def row(sweep: Sweep, point: Point) -> dict[str, Any]:
    """A point under the public keys; a key without a value is left out."""
    head: dict[str, Any] = {"status": point.status}
    body = _asked(sweep, point) if point.result is None else point.result.to_json()
    if point.status == "bounded":
        body["bound_s"] = point.bound_s
    if point.reason is not None:
        body["reason"] = point.reason
    if task(sweep.scenario) == "sample":
        body |= {"seamless": point.seamless, "recommended": point.recommended}
    return head | body


def _asked(sweep: Sweep, point: Point) -> dict[str, Any]:
    """The keys of a point without a result: what it is, and what it is asked."""
    scenario, workload = sweep.scenario, sweep.scenario.workload
    asked = {
        "task": task(scenario),
        "model": scenario.model_name,
        "cluster": scenario.cluster_name,
        "num_gpus": point.num_gpus or workload.num_gpus,
        "strategy": point.name,
        "parameters": point.parameters,
        "batch_size": workload.batch_size,
    }
    if isinstance(workload, SamplingWorkload):
        asked |= {
            "resolution": workload.resolution,
            "steps": workload.steps,
            "guidance": workload.guidance,
        }
    return asked


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """All points of a sweep, best first."""
    return [row(sweep, point) for point in sweep.ranked()]


def check_out(path: Path) -> None:
    """Refuse a file that could not be written at the end.

    Raises:
        InputError: its ending is unknown, its folder is missing or not writable, or Parquet is not installed.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out is '{path}', must end in .csv or .parquet")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"--out is '{path}', but Parquet needs pyarrow: pip install 'diffusim[parquet]'")
    check_writable("--out", path)


def check_writable(flag: str, path: Path) -> None:
    """Refuse a file that could not be written later.

    Raises:
        InputError: it is a folder, its folder is missing, or either is not writable.
    """
    kind = path_kind(path)
    if kind == "folder" or path_kind(path.parent) != "folder":
        raise InputError(f"{flag} is '{path}', must be a file in a folder that exists")
    if not os.access(path if kind == "file" else path.parent, os.W_OK):
        raise InputError(f"{flag} is '{path}', which cannot be written")


def write_rows(sweep: Sweep, path: Path) -> None:
    """Write all points of a sweep, best first; each parameter and option has its own column."""
    import pandas as pd

    items = [_flat(item) for item in rows(sweep)]
    frame = pd.DataFrame(items)
    for column in map(str, frame.columns):
        if all(isinstance(item.get(column, 0), int) for item in items):
            flags = all(isinstance(item.get(column, True), bool) for item in items)
            frame[column] = frame[column].astype("boolean" if flags else "Int64")
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in item.items():
        if key in ("parameters", "options"):
            flat |= {name: _cell(of) for name, of in value.items()}
        elif key == "stages":
            flat[key] = json.dumps(value)
        else:
            flat[key] = value
    return flat


def _cell(value: Any) -> Any:  # noqa: ANN401
    """A value as its flag would take it."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else value
