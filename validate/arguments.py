"""Arguments: how to make each argument of a forward pass, by its name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from validate.sizes import CHANNELS, Request
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
    "context_in_dim",
    "in_text_dim",
    "encoder_hidden_size",
    "cross_attention_dim",
    "encoder_hidden_dim",
)
"""Keys that give the width of the text's states, the first one that is set; a later one may be the inner width."""
EXTRA_CHANNELS: Final = ("extra_conditioning_channels", "extra_condition_channels")
FRAMES_FIRST: Final = ("CogVideoXTransformer", "ConsisIDTransformer", "SpatioTemporal")
"""Parts of the names of classes whose latents are (batch, frames, channels, ...)."""
IMAGE_TOKENS: Final = {"image_dim": 257, "image_embed_dim": 729, "image_proj_dim": 729}
"""Keys that give the width of an image's states, and their tokens: CLIP's of 224 and SigLIP's of 384 pixels."""
ROTARY_SIDE: Final = 384
"""Positions along each side of the table that Lumina's pipeline makes."""
PROMPT_PER_FRAME: Final = ("UNetMotion", "SparseControlNet")
"""Parts of the names of classes that are given the prompt once for each frame."""


def _latents(request: Request) -> object:
    return _states(request, request.number(*CHANNELS))


def _states(request: Request, channels: int) -> object:
    """Return what is shaped like the latents, of some channels."""
    if request.packed or "rope_interpolation_scale" in request.parameters:
        return tensor(1, request.tokens, channels)
    sides = (request.rows, request.columns)
    if request.takes("visual_rope_pos"):
        channels = 2 * channels + 1 if request.config.get("visual_cond") else channels
        return tensor(1, request.frames, *sides, channels)
    if not request.framed:
        return tensor(1, channels, *sides)
    first = any(part in request.kind.__name__ for part in FRAMES_FIRST)
    return tensor(1, *((request.frames, channels) if first else (channels, request.frames)), *sides)


def _listed_latents(request: Request) -> object:
    """Return the latents of a class that takes one tensor per sample, or the image of one that takes nothing else."""
    if not request.takes("cap_feats"):
        return tensor(1, request.number(*CHANNELS), request.height, request.width)
    return [tensor(request.number(*CHANNELS), request.frames, request.rows, request.columns)]


def _tokens_or_latents(request: Request) -> object:
    """Return the prompt of a text encoder, or the numbers of the image tokens that a class draws itself."""
    if request.takes("micro_conds"):
        return tensor(1, request.rows, request.columns, dtype=torch.long)
    return tensor(1, request.text_tokens, dtype=torch.long)


def _time(request: Request) -> object:
    """Return the time step: a number of steps, but a share where guidance is embedded, or its precision is used."""
    real = "guidance" in request.parameters or "image_meta_size" in request.parameters
    return tensor(1) if real else step()


def _text(request: Request) -> object:
    if not any(request.config.get(key) for key in TEXT_WIDTHS):
        return ABSENT
    each = any(part in request.kind.__name__ for part in PROMPT_PER_FRAME)
    return tensor(request.frames if each else 1, request.text_tokens, request.number(*TEXT_WIDTHS))


def _second_text(request: Request) -> object:
    if request.takes("encoder_hidden_states_llama3"):
        return _text(request)
    return tensor(1, request.number("text_len_t5"), request.number("cross_attention_dim_t5"))


def _text_of_layers(request: Request) -> object:
    """Return the states of every layer of a text encoder, of which a configuration names those that it takes."""
    widths, layers = request.config.get("caption_channels"), request.config.get("llama_layers")
    if not (isinstance(widths, list | tuple) and isinstance(layers, list | tuple) and layers):
        return ABSENT
    return [tensor(1, request.text_tokens, int(widths[-1])) for _ in range(max(layers) + 1)]


def _layers_of_text(request: Request) -> object:
    """Return one of a text encoder's states per block."""
    layers = request.number("num_layers") + request.number("num_single_layers")
    return [tensor(1, request.text_tokens, request.number("text_encoder_dim")) for _ in range(layers)]


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
    if request.takes("encoder_mask"):
        half = request.number("hidden_size") // request.number("num_attention_heads") // 2
        return tensor(ROTARY_SIDE, ROTARY_SIDE, half, dtype=torch.complex64)
    if config.get("use_rotary_positional_embeddings", "image_meta_size" in request.parameters):
        head = request.number("attention_head_dim")
        return (tensor(request.tokens, head), tensor(request.tokens, head))
    return ABSENT


def _pooled(request: Request) -> object:
    return tensor(1, request.number("pooled_projection_dim", "pooled_dim", "in_text_dim2"))


def _ids(request: Request, tokens: int) -> object:
    """Return positions, one number per axis of the rotary embedding."""
    if request.takes("img_sizes"):
        return ABSENT
    axes = request.config.get("axes_dims_rope")
    return tensor(tokens, len(axes) if isinstance(axes, list | tuple) else 3, dtype=torch.float32)


def _hint(request: Request) -> object:
    """Return what a ControlNet is given: an image where it embeds one, else latents."""
    if request.framed:
        return _states(request, request.number("conditioning_channels", *CHANNELS))
    if "conditioning_embedding_out_channels" not in request.config:
        extra = sum(request.config.get(key) or 0 for key in EXTRA_CHANNELS)
        return _states(request, request.number(*CHANNELS) + extra)
    hint = tensor(1, request.number("conditioning_channels"), request.height, request.width)
    return [hint] if request.takes("control_type_idx") else hint


def _attended(request: Request) -> object:
    """Return a mask that lets every token of text see every other, with contents, which many classes read."""
    if request.takes("input_img_latents"):
        tokens = request.text_tokens + 1 + request.tokens
        return torch.ones(1, tokens, tokens)
    return torch.ones(1, request.text_tokens, dtype=torch.bool)


