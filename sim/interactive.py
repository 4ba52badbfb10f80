"""Dials: a run to turn in a notebook; its timeline, bubble ratio, time with its band and memory follow."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from importlib.util import find_spec
from typing import Any, Final

from profiles.checks import sum_in_order
from profiles.errors import DiffusimError, DiffusimWarning, InputError, shown
from profiles.units import GIB
from sim.api import run
from sim.outcomes.results import Result
from sim.replay.timelines import COLLECTIVE
from sim.report.html.replayed import memory_of, timeline_of
from sim.report.numbers import counted_words, milliseconds
from sim.report.plots.charts import FRONT, GRID, INK, LIMIT, speed
from sim.report.plots.timeline import COLOURS
from strategies.registry import class_of, strategy_named

NEEDED: Final = ("ipywidgets", "plotly", "anywidget")
"""Packages that a dial and a picture that follows it are made of."""
HEIGHT: Final = 470
"""Pixels of the picture."""
ROW: Final = {"offset": -0.42, "width": 0.62}
LANE: Final = {"offset": 0.22, "width": 0.18}
"""Places of what a device computes, and of what its communication stream does, around its number."""
NARROW: Final = 1 / 400
"""Bars of a smaller share of the time have no white edge, which would be all that is seen of them."""
PATCHES: Final = "patches"
"""What the legend calls the bars of a sampler, each of the colour of its patch."""
NOTHING: Final[Mapping[str, list[Any]]] = {"device": [], "start": [], "took": [], "words": []}


def _check_needed() -> None:
    """Refuse to make dials without the packages that they are made of.

    Raises:
        InputError: one is not installed.
    """
    for name in NEEDED:
        if find_spec(name) is None:
            raise InputError(f"Dials need {name}: pip install 'diffusim[notebooks]'")


class Dials:
    """A run with dials, whose result is drawn anew whenever one is turned.

    Takes what ``sim.run`` takes. Each value that is a list becomes a dial: a slider of numbers, a menu of anything
    else. Parameters that the chosen strategy does not have are left out, and their dials are switched off.

    Attributes:
        dials: the widgets by keyword.
        figure: the timeline, and below it the memory of the fullest device; a Plotly ``FigureWidget``.
        words: the numbers, or why there are none; a widget of HTML.
        panel: all of it, as a notebook shows it.
        result: what the latest turn gives; None where that is nothing.
    """

    def __init__(
        self,
        model: str | Sequence[str],
        strategy: str | Sequence[str],
        cluster: str | Sequence[str] | None = None,
        gpus: int | Sequence[int] | None = None,
        **given: Any,  # noqa: ANN401
    ) -> None:
        """Make the dials, each at its first value, and draw what they say.

        Raises:
            InputError: nothing is a list, a list is empty, a strategy is unknown, or a package is missing.
        """
        _check_needed()
        from ipywidgets import HTML, HBox, Layout, VBox

        asked = {"model": model, "strategy": strategy, "cluster": cluster, "gpus": gpus, **given}
        self.held = {name: value for name, value in asked.items() if not isinstance(value, list)}
        self.dials = {name: _dial(name, of) for name, of in asked.items() if isinstance(of, list)}
        if not self.dials:
            raise InputError("no value is a list: there is nothing to turn")
        self.result: Result | None = None
        names = strategy if isinstance(strategy, list) else [strategy]
        self._parameters = set().union(*map(_parameters, names))
        self.figure, self.words = _figure(), HTML()
        turned = HBox(list(self.dials.values()), layout=Layout(flex_flow="row wrap"))
        self.panel = VBox([turned, self.words, self.figure])
        for dial in self.dials.values():
            dial.observe(self.update, names="value")
        self.update()

    @property
    def asked(self) -> dict[str, Any]:
        """What ``sim.run`` is asked: what is held, and what the dials say as far as the strategy knows it."""
        chosen = self.held | {name: dial.value for name, dial in self.dials.items()}
        own = _parameters(str(chosen["strategy"]))
        return {name: of for name, of in chosen.items() if name in own or name not in self._parameters}

    def turn(self, **values: Any) -> None:  # noqa: ANN401
        """Turn dials to values of theirs and draw once.

        Raises:
            InputError: there is no such dial, or it has no such value.
        """
        for name, value in values.items():
            if name not in self.dials:
                raise InputError(f"there is no dial {name}, must be one of {', '.join(self.dials)}")
            if value not in self.dials[name].options:
                offered = ", ".join(map(str, self.dials[name].options))
                raise InputError(f"{name} is {shown(value)}, must be one of {offered}")
        for name, value in values.items():
            self.dials[name].unobserve(self.update, names="value")
            self.dials[name].value = value
            self.dials[name].observe(self.update, names="value")
        self.update()

    def update(self, _change: object = None) -> None:
        """Run what the dials say, and draw it."""
        asked, before = self.asked, self.result
        for name, dial in self.dials.items():
            dial.disabled = name not in asked
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", DiffusimWarning)
            try:
                self.result = run(**asked)
                self.words.value = _table(_lines(self.result, before))
            except DiffusimError as error:
                self.result, self.words.value = None, f"<b>{escape(str(error))}</b>"
        self.words.value += "".join(f"<i>{escape(str(warning.message))}</i>" for warning in told)
        with self.figure.batch_update():
            _draw(self.figure, self.result)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:  # noqa: ANN401
        """The panel, in a notebook."""
        return self.panel._repr_mimebundle_(**kwargs)


def _parameters(strategy: str) -> set[str]:
    """The parameters of a strategy."""
    return {item.name for item in fields(class_of(strategy_named(strategy)))}  # type: ignore[arg-type]


def _dial(name: str, values: list[Any]) -> Any:  # noqa: ANN401
    """A widget that offers some values."""
    from ipywidgets import Dropdown, SelectionSlider

    if not values:
        raise InputError(f"{name} is an empty list: there is nothing to turn")
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    kind = SelectionSlider if numbers else Dropdown
    return kind(options=values, value=values[0], description=name.replace("_", " "))


def _figure() -> Any:  # noqa: ANN401
    """The picture: a bar of each kind of work, the memory and its limit; empty."""
    from plotly.graph_objects import Bar, FigureWidget, Scatter
    from plotly.subplots import make_subplots

    figure = FigureWidget(
        make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.7, 0.3])
    )
    for kind, colour in ({PATCHES: INK} | COLOURS).items():
        place = LANE if kind == COLLECTIVE else ROW
        look = {"color": colour, "line": {"color": "white"}}
        figure.add_trace(Bar(name=kind, orientation="h", marker=look, **place), 1, 1)
    held = {"line": {"color": INK, "width": 1.2, "shape": "hv"}, "fill": "tozeroy", "fillcolor": GRID}
    figure.add_trace(Scatter(name="memory", mode="lines", showlegend=False, **held), 2, 1)
    there = {"color": LIMIT, "width": 1.5, "dash": "dash"}
    figure.add_trace(Scatter(name="memory of a GPU", mode="lines", line=there), 2, 1)
    figure.update_layout(
        height=HEIGHT, barmode="overlay", margin={"l": 80, "r": 10, "t": 10, "b": 40},
        plot_bgcolor="white", legend={"orientation": "h", "y": -0.13},
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", tickprefix="GPU ", dtick=1, row=1, col=1)
    figure.update_yaxes(title="GiB", rangemode="tozero", gridcolor=GRID, row=2, col=1)
    figure.update_xaxes(title="time in ms", linecolor=FRONT, row=2, col=1)
    return figure


def _draw(figure: Any, result: Result | None) -> None:  # noqa: ANN401
    """Write the values of a result into the picture."""
    nothing: dict[str, Any] = {"kinds": [], "end_ms": 0.0}
    seen = nothing if result is None else timeline_of(result.trace)
    kinds = {kind["name"]: kind for kind in seen["kinds"] if kind["name"] in COLOURS}
    kinds[PATCHES] = _together([kind for kind in seen["kinds"] if kind["name"] not in COLOURS])
    *bars, memory, there = figure.data
    for bar in bars:
        own = kinds.get(bar.name, NOTHING)
        bar.update(y=own["device"], base=own["start"], x=own["took"], hovertext=own["words"])
        bar.marker.line.width = [0.5 if took > NARROW * seen["end_ms"] else 0.0 for took in own["took"]]
        if "colours" in own:
            bar.marker.color = own["colours"]
        bar.showlegend = bool(own["took"])
    held = None if result is None else memory_of(result.trace)
    times = held["times"] if held else []
    memory.update(x=times, y=_totals(held["kinds"]) if held else [])
    limit = held["capacity"] if held else None
    there.update(x=[times[0], times[-1]] if limit else [], y=[limit, limit] if limit else [])
    there.showlegend = bool(limit)


def _together(kinds: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The bars of several kinds, and the colour of each bar."""
    joined = {key: [value for kind in kinds for value in kind[key]] for key in NOTHING}
    return joined | {"colours": [kind["colour"] for kind in kinds for _ in kind["took"]]}


