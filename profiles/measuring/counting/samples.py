"""Samples: the arguments of one forward pass, made from the signature of a class and its configuration.

Each argument has one rule, which either makes it, or says that this configuration does not take it. A class with an
argument that has neither rule nor default is not supported. Some classes fail with the default of an argument: then the
pass is tried with arguments in its place.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from profiles.errors import InputError
from profiles.measuring.counting.sizes import Request
from profiles.measuring.counting.specs import CLASSES, placed_prompt, prompt, step, tensor

Rule = Callable[[Request], object]

ABSENT: Final = object()
"""What a rule returns where a configuration does not take the argument."""
KEYS: Final = CLASSES["keys"]
REAL_TIME: Final = ("guidance", "image_meta_size")
"""Arguments beside which the time step is a real number: as guidance is embedded, or as its precision is used."""
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
    """The latents of a class that takes a list with one tensor per sample, or the image of one that takes no text."""
    if not request.takes("cap_feats"):
        return tensor(1, request.number(*KEYS["channels"]), request.height, request.width)
    return [tensor(request.number(*KEYS["channels"]), request.frames, request.rows, request.columns)]


def _tokens_or_latents(request: Request) -> object:
    """The prompt of a text encoder, or the token numbers of the image of a class that denoises those."""
    if request.takes("micro_conds"):
        return tensor(1, request.rows, request.columns, dtype=torch.long)
    return tensor(1, request.text_tokens, dtype=torch.long)


def _text(request: Request) -> object:
    if not any(request.config.get(key) for key in KEYS["text_widths"]):
        return ABSENT
    each = request.is_of("prompt_per_frame")
    return tensor(request.frames if each else 1, request.text_tokens, request.number(*KEYS["text_widths"]))


def _text_of_layers(request: Request) -> object:
    """The states of a text encoder's layers, up to the last that the configuration names."""
    widths, layers = request.config.get("caption_channels"), request.config.get("llama_layers")
    if not (isinstance(widths, list | tuple) and isinstance(layers, list | tuple) and layers):
        return ABSENT
    return [tensor(1, request.text_tokens, int(widths[-1])) for _ in range(max(layers) + 1)]


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
        rule = "must be null, 'text' or 'text_time' to be counted"
        raise request.found.file.fail("addition_embed_type", rule)
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
    """A mask that lets every text token attend to every other; it has contents, which many classes read."""
    if request.takes("input_img_latents"):
        tokens = request.text_tokens + 1 + request.tokens
        return torch.ones(1, tokens, tokens)
    return torch.ones(1, request.text_tokens, dtype=torch.bool)


def _attended_if_needed(request: Request) -> object:
    """A mask of text for a class that has no default; elsewhere it may be a mask of the image."""
    needed = request.parameters["attention_mask"].default is inspect.Parameter.empty
    return _attended(request) if needed else ABSENT


