"""The report on closed forms: one line per family, and every value that differs, or all of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from validate.closed_forms import hybrids, pipelines, samplers
from validate.closed_forms.forms import Form, sections, summary
from validate.reporting.sections import print_sections

FAMILIES: Final[tuple[Callable[[], Iterable[Form]], ...]] = (
    pipelines.pipelines,
    pipelines.figure_4,
    samplers.pipefusion,
    samplers.sent_bytes,
    hybrids.hybrid,
    pipelines.skips,
    pipelines.uvit,
)


def closed_forms() -> list[Form]:
    """Every value of all families."""
    return [form for family in FAMILIES for form in family()]


def print_report(forms: Sequence[Form], *, every: bool = False) -> None:
    """Print the summary, and the tables of all values or of those that differ."""
    shown = forms if every else [form for form in forms if not form.holds]
    print_sections([summary(forms), *sections(shown)])
