"""Classes: the architecture that a configuration names, of diffusers' models or of transformers, and its keys.

Nothing of a file is executed: a class is looked up by its name among those two libraries define themselves, and
built from plain values. Keys that would fetch code or kernels from elsewhere are left out.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import diffusers.models
import transformers
from diffusers.models.modeling_utils import ModelMixin
from torch import nn
from transformers import PreTrainedModel

from profiles.errors import InputError
from validate.config_files import ARCHITECTURES, CLASS, MODEL_TYPE, ConfigFile

BACKBONE: Final = "backbone"
AUTOENCODER: Final = "autoencoder"
TEXT: Final = "text"
IMAGE: Final = "image"
SUGGESTED: Final = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A class and what it is built from.

    Attributes:
        file: its configuration.
        kind: the class.
        config: every key of the class, those that the file leaves out at their defaults.
        role: backbone, autoencoder, or encoder of text or images.
        build: returns the module.
    """

    file: ConfigFile
    kind: type[nn.Module]
    config: Mapping[str, Any]
    role: str
    build: Callable[[], nn.Module]


def find_class(file: ConfigFile) -> Found:
    """Return the class that a configuration names.

    Raises:
        InputError: it names none, an unknown one, or one whose keys it breaks.
    """
    if CLASS in file.values:
        return _of_diffusers(file, file.text(CLASS))
    if ARCHITECTURES in file.values or MODEL_TYPE in file.values:
        return _of_transformers(file)
    rule = f"must name a class of diffusers.models (or {ARCHITECTURES} one of transformers)"
    raise file.fail(CLASS, rule)


def _of_diffusers(file: ConfigFile, name: str) -> Found:
    kind = getattr(diffusers.models, name, None) if name.isidentifier() else None
    if not _defined(kind, ModelMixin, "diffusers.models"):
        known = [other for other in dir(diffusers.models) if _resembles(other, name)]
        raise file.fail(CLASS, f"is no class of diffusers.models{_suggested(known)}")
    assert isinstance(kind, type)
    parameters = inspect.signature(kind).parameters.values()
    keys = {p.name: p.default for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    for key in file.shape:
        if key not in keys:
            raise file.fail(key, f"is no key of {name}; known here: {', '.join(keys)}")
    for key, default in keys.items():
        if default is inspect.Parameter.empty and key not in file.shape:
            raise file.fail(key, f"must be set for {name}")
    role = AUTOENCODER if name.startswith(("Autoencoder", "AsymmetricAutoencoder", "VQ")) else BACKBONE
    return Found(file, kind, keys | file.shape, role, lambda: kind(**file.shape))


def _of_transformers(file: ConfigFile) -> Found:
    name = _architecture(file)
    kind: Any = getattr(transformers, name, None) if name.isidentifier() else None
    if not _defined(kind, PreTrainedModel, "transformers.models"):
        key = ARCHITECTURES if ARCHITECTURES in file.values else MODEL_TYPE
        known = [other for other in dir(transformers) if other.endswith("Model") and _resembles(other, name)]
        raise file.fail(key, f"names {name}, which is no model of transformers{_suggested(known)}")
    try:
        config = kind.config_class.from_dict(file.shape)
    except Exception as error:  # whatever the class says to its values
        raise InputError(f"{file.path}: {name} refuses it: {first_line(error)}") from None
    values = config.to_dict()
    values |= {"max_position_embeddings": getattr(config, "max_position_embeddings", None)}
    role = IMAGE if getattr(kind, "main_input_name", "") == "pixel_values" else TEXT
    if getattr(config, "is_encoder_decoder", False) and "Encoder" not in name:
        raise file.fail(
            ARCHITECTURES, f"names an encoder and a decoder; name the encoder{_encoder(name)} alone"
        )
    return Found(file, kind, values, role, lambda: kind(config))


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
        raise file.fail(
            MODEL_TYPE, f"is no type of transformers{_suggested([n for n in names if _resembles(n, kind)])}"
        )
    return found


def _encoder(name: str) -> str:
    encoder = name.replace("ForConditionalGeneration", "Model").removesuffix("Model") + "EncoderModel"
    return f", {encoder}," if hasattr(transformers, encoder) else ""


def _defined(kind: object, base: type, package: str) -> bool:
    """Return whether something is a model with a forward pass that a package defines itself."""
    if not (isinstance(kind, type) and issubclass(kind, base) and kind is not base):
        return False
    return kind.__module__.startswith(f"{package}.") and hasattr(kind, "forward")


def _resembles(name: str, wanted: str) -> bool:
    return len(wanted) > 2 and name[:4].lower() == wanted[:4].lower()


def _suggested(names: list[str]) -> str:
    return f"; there are {', '.join(names[:SUGGESTED])}" if names else ""


def first_line(error: Exception) -> str:
    """Return what an error says, on one line."""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0][:200]}" if words else type(error).__name__
