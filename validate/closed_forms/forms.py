"""Closed forms: what a formula says beside what a replay says, and how far the two may differ.

The formulas stand in ``forms.csv`` as they are printed, and are evaluated as they stand there: no other code says what
they say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from profiles.files import read_rows
from validate.reporting.sections import Section

FORMULAS: Final = Path(__file__).with_name("forms.csv")
EXACT: Final = 1e-9
"""Relative difference of two sums of floating point numbers in another order."""


@dataclass(frozen=True, slots=True)
class Form:
    """One value of a formula beside the simulated one.

    Attributes:
        family: what it is about; the heading of its table.
        setting: its numbers.
        formula: in words.
        expected: its value.
        simulated: what a replay says.
        source: where the formula stands.
        tolerance: how far the two may differ, relative to ``expected`` unless that is 0.
    """

    family: str
    setting: str
    formula: str
    expected: float
    simulated: float
    source: str
    tolerance: float = EXACT

    @property
    def error(self) -> float:
        """The relative difference; the absolute one where the formula says 0."""
        difference = self.simulated - self.expected
        return difference / self.expected if self.expected else difference

    @property
    def holds(self) -> bool:
        """Whether the two differ by no more than the tolerance."""
        return abs(self.error) <= self.tolerance


@cache
def _formulas() -> Mapping[tuple[str, str], tuple[str, str]]:
    """Formula and source by family and what it is of."""
    rows = read_rows(FORMULAS, ("family", "of", "formula", "source"))
    return {(row.text("family"), row.text("of")): (row.text("formula"), row.text("source")) for row in rows}


def form(family: str, of: str, simulated: float, letters: Mapping[str, float], setting: str = "") -> Form:
    """A simulated value beside its formula.

    Args:
        family: as ``forms.csv`` has it.
        of: likewise.
        simulated: what a replay says.
        letters: values of the letters of the formula.
        setting: in words; by default what the formula is of, and the letters that are whole numbers.
    """
    formula, source = _formulas()[family, of]
    expected = eval(formula, {}, {"min": min, "max": max, **letters})  # of our own file
    return Form(family, setting or f"{of}, {said(letters)}", formula, float(expected), simulated, source)


def said(letters: Mapping[str, float]) -> str:
    """The letters that are whole numbers, in words."""
    return ", ".join(f"{letter} = {value}" for letter, value in letters.items() if isinstance(value, int))


def sections(forms: Sequence[Form]) -> list[Section]:
    """One table per family."""
    return [_section(family, of) for family, of in _families(forms).items()]


def _families(forms: Sequence[Form]) -> dict[str, list[Form]]:
    groups: dict[str, list[Form]] = {}
    for one in forms:
        groups.setdefault(one.family, []).append(one)
    return groups


def _section(family: str, forms: Sequence[Form]) -> Section:
    sources = "; ".join(dict.fromkeys(one.source for one in forms))
    rows = [
        [
            one.setting,
            one.formula,
            f"{one.expected:.7g}",
            f"{one.simulated:.7g}",
            f"{one.error:+.1e}",
            "yes" if one.holds else "NO",
        ]
        for one in forms
    ]
    return Section(
        f"{family}: {len(forms)} values, {_verdict(forms)}, largest error {_worst(forms)}",
        ("setting", "formula", "its value", "simulated", "error", "holds"),
        rows,
        f"Source: {sources}.",
    )


def _verdict(forms: Sequence[Form]) -> str:
    missed = sum(not one.holds for one in forms)
    return f"{missed} do not hold" if missed else "all hold"


def _worst(forms: Sequence[Form]) -> str:
    return f"{max((one.error for one in forms), key=abs):+.1e}"


def summary(forms: Sequence[Form]) -> Section:
    """One line per family."""
    families = _families(forms)
    rows = []
    for family, of in families.items():
        formulas = "; ".join(dict.fromkeys(one.formula for one in of))
        rows.append([family, formulas, f"{len(of)}", f"{sum(one.holds for one in of)}", _worst(of)])
    return Section(
        f"Closed forms: {len(forms)} values of {len(families)} families, {_verdict(forms)}",
        ("family", "formula", "values", "hold", "largest relative error"),
        rows,
    )
