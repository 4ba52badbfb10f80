"""Sizes: how large one sample of a class is, in pixels, frames and tokens, by its configuration or as asked."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from profiles.errors import InputError
from validate.config_files import Asked, ConfigFile

TEXT_LENGTHS: Final = ("max_text_seq_length", "text_len", "text_seq_len")
UNET_TEXT: Final = 77
TRANSFORMER_TEXT: Final = {"FluxTransformer2DModel": 512, "SD3Transformer2DModel": 333, "PixArt": 120}
OTHER_TEXT: Final = 256
LONGEST_PROMPT: Final = 512
PACKED: Final = ("img_ids", "img_shapes")
"""Arguments of classes whose latents are packed into tokens by 2x2."""
PATCHED: Final = "img_sizes"
"""An argument of classes that pack latents by themselves, though they may be given packed ones."""
FRAMED: Final = ("3D", "SpatioTemporal", "Latte", "UNetMotion", "SparseControlNet", "I2VGenXL")
"""Parts of the names of classes that take videos."""
SOUND: Final = ("1D", "Audio", "AceStep", "Music", "Vocoder", "Oobleck", "T5Film")
"""Parts of the names of classes whose samples have one side."""
LATENT_SCALE: Final = 8
PIXEL_CHANNELS: Final = 3
CHANNELS: Final = ("in_channels", "num_channels", "in_visual_dim", "input_channels")
PATCHES: Final = ("patch_size", "all_patch_size")
FRAME_PATCHES: Final = ("patch_size_t", "all_f_patch_size")


@dataclass(frozen=True, slots=True)
class Request:
    """A class, its configuration, and the size of one sample.

    Attributes:
        file: where the configuration stands.
        kind: the class.
        config: every key of the class, those that the file leaves out at their defaults.
        height: pixels.
        width: pixels.
        frames: of the latent; 1 for images.
        text_tokens: of one prompt.
        scale: pixels per latent pixel, along each side.
        framed: whether the class takes videos.
    """

    file: ConfigFile
    kind: type[nn.Module]
    config: Mapping[str, Any]
    height: int
    width: int
    frames: int
    text_tokens: int
    scale: int
    framed: bool = False

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
        size = next((self.config[key] for key in PATCHES if self.config.get(key)), 1)
        sides = list(size) if isinstance(size, Sequence) else [size]
        frames = sides[0] if len(sides) == 3 else self._of(*FRAME_PATCHES)
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
        return any(name in self.parameters for name in PACKED) and PATCHED not in self.parameters

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The arguments of the forward pass."""
        return inspect.signature(self.kind.forward).parameters

    def number(self, *keys: str) -> int:
        """Return the first of some keys that is set to a number, or a list of numbers, of which the first.

        Raises:
            InputError: none is.
        """
        found = self._of(*keys, default=0)
        if found:
            return found
        names = " or ".join(keys)
        raise InputError(
            f"{self.file.path}: {names} is missing, must be a positive integer for {self.kind.__name__}"
        )

    def has(self, key: str) -> bool:
        """Return whether a key is set to a number, or a list of numbers."""
        return self._of(key, default=0) > 0

    def takes(self, *names: str) -> bool:
        """Return whether the forward pass takes all of some arguments."""
        return all(name in self.parameters for name in names)

    def _of(self, *keys: str, default: int = 1) -> int:
        for key in keys:
            value = self.config.get(key)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return default


def framed(kind: type[nn.Module]) -> bool:
    """Return whether a class takes videos by its name."""
    return any(part in kind.__name__ for part in FRAMED)


def convolves_frames(module: nn.Module) -> bool:
    """Return whether a network's first convolution is one of videos."""
    convolutions = (part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Conv3d))
    return isinstance(next(convolutions, None), nn.Conv3d)


def size_of(
    file: ConfigFile, kind: type[nn.Module], config: Mapping[str, Any], asked: Asked
) -> tuple[int, int, int]:
    """Return height and width in pixels, and pixels per latent pixel.

    Raises:
        InputError: neither the configuration nor the command line says how large a sample is, or it is sound.
    """
    if any(part in kind.__name__ for part in SOUND):
        raise InputError(f"{file.path}: {kind.__name__} is of sound, must be of images or videos")
    channels = next((config[key] for key in CHANNELS if config.get(key)), None)
    pixels = isinstance(channels, int) and channels <= PIXEL_CHANNELS
    scale = asked.latent_scale or (1 if pixels else LATENT_SCALE)
    sides = _sides(config)
    height = asked.height or (sides[0] * scale if sides else None)
    width = asked.width or (sides[1] * scale if sides else None)
    if height is None or width is None:
        raise InputError(f"{file.path}: sample_size is missing; give {kind.__name__} --height and --width")
    for name, side in (("height", height), ("width", width)):
        if side % scale:
            raise InputError(f"{name} is {side}, must be a multiple of {scale} pixels, one latent pixel")
    return height, width, scale


def _sides(config: Mapping[str, Any]) -> tuple[int, int] | None:
    size = config.get("sample_size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return int(size[0]), int(size[1])
    height, width = config.get("sample_height"), config.get("sample_width")
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def frames_of(
    file: ConfigFile, kind: type[nn.Module], config: Mapping[str, Any], asked: Asked, videos: bool
) -> int:
    """Return the latent frames of one sample; of an autoencoder those that it is given.

    Raises:
        InputError: a class of videos whose configuration does not say, or frames for a class of images.
    """
    if not videos:
        if asked.frames not in (None, 1):
            raise InputError(f"--frames is {asked.frames}, but {kind.__name__} draws images")
        return 1
    frames, ratio = config.get("sample_frames"), config.get("temporal_compression_ratio")
    if asked.frames is None and isinstance(frames, int) and isinstance(ratio, int):
        return (frames - 1) // ratio + 1
    if asked.frames is None:
        raise InputError(f"{file.path}: {kind.__name__} draws videos; give the latent's --frames")
    return asked.frames


def text_of(kind: type[nn.Module], config: Mapping[str, Any], asked: Asked) -> int:
    """Return the tokens of one prompt: as asked, as the configuration says, or as usual for the class."""
    if asked.text_tokens is not None:
        return asked.text_tokens
    for key in TEXT_LENGTHS:
        if isinstance(config.get(key), int):
            return int(config[key])
    if "UNet" in kind.__name__ or kind.__name__.startswith(("ControlNet", "UVit")):
        return UNET_TEXT
    known = [number for name, number in TRANSFORMER_TEXT.items() if kind.__name__.startswith(name)]
    return known[0] if known else OTHER_TEXT


def prompt_of(config: Mapping[str, Any], asked: Asked) -> int:
    """Return the tokens of a text encoder's prompt: as asked, or as many as it has positions, up to 512."""
    positions = config.get("max_position_embeddings")
    longest = min(positions, LONGEST_PROMPT) if isinstance(positions, int) else LONGEST_PROMPT
    return asked.text_tokens or longest
