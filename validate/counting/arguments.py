"""Arguments: how to make each argument of a forward pass, by its name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from validate.counting.sizes import Request
from validate.counting.specs import CLASSES, step, tensor

Rule = Callable[[Request], object]

ABSENT: Final = object()
"""What a rule returns where a configuration does without the argument."""
KEYS: Final = CLASSES["keys"]
ROTARY_SIDE: Final = 384
"""Positions along each side of the table that Lumina's pipeline makes."""


def _shaped(shape: str, dtype: torch.dtype | None = None) -> Rule:
    return lambda request: tensor(*map(request.length, shape.split()), dtype=dtype)


def _latents(request: Request) -> object:
    return _states(request, request.number(*KEYS["channels"]))


def _states(request: Request, channels: int) -> object:
    """A tensor shaped like the latents, of some channels."""
    if request.packed or "rope_interpolation_scale" in request.parameters:
        return tensor(1, request.tokens, channels)
    sides = (request.rows, request.columns)
    if request.takes("visual_rope_pos"):
        channels = 2 * channels + 1 if request.config.get("visual_cond") else channels
        return tensor(1, request.frames, *sides, channels)
    if not request.framed:
        return tensor(1, channels, *sides)
    first = request.is_of("frames_first")
    return tensor(1, *((request.frames, channels) if first else (channels, request.frames)), *sides)


def _listed_latents(request: Request) -> object:
    """The latents of a class that takes one tensor per sample, or the image of one that takes nothing else."""
    if not request.takes("cap_feats"):
        return tensor(1, request.number(*KEYS["channels"]), request.height, request.width)
    return [tensor(request.number(*KEYS["channels"]), request.frames, request.rows, request.columns)]


def _tokens_or_latents(request: Request) -> object:
    """The prompt of a text encoder, or the numbers of the image tokens that a class draws itself."""
    if request.takes("micro_conds"):
        return tensor(1, request.rows, request.columns, dtype=torch.long)
    return tensor(1, request.text_tokens, dtype=torch.long)


def _time(request: Request) -> object:
    """The time step: an integer, but a real number where guidance is embedded, or where its precision is used."""
    real = "guidance" in request.parameters or "image_meta_size" in request.parameters
    return tensor(1) if real else step()


def _text(request: Request) -> object:
    if not any(request.config.get(key) for key in KEYS["text_widths"]):
        return ABSENT
    each = request.is_of("prompt_per_frame")
    return tensor(request.frames if each else 1, request.text_tokens, request.number(*KEYS["text_widths"]))


def _second_text(request: Request) -> object:
    if request.takes("encoder_hidden_states_llama3"):
        return _text(request)
    return tensor(1, request.number("text_len_t5"), request.number("cross_attention_dim_t5"))


def _text_of_layers(request: Request) -> object:
    """The states of every layer of a text encoder, of which a configuration names those that it takes."""
    widths, layers = request.config.get("caption_channels"), request.config.get("llama_layers")
    if not (isinstance(widths, list | tuple) and isinstance(layers, list | tuple) and layers):
        return ABSENT
    return [tensor(1, request.text_tokens, int(widths[-1])) for _ in range(max(layers) + 1)]


def _layers_of_text(request: Request) -> object:
    """One of a text encoder's states per block."""
    layers = request.number("num_layers") + request.number("num_single_layers")
    return [tensor(1, request.text_tokens, request.number("text_encoder_dim")) for _ in range(layers)]


def _classes(request: Request) -> object:
    config = request.config
    embedding = config.get("class_embed_type")
    if embedding in ("projection", "simple_projection"):
        return tensor(1, request.number("projection_class_embeddings_input_dim"))
    if embedding == "timestep" or config.get("num_class_embeds"):
        return step()
    classes = request.name == "DiTTransformer2DModel" or config.get("norm_type") == "ada_norm_zero"
    return step() if classes else ABSENT


def _conditions(request: Request) -> object:
    kind = request.config.get("addition_embed_type")
    if kind == "text_time":
        times = 6 * request.number("addition_time_embed_dim")
        pooled = request.number("projection_class_embeddings_input_dim") - times
        return {"text_embeds": tensor(1, pooled), "time_ids": tensor(1, 6)}
    if kind not in (None, "text"):
        raise request.found.file.fail(
            "addition_embed_type", "must be null, 'text' or 'text_time' to be counted"
        )
    if request.config.get("norm_type") != "ada_norm_single":
        return ABSENT
    asked = request.config.get("use_additional_conditions")
    if asked or (asked is None and request.config.get("sample_size") == 128):
        return {"resolution": tensor(1, 2), "aspect_ratio": tensor(1, 1)}
    return {"resolution": None, "aspect_ratio": None}


def _rotary(request: Request) -> object:
    config = request.config
    if request.takes("encoder_mask"):
        half = request.number("hidden_size") // request.number("num_attention_heads") // 2
        return tensor(ROTARY_SIDE, ROTARY_SIDE, half, dtype=torch.complex64)
    if config.get("use_rotary_positional_embeddings", "image_meta_size" in request.parameters):
        head = request.number("attention_head_dim")
        return (tensor(request.tokens, head), tensor(request.tokens, head))
    return ABSENT


