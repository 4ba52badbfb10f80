"""What the command line prints about a count, and what it writes."""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from profiles.models import MODELS
from validate.architectures import architecture
from validate.count import ComponentCount, count
from validate.folder import write_folder

COLUMNS: Final[Mapping[str, Callable[[ComponentCount], str]]] = {
    "component": lambda one: one.spec.name,
    "layers": lambda one: f"{len(one.work)}",
    "blocks": lambda one: f"{len({layer.block for layer in one.layers})}",
    "skips": lambda one: f"{len(one.skips)}",
    "M parameters": lambda one: f"{one.parameters / 1e6:.1f}",
    "GMAC": lambda one: f"{one.flop / 2e9:.1f}",
    "conv": lambda one: f"{sum(w.conv_flop for w in one.work) / 2e9:.1f}",
    "matmul": lambda one: f"{sum(w.matmul_flop for w in one.work) / 2e9:.1f}",
    "self-attention": lambda one: f"{sum(w.attention_flop for w in one.work) / 2e9:.1f}",
    "GB moved": lambda one: f"{sum(w.moved_bytes for w in one.work) / 1e9:.3f}",
    "kernels": lambda one: f"{sum(w.kernels for w in one.work)}",
    "GB saved": lambda one: f"{sum(w.saved_bytes for w in one.work) / 1e9:.3f}",
}
"""What is printed of a component; 1 MAC is 2 FLOP."""


def report_count(name: str, height: int | None, width: int | None, folder: Path | None) -> None:
    """Count a model, print its totals and write its folder.

    Args:
        name: one of the architectures.
        height: pixels; the model's own by default.
        width: pixels; the model's own by default.
        folder: where to write the model's files; by default the shipped folder at the model's own resolution, and
            nowhere at another.
    """
    counted = count(architecture(name), height, width)
    if folder is None and height is None and width is None:
        folder = MODELS / name
    if folder is not None:
        write_folder(folder, name, counted)
        print(f"validate: wrote {folder}", file=sys.stderr)
    title = f"{counted.architecture.title}, {counted.height}x{counted.width}, forward pass of one sample"
    Console(width=160).print(table(title, counted.components))


def table(title: str, components: Iterable[ComponentCount]) -> Table:
    """A table with one row per component."""
    result = Table(title=title, title_justify="left")
    for column in COLUMNS:
        result.add_column(column, justify="left" if column == "component" else "right")
    for component in components:
        result.add_row(*(words(component) for words in COLUMNS.values()))
    return result
