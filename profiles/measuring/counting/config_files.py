"""Configurations: ``config.json`` files of architectures, read without torch and without running anything in them."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.errors import InputError
from profiles.files import read_json
from profiles.mappings import FrozenMapping
from profiles.measuring.launching import check_least

CLASS: Final = "_class_name"
ARCHITECTURES: Final = "architectures"
REMOTE: Final = (
    "auto_map", "attn_implementation", "experts_implementation", "quantization_config", "torch_dtype", "dtype",
)  # fmt: skip
"""Keys that would load code or kernels from elsewhere, or say how weights are stored: they change no count."""

SIZES: Final = ("frames", "text_tokens", "latent_scale")
OWN: Final = ("name", *SIZES)
"""Options that go with files of the user's own."""


class ConfigFile(NamedTuple):
    """One configuration: where it stands, and its keys."""

    path: Path
    values: FrozenMapping[str, Any]

    def fail(self, key: str, rule: str) -> InputError:
        """The error that says which key breaks which rule."""
        if key not in self.values:
            return InputError(f"{self.path}: {key} is missing, {rule}")
        return InputError(f"{self.path}: {key} is {json.dumps(self.values[key])[:80]}, {rule}")

    @property
    def shape(self) -> dict[str, Any]:
        """The keys that shape the network: all but private ones and those in ``REMOTE``."""
        kept = {key: value for key, value in self.values.items() if key not in REMOTE}
        return {key: value for key, value in kept.items() if not key.startswith("_")}


def read_config(path: Path) -> ConfigFile:
    """Read a configuration; a folder stands for the ``config.json`` in it."""
    path = path / "config.json" if path.is_dir() else path
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: is a {type(values).__name__}, must be one JSON object")
    return ConfigFile(path, FrozenMapping(values))


@dataclass(frozen=True, slots=True)
class ConfigOptions:
    """Options of the command line beside the files; None where a default holds.

    Height and width are in pixels, frames of the latent, ``latent_scale`` in pixels per latent pixel along each side.
    """

    height: int | None = None
    width: int | None = None
    frames: int | None = None
    text_tokens: int | None = None
    latent_scale: int | None = None
    dtype: str = "float16"

    def __post_init__(self) -> None:
        """Refuse numbers below one."""
        check_least(
            *((f"--{key.replace('_', '-')}", getattr(self, key), 1) for key in ("height", "width", *SIZES))
        )


def asked_of(options: argparse.Namespace, dtype: str) -> ConfigOptions:
    """The options of a command line beside its files."""
    return ConfigOptions(**{key: getattr(options, key) for key in ("height", "width", *SIZES)}, dtype=dtype)


def check_alone(options: argparse.Namespace, keys: Sequence[str] = SIZES) -> None:
    """Refuse flags for the user's own files beside ``--model``."""
    for key in keys:
        if getattr(options, key) is not None:
            raise InputError(f"--{key.replace('_', '-')} goes with --config, not with --model")
