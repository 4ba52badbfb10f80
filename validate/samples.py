"""Samples: the arguments of one forward pass, made from the signature of a class and its configuration.

Each argument has one rule, which either makes it, or says that this configuration does without. An argument
without a rule that has no default makes a class unsupported.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from profiles.errors import InputError
from validate.config_files import Asked, ConfigFile
from validate.specs import step, tensor

ABSENT: Final = object()
"""What a rule returns where a configuration does without the argument."""
TEXT_WIDTHS: Final = (
    "encoder_hid_dim",
    "caption_channels",
    "joint_attention_dim",
    "text_embed_dim",
    "text_dim",
    "cap_feat_dim",
    "text_embed_size",
    "cross_attention_dim",
    "encoder_hidden_dim",
)
"""Keys that give the width of the text's states, the first one that is set; a later one may be the inner width."""
TEXT_LENGTHS: Final = ("max_text_seq_length", "text_len", "text_seq_len")
UNET_TEXT: Final = 77
TRANSFORMER_TEXT: Final = {"FluxTransformer2DModel": 512, "SD3Transformer2DModel": 333, "PixArt": 120}
OTHER_TEXT: Final = 256
LONGEST_PROMPT: Final = 512
PACKED: Final = ("img_ids", "img_shapes")
"""Arguments of classes whose latents are packed into tokens by 2x2."""
FRAMES_FIRST: Final = ("CogVideoX", "ConsisID", "SpatioTemporal", "EasyAnimate")
"""Parts of the names of classes whose latents are (batch, frames, channels, ...)."""
FRAMED: Final = ("3D", "SpatioTemporal", "Latte", "UNetMotion")
"""Parts of the names of classes that take videos."""
LATENT_SCALE: Final = 8
PIXEL_CHANNELS: Final = 3


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
    """

    file: ConfigFile
    kind: type[nn.Module]
    config: Mapping[str, Any]
    height: int
    width: int
    frames: int
    text_tokens: int
    scale: int

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
        size = self.config.get("patch_size") or 1
        sides = list(size) if isinstance(size, Sequence) else [size, size]
        frames = sides[0] if len(sides) == 3 else self.config.get("patch_size_t") or 1
        return (int(frames), int(sides[-2]), int(sides[-1]))

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
        return any(name in self.parameters for name in PACKED)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The arguments of the forward pass."""
        return inspect.signature(self.kind.forward).parameters

    def number(self, *keys: str) -> int:
        """Return the first of some keys that is set to a number, or a list of numbers, of which the first.

        Raises:
            InputError: none is.
        """
        for key in keys:
            value = self.config.get(key)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        names = " or ".join(keys)
        raise InputError(
            f"{self.file.path}: {names} is missing, must be a positive integer for {self.kind.__name__}"
        )


def sample_of(request: Request) -> dict[str, Any]:
    """Return the arguments of one forward pass.

    Raises:
        InputError: an argument has neither a rule nor a default, a key that its rule needs is missing, or the
            pixels are no whole tokens.
    """
    _check_tokens(request)
    sample: dict[str, Any] = {}
    for name, parameter in list(request.parameters.items())[1:]:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is inspect.Parameter.empty
        value = RULES[name](request) if name in RULES else ABSENT
        if value is ABSENT and name in MASKS and needed:
            value = tensor(1, request.text_tokens, dtype=torch.bool)
        if value is not ABSENT:
            sample[name] = value
        elif needed:
            keys = NEEDED.get(name)
            why = f"it needs one of the keys {', '.join(keys)}" if keys else "no rule makes it"
            where = f"{request.file.path}: {request.kind.__name__}"
            raise InputError(f"{where} cannot be called without its argument '{name}': {why}")
    return sample


def _check_tokens(request: Request) -> None:
    for name, side, patch in (("height", request.height, 1), ("width", request.width, 2)):
        pixels = request.patch[patch] * request.scale
        if side % pixels:
            raise InputError(f"{name} is {side}, must be a multiple of {pixels} pixels, one token")


def _latents(request: Request) -> object:
    channels = request.number("in_channels", "num_channels")
    if request.packed or "rope_interpolation_scale" in request.parameters:
        return tensor(1, request.tokens, channels)
    if not framed(request.kind):
        return tensor(1, channels, request.rows, request.columns)
    first = any(part in request.kind.__name__ for part in FRAMES_FIRST)
    shape = (request.frames, channels) if first else (channels, request.frames)
    return tensor(1, *shape, request.rows, request.columns)


def framed(kind: type[nn.Module]) -> bool:
    """Return whether a class takes videos."""
    return any(part in kind.__name__ for part in FRAMED)


def _time(request: Request) -> object:
    """Return the time step: a number of steps, but a share where guidance is embedded, or its precision is used."""
    real = "guidance" in request.parameters or "image_meta_size" in request.parameters
    return tensor(1) if real else step()


def _text(request: Request) -> object:
    if not any(request.config.get(key) for key in TEXT_WIDTHS):
        return ABSENT
    return tensor(1, request.text_tokens, request.number(*TEXT_WIDTHS))


