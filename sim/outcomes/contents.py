"""Contents: short hashes of the values that were read, so that results name their inputs."""

import pickle
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from strategies.scenario import Same
from strategies.strategy import AnyScenario

ROOT: Final = Path(__file__).parents[2]
ENGINE: Final = (
    *("profiles/**/*.py", "profiles/*.toml", "strategies/**/*.py", "sim/*.py", "sim/inputs/*.py"),
    *("sim/explore/*.py", "sim/outcomes/*.py", "sim/replay/*.py"),
)
"""Code that gives results, and the answers that stores keep; measuring gives data, and no results."""


class _Writer(pickle.Pickler):
    """Writes values so that equal ones give equal bytes: objects by their fields, mappings sorted."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401
        if is_dataclass(value) and not isinstance(value, type):
            values = tuple(_ordered(getattr(value, item.name)) for item in fields(value))
            return tuple, ((type(value).__qualname__, *values),)
        if isinstance(value, Mapping):
            return tuple, (_items(value),)
        return NotImplemented


def _ordered(value: Any) -> Any:  # noqa: ANN401
    """Return a value whose plain dicts are sorted: pickle asks no pickler about them, nor about lists and tuples."""
    if type(value) is dict:
        return _items(value)
    return type(value)(map(_ordered, value)) if type(value) in (list, tuple) else value


def _items(mapping: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(sorted((key, _ordered(item)) for key, item in mapping.items()))


def content_of(value: object) -> str:
    """Return the hash of a value of dataclasses, tuples, mappings, texts and numbers."""
    written = BytesIO()
    writer = _Writer(written, protocol=4)
    writer.fast = True  # equal parts are written out each time: whether they are one object is no content
    writer.dump(_ordered(value))
    return _hash(written.getvalue())


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


@lru_cache(maxsize=64)
def _content_once(same: Same) -> str:
    return content_of(same.value)


def inputs_of(scenario: AnyScenario) -> dict[str, str]:
    """Return hashes of the model, cluster, device and stack of a scenario, and of the run measured of them, if any."""
    known: dict[str, str] = scenario.remember("inputs", lambda: _inputs_of(scenario))
    return dict(known)


def _inputs_of(scenario: AnyScenario) -> dict[str, str]:
    cluster = scenario.cluster
    inputs: dict[str, object] = {"model": scenario.model, "device": cluster.device, "stack": scenario.stack}
    if scenario.measured is not None:
        inputs["measured_run"] = scenario.measured
    contents = {name: _content_once(Same(value)) for name, value in inputs.items()}
    return contents | {"cluster": _around_device(Same(cluster))}


@lru_cache(maxsize=64)
def _around_device(cluster: Same) -> str:
    """Return the hash of a cluster but for its device."""
    names = (item.name for item in fields(cluster.value) if item.name != "device")
    return content_of(tuple(getattr(cluster.value, name) for name in names))


@cache
def engine() -> str:
    """Return the hash of the code that gives results and of its tables; stored results of other code are not used."""
    paths = {path for pattern in ENGINE for path in ROOT.glob(pattern) if "measuring" not in path.parts}
    return content_of(tuple((path.relative_to(ROOT).as_posix(), path.read_bytes()) for path in sorted(paths)))