def _grid(request: Request) -> object:
    frames, rows, columns = request.patch
    sides = (request.frames // frames, request.rows // rows, request.columns // columns)
    return [torch.arange(side) for side in sides]


def _image_states(request: Request) -> object:
    """The states of one image where a configuration takes them; they have contents, which some classes read."""
    if not request.config.get("has_image_proj", True):
        return None
    there = ((key, n) for key, n in KEYS["image_tokens"].items() if request.has(key))
    return next((torch.ones(1, n, request.number(key)) for key, n in there), ABSENT)


def _sided(side: str) -> Rule:
    return lambda r: getattr(r, side) if "rope_interpolation_scale" in r.parameters else ABSENT


RULES: Final[Mapping[str, Rule]] = {
    **{name: _shaped(shape) for name, shape in CLASSES["tensors"].items()},
    **{name: _shaped(shape, torch.long) for name, shape in CLASSES["integers"].items()},
    "sample": _latents,
    "hidden_states": _latents,
    "x": _listed_latents,
    "timestep": lambda r: tensor(1) if any(name in r.parameters for name in REAL_TIME) else step(),
    "timestep_r": lambda r: tensor(1) if r.config.get("use_meanflow") else ABSENT,
    "encoder_hidden_states": _text,
    "cap_feats": lambda r: [tensor(r.text_tokens, r.number("cap_feat_dim"))],
    "class_labels": _classes,
    "added_cond_kwargs": _conditions,
    "guidance": lambda r: tensor(1) if r.config.get("guidance_embeds") else ABSENT,
    "img_ids": lambda r: _ids(r, r.tokens),
    "txt_ids": lambda r: _ids(r, r.text_tokens),
    "img_shapes": lambda r: [(1, r.rows // 2, r.columns // 2)],
    "encoder_hidden_states_t5": lambda r: (
        _text(r)
        if r.takes("encoder_hidden_states_llama3")
        else tensor(1, r.number("text_len_t5"), r.number("cross_attention_dim_t5"))
    ),
    "encoder_hidden_states_llama3": _text_of_layers,
    "text_encoder_layers": lambda r: [  # one of a text encoder's states per block
        tensor(1, r.text_tokens, r.number("text_encoder_dim"))
        for _ in range(r.number("num_layers") + r.number("num_single_layers"))
    ],
    "image_rotary_emb": _rotary,
    "num_frames": _sided("frames"),
    "height": _sided("rows"),
    "width": _sided("columns"),
    "controlnet_cond": _hint,
    "control_type_idx": lambda r: [0],
    "input_ids": _tokens_or_latents,
    "micro_conds": lambda r: tensor(1, r.number("micro_cond_embed_dim") // r.number("micro_cond_encode_dim")),
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
    "position_ids": lambda r: torch.arange(r.text_tokens + 1 + r.tokens)[None],
    "image_embeds": _image_states,
    "encoder_hidden_states_image": _image_states,
    "encoder_attention_mask_2": _attended,
    "control_hidden_states": lambda r: _states(r, r.number("vace_in_channels")),
    "conditioning_mask": lambda r: _states(r, 1),
    "cross_attention_kwargs": lambda r: {},
}
"""Rules of arguments that are left out at first where a class gives a default."""
NEEDED: Final[Mapping[str, Any]] = {
    "encoder_hidden_states": KEYS["text_widths"],
    "class_labels": ("num_class_embeds", "class_embed_type"),
}
"""Keys one of which an argument needs."""


NOTHING: Final = inspect.Parameter.empty
ELSEWHERE: Final = tuple(CLASSES["arguments"]["elsewhere"])
"""Ends of the names of arguments that no class needs for a plain pass."""


def samples_of(request: Request) -> Iterator[dict[str, Any]]:
    """Yield the arguments of one forward pass, and then, if they differ, those with the spare arguments too."""
    for name, side, patch in (("height", request.height, 1), ("width", request.width, 2)):
        pixels = request.patch[patch] * request.scale
        if side % pixels:
            rule = f"must be a multiple of {pixels} pixels, one token"
            raise InputError(f"{request.found.file.path}: {name} is {side}, {rule}")
    plain = _sample(request, RULES)
    yield plain
    whole = _sample(request, {**RULES, **SPARE})
    if whole.keys() != plain.keys():
        yield whole


def prompts_of(num_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield one prompt without contents, then one of equal tokens, then one with positions, as some encoders need."""
    yield prompt(num_tokens, 0, 0)
    yield {"input_ids": torch.full((1, num_tokens), 2)}
    yield placed_prompt(num_tokens)


def without_rule(kind: type[nn.Module]) -> list[str]:
    """The arguments of a class that no rule makes and whose default is None."""
    parameters = inspect.signature(kind.forward).parameters
    optional = [name for name, parameter in parameters.items() if parameter.default is None]
    return [name for name in optional if name not in {**RULES, **SPARE} and not name.endswith(ELSEWHERE)]


def shapes(sample: Mapping[str, Any]) -> str:
    """The shapes of a sample's arguments, in words."""
    return ", ".join(f"{name} {_shape(value)}" for name, value in sample.items())


def _sample(request: Request, rules: Mapping[str, Any]) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    for name, parameter in list(request.parameters.items())[1:]:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is NOTHING
        rule = rules.get(name) or (SPARE.get(name) if needed else None)
        value = _value(request, rule, needed) if rule else ABSENT
        if value is not ABSENT:
            sample[name] = value
        elif needed:
            keys = NEEDED.get(name)
            why = f"it needs one of the keys {', '.join(keys)}" if keys else "no rule makes it"
            where = f"{request.found.file.path}: {request.name}"
            raise InputError(f"{where} cannot be called without its argument '{name}': {why}")
    return sample


def _value(request: Request, rule: Any, needed: bool) -> object:  # noqa: ANN401  a function of a request
    """The argument that a rule makes; absent where the rule lacks a key and the class gives a default."""
    try:
        return rule(request)
    except InputError:
        if needed:
            raise
        return ABSENT


def _shape(value: object) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        return f"{len(value)} of {_shape(value[0])}"
    return "x".join(map(str, value.shape)) if isinstance(value, Tensor) else type(value).__name__
