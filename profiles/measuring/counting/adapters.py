"""Adapters: from a configuration to the class that it names, of diffusers or of transformers, and to a component.

Nothing of a file is executed: a class is looked up by its name among those two libraries define themselves, and
built from plain values. Keys that would fetch code or kernels from elsewhere are left out.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

import diffusers.models
import torch
import transformers
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn
from transformers import PreTrainedModel

from profiles.errors import InputError
from profiles.measuring.counting.config_files import ARCHITECTURES, CLASS, MODEL_TYPE, ConfigFile
from profiles.measuring.counting.specs import ComponentSpec, tensor
from profiles.measuring.counting.trace import first_line

BACKBONE: Final = "backbone"
AUTOENCODER: Final = "autoencoder"
TEXT: Final = "text"
SUGGESTED: Final = 5
KEPT: Final = 2
"""Passes of an autoencoder after which the number of frames that its convolutions keep no longer changes."""


@dataclass(frozen=True, slots=True)
class Found:
    """A class, and what it is built from: ``config`` has every key, with defaults for those that the file leaves out.

    ``role`` is backbone, autoencoder or text.
    """

    file: ConfigFile
    kind: type[nn.Module]
    config: Mapping[str, Any]
    role: str
    build: Callable[[], nn.Module]


class Half(nn.Module):
    """The named modules of an autoencoder, one after the other: from images to moments of latents, or back.

    Those that it does not have are left out.
    """

    def __init__(self, autoencoder: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        for name in names:
            if isinstance(getattr(autoencoder, name, None), nn.Module):  # not all have a convolution beside
                self.add_module(name, autoencoder.get_submodule(name))

    def forward(self, given: Tensor, **kept: Any) -> object:  # noqa: ANN401  what the class calls it with
        """Encode or decode, as the whole autoencoder does; ``kept`` is what it has of frames before."""
        for name, part in self.named_children():
            given = part(given, **({} if "quant" in name else kept))
        return given

    def after(self, passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What its convolutions keep of earlier passes' frames for the next pass; empty where a class keeps none."""
        (main,) = (part for name, part in self.named_children() if "quant" not in name)
        if "feat_cache" not in inspect.signature(main.forward).parameters:
            return {}
        kept: list[Any] = [None] * sum(isinstance(part, nn.Conv3d) for part in main.modules())
        for given in passes:
            self(**given, feat_cache=kept, feat_idx=[0])
        return {"feat_cache": kept, "feat_idx": [0]}


