"""Sizes of one sample of a class, in pixels, frames and tokens, by its configuration or as asked."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from profiles.errors import InputError
from profiles.measuring.counting.adapters import IMAGE, TEXT, Found
from profiles.measuring.counting.config_files import ConfigOptions
from profiles.measuring.counting.specs import CLASSES, LATENT_SCALE

KEYS: Final = CLASSES["keys"]
NAME_PARTS: Final = CLASSES["kinds"]
ARGUMENTS: Final = CLASSES["arguments"]
UNET_TEXT: Final = 77
OTHER_TEXT: Final = 256
LONGEST_PROMPT: Final = 512
PIXEL_CHANNELS: Final = 3


@dataclass(frozen=True, slots=True)
class Request:
    """A class with its configuration, and the size of one sample: in pixels, ``scale`` of them per latent pixel.

    ``frames`` are of the latent, 1 for images; ``framed`` says whether the class takes videos.
    """

    found: Found
    height: int
    width: int
    frames: int = 1
    text_tokens: int = 0
    scale: int = 1
    framed: bool = False

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.found.kind.__name__

    @property
    def config(self) -> Mapping[str, Any]:
        """Every key of the class, with defaults for those that the file leaves out."""
        return self.found.config

    @property
    def rows(self) -> int:
        """Rows of the latent."""
        return self.height // self.scale

    @property
    def columns(self) -> int:
        """Columns of the latent."""
        return self.width // self.scale

    @property
    def patch(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns of one token."""
        if self.packed:
            return (1, 2, 2)
        key = next((key for key in KEYS["patches"] if self.config.get(key)), None)
        size = 1 if key is None else self.config[key]
        sides = list(size) if isinstance(size, Sequence) else [size]
        if not all(isinstance(side, int) and side > 0 for side in sides):
            raise self.found.file.fail(str(key), "must be a positive integer, or a list of them")
        frames = sides[0] if len(sides) == 3 else self._of(*KEYS["frame_patches"])
        return (int(frames), int(sides[-2:][0]), int(sides[-1]))

    @property
    def token_pixels(self) -> int:
        """Pixels of one image token."""
        return self.patch[1] * self.patch[2] * self.scale**2

    @property
    def tokens(self) -> int:
        """Image tokens of all frames."""
        frames, rows, columns = self.patch
        return (self.frames // frames) * (self.rows // rows) * (self.columns // columns)

    @property
    def packed(self) -> bool:
        """Whether the latents are packed into tokens by 2x2."""
        packs = any(name in self.parameters for name in ARGUMENTS["packed"])
        return packs and not self.takes(ARGUMENTS["patched"])

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The arguments of the forward pass."""
        return inspect.signature(self.found.kind.forward).parameters

    def number(self, *keys: str) -> int:
        """The value of the first of some keys that is set to a positive integer, or the first number of its list.

        Raises:
            InputError: none is.
        """
        if found := self._of(*keys, default=0):
            return found
        rule = f"{' or '.join(keys)} is missing, must be a positive integer for {self.name}"
        raise InputError(f"{self.found.file.path}: {rule}")

    def length(self, dimension: str) -> int:
        """The length of a dimension: a number, the name of a size of this request, or keys with ``|`` between them."""
        if dimension.isdigit():
            return int(dimension)
        return int(getattr(self, dimension, 0)) or self.number(*dimension.split("|"))

    def is_of(self, kind: str) -> bool:
        """Whether the name of the class says that it is of a kind of ``classes.toml``."""
        return any(part in self.name for part in NAME_PARTS[kind])

    def has(self, key: str) -> bool:
        """Whether a key is set to a number, or a list of numbers."""
        return self._of(key, default=0) > 0

    def takes(self, *names: str) -> bool:
        """Whether the forward pass takes all of some arguments."""
        return all(name in self.parameters for name in names)

    def _of(self, *keys: str, default: int = 1) -> int:
        for key in keys:
            value = self.config.get(key)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return default


def framed(kind: type[nn.Module]) -> bool:
    """Whether the name of a class says that it takes videos."""
    return any(part in kind.__name__ for part in NAME_PARTS["videos"])


def request_of(found: Found, asked: ConfigOptions, videos: bool) -> Request:
    """The size of a sample of a class, as asked or else as its configuration says.

    Raises:
        InputError: neither says it, or it does not fit the class.
    """
    if found.role == TEXT:
        tokens = prompt_of(found.config, asked)
        return Request(found, asked.height or 1, asked.width or 1, text_tokens=tokens)
    tokens = text_of(found.kind, found.config, asked)
    if found.role == IMAGE:
        side = found.config.get("image_size")
        if not isinstance(side, int):
            raise found.file.fail("image_size", f"must be a positive integer for {found.kind.__name__}")
        return Request(found, side, side, text_tokens=tokens)
    height, width, scale = _size_of(found, asked)
    return Request(found, height, width, _frames_of(found, asked, videos), tokens, scale, videos)


def _size_of(found: Found, asked: ConfigOptions) -> tuple[int, int, int]:
    file, name, config = found.file, found.kind.__name__, found.config
    if any(part in name for part in NAME_PARTS["sound"]):
        raise InputError(f"{file.path}: {name} is of sound, must be of images or videos")
    channels = next((config[key] for key in KEYS["channels"] if config.get(key)), None)
    pixels = isinstance(channels, int) and channels <= PIXEL_CHANNELS
    scale = asked.latent_scale or (1 if pixels else LATENT_SCALE)
    sides = _sides(config)
    height = asked.height or (sides[0] * scale if sides else None)
    width = asked.width or (sides[1] * scale if sides else None)
    if height is None or width is None:
        raise InputError(f"{file.path}: sample_size is missing; give {name} --height and --width")
    for side, length in (("height", height), ("width", width)):
        if length % scale:
            raise InputError(f"{side} is {length}, must be a multiple of {scale} pixels, one latent pixel")
    return height, width, scale


def _sides(config: Mapping[str, Any]) -> tuple[int, int] | None:
    size = config.get("sample_size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return int(size[0]), int(size[1])
    height, width = config.get("sample_height"), config.get("sample_width")
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _frames_of(found: Found, asked: ConfigOptions, videos: bool) -> int:
    """Latent frames of one sample; for an autoencoder, the frames that it is given."""
    name = found.kind.__name__
    if not videos:
        if asked.frames not in (None, 1):
            raise InputError(f"--frames is {asked.frames}, but {name} draws images")
        return 1
    if asked.frames is not None:
        return asked.frames
    frames, ratio = found.config.get("sample_frames"), found.config.get("temporal_compression_ratio")
    if isinstance(frames, int) and isinstance(ratio, int):
        return (frames - 1) // ratio + 1
    raise InputError(f"{found.file.path}: {name} draws videos; give the latent's --frames")


def text_of(kind: type[nn.Module], config: Mapping[str, Any], asked: ConfigOptions) -> int:
    """Tokens of one prompt: as asked, as the configuration says, or as usual for the class."""
    if asked.text_tokens is not None:
        return asked.text_tokens
    said = [int(config[key]) for key in KEYS["text_lengths"] if isinstance(config.get(key), int)]
    usual = [UNET_TEXT] if "UNet" in kind.__name__ else []
    known = [number for name, number in NAME_PARTS["prompts"].items() if kind.__name__.startswith(name)]
    return int([*said, *usual, *known, OTHER_TEXT][0])


def prompt_of(config: Mapping[str, Any], asked: ConfigOptions) -> int:
    """Tokens of a text encoder's prompt: as asked, or as many as it has positions, up to 512."""
    positions = config.get("max_position_embeddings")
    longest = min(positions, LONGEST_PROMPT) if isinstance(positions, int) else LONGEST_PROMPT
    return asked.text_tokens or longest
