"""Recipes: the arguments of one forward pass of each class that is counted by its configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from profiles.errors import InputError
from profiles.measuring.counting.adapters import BACKBONE, TEXT, Found
from profiles.measuring.counting.config_files import ConfigOptions
from profiles.measuring.counting.networks import ControlledUNet, LockedEncoder, SteeredUNet
from profiles.measuring.counting.specs import (
    LATENT_SCALE,
    ComponentSpec,
    placed_prompt,
    prompt,
    step,
    tensor,
)

Arguments = dict[str, Any]
PIXEL_CHANNELS: Final = 3
LONGEST_PROMPT: Final = 512


@dataclass(frozen=True, slots=True)
class Request:
    """A class with its configuration, and the size of one sample: in pixels, ``scale`` of them per latent pixel.

    ``frames`` are of the latent, 1 for images.
    """

    found: Found
    recipe: "Recipe"
    height: int = 1
    width: int = 1
    frames: int = 1
    text_tokens: int = 0
    scale: int = 1

    @property
    def config(self) -> Mapping[str, Any]:
        """Every key of the class, with defaults for those that the file leaves out."""
        return self.found.config

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of the latent."""
        return self.height // self.scale, self.width // self.scale

    @property
    def patch(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns of one token."""
        key = self.recipe.patch
        size = self.config.get(key) if isinstance(key, str) else key
        sides: list[Any] = list(size) if isinstance(size, Sequence) else [size]
        if not all(type(side) is int and side > 0 for side in sides):
            raise self.found.file.fail(str(key), "must be a positive integer, or a list of them")
        frames = sides[0] if len(sides) == 3 else self.config.get("patch_size_t") or 1
        return (int(frames), int(sides[-2:][0]), int(sides[-1]))

    @property
    def token_pixels(self) -> int:
        """Pixels of one image token."""
        return self.patch[1] * self.patch[2] * self.scale**2

    @property
    def tokens(self) -> int:
        """Image tokens of all frames."""
        (frames, rows, columns), (height, width) = self.patch, self.sides
        return (self.frames // frames) * (height // rows) * (width // columns)

    def number(self, key: str) -> int:
        """The positive integer under a key."""
        value = self.config.get(key)
        if type(value) is not int or value < 1:
            raise self.found.file.fail(key, f"must be a positive integer for {self.found.kind.__name__}")
        return value

    def latent(self) -> Tensor:
        """The latent of one image."""
        return tensor(1, self.number("in_channels"), *self.sides)

    def video(self) -> Tensor:
        """The latent of one video."""
        return tensor(1, self.number("in_channels"), self.frames, *self.sides)

    def packed(self) -> Tensor:
        """The latent as tokens."""
        return tensor(1, self.tokens, self.number("in_channels"))

    def text(self, width: str) -> Tensor:
        """The states of one prompt, whose width is under a key."""
        return tensor(1, self.text_tokens, self.number(width))

    def attended(self) -> Tensor:
        """A mask that lets every text token attend to every other; it has contents, which the classes read."""
        return torch.ones(1, self.text_tokens, dtype=torch.bool)

    def sample(self) -> Arguments:
        """The arguments of one pass.

        Raises:
            InputError: a side is no multiple of a token's, or a key has another type.
        """
        for name, side, patch in (("height", self.height, 1), ("width", self.width, 2)):
            pixels = self.patch[patch] * self.scale
            if side % pixels:
                rule = f"must be a multiple of {pixels} pixels, one token"
                raise InputError(f"{self.found.file.path}: {name} is {side}, {rule}")
        return self.recipe.arguments(self)


class Recipe(NamedTuple):
    """How a class is called.

    ``patch`` is the key of the latent pixels along each side of one token, or their number; ``text_tokens`` the key of
    the tokens of a prompt, or their usual number.
    """

    arguments: Callable[[Request], Arguments]
    patch: str | int | tuple[int, int, int] = "patch_size"
    text_tokens: str | int = 256
    videos: bool = False


def _unet(r: Request) -> Arguments:
    sample: Arguments = {"sample": r.latent(), "timestep": step()}
    if r.config.get("cross_attention_dim"):
        width = "encoder_hid_dim" if r.config.get("encoder_hid_dim") else "cross_attention_dim"
        sample["encoder_hidden_states"] = r.text(width)
    if r.config.get("num_class_embeds"):
        sample["class_labels"] = step()
    kind = r.config.get("addition_embed_type")
    if kind == "text_time":
        times = 6 * r.number("addition_time_embed_dim")
        pooled = r.number("projection_class_embeddings_input_dim") - times
        sample["added_cond_kwargs"] = {"text_embeds": tensor(1, pooled), "time_ids": tensor(1, 6)}
    elif kind is not None:
        raise r.found.file.fail("addition_embed_type", "must be null or 'text_time' to be counted")
    return sample


def _cogvideox(r: Request) -> Arguments:
    channels, head = r.number("in_channels"), r.number("attention_head_dim")
    sample = {"hidden_states": tensor(1, r.frames, channels, *r.sides)}
    sample |= {"encoder_hidden_states": r.text("text_embed_dim"), "timestep": step()}
    rotary = r.config.get("use_rotary_positional_embeddings")
    places = {"image_rotary_emb": (tensor(r.tokens, head), tensor(r.tokens, head))}
    return {**sample, **(places if rotary else {})}


def _flux(r: Request) -> Arguments:
    axes = len(r.config["axes_dims_rope"])
    sample = {"hidden_states": r.packed(), "encoder_hidden_states": r.text("joint_attention_dim")}
    if "pooled_projection_dim" in r.config:  # not of the second generation
        sample["pooled_projections"] = tensor(1, r.number("pooled_projection_dim"))
    sample |= {"timestep": tensor(1), "img_ids": tensor(r.tokens, axes, dtype=torch.float32)}
    sample |= {"txt_ids": tensor(r.text_tokens, axes, dtype=torch.float32)}
    return sample | ({"guidance": tensor(1)} if r.config.get("guidance_embeds") else {})


def _hunyuan_dit(r: Request) -> Arguments:
    t5_tokens, head = r.number("text_len_t5"), r.number("attention_head_dim")
    return {
        "hidden_states": r.latent(),
        "timestep": tensor(1),
        "encoder_hidden_states": r.text("cross_attention_dim"),
        "text_embedding_mask": tensor(1, r.text_tokens),
        "encoder_hidden_states_t5": tensor(1, t5_tokens, r.number("cross_attention_dim_t5")),
        "text_embedding_mask_t5": tensor(1, t5_tokens),
        "image_meta_size": tensor(1, 6),
        "style": step(),
        "image_rotary_emb": (tensor(r.tokens, head), tensor(r.tokens, head)),
    }


def _hunyuan_video(r: Request) -> Arguments:
    sample = {
        "hidden_states": r.video(),
        "timestep": tensor(1),
        "encoder_hidden_states": r.text("text_embed_dim"),
        "encoder_attention_mask": r.attended(),
        "pooled_projections": tensor(1, r.number("pooled_projection_dim")),
    }
    return sample | ({"guidance": tensor(1)} if r.config.get("guidance_embeds") else {})


def _ltx(r: Request) -> Arguments:
    rows, columns = r.sides
    sample = {"hidden_states": r.packed(), "encoder_hidden_states": r.text("caption_channels")}
    sample |= {"timestep": step(), "encoder_attention_mask": r.attended()}
    return {**sample, "num_frames": r.frames, "height": rows, "width": columns}


def _mochi(r: Request) -> Arguments:
    sample = {"hidden_states": r.video(), "encoder_hidden_states": r.text("text_embed_dim")}
    return {**sample, "timestep": step(), "encoder_attention_mask": r.attended()}


def _pixart(r: Request) -> Arguments:
    sized = r.config.get("use_additional_conditions")
    sized = r.config.get("sample_size") == 128 if sized is None else sized
    conditions = {"resolution": tensor(1, 2), "aspect_ratio": tensor(1, 1)} if sized else None
    return {
        "hidden_states": r.latent(),
        "encoder_hidden_states": r.text("caption_channels"),
        "timestep": step(),
        "added_cond_kwargs": conditions or {"resolution": None, "aspect_ratio": None},
    }


def _qwen_image(r: Request) -> Arguments:
    rows, columns = r.sides
    sample = {"hidden_states": r.packed(), "encoder_hidden_states": r.text("joint_attention_dim")}
    return {**sample, "timestep": tensor(1), "img_shapes": [(1, rows // 2, columns // 2)]}


def _sd3(r: Request) -> Arguments:
    pooled = tensor(1, r.number("pooled_projection_dim"))
    text = {"encoder_hidden_states": r.text("joint_attention_dim"), "pooled_projections": pooled}
    return {"hidden_states": r.latent(), **text, "timestep": step()}


def _wan(r: Request) -> Arguments:
    return {"hidden_states": r.video(), "timestep": step(), "encoder_hidden_states": r.text("text_dim")}


def _z_image(r: Request) -> Arguments:
    latent = tensor(r.number("in_channels"), r.frames, *r.sides)
    return {"x": [latent], "t": tensor(1), "cap_feats": [tensor(r.text_tokens, r.number("cap_feat_dim"))]}


def _prompt(r: Request) -> Arguments:
    """The prompt of a text encoder; of a language model with places."""
    given = placed_prompt if r.config.get("num_key_value_heads") else prompt
    return given(r.text_tokens)


TEXT_ENCODER: Final = Recipe(_prompt, patch=1)
RECIPES: Final[Mapping[str, Recipe]] = {
    "AutoencoderKL": Recipe(lambda r: {"sample": r.latent()}, patch=1),
    "CogVideoXTransformer3DModel": Recipe(_cogvideox, text_tokens="max_text_seq_length", videos=True),
    "Flux2Transformer2DModel": Recipe(_flux, patch=2),
    "FluxTransformer2DModel": Recipe(_flux, patch=2, text_tokens=512),
    "HunyuanDiT2DModel": Recipe(_hunyuan_dit, text_tokens="text_len"),
    "HunyuanVideoTransformer3DModel": Recipe(_hunyuan_video, videos=True),
    "LTXVideoTransformer3DModel": Recipe(_ltx, videos=True),
    "MochiTransformer3DModel": Recipe(_mochi, videos=True),
    "PixArtTransformer2DModel": Recipe(_pixart, text_tokens=120),
    "QwenImageTransformer2DModel": Recipe(_qwen_image, patch=2),
    "SD3Transformer2DModel": Recipe(_sd3, text_tokens=333),
    "UNet2DConditionModel": Recipe(_unet, patch=1, text_tokens=77),
    "UNet2DModel": Recipe(_unet, patch=1),
    "WanTransformer3DModel": Recipe(_wan, videos=True),
    "ZImageTransformer2DModel": Recipe(_z_image, patch=2),
}
"""Classes of diffusers."""
OWN_RECIPES: Final[Mapping[str, Recipe]] = {
    "ControlledUNet": Recipe(lambda r: ControlledUNet.sample(r.height, r.width), patch=1),
    "LockedEncoder": Recipe(lambda r: LockedEncoder.sample(r.height, r.width), patch=1),
    "SteeredUNet": Recipe(lambda r: SteeredUNet.sample(r.height, r.width), patch=1),
    "UVit": Recipe(lambda r: {"sample": r.latent(), "timestep": step(), "label": step()}),
}
"""Classes that neither diffusers nor transformers has."""


def request_of(found: Found, asked: ConfigOptions) -> Request:
    """The size of a sample of a class, as asked or else as its configuration says.

    Raises:
        InputError: the class has no recipe, or neither says the size, or it does not fit the class.
    """
    if found.role == TEXT:
        return Request(found, TEXT_ENCODER, text_tokens=_prompt_of(found.config, asked))
    name = found.kind.__name__
    recipe = RECIPES.get(name) or OWN_RECIPES.get(name)
    if recipe is None:
        others = "any other module is counted from Python, by profiles.measuring.counting.module.count"
        rule = f"{name} has no recipe; choose from {', '.join(RECIPES)}; {others}"
        raise InputError(f"{found.file.path}: {rule}")
    said = recipe.text_tokens
    usual = found.config[said] if isinstance(said, str) else said
    height, width, scale = _size_of(found, asked)
    frames = _frames_of(found, asked, recipe.videos)
    return Request(found, recipe, height, width, frames, asked.text_tokens or usual, scale)


def spec_of(request: Request, name: str) -> ComponentSpec:
    """The component of a class, its layers found by structure."""
    found = request.found
    if found.role == TEXT:
        tokens = request.text_tokens
        return ComponentSpec(name, found.build, lambda *_: request.sample(), text_tokens=tokens, word="layer")
    spec = ComponentSpec(
        name,
        found.build,
        lambda height, width: replace(request, height=height, width=width).sample(),
        token_pixels=request.token_pixels,
        frames=max(request.frames // request.patch[0], 1),
    )
    return replace(spec, text_tokens=None, sums=None) if found.role == BACKBONE else spec


def _size_of(found: Found, asked: ConfigOptions) -> tuple[int, int, int]:
    file, name, channels = found.file, found.kind.__name__, found.config.get("in_channels")
    pixels = isinstance(channels, int) and channels <= PIXEL_CHANNELS
    scale = asked.latent_scale or (1 if pixels else LATENT_SCALE)
    size = found.config.get("sample_size")
    named = [found.config.get(key) for key in ("sample_height", "sample_width")]
    sides: list[Any] = list(size) if isinstance(size, list | tuple) else named if size is None else [size] * 2
    given = (asked.height, asked.width)
    known = [n or side * scale for n, side in zip(given, sides, strict=False) if n or type(side) is int]
    height, width = known if len(known) == 2 else given
    if height is None or width is None:
        raise InputError(f"{file.path}: sample_size is missing; give {name} --height and --width")
    for side, length in (("height", height), ("width", width)):
        if length < 1 or length % scale:
            raise InputError(f"{side} is {length}, must be a multiple of {scale} pixels, one latent pixel")
    return height, width, scale


def _frames_of(found: Found, asked: ConfigOptions, videos: bool) -> int:
    """Latent frames of one sample."""
    name = found.kind.__name__
    if not videos:
        if asked.frames not in (None, 1):
            raise InputError(f"--frames is {asked.frames}, but {name} makes images")
        return 1
    frames, ratio = found.config.get("sample_frames"), found.config.get("temporal_compression_ratio")
    known = (frames - 1) // ratio + 1 if isinstance(frames, int) and isinstance(ratio, int) else None
    if asked.frames is None and known is None:
        raise InputError(f"{found.file.path}: {name} makes videos; give the latent's --frames")
    return asked.frames or known or 1


def _prompt_of(config: Mapping[str, Any], asked: ConfigOptions) -> int:
    """Tokens of a text encoder's prompt: as asked, or as many as it has positions, up to 512."""
    positions = config.get("max_position_embeddings")
    longest = min(positions, LONGEST_PROMPT) if isinstance(positions, int) else LONGEST_PROMPT
    return asked.text_tokens or longest