def _totals(kinds: Iterable[Mapping[str, Sequence[float]]]) -> list[float]:
    """GiB in all at each time."""
    return [sum_in_order(sizes) for sizes in zip(*(kind["sizes"] for kind in kinds), strict=True)]


def _lines(result: Result, before: Result | None) -> dict[str, str]:
    """The numbers of a result in words, and how its time compares with that of the turn before."""
    took, there = result.expected.duration_s, result.memory_bytes
    change = (
        "" if before is None else f", {100 * (took / before.expected.duration_s - 1):+.1f} % by this turn"
    )
    band = f"{milliseconds(took)}, likely {milliseconds(result.low_s)} to {milliseconds(result.high_s)}"
    held = f"{result.peak_memory_bytes / GIB:.1f} GiB"
    held += "" if there is None else f" of {there / GIB:.0f} GiB"
    return {
        "": result.title,
        "time": band + change,
        "bubble ratio": f"{100 * result.bubble_ratio:.1f} %",
        "speed": speed(result.samples_per_s, counted_words(result.task, result.options)),
        "memory": held if result.fits_memory else f"{held}: does not fit",
    }


def _table(lines: Mapping[str, str]) -> str:
    cells = (f"<tr><td><b>{escape(name)}</b></td><td>{escape(of)}</td></tr>" for name, of in lines.items())
    return f"<table>{''.join(cells)}</table>"
