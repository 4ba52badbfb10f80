"""Counting: models of the user's own, from a module of torch or a ``config.json``, without weights."""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from profiles.architectures.models import GUIDANCES, Model, model_names, read_model
from profiles.checks import check_choice
from profiles.errors import DiffusimNote, InputError, shown, warn_caller
from profiles.outputs import check_new, write_files

if TYPE_CHECKING:
    from torch import nn

    from profiles.measuring.counting.component import ModelCount

SIZES: Final = ("sample_size", "sample_height", "sample_width")
"""Keys of a ``config.json`` that give the size of its samples."""
CPU: Final = "uv pip install --torch-backend cpu 'diffusim[measure]'"
"""What brings the packages that count, with torch's build for CPUs: 200 MB, where pip's has 6 GB of CUDA."""


def count(
    module: "nn.Module", inputs: Mapping[str, Any], *, name: str = "module", height: int = 1, width: int = 1,
    guidance: str | None = None, output: str | PathLike[str] | None = None,
) -> Model:  # fmt: skip
    """Return a model whose only backbone is a module of torch, counted from one forward pass that computes nothing.

    Layers are the blocks that the structure of the module shows, else its children; activations are in float16. What
    patches of an image exchange, and other resolutions, are known where ``scaled_dot_product_attention`` attends to all
    tokens of an image of square patches, and of a text; else work is known at the size of the inputs alone.

    Args:
        module: any, with or without weights.
        inputs: keyword arguments of its ``forward``, of one sample; only those that hold integers need contents.
        name: of the model; no shipped one's.
        height: of one sample in pixels, which tell the tokens of its image.
        width: likewise.
        guidance: ``embedded`` where its scale is an input, by default of that name, else ``batch``; or ``none``.
        output: a new folder for the model, whose path gives it again in any later session.

    Raises:
        InputError: the module cannot run on torch's meta device, or there is more than one sample.
    """
    from profiles.measuring.counting.module import count_backbone

    if not isinstance(name, str) or not name or name in model_names():
        raise InputError(f"name is {shown(name)}, must be a name that no shipped model has")
    given = isinstance(inputs, Mapping) and "guidance" in inputs
    usual = ("embedded" if given else "batch") if guidance is None else guidance
    check_choice("count", "guidance", usual, GUIDANCES)
    counted = count_backbone(module, inputs, name, height, width, guidance=usual)
    return _model_of(name, counted, None if output is None else Path(output))


@cache
def count_file(path: Path, changed_ns: int, sides: tuple[int, int] | None = None) -> Model:
    """Return the model of a ``config.json`` of diffusers, and note that it was counted.

    Height and width are those that the file gives; only where it gives none, the ``sides``.
    """
    config: object = None
    with suppress(ValueError, OSError):  # what is no such file is refused below
        config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config, dict) and "_class_name" in config:
        own = any(config.get(key) is not None for key in SIZES)
        if not own and sides is None:
            raise InputError(f"{path}: {SIZES[0]} is missing; `resolution` gives the pixels, such as 1024")
        sides = None if own else sides
    try:
        from profiles.measuring.counting.configured import count_configured, slug
        from profiles.measuring.counting.specs import ConfigOptions, read_config
    except ModuleNotFoundError as error:
        raise InputError(f"counting {path} needs {error.name}: {CPU}") from None
    try:
        height, width = sides or (None, None)
        counted = count_configured([read_config(path)], ConfigOptions(height=height, width=width))
    except InputError as error:
        where = f"`sim measure count --config {path} --output DIR` takes it"
        raise InputError(f"{error}: {where}" if "; give " in str(error) else str(error)) from None
    name = slug(counted.architecture.title)
    warn_caller(f"{path} is counted as model {name}, a backbone without encoders", DiffusimNote)
    return _model_of(name, counted)


def _model_of(name: str, counted: "ModelCount", output: Path | None = None) -> Model:
    """Return the model that the folder of a count holds, and keep the folder if it is named."""
    from profiles.measuring.counting.folder import folder_texts, kernel_texts

    if output is not None:
        check_new(output / "model.toml")
    with TemporaryDirectory(prefix="diffusim-") as kept:
        folder = Path(kept) if output is None else output
        write_files(folder, folder_texts(name, counted) | kernel_texts(counted))
        return read_model(folder)
