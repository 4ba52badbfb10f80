"""The zoo: the models that can be counted by name, as ``zoo.toml`` describes them.

A new model is one more table there, with its configurations in ``configs.json``; it needs no weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from profiles.architectures.models import latent_frames
from profiles.mappings import FrozenMapping
from profiles.measuring.counting import specs
from profiles.measuring.counting.classes import call_of, find_class, half_of, spec_of
from profiles.measuring.counting.config_files import ConfigFile, ConfigOptions
from profiles.measuring.counting.specs import Architecture, ComponentSpec
from profiles.names import MODEL, known_name, unknown_name
from profiles.parsing import load_toml

HERE: Final = Path(__file__).parent / "zoo.toml"
OWN_KEYS: Final = ("name", "config", "set", "half", "groups", "arguments", "text_tokens", "scale", "call")
"""Keys of a component that its specification does not take as they are."""


def architecture(name: str, *, tiny: bool = False) -> Architecture:
    """Return the architecture of a name, with ``tiny`` also of the small ones for rehearsals."""
    known = ARCHITECTURES | TINY if tiny else ARCHITECTURES
    if (meant := known_name(MODEL, name, known)) is None:
        raise unknown_name(MODEL, name, known)
    return known[meant]


def _architecture(entry: Mapping[str, Any]) -> Architecture:
    frames = latent_frames(entry.get("frames", 1), entry.get("frame_step", 1), entry.get("frame_chunk"))
    components = tuple(_component(component, frames) for component in entry["components"])
    return Architecture(**{"configs": "", **entry, "components": components})


def _component(entry: Mapping[str, Any], frames: int) -> ComponentSpec:
    """Return a component as its table has it; ``frames`` are latent ones."""
    values = specs.CONFIGS[entry["config"]] | entry.get("set", {})
    network = find_class(ConfigFile(HERE, FrozenMapping(values)), **entry.get("arguments", {}))
    scale, frames = entry.get("scale", specs.LATENT_SCALE), entry.get("frames", frames)
    if "half" in entry:
        groups = entry.get("groups", ())
        spec = half_of(network, entry["name"], entry["half"], scale, groups=groups, frames=frames)
    else:
        options = ConfigOptions(scale, scale, frames if frames > 1 else None, entry.get("text_tokens"), scale)
        call = call_of(network, options)
        recipe = call.recipe._replace(arguments={**call.recipe.arguments, **entry.get("call", {})})
        spec = spec_of(replace(call, recipe=recipe), entry["name"])
    fields: dict[str, Any] = {key: tuple(of) if isinstance(of, list) else of for key, of in entry.items()}
    return replace(spec, **{key: of for key, of in fields.items() if key not in OWN_KEYS})


_MODELS: Final = load_toml(HERE)
ARCHITECTURES: Final = {name: _architecture(entry) for name, entry in _MODELS["models"].items()}
TINY: Final = {name: _architecture(entry) for name, entry in _MODELS["tiny"].items()}
"""One model of each family that two CPU cores time in seconds: none is published, all are for rehearsals."""
