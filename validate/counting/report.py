"""What the command line prints about a count, and what it writes."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from profiles.errors import InputError
from profiles.models import MODELS
from validate.counting.component import ComponentCount, ModelCount, count_model
from validate.counting.config_files import Asked, ConfigFile
from validate.counting.configured import count_configured, slug
from validate.counting.folder import write_folder
from validate.counting.tally import total
from validate.counting.zoo import architecture


def report_count(name: str, height: int | None, width: int | None, folder: Path | None) -> None:
    """Count a model, print its totals and write its folder.

    Args:
        name: one of the architectures.
        height: pixels; the model's own by default.
        width: pixels; the model's own by default.
        folder: where to write the model's files; by default the shipped folder at the model's own resolution, and
            nowhere at another.
    """
    counted = count_model(architecture(name), height, width)
    if folder is None and height is None and width is None:
        folder = MODELS / name
    _report(counted, name, folder)


def report_configured(
    files: Sequence[ConfigFile], asked: Asked, name: str | None, folder: Path | None
) -> None:
    """Count the architectures of files, print their totals and write them as a model folder if asked to.

    Args:
        files: their configurations.
        asked: what the command line asks for.
        name: of the model; by default that of the backbone's class.
        folder: where to write the model's files.

    Raises:
        InputError: a file, or what is asked for, breaks a rule.
    """
    if name is not None and slug(name) != name:
        rule = f"must be of small letters, digits and hyphens, such as '{slug(name)}'"
        raise InputError(f"--name is '{name}', {rule}")
    counted = count_configured(files, asked)
    _report(counted, name or slug(counted.architecture.title), folder)


def _report(counted: ModelCount, name: str, folder: Path | None) -> None:
    if folder is not None:
        write_folder(folder, name, counted)
        print(f"validate: wrote {folder}", file=sys.stderr)
    title = f"{counted.architecture.title}, {counted.height}x{counted.width}, forward pass of one sample"
    Console(width=160).print(table(title, counted.components))


def table(title: str, components: Sequence[ComponentCount]) -> Table:
    """A table with one row per component; 1 MAC is 2 FLOP."""
    result = Table(title=title, title_justify="left")
    rows = [_row(component) for component in components]
    for column in rows[0]:
        result.add_column(column, justify="left" if column == "component" else "right")
    for row in rows:
        result.add_row(*row.values())
    return result


def _row(component: ComponentCount) -> dict[str, str]:
    whole = total(component.work)
    return {
        "component": component.spec.name,
        "layers": f"{len(component.work)}",
        "blocks": f"{len({layer.block for layer in component.layers})}",
        "skips": f"{len(component.skips)}",
        "M parameters": f"{whole.parameters / 1e6:.1f}",
        "GMAC": f"{whole.flop / 2e9:.1f}",
        "conv": f"{whole.conv_flop / 2e9:.1f}",
        "matmul": f"{whole.matmul_flop / 2e9:.1f}",
        "self-attention": f"{whole.attention_flop / 2e9:.1f}",
        "GB moved": f"{whole.moved_bytes / 1e9:.3f}",
        "kernels": f"{whole.kernels}",
        "GB saved": f"{whole.saved_bytes / 1e9:.3f}",
    }