def _attended_if_needed(request: Request) -> object:
    """Return a mask of text for a class that has no default; elsewhere it may be a mask of the image."""
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
    """Return the states of one image, of a configuration that takes some, with contents, which some classes read."""
    if not request.config.get("has_image_proj", True):
        return None
    found = [torch.ones(1, n, request.number(key)) for key, n in IMAGE_TOKENS.items() if request.has(key)]
    return found[0] if found else ABSENT


def _picture(request: Request) -> object:
    side = request.number("image_size")
    return tensor(1, request.number("num_channels"), side, side)


def _rows(request: Request) -> object:
    return request.rows if "rope_interpolation_scale" in request.parameters else ABSENT


def _columns(request: Request) -> object:
    return request.columns if "rope_interpolation_scale" in request.parameters else ABSENT


RULES: Final[Mapping[str, Callable[[Request], object]]] = {
    "sample": _latents,
    "hidden_states": _latents,
    "x": _listed_latents,
    "timestep": _time,
    "timesteps": lambda r: step(),
    "t": lambda r: tensor(1),
    "timestep_ratio": lambda r: tensor(1),
    "timestep_r": lambda r: tensor(1) if r.config.get("use_meanflow") else ABSENT,
    "r_timestep": lambda r: step(),
    "encoder_hidden_states": _text,
    "cap_feats": lambda r: [tensor(r.text_tokens, r.number("cap_feat_dim"))],
    "class_labels": _classes,
    "added_cond_kwargs": _conditions,
    "pooled_projections": _pooled,
    "pooled_embeds": lambda r: tensor(1, r.number("text_emb_dim")),
    "guidance": lambda r: tensor(1) if r.config.get("guidance_embeds") else ABSENT,
    "img_ids": lambda r: _ids(r, r.tokens),
    "txt_ids": lambda r: _ids(r, r.text_tokens),
    "img_shapes": lambda r: [(1, r.rows // 2, r.columns // 2)],
    "encoder_hidden_states_t5": _second_text,
    "encoder_hidden_states_llama3": _text_of_layers,
    "text_encoder_layers": _layers_of_text,
    "text_embedding_mask": lambda r: tensor(1, r.text_tokens),
    "text_embedding_mask_t5": lambda r: tensor(1, r.number("text_len_t5")),
    "image_meta_size": lambda r: tensor(1, 6),
    "style": lambda r: step(),
    "image_rotary_emb": _rotary,
    "num_frames": lambda r: r.frames if "rope_interpolation_scale" in r.parameters else ABSENT,
    "height": _rows,
    "width": _columns,
    "original_size": lambda r: tensor(1, 2),
    "target_size": lambda r: tensor(1, 2),
    "crop_coords": lambda r: tensor(1, 2),
    "added_time_ids": lambda r: tensor(1, 3),
    "controlnet_cond": _hint,
    "control_type": lambda r: tensor(1, r.number("num_control_type")),
    "control_type_idx": lambda r: [0],
    "input_ids": _tokens_or_latents,
    "pixel_values": _picture,
    "pooled_text_emb": lambda r: tensor(1, r.number("cond_embed_dim")),
    "micro_conds": _micro_conditions,
    "clip_text_pooled": lambda r: tensor(1, 1, r.number("clip_text_pooled_in_channels")),
    "clip_text": lambda r: tensor(1, r.text_tokens, r.number("clip_text_in_channels")),
    "clip_img": lambda r: tensor(1, 1, r.number("clip_image_in_channels")),
    "effnet": lambda r: tensor(1, r.number("effnet_in_channels"), r.rows, r.columns),
    "visual_rope_pos": _grid,
    "text_rope_pos": lambda r: torch.arange(r.text_tokens),
    "input_img_latents": lambda r: [],
    "input_image_sizes": lambda r: {},
    "fps": lambda r: tensor(1) if r.takes("image_latents") else ABSENT,
    "image_latents": _latents,
    "prior_token_id": lambda r: tensor(1, r.tokens, dtype=torch.long),
    "prior_token_drop": lambda r: torch.zeros(1, dtype=torch.bool),
    "text_bth": lambda r: tensor(1, r.text_tokens, r.number("text_in_dim")),
    "text_lens": lambda r: torch.tensor([r.text_tokens]),
    "indices_latents": lambda r: torch.arange(r.frames)[None],
}
SPARE: Final[Mapping[str, Callable[[Request], object]]] = {
    "encoder_attention_mask": _attended,
    "encoder_hidden_states_mask": _attended,
    "encoder_mask": _attended,
    "attention_mask": _attended_if_needed,
    "position_ids": _positions,
    "image_embeds": _image_states,
    "encoder_hidden_states_image": _image_states,
    "image_embeddings": lambda r: tensor(1, r.number("cross_attention_dim")),
    "encoder_hidden_states_2": lambda r: tensor(1, r.text_tokens, r.number("text_embed_2_dim")),
    "encoder_attention_mask_2": _attended,
    "control_hidden_states": lambda r: _states(r, r.number("vace_in_channels")),
    "conditioning_mask": lambda r: _states(r, 1),
    "cross_attention_kwargs": lambda r: {},
    "padding_mask": lambda r: tensor(1, 1, r.height, r.width),
}
"""Rules of arguments that are left out where a class gives a default, unless a pass fails without them."""
NEEDED: Final[Mapping[str, Any]] = {
    "encoder_hidden_states": TEXT_WIDTHS,
    "class_labels": ("num_class_embeds", "class_embed_type"),
}
"""Keys without which an argument is left out."""
