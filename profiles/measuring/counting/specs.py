"""Specifications: how to build each component of a model and call it on one sample, and files that name classes."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from profiles.architectures.components import GRADIENTS, TASKS
from profiles.errors import InputError, shown
from profiles.files import load_toml, read_json
from profiles.mappings import FrozenMapping
from profiles.measuring.launching import check_least

LATENT_SCALE: Final = 8  # pixels per latent pixel, in each direction
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

HERE: Final = Path(__file__).parent
CLASSES: Final = load_toml(HERE / "classes.toml")
"""Names of arguments, keys and modules in the classes of the libraries."""
CONFIGS: Final[dict[str, dict[str, Any]]] = json.loads((HERE / "configs.json").read_text(encoding="utf-8"))
"""Configurations of the shipped models, as a user's own file would hold them."""

Sample = Callable[[int, int], dict[str, Any]]
"""From (height, width) in pixels to the keyword arguments of one sample's forward pass."""


class LayerSpec(NamedTuple):
    """A layer by the path of the module at whose return it ends; ``tally`` says what it then holds.

    The first ``streams`` tensors that the module returns are the hidden state. ``path`` is of the unit that it is.
    """

    name: str
    block: int
    end: str
    streams: int = 1
    path: str = ""


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """One component of a model.

    Attributes:
        name: what inputs and messages call it.
        build: makes its module.
        sample: the arguments of one pass.
        layers: in execution order; empty: those that its structure shows.
        token_pixels: pixels of one image token; 0 where the work does not depend on the pixels.
        trainable: whether it is a backbone.
        inputs: components whose output it needs.
        carried: arguments and submodules whose tensors every layer needs.
        self_conditioning: probability of the extra pass.
        cacheable: as ``profiles.architectures.components.Component.cacheable``.
        locked: submodules of a backbone that are not trained.
        gradients: as ``profiles.architectures.components.Component.gradients``.
        reads: inputs by the argument that holds them, where it matters which layers read them.
        sums: regular expression of the submodules whose output tensor parallelism sums; empty where exchanges are not
            counted.
        frames: latent frames of a video, each of as many image tokens.
        again: samples of further passes; their work adds up, of their bytes the largest count.
        word: names a block.
        names: replacements for parts of layers' names.
        ends: modules at whose return a layer ends, by the path of its unit, where they differ; the last layer then ends
            as all others do.
        resizes: whether ``sample`` has the size that it is asked for, not always its own.
        apart: whether each layer is a block of its own.
        experts: as ``profiles.architectures.components.Component.experts``.
    """

    name: str
    build: Callable[[], nn.Module]
    sample: Sample
    layers: tuple[LayerSpec, ...] = ()
    token_pixels: int = 0
    trainable: bool = False
    inputs: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    self_conditioning: float = 0.0
    cacheable: bool = True
    locked: tuple[str, ...] = ()
    gradients: str = GRADIENTS[0]
    reads: Mapping[str, str] = field(default_factory=dict)
    sums: str = ""
    tasks: tuple[str, ...] = TASKS
    frames: int = 1
    again: tuple[Sample, ...] = ()
    word: str = "block"
    names: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    apart: bool = False
    resizes: bool = True
    experts: int = 1

    def image_tokens(self, height: int, width: int) -> int:
        """Image tokens of one sample."""
        return self.frames * (height * width // self.token_pixels) if self.token_pixels else 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model: its components, and the resolution in pixels and the frames at which its tables are counted.

    Components stand after their inputs, and those that only sampling runs last. ``configs`` says where the
    configurations were published, ``remark`` what else the model file's source should say; both sides must be
    multiples of ``granularity`` pixels, up to ``largest``; ``dtype`` is of activations: a run's memory recipe
    has that of weights; ``guidance`` is ``batch`` with classifier-free guidance, ``embedded`` where its scale is an
    input, else ``none``; ``predictions`` are of a step with guidance; ``steps`` are those to which it was distilled;
    ``training`` and ``sizes`` are tables of the file. Frames are as ``profiles.architectures.models.Model`` has them.
    """

    title: str
    configs: str
    components: tuple[ComponentSpec, ...]
    height: int
    width: int
    granularity: int
    remark: str = ""
    dtype: str = "float16"
    largest: int | None = None
    guidance: str = "batch"
    frames: int = 1
    frame_step: int = 1
    frame_chunk: int | None = None
    predictions: int = 2
    steps: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)


def plain(name: str) -> dict[str, Any]:
    """A configuration of the shipped models without the name of its class."""
    return {key: value for key, value in CONFIGS[name].items() if key not in ("_class_name", "architectures")}


def tensor(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor without contents."""
    return torch.empty(shape, dtype=dtype, device="meta")


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
        return InputError(f"{self.path}: {key} is {shown(self.values[key])}, {rule}")

    @property
    def shape(self) -> dict[str, Any]:
        """The keys that shape the network: all but private ones and those in ``REMOTE``."""
        return {
            key: value for key, value in self.values.items() if key not in REMOTE and not key.startswith("_")
        }


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