def half_of(
    found: Found, name: str, half: str, scale: int, *, groups: Sequence[int] = (), frames: int = 1
) -> ComponentSpec:
    """The frozen encoder (of images, for training) or decoder (of latents, for sampling) of an autoencoder.

    ``scale`` is in pixels per latent pixel; ``groups`` are the frames of a video that each pass takes, latent ones for
    a decoder; ``frames`` are all latent frames. Passes after the third are like the third if they take as many frames.
    """
    encodes, config = half == "encoder", found.config
    channels = 3 if encodes else config.get("latent_channels") or config["z_dim"]
    names = ("encoder", "quant_conv") if encodes else ("post_quant_conv", "decoder")
    divisor = 1 if encodes else scale

    def given(before: tuple[int, ...], frames: tuple[int, ...], height: int, width: int) -> dict[str, Any]:
        sides = (height // divisor, width // divisor)
        each = (frames, *((n,) for n in before))
        here, *earlier = ({"given": tensor(1, channels, *of, *sides)} for of in each)
        with torch.device("meta"), torch.no_grad():
            return here | (Half(found.build(), names).after(earlier) if earlier else {})

    samples = [((), ())] if not groups else [(tuple(groups[:i][:KEPT]), (n,)) for i, n in enumerate(groups)]
    known = {of: partial(given, *of) for of in dict.fromkeys(samples)}
    first, *others = (known[of] for of in samples)
    return ComponentSpec(
        name,
        lambda: Half(found.build(), names),
        first,
        token_pixels=scale**2,
        carried=(),
        tasks=("train",) if encodes else ("sample",),
        frames=frames,
        again=tuple(others),
        names={f"{half}.": ""},
        apart=True,
    )


def find_class(file: ConfigFile, **arguments: object) -> Found:
    """The class that a configuration names; ``arguments`` go to a class of transformers, beside its configuration.

    Raises:
        InputError: it names none or an unknown one, or its keys do not fit the class.
    """
    if CLASS in file.values:
        return _of_diffusers(file, file.text(CLASS))
    if ARCHITECTURES in file.values or MODEL_TYPE in file.values:
        return _of_transformers(file, arguments)
    rule = f"must name a class of diffusers.models (or {ARCHITECTURES} one of transformers)"
    raise file.fail(CLASS, rule)


def _of_diffusers(file: ConfigFile, name: str) -> Found:
    kind = getattr(diffusers.models, name, None) if name.isidentifier() else None
    if not _defined(kind, ModelMixin, "diffusers.models"):
        raise file.fail(CLASS, f"is no class of diffusers.models{_suggested(dir(diffusers.models), name)}")
    assert isinstance(kind, type)
    role = AUTOENCODER if name.startswith(("Autoencoder", "AsymmetricAutoencoder", "VQ")) else BACKBONE
    return found_of(file, kind, role)


def found_of(file: ConfigFile, kind: type[nn.Module], role: str = BACKBONE) -> Found:
    """A class that is built from the keys of a configuration, which must be known and complete."""
    name = kind.__name__
    parameters = inspect.signature(kind).parameters.values()
    keys = {p.name: p.default for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    for key in file.shape:
        if key not in keys:
            raise file.fail(key, f"is no key of {name}; known here: {', '.join(keys)}")
    for key, default in keys.items():
        if default is inspect.Parameter.empty and key not in file.shape:
            raise file.fail(key, f"must be set for {name}")
    return Found(file, kind, keys | file.shape, role, lambda: kind(**file.shape))


def _of_transformers(file: ConfigFile, arguments: Mapping[str, Any]) -> Found:
    name = _architecture(file)
    kind: Any = getattr(transformers, name, None) if name.isidentifier() else None
    if not _defined(kind, PreTrainedModel, "transformers.models"):
        key = ARCHITECTURES if ARCHITECTURES in file.values else MODEL_TYPE
        known = _suggested([other for other in dir(transformers) if other.endswith("Model")], name)
        raise file.fail(key, f"names {name}, which is no model of transformers{known}")
    try:
        config = kind.config_class.from_dict(file.shape)
    except Exception as error:  # whatever the class says to its values
        raise InputError(f"{file.path}: {name} refuses it: {first_line(error)}") from None
    values = config.to_dict()
    values |= {"max_position_embeddings": getattr(config, "max_position_embeddings", None)}
    if getattr(kind, "main_input_name", "") == "pixel_values":
        raise file.fail(ARCHITECTURES, "takes images, must be an encoder of text")
    if getattr(config, "is_encoder_decoder", False) and "Encoder" not in name:
        rule = f"names an encoder and a decoder; name the encoder{_encoder(name)} alone"
        raise file.fail(ARCHITECTURES, rule)
    return Found(file, kind, values, TEXT, lambda: kind(config, **arguments))


def _architecture(file: ConfigFile) -> str:
    names = file.values.get(ARCHITECTURES)
    if names is not None:
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise file.fail(ARCHITECTURES, "must be a list of one class")
        return names[0]
    kind = file.text(MODEL_TYPE)
    names = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES
    found = names.get(kind) if kind in names else None
    if not isinstance(found, str):
        raise file.fail(MODEL_TYPE, f"is no type of transformers{_suggested(names, kind)}")
    return found


def _encoder(name: str) -> str:
    encoder = name.replace("ForConditionalGeneration", "Model").removesuffix("Model") + "EncoderModel"
    return f", {encoder}," if hasattr(transformers, encoder) else ""


def _defined(kind: object, base: type, package: str) -> bool:
    """Whether something is a model with a forward pass that a package defines itself."""
    if not (isinstance(kind, type) and issubclass(kind, base) and kind is not base):
        return False
    return kind.__module__.startswith(f"{package}.") and hasattr(kind, "forward")


def _suggested(names: Iterable[str], wanted: str) -> str:
    """The names that are most similar to a wanted one, in words."""
    alike = get_close_matches(wanted, names, SUGGESTED)
    return f"; there are {', '.join(alike)}" if alike else ""
