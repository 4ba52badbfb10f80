"""Configured architectures: known classes of diffusers or transformers, from their ``config.json`` into a model folder.

Layers are the blocks that the structure of the module shows, in the order in which one pass runs them. They are counted
as every shipped model is.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from profiles.errors import InputError
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
from profiles.measuring.counting.component import ComponentCount, ModelCount, count_component
from profiles.measuring.counting.config_files import ConfigFile, ConfigOptions
from profiles.measuring.counting.specs import Architecture

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
        call = call_of(main, options)
        vaes = {of: network for of, network in networks.items() if network.role == AUTOENCODER}
        inputs = tuple(f"{of}_encoder" if of in vaes else of for of in networks)
        encoders = [_half(network, f"{of}_encoder", call, options.dtype) for of, network in vaes.items()]
        calls: dict[str, Call] = {}
        for of, network in networks.items():
            if of not in vaes:  # the backbone's prompts, up to an encoder's own positions
                longest = min(call_of(network, ConfigOptions()).text_tokens, call.text_tokens)
                calls[of] = call_of(network, replace(options, text_tokens=longest))
        parts = [_counted(each, of, call, options.dtype) for of, each in calls.items()]
        parts.append(_counted(call, name, call, options.dtype, trainable=True, inputs=inputs))
        after = {"inputs": (name,)}
        decoders = [_half(of, f"{vae}_decoder", call, options.dtype, **after) for vae, of in vaes.items()]
    components = (*encoders, *parts, *decoders)
    architecture = Architecture(
        title=main.name,
        configs="",
        components=tuple(part.spec for part in components),
        height=call.height,
        width=call.width,
        granularity=call.scale * max(call.patch[1:]),
        remark="; ".join(_remarks([*calls.values(), call], parts)),
        dtype=options.dtype,
        guidance="embedded" if main.config.get("guidance_embeds") else "batch",
    )
    return ModelCount(architecture, call.height, call.width, components)


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


def _counted(call: Call, name: str, main: Call, dtype: str, **fields: Any) -> ComponentCount:  # noqa: ANN401  of a component
    with call.network.blamed("cannot be counted"):
        spec = replace(spec_of(call, name), **fields)
        return count_component(spec, main.height, main.width, dtype)


def _half(network: Network, name: str, main: Call, dtype: str, **fields: Any) -> ComponentCount:  # noqa: ANN401  as above
    """Count the encoder, for training, or the decoder, for sampling, of an AutoencoderKL of the backbone's latents."""
    if network.name != "AutoencoderKL":
        raise InputError(
            f"{network.file.path}: {network.name} beside {main.network.name} must be an AutoencoderKL"
        )
    with network.blamed("cannot be counted"):
        scale = 2 ** (len(network.config["block_out_channels"]) - 1)
        if scale != main.scale:
            rule = f"makes latents of 1/{scale}, must be 1/{main.scale} as {main.network.name} takes"
            raise network.file.fail("block_out_channels", rule)
        spec = replace(half_of(network, name, name.rpartition("_")[2], scale), **fields)
        return count_component(spec, main.height, main.width, dtype)


def _remarks(calls: Sequence[Call], counts: Sequence[ComponentCount]) -> Iterator[str]:
    """Yield what the source of the model file says of components counted as a whole, the main one last."""
    files = ", ".join(f"{call.network.name} of {call.network.file.path.name}" for call in calls)
    yield f"configured by the user's own files: {files}"
    main = calls[-1]
    if main.network.role != TEXT and main.scale > 1:
        yield f"latents of 1/{main.scale} of the pixels"
    for call, count in zip(calls, counts, strict=True):
        if count.traces[0].sample.keys() & {"input_ids", "encoder_hidden_states", "cap_feats"}:
            yield f"{count.spec.name}: prompts of {call.text_tokens} tokens"
    if main.network.role != BACKBONE:
        yield f"{main.network.name} stands alone, so it counts as trained"
