"""Charts: what all figures share: colours, an axis to draw on, a file to save to.

Figures are made without ``pyplot``: no display needed, and nothing of a notebook's is touched. Where a script uses it,
they are its current figure.
Colours are those of Okabe and Ito, which the colour-blind tell apart; those of strategies are the
same in every figure: those of one family share a hue, from dark to light. Those of one task can be told apart by colour
alone; across tasks, whose pictures never mix, hues are used twice, but never with the same marker.
"""

import sys
import tomllib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from io import BytesIO
from math import isfinite
from os import PathLike
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Literal, Union

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from profiles.errors import InputError, near_or_all, shown
from profiles.outputs import FIGURES, check_ending, whole_file
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.frames import rows
from strategies.plans.traces import Trace

if TYPE_CHECKING:
    from pandas import DataFrame

IDLE_FACE: Final = "#F6F6F6"
IDLE_HATCH: Final = "#C4C4C4"
INK: Final = "#222222"
GRID: Final = "#E6E6E6"
FRONT: Final = "#9A9A9A"
LIMIT: Final = "#D55E00"
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
"""Of plans, requests and kinds of memory, in turn."""
EDGE: Final[Mapping[str, Any]] = {"markeredgecolor": INK, "markeredgewidth": 0.5}
"""The edge of a marker, which a light one needs on paper."""
DOTS_PER_INCH: Final = 150
TITLE_LETTER: Final = 0.083
"""Inches of a letter of a title, on average."""

PLAIN: Final = "{x:,.8g}"
"""Format of the numbers of an axis."""

ChartRow = Mapping[str, Any]
"""A result under its public keys."""


