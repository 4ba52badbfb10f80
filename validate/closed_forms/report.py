"""The report on closed forms: one line per family, and every value that differs, or all of them."""

from collections.abc import Sequence
from typing import Final

from validate.closed_forms import frozen, hybrids, pipelines, samplers, volumes
from validate.closed_forms.forms import Family, Form, sections
from validate.published.rows import Section

FAMILIES: Final[tuple[Family, ...]] = (
    pipelines.linear,
    pipelines.interleaved,
    pipelines.zero_bubble,
    pipelines.chimera,
    pipelines.wave,
    pipelines.pulse,
    frozen.figure_4,
    samplers.pipefusion,
    samplers.sent_bytes,
    hybrids.hybrid,
    volumes.skips,
    volumes.uvit,
)


def closed_forms(families: Sequence[Family] = FAMILIES) -> list[Form]:
    """Return every value of some families."""
    return [form for family in families for form in family()]


def summary(forms: Sequence[Form]) -> Section:
    """Return one line per family."""
    groups: dict[str, list[Form]] = {}
    for form in forms:
        groups.setdefault(form.family, []).append(form)
    missed = sum(not form.holds for form in forms)
    verdict = "all hold" if not missed else f"{missed} do not hold"
    return Section(
        f"Closed forms: {len(forms)} values of {len(groups)} families, {verdict}",
        ("family", "formula", "values", "hold", "largest relative error"),
        [_line(family, of) for family, of in groups.items()],
    )


def _line(family: str, forms: Sequence[Form]) -> list[str]:
    formulas = "; ".join(dict.fromkeys(form.formula for form in forms))
    worst = max((form.error for form in forms), key=abs)
    return [family, formulas, f"{len(forms)}", f"{sum(form.holds for form in forms)}", f"{worst:+.1e}"]


def print_report(forms: Sequence[Form], *, every: bool = False) -> None:
    """Print the summary, and the tables of all values or of those that differ."""
    print(summary(forms).markdown())
    shown = forms if every else [form for form in forms if not form.holds]
    for section in sections(shown):
        print(f"\n{section.markdown()}")
