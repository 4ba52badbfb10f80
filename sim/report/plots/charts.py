"""Charts: what all figures share: colours, an axis to draw on, a file to save to.

Figures are made without ``pyplot``: no global state, no display needed, and nothing of a notebook's is touched.
Colours are those of Okabe and Ito, which the colour-blind tell apart.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiles.errors import InputError
from profiles.units import MILLISECOND
from strategies.registry import all_samplers, all_strategies

ENDINGS: Final = (".png", ".svg", ".pdf")
IDLE_FACE: Final = "#F6F6F6"
IDLE_HATCH: Final = "#C4C4C4"
INK: Final = "#222222"
GRID: Final = "#E6E6E6"
FRONT: Final = "#9A9A9A"
LIMIT: Final = "#D55E00"
STRATEGY_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222")
STRATEGY_MARKERS: Final = "osD^vP<X>*p"
DOTS_PER_INCH: Final = 150

Row = Mapping[str, Any]
"""A result under its public keys."""


class Chart(Figure):
    """A figure that a notebook displays although ``pyplot`` never saw it."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save with TrueType fonts in PDF, which journals ask for, and with reproducible names in SVG."""
        with mpl.rc_context({"svg.hashsalt": "diffusim", "pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        return buffer.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending; the same figure gives the same bytes.

    Raises:
        InputError: the ending is unknown, or the file cannot be written.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"figure '{path}' must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending, {})
    try:
        figure.savefig(path, format=ending[1:], dpi=DOTS_PER_INCH, metadata=metadata)
    except OSError as error:
        raise InputError(f"figure '{path}' cannot be written: {error.strerror or error}") from None


def chart(width: float, height: float, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """An empty figure of so many inches and its axes; or axes of the caller's own, and their figure."""
    if ax is not None and not isinstance(ax, Axes):
        raise InputError(f"ax is a {type(ax).__name__}, must be one pair of matplotlib's Axes")
    axes = ax or Chart(figsize=(width, height), layout="constrained").add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return _figure_of(axes), axes


def _figure_of(axes: Axes) -> Figure:
    """The whole figure that axes are on, be they on a part of it."""
    figure: Figure = axes.figure.figure
    return figure


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of axes."""
    width, height = _figure_of(axes).get_size_inches() * axes.get_position().size
    return float(width), float(height)


def add_legend(
    axes: Axes, beside: Literal["right", "below"], handles: Sequence[Artist] | None = None
) -> None:
    """Write a legend: beside the axes of a chart, and where there is room where the axes are the caller's.

    Args:
        axes: whose legend it is.
        beside: where it stands on a chart.
        handles: its entries; by default what has a label.
    """
    figure, shown = _figure_of(axes), axes.get_legend_handles_labels()[0] if handles is None else handles
    if not isinstance(figure, Chart):
        axes.legend(handles=shown, loc="best", fontsize=7)
    elif beside == "right":
        figure.legend(handles=shown, loc="outside right upper", frameon=False, fontsize=9)
    else:
        figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), frameon=False, fontsize=9)


def set_title(axes: Axes, *parts: str) -> None:
    """Write a title of those parts that are not empty."""
    axes.set_title("  |  ".join(part for part in parts if part), loc="left", fontsize=11, color=INK)


def milliseconds(time_s: float) -> str:
    """A time in words."""
    value = time_s / MILLISECOND
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.4g} ms"


def contrast(colour: Sequence[float]) -> str:
    """The colour in which text on a background (red, green, blue, ...) can be read."""
    red, green, blue = colour[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


def strategy_look(name: str) -> tuple[str, str]:
    """The colour and the marker of a strategy: the same in every figure, no two alike among the first 77."""
    names = [*all_strategies(), *all_samplers()]
    number = names.index(name) if name in names else len(names)
    return STRATEGY_COLOURS[number % 7], STRATEGY_MARKERS[number % 11]


def is_number(value: object) -> bool:
    """True if a value of a row is a finite number."""
    return isinstance(value, int | float) and isfinite(value)
