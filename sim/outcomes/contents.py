"""Contents: short hashes of the values that were read, so that results name their inputs."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np

from profiles.errors import InputError, shown
from strategies.scenario import Same
from strategies.strategy import AnyScenario

ROOT: Final = Path(__file__).parents[2]
ENGINE: Final = (
    "profiles/**/*.py", "profiles/*.toml", "strategies/**/*.py", "sim/*.py", "sim/inputs/*.py", "sim/explore/*.py",
    "sim/outcomes/*.py", "sim/replay/*.py",
)  # fmt: skip
"""Code that gives results, and the answers that stores keep; measuring gives data, and no results."""


def content_of(value: object) -> str:
    """Return the hash of a value of dataclasses, lists, mappings, texts and numbers."""
    written = json.dumps(value, default=_plain, sort_keys=True)
    return blake2b(written.encode(), digest_size=8).hexdigest()


_fields_of = cache(fields)


def _plain(value: Any) -> Any:  # noqa: ANN401
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__qualname__, *(getattr(value, item.name) for item in _fields_of(type(value)))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | np.generic):
        return value.hex() if isinstance(value, bytes) else value.item()
    raise InputError(f"{shown(value)} is of type {type(value).__name__}, must be a number, text or dataclass")


@lru_cache(maxsize=64)
def _content_once(same: Same) -> str:
    return content_of(same.value)


def inputs_of(scenario: AnyScenario) -> dict[str, str]:
    """Return hashes of the model, cluster, device and stack of a scenario, and of the run measured of them, if any."""
    cluster = scenario.cluster
    around = {item.name: getattr(cluster, item.name) for item in fields(cluster) if item.name != "device"}
    inputs = {"device": cluster.device, "stack": scenario.stack, "cluster": around}
    if scenario.measured is not None:
        inputs["measured_run"] = scenario.measured
    contents = {name: content_of(value) for name, value in inputs.items()}
    return {"model": _content_once(Same(scenario.model)), **contents}


@cache
def engine() -> str:
    """Return the hash of the code that gives results and of its tables; stored results of other code are not used."""
    paths = {path for pattern in ENGINE for path in ROOT.glob(pattern) if "measuring" not in path.parts}
    return content_of(tuple((path.relative_to(ROOT).as_posix(), path.read_bytes()) for path in sorted(paths)))
