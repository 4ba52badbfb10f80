"""Looks: the colour and the marker of each strategy, the same in every figure.

Strategies of one family share a hue, from dark to light. Those of one task can be told apart by colour alone, also by
the colour-blind; across tasks, whose pictures never mix, hues are used twice, but never with the same marker.
"""

import tomllib
from importlib.resources import files
from typing import Final

from strategies.registry import every_strategy

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
    known = LOOKS["strategies"]
    if name in known:
        colour, marker = known[name]
        return colour, marker
    brought = [other for other in every_strategy() if other not in known]
    number = brought.index(name) if name in brought else len(brought)
    return OTHERS, MARKERS[number % len(MARKERS)]


def label_of(name: str, *, seams: bool) -> str:
    """Return a strategy as legends name it; one whose points are not recommended with the reason."""
    return f"{name} (seams show)" if seams else name