def _ids(request: Request, tokens: int) -> object:
    """Positions, one number per axis of the rotary embedding."""
    if request.takes("img_sizes"):
        return ABSENT
    axes = request.config.get("axes_dims_rope")
    return tensor(tokens, len(axes) if isinstance(axes, list | tuple) else 3, dtype=torch.float32)


def _hint(request: Request) -> object:
    """The hint of a ControlNet: an image where it embeds one, else latents."""
    if request.framed:
        return _states(request, request.number("conditioning_channels", *KEYS["channels"]))
    if "conditioning_embedding_out_channels" not in request.config:
        extra = sum(request.config.get(key) or 0 for key in KEYS["extra_channels"])
        return _states(request, request.number(*KEYS["channels"]) + extra)
    hint = tensor(1, request.number("conditioning_channels"), request.height, request.width)
    return [hint] if request.takes("control_type_idx") else hint


def _attended(request: Request) -> object:
    """A mask that lets every token of text see every other, with contents, which many classes read."""
    if request.takes("input_img_latents"):
        tokens = request.text_tokens + 1 + request.tokens
        return torch.ones(1, tokens, tokens)
    return torch.ones(1, request.text_tokens, dtype=torch.bool)


def _attended_if_needed(request: Request) -> object:
    """A mask of text for a class that has no default; elsewhere it may be a mask of the image."""
    needed = request.parameters["attention_mask"].default is inspect.Parameter.empty
    return _attended(request) if needed else ABSENT


def _positions(request: Request) -> object:
    return torch.arange(request.text_tokens + 1 + request.tokens)[None]


def _grid(request: Request) -> object:
    frames, rows, columns = request.patch
    sides = (request.frames // frames, request.rows // rows, request.columns // columns)
    return [torch.arange(side) for side in sides]


def _micro_conditions(request: Request) -> object:
    return tensor(1, request.number("micro_cond_embed_dim") // request.number("micro_cond_encode_dim"))


def _image_states(request: Request) -> object:
    """The states of one image, of a configuration that takes some, with contents, which some classes read."""
    if not request.config.get("has_image_proj", True):
        return None
    found = [
        torch.ones(1, n, request.number(key)) for key, n in KEYS["image_tokens"].items() if request.has(key)
    ]
    return found[0] if found else ABSENT


def _sided(side: str) -> Rule:
    return lambda r: getattr(r, side) if "rope_interpolation_scale" in r.parameters else ABSENT


RULES: Final[Mapping[str, Rule]] = {
    **{name: _shaped(shape) for name, shape in CLASSES["tensors"].items()},
    **{name: _shaped(shape, torch.long) for name, shape in CLASSES["integers"].items()},
    "sample": _latents,
    "hidden_states": _latents,
    "x": _listed_latents,
    "timestep": _time,
    "timestep_r": lambda r: tensor(1) if r.config.get("use_meanflow") else ABSENT,
    "encoder_hidden_states": _text,
    "cap_feats": lambda r: [tensor(r.text_tokens, r.number("cap_feat_dim"))],
    "class_labels": _classes,
    "added_cond_kwargs": _conditions,
    "guidance": lambda r: tensor(1) if r.config.get("guidance_embeds") else ABSENT,
    "img_ids": lambda r: _ids(r, r.tokens),
    "txt_ids": lambda r: _ids(r, r.text_tokens),
    "img_shapes": lambda r: [(1, r.rows // 2, r.columns // 2)],
    "encoder_hidden_states_t5": _second_text,
    "encoder_hidden_states_llama3": _text_of_layers,
    "text_encoder_layers": _layers_of_text,
    "image_rotary_emb": _rotary,
    "num_frames": _sided("frames"),
    "height": _sided("rows"),
    "width": _sided("columns"),
    "controlnet_cond": _hint,
    "control_type_idx": lambda r: [0],
    "input_ids": _tokens_or_latents,
    "micro_conds": _micro_conditions,
    "visual_rope_pos": _grid,
    "text_rope_pos": lambda r: torch.arange(r.text_tokens),
    "input_img_latents": lambda r: [],
    "input_image_sizes": lambda r: {},
    "fps": lambda r: tensor(1) if r.takes("image_latents") else ABSENT,
    "image_latents": _latents,
    "prior_token_drop": lambda r: torch.zeros(1, dtype=torch.bool),
    "text_lens": lambda r: torch.tensor([r.text_tokens]),
    "indices_latents": lambda r: torch.arange(r.frames)[None],
}
SPARE: Final[Mapping[str, Rule]] = {
    **{name: _shaped(shape) for name, shape in CLASSES["spare"].items()},
    "encoder_attention_mask": _attended,
    "encoder_hidden_states_mask": _attended,
    "encoder_mask": _attended,
    "attention_mask": _attended_if_needed,
    "position_ids": _positions,
    "image_embeds": _image_states,
    "encoder_hidden_states_image": _image_states,
    "encoder_attention_mask_2": _attended,
    "control_hidden_states": lambda r: _states(r, r.number("vace_in_channels")),
    "conditioning_mask": lambda r: _states(r, 1),
    "cross_attention_kwargs": lambda r: {},
}
"""Rules of arguments that are left out where a class gives a default, unless a pass fails without them."""
NEEDED: Final[Mapping[str, Any]] = {
    "encoder_hidden_states": KEYS["text_widths"],
    "class_labels": ("num_class_embeds", "class_embed_type"),
}
"""Keys without which an argument is left out."""