def _classes(request: Request) -> object:
    config = request.config
    embedding = config.get("class_embed_type")
    if embedding in ("projection", "simple_projection"):
        return tensor(1, request.number("projection_class_embeddings_input_dim"))
    if embedding == "timestep" or config.get("num_class_embeds"):
        return step()
    classes = request.kind.__name__ == "DiTTransformer2DModel" or config.get("norm_type") == "ada_norm_zero"
    return step() if classes else ABSENT


def _conditions(request: Request) -> object:
    kind = request.config.get("addition_embed_type")
    if kind == "text_time":
        times = 6 * request.number("addition_time_embed_dim")
        pooled = request.number("projection_class_embeddings_input_dim") - times
        return {"text_embeds": tensor(1, pooled), "time_ids": tensor(1, 6)}
    if kind not in (None, "text"):
        raise request.file.fail("addition_embed_type", "must be null, 'text' or 'text_time' to be counted")
    if request.config.get("norm_type") != "ada_norm_single":
        return ABSENT
    asked = request.config.get("use_additional_conditions")
    if asked or (asked is None and request.config.get("sample_size") == 128):
        return {"resolution": tensor(1, 2), "aspect_ratio": tensor(1, 1)}
    return {"resolution": None, "aspect_ratio": None}


def _rotary(request: Request) -> object:
    config = request.config
    if config.get("use_rotary_positional_embeddings", "image_meta_size" in request.parameters):
        head = request.number("attention_head_dim")
        return (tensor(request.tokens, head), tensor(request.tokens, head))
    return ABSENT


def _pooled(request: Request) -> object:
    return tensor(1, request.number("pooled_projection_dim", "pooled_dim"))


def _hint(request: Request) -> object:
    return tensor(1, request.number("conditioning_channels"), request.height, request.width)


def _second_text(request: Request) -> object:
    return tensor(1, request.number("text_len_t5"), request.number("cross_attention_dim_t5"))


def _prompt(request: Request) -> object:
    return tensor(1, request.text_tokens, dtype=torch.long)


def _picture(request: Request) -> object:
    side = request.number("image_size")
    return tensor(1, request.number("num_channels"), side, side)


MASKS: Final = ("encoder_attention_mask", "encoder_hidden_states_mask", "attention_mask")
RULES: Final[Mapping[str, Callable[[Request], object]]] = {
    "sample": _latents,
    "hidden_states": _latents,
    "timestep": _time,
    "encoder_hidden_states": _text,
    "class_labels": _classes,
    "added_cond_kwargs": _conditions,
    "pooled_projections": _pooled,
    "guidance": lambda r: tensor(1) if r.config.get("guidance_embeds") else ABSENT,
    "img_ids": lambda r: tensor(r.tokens, 3, dtype=torch.float32),
    "txt_ids": lambda r: tensor(r.text_tokens, 3, dtype=torch.float32),
    "img_shapes": lambda r: [(1, r.rows // 2, r.columns // 2)],
    "encoder_hidden_states_t5": _second_text,
    "text_embedding_mask": lambda r: tensor(1, r.text_tokens),
    "text_embedding_mask_t5": lambda r: tensor(1, r.number("text_len_t5")),
    "image_meta_size": lambda r: tensor(1, 6),
    "style": lambda r: step(),
    "image_rotary_emb": _rotary,
    "num_frames": lambda r: r.frames if "rope_interpolation_scale" in r.parameters else ABSENT,
    "height": lambda r: r.rows if "rope_interpolation_scale" in r.parameters else ABSENT,
    "width": lambda r: r.columns if "rope_interpolation_scale" in r.parameters else ABSENT,
    "original_size": lambda r: tensor(1, 2),
    "target_size": lambda r: tensor(1, 2),
    "crop_coords": lambda r: tensor(1, 2),
    "added_time_ids": lambda r: tensor(1, 3),
    "controlnet_cond": _hint,
    "input_ids": _prompt,
    "pixel_values": _picture,
}
NEEDED: Final = {
    "encoder_hidden_states": TEXT_WIDTHS,
    "class_labels": ("num_class_embeds", "class_embed_type"),
}
"""Keys without which an argument is left out."""


def size_of(
    file: ConfigFile, kind: type[nn.Module], config: Mapping[str, Any], asked: Asked
) -> tuple[int, int, int]:
    """Return height and width in pixels, and pixels per latent pixel.

    Raises:
        InputError: neither the configuration nor the command line says how large a sample is.
    """
    channels = config.get("in_channels")
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


def frames_of(file: ConfigFile, kind: type[nn.Module], config: Mapping[str, Any], asked: Asked) -> int:
    """Return the latent frames of one sample.

    Raises:
        InputError: a class of videos whose configuration does not say, or frames for a class of images.
    """
    if not framed(kind):
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
    if "UNet" in kind.__name__ or kind.__name__.startswith("ControlNet"):
        return UNET_TEXT
    known = [number for name, number in TRANSFORMER_TEXT.items() if kind.__name__.startswith(name)]
    return known[0] if known else OTHER_TEXT


def prompt_of(config: Mapping[str, Any], asked: Asked) -> int:
    """Return the tokens of a text encoder's prompt: as asked, or as many as it has positions, up to 512."""
    positions = config.get("max_position_embeddings")
    longest = min(positions, LONGEST_PROMPT) if isinstance(positions, int) else LONGEST_PROMPT
    return asked.text_tokens or longest
