"""The command ``closed-forms``: one line per family of formulas, and the values that differ, or all values."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from profiles.measuring.writing import grouped
from validate.closed_forms import families
from validate.closed_forms.forms import Form
from validate.tables import Section, print_sections

FAMILIES: Final[tuple[Callable[[], Iterable[Form]], ...]] = (
    families.pipelines, families.pipefusion, families.sent_bytes, families.hybrid, families.skips,
)  # fmt: skip


def closed_forms() -> list[Form]:
    """Every value of all families."""
    return [form for family in FAMILIES for form in family()]


def run_closed_forms(options: argparse.Namespace) -> int:
    """Print the summary, and all values or those that differ; return 1 where one does."""
    forms = closed_forms()
    shown = forms if options.all else [form for form in forms if not form.holds]
    families = grouped(shown, lambda one: one.family)
    print_sections([summary(forms), *(_section(family, of) for family, of in families.items())])
    return int(not all(form.holds for form in forms))


def _section(family: str, forms: Sequence[Form]) -> Section:
    """One table of a family."""
    rows = []
    for one in forms:
        numbers = (f"{one.expected:.7g}", f"{one.simulated:.7g}", f"{one.error:+.1e}")
        rows.append([one.setting, one.formula, *numbers, "yes" if one.holds else "NO"])
    title = f"{family}: {len(forms)} values, {_verdict(forms)}, largest error {_worst(forms)}"
    header = ("setting", "formula", "its value", "simulated", "error", "holds")
    return Section(title, header, rows, f"Source: {'; '.join(dict.fromkeys(one.source for one in forms))}.")


def _verdict(forms: Sequence[Form]) -> str:
    missed = sum(not one.holds for one in forms)
    return f"{missed} do not hold" if missed else "all hold"


def _worst(forms: Sequence[Form]) -> str:
    return f"{max((one.error for one in forms), key=abs):+.1e}"


def summary(forms: Sequence[Form]) -> Section:
    """One line per family."""
    families = grouped(forms, lambda one: one.family)
    rows = []
    for family, of in families.items():
        formulas = "; ".join(dict.fromkeys(one.formula for one in of))
        rows.append([family, formulas, f"{len(of)}", f"{sum(one.holds for one in of)}", _worst(of)])
    title = f"Closed forms: {len(forms)} values of {len(families)} families, {_verdict(forms)}"
    return Section(title, ("family", "formula", "values", "hold", "largest relative error"), rows)
