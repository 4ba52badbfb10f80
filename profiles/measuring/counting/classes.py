"""Classes: from a configuration to the class that it names, and to the arguments of one pass of it.

Nothing of a file is executed: a class is looked up by its name in diffusers, transformers and this package, and built
from plain values. ``classes.toml`` says how each class is called; any other module is counted from Python, by
``sim.count``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import diffusers.models
import torch
import transformers
from diffusers.models.modeling_utils import ModelMixin
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from torch import Tensor, nn
from transformers import PreTrainedModel

from profiles.errors import InputError
from profiles.measuring.counting.networks import (
    ControlledUNet,
    HunyuanImage3,
    LockedEncoder,
    UVit,
    handed_over,
)
from profiles.measuring.counting.specs import (
    ARCHITECTURES,
    CLASS,
    CLASSES,
    LATENT_SCALE,
    ComponentSpec,
    ConfigFile,
    ConfigOptions,
    tensor,
)
from profiles.measuring.counting.trace import blamed

BACKBONE: Final = "backbone"
AUTOENCODER: Final = "autoencoder"
TEXT: Final = "text_encoder"
OWN: Final = {
    kind.__name__: kind for kind in (ControlledUNet, HunyuanImage3, LockedEncoder, LTX2TextConnectors, UVit)
}
"""Classes that are not among the models of diffusers and transformers."""
PIXEL_CHANNELS: Final = 3
FOLDING: Final = "AutoencoderKLWan"
"""Class that makes channels of squares of ``patch_size`` pixels before its encoder."""
OPAQUE: Final = "AutoencoderKLQwenImage21"
"""Class whose images also say how opaque each pixel is."""
LONGEST_PROMPT: Final = 512
KEPT: Final = 2
"""Passes of an autoencoder after which the number of frames that its convolutions keep no longer changes."""


@dataclass(frozen=True, slots=True)
class Network:
    """A class and its configuration, with defaults for the keys that the file leaves out.

    ``role`` is backbone, autoencoder or text_encoder.
    """

    file: ConfigFile
    kind: type[nn.Module]
    config: Mapping[str, Any]
    role: str
    build: Callable[[], nn.Module]

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.kind.__name__

    def blamed(self, failure: str) -> AbstractContextManager[None]:
        """Turn whatever the class raises into an InputError of one line."""
        return blamed(f"{self.file.path}: {self.name} {failure}")


def find_class(file: ConfigFile, **arguments: object) -> Network:
    """Return the class that a configuration names; ``arguments`` go to a class of transformers besides."""
    if CLASS in file.values:
        name = str(file.values[CLASS])
        kind: Any = OWN.get(name) or _model(file, CLASS, getattr(diffusers.models, name, None), ModelMixin)
        keys = {key: param.default for key, param in inspect.signature(kind).parameters.items()} | file.shape
        return Network(
            file, kind, keys, AUTOENCODER if "Autoencoder" in name else BACKBONE, lambda: kind(**file.shape)
        )
    names = file.values.get(ARCHITECTURES)
    if names is None:
        raise file.fail(CLASS, f"must name a class of diffusers ({ARCHITECTURES} one of transformers)")
    if not isinstance(names, list) or len(names) != 1:
        raise file.fail(ARCHITECTURES, "must be a list of one class")
    kind = _model(file, ARCHITECTURES, getattr(transformers, str(names[0]), None), PreTrainedModel)
    network = Network(file, kind, {}, TEXT, lambda: kind(config, **arguments))
    with network.blamed("refuses it"):
        config = kind.config_class.from_dict(file.shape)
    positions = getattr(config, "max_position_embeddings", None)
    return replace(network, config=config.to_dict() | {"max_position_embeddings": positions})


def _model(file: ConfigFile, key: str, kind: object, base: type) -> type:
    if isinstance(kind, type) and issubclass(kind, base):
        return kind
    raise file.fail(key, f"names no model of {base.__module__.partition('.')[0]}")


class Recipe(NamedTuple):
    """Arguments and sizes of one call of a class, what its layers need and what is summed, as in ``classes.toml``."""

    arguments: Mapping[str, Any]
    patch: str | int = "patch_size"
    text_tokens: str | int = 256
    videos: bool = False
    scale: int | None = None
    carried: Sequence[str] = ()
    sums: str = r"(transformer_)?blocks\.\d+\.(attn1?|ffn?)|single_transformer_blocks\.\d+"


RECIPES: Final = {name: Recipe(**entry) for name, entry in CLASSES["recipes"].items()}
MADE: Final[Mapping[str, Callable[..., object]]] = {
    "integers": partial(tensor, dtype=torch.long),
    "exact": partial(tensor, dtype=torch.float32),
    "ones": lambda *shape: torch.ones(shape, dtype=torch.bool),  # a mask has contents, which the classes read
    "zeros": torch.zeros,  # likewise
    "behind": lambda before, length: torch.arange(before + length)[None] >= before,  # likewise
    "range": lambda length: torch.arange(length)[None],  # places, which say that the prompt is one text
    "numbers": lambda *numbers: numbers,
    "sum": lambda *numbers: sum(numbers),
    "values": lambda *numbers: torch.tensor([numbers]),
}
"""Arguments that are no activations, by their kind, from dimensions."""


@dataclass(frozen=True, slots=True)
class Call:
    """A class called on one sample: its size in pixels, ``scale`` of them per latent pixel.

    ``frames`` are of the latent, 1 for images.
    """

    network: Network
    recipe: Recipe
    height: int = 1
    width: int = 1
    frames: int = 1
    text_tokens: int = 0
    scale: int = 1

    @property
    def patch(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns of one token."""
        config, key = self.network.config, self.recipe.patch
        size = config[key] if isinstance(key, str) else key
        sides = list(size) if isinstance(size, Sequence) else [size]
        frames = sides[0] if len(sides) == 3 else config.get("patch_size_t") or 1
        return int(frames), int(sides[-2:][0]), int(sides[-1])

    @property
    def token_frames(self) -> int:
        """Frames of tokens."""
        return max(self.frames // self.patch[0], 1)

    def _sizes(self) -> dict[str, int]:
        """Sizes of the sample by the names that dimensions of arguments have."""
        rows, columns = self.height // self.scale, self.width // self.scale
        down, across = rows // self.patch[1], columns // self.patch[2]
        tokens = self.token_frames * down * across
        sizes = {name: getattr(self, name) for name in ("height", "width", "frames", "text_tokens")}
        sizes |= {"rows": rows, "columns": columns, "token_rows": down, "token_columns": across}
        return sizes | {"tokens": tokens, "quarter": tokens // 4}

    def sample(self, height: int, width: int) -> dict[str, Any]:
        """Return the arguments of one pass at a size in pixels."""
        for name, side, patch in (("height", height, 1), ("width", width, 2)):
            pixels = self.patch[patch] * self.scale
            if side % pixels:
                rule = f"must be a multiple of {pixels} pixels, one token"
                raise InputError(f"{self.network.file.path}: {name} is {side}, {rule}")
        call = replace(self, height=height, width=width)
        sample = {name: call._argument(form) for name, form in self.recipe.arguments.items()}
        sample = {name: argument for name, argument in sample.items() if argument is not None}
        return sample | (handed_over(sample) if self.network.kind is ControlledUNet else {})

    def _size(self, dimension: Any) -> int:  # noqa: ANN401  of classes.toml
        """Return a dimension: a number, a size of the sample, what is under a key, of a list its length; or a sum."""
        if isinstance(dimension, list):
            return sum(map(self._size, dimension))
        config, value = self.network.config, dimension
        if dimension == "pooled":  # beside the embedded sizes of the image
            time = self._size("addition_time_embed_dim")
            value = self._size("projection_class_embeddings_input_dim") - 6 * time
        elif dimension == "prompt_width":  # before a projection to that of attention where there is one
            value = self._size("encoder_hid_dim" if config.get("encoder_hid_dim") else "cross_attention_dim")
        elif isinstance(dimension, str):
            value = self._sizes().get(dimension, config.get(dimension))
        value = len(value) if isinstance(value, list | tuple) else value
        if type(value) is not int or value < 1:
            raise self.network.file.fail(
                str(dimension), f"must be a positive integer for {self.network.name}"
            )
        return value

    def _argument(self, form: Any) -> Any:  # noqa: ANN401  of classes.toml
        if isinstance(form, str | int):
            return self._size(form)
        if isinstance(form, list):
            return tensor(*map(self._size, form))
        if "if" in form:
            return self._argument(form["is"]) if self.network.config.get(form["if"]) else None
        for kind, inner in form.items():
            if kind in MADE:
                return MADE[kind](*map(self._size, inner))
            if kind == "list":
                return [self._argument(item) for item in inner]
        return {name: self._argument(value) for name, value in form.items()}


def call_of(network: Network, options: ConfigOptions) -> Call:
    """Return the call of a class on a sample of the size that is asked for, or else that its configuration says."""
    config, recipe = network.config, RECIPES.get(network.name)
    if network.role == TEXT:
        positions = config["max_position_embeddings"]
        longest = min(positions, LONGEST_PROMPT) if isinstance(positions, int) else LONGEST_PROMPT
        return Call(network, recipe or RECIPES[TEXT], text_tokens=options.text_tokens or longest)
    if recipe is None:
        others = "any other module is counted from Python, by sim.count"
        known = ", ".join(sorted(RECIPES))
        raise InputError(f"{network.file.path}: {network.name} has no recipe; choose from {known}; {others}")
    usual = config[recipe.text_tokens] if isinstance(recipe.text_tokens, str) else recipe.text_tokens
    channels = config.get("in_channels")
    pixels = isinstance(channels, int) and channels <= PIXEL_CHANNELS
    scale = options.latent_scale or recipe.scale or (1 if pixels else LATENT_SCALE)
    height, width = _sides(network, options, scale)
    frames = _frames(network, options) if recipe.videos else 1
    if options.frames not in (None, 1) and not recipe.videos:
        raise InputError(f"--frames is {options.frames}, but {network.name} makes images")
    return Call(network, recipe, height, width, frames, options.text_tokens or usual, scale)


def _sides(network: Network, options: ConfigOptions, scale: int) -> tuple[int, int]:
    """Height and width in pixels."""
    config, size = network.config, network.config.get("sample_size")
    sides = [config.get("sample_height"), config.get("sample_width")] if size is None else size
    sides = list(sides) if isinstance(sides, list | tuple) else [sides, sides]
    known = [side * scale if isinstance(side, int) else None for side in sides]
    height, width = options.height or known[0], options.width or known[-1]
    if height is None or width is None:
        rule = f"sample_size is missing; give {network.name} --height and --width"
        raise InputError(f"{network.file.path}: {rule}")
    return height, width


def _frames(network: Network, options: ConfigOptions) -> int:
    """Latent frames of a video."""
    frames, ratio = (network.config.get(key) for key in ("sample_frames", "temporal_compression_ratio"))
    if options.frames is not None:
        return options.frames
    if not isinstance(frames, int) or not isinstance(ratio, int):
        raise InputError(f"{network.file.path}: {network.name} makes videos; give the latent's --frames")
    return (frames - 1) // ratio + 1


def spec_of(call: Call, name: str) -> ComponentSpec:
    """Return the component of a class, its layers found by structure."""
    network = call.network
    spec = ComponentSpec(name, network.build, call.sample, ends=getattr(network.kind, "ends", {}))
    if network.role == TEXT:
        return replace(spec, word="layer")
    spec = replace(spec, token_pixels=call.patch[1] * call.patch[2] * call.scale**2, frames=call.token_frames)
    return replace(spec, carried=tuple(call.recipe.carried), sums=call.recipe.sums)


class Half(nn.Module):
    """The named modules of an autoencoder, one after the other: from images to moments of latents, or back.

    Those that it does not have are left out.
    """

    def __init__(self, autoencoder: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        for name in names:
            if isinstance(getattr(autoencoder, name, None), nn.Module):  # not all have a convolution beside
                self.add_module(name, autoencoder.get_submodule(name))

    def forward(self, hidden: Tensor, **kept: Any) -> object:  # noqa: ANN401  what the class calls it with
        """Encode or decode, as the whole autoencoder does; ``kept`` is what it has of frames before."""
        for name, part in self.named_children():
            hidden = part(hidden, **({} if "quant" in name else kept))
        return hidden

    def after(self, passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what its convolutions keep of earlier passes' frames, or that there were none, as its class asks."""
        (main,) = (part for name, part in self.named_children() if "quant" not in name)
        takes = inspect.signature(main.forward).parameters
        first = {"first_chunk": True} if "first_chunk" in takes else {}
        if not passes or "feat_cache" not in takes:
            return {} if passes else first
        kept: list[Any] = [None] * sum(isinstance(part, nn.Conv3d) for part in main.modules())
        for number, arguments in enumerate(passes):
            self(**arguments, **({} if number else first), feat_cache=kept, feat_idx=[0])
        return {"feat_cache": kept, "feat_idx": [0]}


def half_of(
    network: Network, name: str, half: str, scale: int, *, groups: Sequence[int] = (), frames: int = 1
) -> ComponentSpec:
    """Return the frozen encoder (of images, for training) or decoder (of latents, for sampling) of an autoencoder.

    ``scale`` is in pixels per latent pixel; ``groups`` are the frames of a video that each pass takes, latent ones for
    a decoder; ``frames`` are all latent frames. Passes after the third are like the third if they take as many frames.
    """
    encodes, config = half == "encoder", network.config
    folded = (config.get("patch_size") or 1) if network.name == FOLDING else 1
    pixels = config["in_channels"] if network.name == OPAQUE else PIXEL_CHANNELS
    channels = pixels * folded**2 if encodes else config.get("latent_channels") or config["z_dim"]
    names = ("encoder", "quant_conv") if encodes else ("post_quant_conv", "decoder")
    divisor = folded if encodes else scale

    def sample(before: tuple[int, ...], frames: tuple[int, ...], height: int, width: int) -> dict[str, Any]:
        sides = (height // divisor, width // divisor)
        each = (frames, *((n,) for n in before))
        here, *earlier = ({"hidden": tensor(1, channels, *dims, *sides)} for dims in each)
        with torch.device("meta"), torch.no_grad():
            return here | Half(network.build(), names).after(earlier)

    samples = [((), ())] if not groups else [(tuple(groups[:i][:KEPT]), (n,)) for i, n in enumerate(groups)]
    known = {key: partial(sample, *key) for key in dict.fromkeys(samples)}
    first, *others = (known[key] for key in samples)
    return ComponentSpec(
        name,
        lambda: Half(network.build(), names),
        first,
        token_pixels=scale**2,
        tasks=("train",) if encodes else ("sample",),
        frames=frames,
        again=tuple(others),
        names={f"{half}.": ""},
        apart=True,
    )