class Chart(Figure):
    """A figure that a notebook displays although ``pyplot`` never saw it."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save with TrueType fonts in PDF, which journals ask for, and with reproducible names in SVG."""
        with mpl.rc_context({"svg.hashsalt": "diffusim", "pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> bytes:
        return _bytes_of(self, format="png", dpi=DOTS_PER_INCH)

    def _ipython_display_(self) -> None:
        """Show the figure once: as the current one, notebooks that show figures inline would show it again."""
        notebook: Any = sys.modules["IPython.display"]
        notebook.display(notebook.Image(self._repr_png_()))
        _close(self)


def _bytes_of(figure: Figure, **look: Any) -> bytes:  # noqa: ANN401
    buffer = BytesIO()
    figure.savefig(buffer, **look)
    return buffer.getvalue()


def _close(figure: Figure) -> None:
    """Let a figure no longer be the current one of ``pyplot``."""
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(figure)


def save_figure(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure in the format of the path's ending; the same figure gives the same bytes."""
    path = Path(path)
    check_ending("figure", path, FIGURES)
    ending = path.suffix.lower()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending, {})
    with whole_file(path) as file:
        figure.savefig(file, format=ending[1:], dpi=DOTS_PER_INCH, metadata=metadata)


def as_html(figure: Figure) -> str:
    """Return a figure as an image in HTML, which needs no other file."""
    picture = _bytes_of(figure, format="svg", metadata={"Date": None})
    _close(figure)
    source = f"data:image/svg+xml;base64,{b64encode(picture).decode()}"
    return f'<div class="figure"><img style="max-width: 100%" src="{source}"></div>'


def chart(width: float, height: float, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """Return an empty figure of so many inches and its axes; or the caller's axes and their figure."""
    axes = ax or new_figure(width, height).add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return _figure_of(axes), axes


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of so many inches, which ``plt.savefig`` saves."""
    look: dict[str, Any] = {"figsize": (width, height), "layout": "constrained"}
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return Chart(**look)
    figure: Figure = pyplot.figure(FigureClass=Chart, **look)
    return figure


def _figure_of(axes: Axes) -> Figure:
    """Return the whole figure that axes are on, be they on a part of it."""
    return axes.figure.figure


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of axes."""
    width, height = _figure_of(axes).get_size_inches() * axes.get_position().size
    return float(width), float(height)


def add_legend(
    axes: Axes, beside: Literal["right", "below"], handles: Sequence[Artist] | None = None
) -> None:
    """Write a legend beside or below the axes: of a chart into its margin; by default of all that has a label."""
    figure, entries = _figure_of(axes), handles or axes.get_legend_handles_labels()[0]
    look: dict[str, Any] = {"handles": entries, "frameon": False}
    if not isinstance(figure, Chart):  # nothing makes room outside the axes
        axes.legend(loc="best", fontsize=7, **look | {"frameon": True, "framealpha": 0.8})
    elif beside == "right":
        figure.legend(loc="outside right upper", fontsize=9, **look)
    else:
        longest = max((len(str(handle.get_label())) for handle in entries), default=0)
        columns = int(figure.get_size_inches()[0] * 8 / (4.5 + 0.55 * longest))
        columns = max(1, min(len(entries), columns))
        figure.legend(loc="outside lower center", ncols=columns, fontsize=9, **look)


def set_title(axes: Axes, *parts: str) -> None:
    """Write a title of those parts that are not empty, in as many lines as the width of the axes asks for."""
    words = "  |  ".join(str(part) for part in parts if part)
    size = 11 if isinstance(_figure_of(axes), Chart) else 7  # nothing makes room on a figure of others
    lines = wrap(words, max(30, int(inches(axes)[0] / TITLE_LETTER * 11 / size)))
    axes.set_title("\n".join(line.strip(" |") for line in lines), loc="left", fontsize=size, color=ink())


def ink() -> str:
    """Return the colour of words and of the bounds of markers, which a dark style of matplotlib sets."""
    colour = str(mpl.rcParams["text.color"])
    return INK if colour == "black" else colour


def tick(value: object) -> str:
    """Return a value as a tick names it."""
    return f"{value:g}" if isinstance(value, float) else str(value).replace(", ", ",\n")


def add_grid(axes: Axes, axis: Literal["both", "y"] = "y") -> None:
    """Draw faint lines behind what is plotted."""
    axes.grid(axis=axis, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def contrast(colour: Sequence[float]) -> str:
    """Return the colour in which text on a background (red, green, blue, ...) can be read."""
    red, green, blue = colour[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


def is_finite(value: object) -> bool:
    """True if a value of a row is a finite number."""
    return isinstance(value, int | float) and isfinite(value)


def scale_logarithmically(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with plain numbers at its ticks."""
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.set_major_formatter(StrMethodFormatter(PLAIN))
    axis.set_minor_locator(NullLocator())


LOOKS: Final = tomllib.loads(files("sim.report.plots").joinpath("looks.toml").read_text(encoding="utf-8"))
MARKERS: Final = "".join(LOOKS["symbols"])
OTHERS: Final = "#222222"
"""The colour of strategies that other packages bring."""
FADED: Final = 0.45
"""Opacity of points that are not recommended."""
RECOMMENDED: Final = "recommended"
"""Label of the ring around the best."""


def strategy_look(name: str) -> tuple[str, str]:
    """Return the colour and the marker of a strategy; those of other packages share a colour."""
    colour, marker = LOOKS["strategies"].get(name, (OTHERS, MARKERS[sum(name.encode()) % len(MARKERS)]))
    return colour, marker


def label_of(name: str, *, seams: bool) -> str:
    """Return a strategy as legends name it; one whose points are not recommended with the reason."""
    return f"{name} (seams show)" if seams else name


Drawable = Union[Sweep, Scaling, Result, "DataFrame", Iterable[Sweep | Scaling | Result | ChartRow]]
"""Sweeps, results, their rows, or a frame of these."""
USUAL: Final = {"status": "simulated", "task": "train", "fits_memory": True, "recommended": True}
"""Values of rows that do not have them."""


def plot_rows(drawable: Drawable, *needs: str, **axes: str) -> list[ChartRow]:
    """Return the rows of something to be drawn, which have the keys of its axes; simulated ones also what it needs.

    Rows without a status are taken as simulated, fitting and recommended.
    """
    one = isinstance(drawable, Sweep | Scaling | Result) or hasattr(drawable, "columns")
    items: Iterable[Any] = (drawable,) if one else drawable  # type: ignore[assignment]
    points: list[ChartRow] = [
        {**USUAL, **(row.get("options") or {}), **row} for item in items for row in _rows(item)
    ]
    for row in points:
        for name, key in axes.items():
            if key not in row:
                near = near_or_all(str(key), list(row))
                raise InputError(f"{name} is {shown(key)}, which a row lacks; {near}")
        for key in needs:
            if row.get(key) is None and row["status"] == "simulated":
                raise InputError(f"a row lacks {key}: give results as they are")
    return points


def _rows(item: Any) -> list[ChartRow]:  # noqa: ANN401
    """Return the rows of one item; of a frame without empty cells."""
    match item:
        case Sweep() | Scaling():
            return list(rows(item))
        case Result():
            return [item.to_json()]
        case Mapping():
            return [item]
    if hasattr(item, "columns"):
        return [row.dropna().to_dict() for _, row in item.astype(object).iterrows()]
    such = "sweeps, results, or what their rows() or frame() gives"
    raise InputError(f"rows hold a {type(item).__name__}, must be {such}")


def plot_trace(source: Trace | Result) -> Trace:
    """Return the trace of a result, or the trace itself."""
    trace = source.trace if isinstance(source, Result) else source
    if not isinstance(trace, Trace):
        raise InputError(f"trace is {shown(trace)}, must be a result or one of its traces")
    return trace
