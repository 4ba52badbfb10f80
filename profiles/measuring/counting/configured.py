"""Architectures: those of the zoo, and of the user's own files; all are classes of known recipes, configured.

Layers are the blocks that the structure of a module shows, in the order in which one pass runs them. A new model of the
zoo is one more table in ``zoo.toml``, with its configurations in ``configs.json``; it needs no weights.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from profiles.architectures.models import latent_frames
from profiles.errors import InputError
from profiles.files import load_toml
from profiles.mappings import FrozenMapping
from profiles.measuring.counting.classes import (
    AUTOENCODER,
    BACKBONE,
    TEXT,
    Call,
    Network,
    call_of,
    find_class,
    half_of,
    spec_of,
)
from profiles.measuring.counting.component import ModelCount, count_model
from profiles.measuring.counting.specs import (
    CONFIGS,
    LATENT_SCALE,
    Architecture,
    ComponentSpec,
    ConfigFile,
    ConfigOptions,
)
from profiles.names import MODEL, known_name, unknown_name

NAMES: Final = {BACKBONE: "transformer", AUTOENCODER: "vae", TEXT: "text_encoder"}


def slug(title: str) -> str:
    """A title as a name: its letters and digits in lower case."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def count_configured(files: Sequence[ConfigFile], options: ConfigOptions) -> ModelCount:
    """Count the architectures of files: one backbone with its frozen encoders, or one encoder by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in the libraries concern their callers' arguments
        networks = dict(_named([find_class(file) for file in files]))
        name = _main(networks)
        main = networks.pop(name)
        with main.blamed("cannot be counted"):
            return count_model(_configured(main, name, networks, options))


def _configured(
    main: Network, name: str, others: Mapping[str, Network], options: ConfigOptions
) -> Architecture:
    """The architecture of a network that is trained and of frozen ones beside it."""
    call, calls = call_of(main, options), dict[str, Call]()
    vaes = {other: network for other, network in others.items() if network.role == AUTOENCODER}
    for other in (other for other in others if other not in vaes):
        # the backbone's prompts, up to an encoder's own positions
        longest = min(call_of(others[other], ConfigOptions()).text_tokens, call.text_tokens)
        calls[other] = call_of(others[other], replace(options, text_tokens=longest))
    inputs = tuple(f"{other}_encoder" if other in vaes else other for other in others)
    encoders = [_half(network, f"{vae}_encoder", call) for vae, network in vaes.items()]
    decoders = [_half(network, f"{vae}_decoder", call) for vae, network in vaes.items()]
    return Architecture(
        title=main.name,
        configs="",
        components=(
            *encoders,
            *(spec_of(call, other) for other, call in calls.items()),
            replace(spec_of(call, name), trainable=True, inputs=inputs),
            *(replace(decoder, inputs=(name,)) for decoder in decoders),
        ),
        height=call.height,
        width=call.width,
        granularity=call.scale * max(call.patch[1:]),
        remark="; ".join(_remarks(calls | {name: call})),
        dtype=options.dtype,
        guidance="embedded" if main.config.get("guidance_embeds") else "batch",
    )


def _named(networks: Sequence[Network]) -> Iterator[tuple[str, Network]]:
    """Yield networks with the names of their components: of their kind, numbered where there are several."""
    numbers = Counter[str]()
    for network in networks:
        kind = "unet" if "UNet" in network.name else NAMES[network.role]
        numbers[kind] += 1
        yield (kind if numbers[kind] == 1 else f"{kind}_{numbers[kind]}"), network


def _main(networks: Mapping[str, Network]) -> str:
    """Name of the component that is trained: the only backbone, or the only one."""
    backbones = [name for name, network in networks.items() if network.role == BACKBONE]
    if len(backbones) != 1 and len(networks) > 1:
        names = ", ".join(network.name for network in networks.values())
        raise InputError(f"--config names {names}: {len(backbones)} backbones of several files, must be 1")
    return backbones[0] if backbones else next(iter(networks))


def _half(network: Network, name: str, main: Call) -> ComponentSpec:
    """The encoder, for training, or the decoder, for sampling, of an AutoencoderKL of the backbone's latents."""
    if network.name != "AutoencoderKL":
        raise InputError(
            f"{network.file.path}: {network.name} beside {main.network.name} must be an AutoencoderKL"
        )
    scale = 2 ** (len(network.config["block_out_channels"]) - 1)
    if scale != main.scale:
        rule = f"makes latents of 1/{scale}, must be 1/{main.scale} as {main.network.name} takes"
        raise network.file.fail("block_out_channels", rule)
    return half_of(network, name, name.rpartition("_")[2], scale)


def _remarks(calls: Mapping[str, Call]) -> Iterator[str]:
    """Yield what the source of the model file says of components counted as a whole, the main one last."""
    *_, main = calls.values()
    files = (f"{call.network.name} of {call.network.file.path.name}" for call in calls.values())
    yield f"configured by the user's own files: {', '.join(files)}"
    if main.network.role != TEXT and main.scale > 1:
        yield f"latents of 1/{main.scale} of the pixels"
    for name, call in calls.items():
        if call.recipe.arguments.keys() & {"input_ids", "encoder_hidden_states", "cap_feats"}:
            yield f"{name}: prompts of {call.text_tokens} tokens"
    if main.network.role != BACKBONE:
        yield f"{main.network.name} stands alone, so it counts as trained"


ZOO: Final = Path(__file__).parent / "zoo.toml"
KEYS: Final = ("name", "config", "set", "half", "groups", "arguments", "text_tokens", "scale", "call")
"""Keys of a component that its specification does not take as they are."""


def architecture(name: str, *, tiny: bool = False) -> Architecture:
    """Return the architecture of a name, with ``tiny`` also of the small ones for rehearsals."""
    known = ARCHITECTURES | TINY if tiny else ARCHITECTURES
    if (meant := known_name(MODEL, name, known)) is None:
        raise unknown_name(MODEL, name, known)
    return known[meant]


def _architecture(entry: Mapping[str, Any]) -> Architecture:
    frames = latent_frames(entry.get("frames", 1), entry.get("frame_step", 1), entry.get("frame_chunk"))
    components = tuple(_component(component, frames) for component in entry["components"])
    return Architecture(**{"configs": "", **entry, "components": components})


def _component(entry: Mapping[str, Any], frames: int) -> ComponentSpec:
    """Return a component as its table has it; ``frames`` are latent ones."""
    values = CONFIGS[entry["config"]] | entry.get("set", {})
    network = find_class(ConfigFile(ZOO, FrozenMapping(values)), **entry.get("arguments", {}))
    scale, frames = entry.get("scale", LATENT_SCALE), entry.get("frames", frames)
    if "half" in entry:
        groups = entry.get("groups", ())
        spec = half_of(network, entry["name"], entry["half"], scale, groups=groups, frames=frames)
    else:
        options = ConfigOptions(scale, scale, frames if frames > 1 else None, entry.get("text_tokens"), scale)
        call = call_of(network, options)
        recipe = call.recipe._replace(arguments={**call.recipe.arguments, **entry.get("call", {})})
        spec = spec_of(replace(call, recipe=recipe), entry["name"])
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return replace(spec, **{key: value for key, value in fields.items() if key not in KEYS})


_MODELS: Final = load_toml(ZOO)
ARCHITECTURES: Final = {name: _architecture(entry) for name, entry in _MODELS["models"].items()}
TINY: Final = {name: _architecture(entry) for name, entry in _MODELS["tiny"].items()}
"""One model of each family that two CPU cores time in seconds: none is published, all are for rehearsals."""
