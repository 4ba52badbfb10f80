"""The zoo: the models that can be counted by name, as ``zoo.toml`` describes them.

A new model is one more table there, with its configurations in ``configs.json``; neither weights nor a network
connection are needed.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError
from profiles.mappings import FrozenMapping
from profiles.measuring.counting import specs
from profiles.measuring.counting.adapters import find_class, found_of, half_of
from profiles.measuring.counting.config_files import CLASS, ConfigFile, ConfigOptions
from profiles.measuring.counting.networks import ControlledUNet, LockedEncoder, SteeredUNet, UVit
from profiles.measuring.counting.recipes import request_of, spec_of
from profiles.measuring.counting.specs import Architecture, ComponentSpec

HERE: Final = Path(__file__).parent / "zoo.toml"
OWN: Final = {kind.__name__: kind for kind in (ControlledUNet, LockedEncoder, SteeredUNet, UVit)}
"""Classes that neither diffusers nor transformers has."""
PLAIN: Final = ("trainable", "self_conditioning", "cacheable", "reads", "sums", "names")
LISTED: Final = ("inputs", "tasks", "locked", "carried")
"""Keys of a component that its specification takes as they are, and those that it takes as a tuple."""
OWN_KEYS: Final = ("name", "config", "set", "half", "groups", "arguments", "text_tokens", "scale")
KNOWN: Final = {*OWN_KEYS, *PLAIN, *LISTED}


def architecture(name: str, *, tiny: bool = False) -> Architecture:
    """The architecture of a name, with ``tiny`` also of the small ones for rehearsals.

    Raises:
        InputError: there is none.
    """
    known = ARCHITECTURES | TINY if tiny else ARCHITECTURES
    if name not in known:
        raise InputError(f"unknown model '{name}'; choose from {', '.join(known)}")
    return known[name]


def _architecture(entry: Mapping[str, Any]) -> Architecture:
    frames = (entry.get("frames", 1) - 1) // entry.get("frame_step", 1) + 1
    components = tuple(_component(component, frames) for component in entry["components"])
    return Architecture(**{"configs": "", **entry, "components": components})


def _component(entry: Mapping[str, Any], frames: int) -> ComponentSpec:
    """A component as its table has it; ``frames`` are latent ones."""
    assert entry.keys() <= KNOWN, f"{entry['name']}: unknown keys {sorted(entry.keys() - KNOWN)}"
    values = specs.CONFIGS[entry["config"]] | entry.get("set", {})
    file, own = ConfigFile(HERE, FrozenMapping(values)), OWN.get(values.get(CLASS))
    found = found_of(file, own) if own else find_class(file, **entry.get("arguments", {}))
    if "half" in entry:
        scale = entry.get("scale", specs.LATENT_SCALE)
        groups = entry.get("groups", ())
        spec = half_of(found, entry["name"], entry["half"], scale, groups=groups, frames=frames)
    else:
        scale = entry.get("scale", specs.LATENT_SCALE)
        asked = ConfigOptions(scale, scale, frames if frames > 1 else None, entry.get("text_tokens"), scale)
        spec = spec_of(request_of(found, asked), entry["name"])
        spec = replace(spec, ends=getattr(found.kind, "ends", {}))
    if not entry.get("trainable", False):
        spec = replace(spec, carried=())  # nobody cuts it
    said: dict[str, Any] = {key: entry[key] for key in PLAIN if key in entry}
    said |= {key: tuple(entry[key]) for key in LISTED if key in entry}
    return replace(spec, **said)


_MODELS: Final = tomllib.loads(HERE.read_text(encoding="utf-8"))
ARCHITECTURES: Final = {name: _architecture(entry) for name, entry in _MODELS["models"].items()}
TINY: Final = {name: _architecture(entry) for name, entry in _MODELS["tiny"].items()}
"""One model of each family, small enough that every layer can be timed on two CPU cores in seconds.

They are no published models; they are for rehearsing GPU runs and for teaching.
"""
