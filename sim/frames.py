"""Frames: the rows of a sweep as JSON objects and as a table in a file."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from profiles.errors import InputError
from sim.sweep import Point, Sweep


def row(sweep: Sweep, point: Point) -> dict[str, Any]:
    """Return a point under the public keys; a key without a value is left out."""
    head: dict[str, Any] = {"status": point.status}
    if point.result is not None:
        body = point.result.to_json()
    else:
        workload = sweep.scenario.workload
        body = {
            "task": "train",
            "model": sweep.scenario.model.name,
            "cluster": sweep.scenario.cluster.name,
            "num_gpus": workload.num_gpus,
            "strategy": point.name,
            "parameters": point.parameters,
            "batch_size": workload.batch_size,
        }
    if point.status == "bounded":
        body["bound_s"] = point.bound_s
    if point.reason is not None:
        body["reason"] = point.reason
    return head | body


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return all points of a sweep, best first."""
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
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--out is '{path}', must be a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"--out is '{path}', which cannot be written")


def write_rows(sweep: Sweep, path: Path) -> None:
    """Write all points of a sweep, best first; each parameter and option has its own column."""
    import pandas as pd

    frame = pd.DataFrame([_flat(item) for item in rows(sweep)])
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in item.items():
        if key in ("parameters", "options"):
            flat |= value
        elif key == "stages":
            flat[key] = json.dumps(value)
        else:
            flat[key] = value
    return flat
