"""Hints: which name was meant where an answer lacks the one asked for."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from profiles.errors import near

REPORT: Final = ("write_report",)
TIMELINE: Final = ("plot_timeline", "best.plot_timeline")
WHY: Final = ("account", "verdict")
FRAME: Final = ("frame",)
LIKE: Final = 0.75
"""Similarity (1: equal) from which one name is taken for another."""
MEANT: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("report", "html", "to_html", "save", "page"), REPORT),
    **dict.fromkeys(("timeline", "gantt", "plot_gantt", "plot_timeline"), TIMELINE),
    **dict.fromkeys(("memory", "plot_memory"), ("plot_memory", "best.plot_memory")),
    **dict.fromkeys(("why", "reason", "reasons", "explain", "account", "breakdown"), WHY),
    **dict.fromkeys(("answer", "summary", "recommendation", "recommended"), ("verdict",)),
    **dict.fromkeys(("runner_up", "changes", "trust"), ("verdict",)),
    **dict.fromkeys(("table", "df", "to_frame", "to_pandas", "dataframe", "results", "to_csv"), FRAME),
    **dict.fromkeys(("pareto", "pareto_front"), ("front",)),
    **dict.fromkeys(("draw", "show", "chart", "figure"), ("plot", "plot_timeline")),
    "winner": ("best",),
    "compare": ("sim.compare",),
}
"""Names that people try, and what is meant by them: the first of these that an answer has."""


def no_attribute(one: object, name: str, called: str, values: Iterable[str] = ()) -> AttributeError:
    """The error about a name that an answer lacks: what is meant, and what there is.

    Args:
        one: the answer.
        name: what it lacks.
        called: the answer in words.
        values: names of its values, where the class has properties that not every answer has.
    """
    cls = type(one)
    own = [known for known in dir(cls) if not known.startswith("_") and known != name]
    there = [*values, *(known for known in own if not values or callable(getattr(cls, known)))]
    meant = (path for path in MEANT.get(name, ()) if path.partition(".")[0] in ("sim", *own))
    hint = next((f"did you mean {path}? " for path in meant), "") or near(name, there, LIKE)
    return AttributeError(f"{called} has no {name}; {hint}it has {', '.join(there)}")


class Hinting:
    """An answer whose error about a name that it lacks says which names it has."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            if name.startswith("_"):  # notebooks and copies look for many
                raise AttributeError(name)
            raise no_attribute(self, name, f"a {type(self).__name__}")
