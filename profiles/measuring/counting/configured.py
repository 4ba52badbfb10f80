"""Configured architectures: known classes of diffusers or transformers, from their ``config.json`` into a model folder.

Layers are the blocks that the structure of the module shows, in the order in which one pass runs them; what travels
with the hidden state is what later blocks read. They are counted as every shipped model is, and the FLOP must add up
to torch's own count.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from profiles.errors import DiffusimError, InputError
from profiles.measuring.counting import component
from profiles.measuring.counting.adapters import AUTOENCODER, BACKBONE, TEXT, Found, find_class, half_of
from profiles.measuring.counting.component import ComponentCount, ModelCount, NoBlocksError
from profiles.measuring.counting.config_files import ConfigFile, ConfigOptions
from profiles.measuring.counting.recipes import Request, request_of, spec_of
from profiles.measuring.counting.specs import DTYPES, Architecture
from profiles.measuring.counting.trace import first_line

NAMES: Final = {BACKBONE: "transformer", AUTOENCODER: "vae", TEXT: "text_encoder"}


def slug(title: str) -> str:
    """A title as a name: its letters and digits in lower case."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def count_configured(files: Sequence[ConfigFile], asked: ConfigOptions) -> ModelCount:
    """Count the architectures of files: one backbone with its frozen encoders, or one encoder by itself.

    Raises:
        InputError: a file, or what is asked for, breaks a rule.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in the libraries concern their callers' arguments
        found = [find_class(file) for file in files]
        main = _main(found)
        size = request_of(main, asked)
        whole = [one for one in found if one is not main and one.role != AUTOENCODER] + [main]
        parts = {id(one): _counted(one, found, size, asked) for one in whole}
        halves = [one for one in found if one not in whole]
        encoders = [_count_half(one, "encoder", found, size, asked.dtype) for one in halves]
        decoders = [_count_half(one, "decoder", found, size, asked.dtype) for one in halves]
    files_of = ", ".join(f"{one.kind.__name__} of {one.file.path.name}" for one in whole)
    remarks = [f"configured by the user's own files: {files_of}"]
    if main.role != TEXT and size.scale > 1:
        remarks.append(f"latents of 1/{size.scale} of the pixels")
    remarks += [remark for one in whole for remark in _assumed(one, parts[id(one)], size)]
    if main.role != BACKBONE:
        remarks.append(f"{main.kind.__name__} stands alone, so it counts as trained")
    components = (*encoders, *parts.values(), *decoders)
    architecture = Architecture(
        title=main.kind.__name__,
        configs="",
        components=tuple(component.spec for component in components),
        height=size.height,
        width=size.width,
        granularity=size.scale * max(size.patch[1:]),
        remark="; ".join(remarks),
        dtype=asked.dtype,
        guidance="embedded" if main.config.get("guidance_embeds") else "batch",
    )
    return ModelCount(architecture, size.height, size.width, components)


def _main(found: Sequence[Found]) -> Found:
    backbones = [one for one in found if one.role == BACKBONE]
    if len(found) == 1:
        return found[0]
    if len(backbones) == 1:
        return backbones[0]
    names = ", ".join(one.kind.__name__ for one in found)
    raise InputError(f"--config names {names}: {len(backbones)} backbones of several files, must be 1")


def _counted(found: Found, every: Sequence[Found], size: Request, asked: ConfigOptions) -> ComponentCount:
    """Count one component as a whole; an encoder takes the backbone's prompts, up to its own positions."""
    trained, request = found is size.found, size
    if not trained:
        longest = request_of(found, ConfigOptions()).text_tokens
        request = request_of(found, replace(asked, text_tokens=min(longest, size.text_tokens)))
    spec = spec_of(request, _name_of(found, every))
    spec = replace(spec, trainable=trained, inputs=tuple(_inputs(found, every)) if trained else ())
    with _blamed(found, "cannot be built from it"):
        module = component.build(spec, DTYPES[asked.dtype])
    with _blamed(found, "has no sample"):
        sample = request.sample()
    with _blamed(found, f"refuses the sample ({_shapes(sample)})"):
        trace = component.trace_of(spec, module, sample)
    with _blamed(found, "cannot be counted"):  # an operator with a shape that no formula knows
        return component.counted_by(spec, trace, size.height, size.width)


def _count_half(found: Found, half: str, every: Sequence[Found], size: Request, dtype: str) -> ComponentCount:
    """Count the encoder, for training, or the decoder, for sampling, of an AutoencoderKL of the backbone's latents."""
    levels, main = found.config.get("block_out_channels"), size.found
    if found.kind.__name__ != "AutoencoderKL":
        raise InputError(f"{_where(found)} beside {main.kind.__name__} must be an AutoencoderKL")
    if not isinstance(levels, list | tuple):
        raise found.file.fail("block_out_channels", "must be a list of channels, one for each level")
    if 2 ** (len(levels) - 1) != size.scale:
        rule = f"makes latents of 1/{2 ** (len(levels) - 1)}, must be 1/{size.scale} as {main.kind.__name__} takes"
        raise found.file.fail("block_out_channels", rule)
    spec = half_of(found, f"{_name_of(found, every)}_{half}", half, size.scale)
    spec = replace(spec, inputs=(_name_of(main, every),) if half == "decoder" else ())
    with _blamed(found, "cannot be counted"):
        return component.count_component(spec, size.height, size.width, dtype)


def _name_of(found: Found, every: Sequence[Found]) -> str:
    """The name of a component: of its kind, numbered where there are several."""
    alike = [one for one in every if _plain_name(one) == _plain_name(found)]
    number = next(number for number, one in enumerate(alike, start=1) if one is found)
    return _plain_name(found) if number == 1 else f"{_plain_name(found)}_{number}"


def _plain_name(found: Found) -> str:
    return "unet" if "UNet" in found.kind.__name__ else NAMES[found.role]


def _inputs(main: Found, every: Sequence[Found]) -> Iterator[str]:
    for one in every:
        if one is not main:
            yield f"{_name_of(one, every)}{'_encoder' if one.role == AUTOENCODER else ''}"


@contextmanager
def _blamed(found: Found, failure: str) -> Iterator[None]:
    """Turn whatever a class raises into an InputError of one line."""
    try:
        yield
    except DiffusimError:
        raise
    except NoBlocksError:
        rule = "has no list of blocks (nn.ModuleList) that one pass runs, must have one"
        raise InputError(f"{_where(found)} {rule}") from None
    except Exception as error:
        raise InputError(f"{_where(found)} {failure}: {first_line(error)}") from None


def _where(found: Found) -> str:
    return f"{found.file.path}: {found.kind.__name__}"


def _shapes(sample: dict[str, Any]) -> str:
    known = {name: value.shape for name, value in sample.items() if isinstance(value, Tensor)}
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in known.items())


def _assumed(found: Found, count: ComponentCount, size: Request) -> Iterator[str]:
    name, prompted = count.spec.name, {"encoder_hidden_states", "cap_feats"} & count.traces[0].sample.keys()
    tokens = count.spec.text_tokens if found.role == TEXT else size.text_tokens * bool(prompted)
    if tokens and (count.spec.text_tokens or found.role == BACKBONE):
        yield f"{name}: prompts of {tokens} tokens"
    if count.unread:
        names = ", ".join(count.unread[:3])
        yield f"{name}: parameters that no pass reads count in its first layer ({names})"
