"""Interactive runs: a run to turn in a notebook; its timeline, bubble ratio, time with its band and memory follow."""

import warnings
from collections.abc import Sequence
from dataclasses import fields
from html import escape
from typing import Any

from profiles.errors import DiffusimError, DiffusimWarning, InputError, shown
from sim.api import run
from sim.outcomes.results import Result
from sim.report.blocks import Panel, html
from sim.report.results import memory_words, speed_words
from strategies.registry import class_of, strategy_named


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
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Make the dials, each at its first value, and draw what they say.

        Raises:
            InputError: nothing is a list, a list is empty, a strategy is unknown, or a package is missing.
        """
        try:
            import anywidget  # noqa: F401  which FigureWidget is made of
            from ipywidgets import HTML, HBox, Layout, VBox
            from plotly.graph_objects import FigureWidget
        except ImportError as error:
            raise InputError(f"Dials need {error.name}: pip install 'diffusim[notebooks]'") from error
        values = {"model": model, "strategy": strategy, "cluster": cluster, "gpus": gpus, **options}
        self.held = {name: value for name, value in values.items() if not isinstance(value, list)}
        self.dials = {name: _dial(name, of) for name, of in values.items() if isinstance(of, list)}
        if not self.dials:
            raise InputError("no value is a list: there is nothing to turn")
        self.result: Result | None = None
        self._parameters = set().union(
            *map(_parameters, strategy if isinstance(strategy, list) else [strategy])
        )
        self.figure, self.words = FigureWidget(), HTML()
        dials = HBox(list(self.dials.values()), layout=Layout(flex_flow="row wrap"))
        self.panel = VBox([dials, self.words, self.figure])
        self._listen()
        self.update()

    def _listen(self, *, on: bool = True) -> None:
        for dial in self.dials.values():
            (dial.observe if on else dial.unobserve)(self.update, names="value")

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``sim.run``: the values held and those of the dials, as far as the strategy has them."""
        chosen = self.held | {name: dial.value for name, dial in self.dials.items()}
        lacking = self._parameters - _parameters(str(chosen["strategy"]))
        return {name: value for name, value in chosen.items() if name not in lacking}

    def turn(self, **values: Any) -> None:  # noqa: ANN401
        """Turn dials to values of theirs and draw once.

        Raises:
            InputError: there is no such dial, or it has no such value.
        """
        for name, value in values.items():
            if name not in self.dials:
                raise InputError(f"there is no dial {name}, must be one of {', '.join(self.dials)}")
            if value not in (offered := self.dials[name].options):
                raise InputError(f"{name} is {shown(value)}, must be one of {', '.join(map(str, offered))}")
        self._listen(on=False)
        for name, value in values.items():
            self.dials[name].value = value
        self._listen()
        self.update()

    def update(self, _change: object = None) -> None:
        """Run what the dials say, and draw it."""
        from sim.report.plots.interactive import trace_figure

        arguments, before = self.arguments, self.result
        for name, dial in self.dials.items():
            dial.disabled = name not in arguments
        self.figure.data, self.result = (), None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DiffusimWarning)
            try:
                self.result = run(**arguments)
            except DiffusimError as error:
                self.words.value = f"<b>{escape(str(error))}</b>"
            else:
                self.words.value = _table(self.result, before)
                plotted = trace_figure(self.result.trace)
                self.figure.add_traces(plotted.data)
                self.figure.update_layout(plotted.layout)
        self.words.value += "".join(f"<i>{escape(str(warning.message))}</i>" for warning in caught)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:  # noqa: ANN401
        """The panel, in a notebook."""
        return self.panel._repr_mimebundle_(**kwargs)


def _parameters(strategy: str) -> set[str]:
    """The parameters of a strategy."""
    return {item.name for item in fields(class_of(strategy_named(strategy)))}


def _dial(name: str, values: list[Any]) -> Any:  # noqa: ANN401
    """A widget that offers some values."""
    from ipywidgets import Dropdown, SelectionSlider

    if not values:
        raise InputError(f"{name} is an empty list: there is nothing to turn")
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    kind = SelectionSlider if numbers else Dropdown
    return kind(options=values, value=values[0], description=name.replace("_", " "))


def _table(result: Result, before: Result | None) -> str:
    """Return the numbers of a result as HTML, and how its time compares with that of the turn before."""
    lines = [
        ("speed", speed_words(result)),
        ("bubble ratio", f"{100 * result.bubble_ratio:.1f} %"),
        ("memory", memory_words(result)),
    ]
    if before is not None:
        more = 100 * (result.expected.duration_s / before.expected.duration_s - 1)
        lines.insert(1, ("time", f"{more:+.1f} % by this turn"))
    return html(Panel(result.title, lines))
