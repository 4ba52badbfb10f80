"""Closed forms: the value of a formula beside that of a replay.

The formulas stand in ``forms.csv`` as published, of numbers, letters, arithmetic, min and max; no other code
repeats them.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from profiles.files import read_rows

FORMULAS: Final = Path(__file__).with_name("forms.csv")
EXACT: Final = 1e-9
"""Relative difference of two sums of floating point numbers in another order."""
ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {"min": min, "max": max}


@dataclass(frozen=True, slots=True)
class Form:
    """One value of a formula beside the simulated one.

    ``setting`` gives its numbers in words.
    """

    family: str
    setting: str
    formula: str
    expected: float
    simulated: float
    source: str

    @property
    def error(self) -> float:
        """The relative difference; the absolute one where the formula says 0."""
        difference = self.simulated - self.expected
        return difference / self.expected if self.expected else difference

    @property
    def holds(self) -> bool:
        """Whether the two differ by rounding alone."""
        return abs(self.error) <= EXACT


@cache
def _formulas() -> Mapping[tuple[str, str], tuple[str, str]]:
    """Formula and source by family and variant (column ``of``)."""
    rows = read_rows(FORMULAS, ("family", "of", "formula", "source"))
    return {(row.text("family"), row.text("of")): (row.text("formula"), row.text("source")) for row in rows}


def form(family: str, of: str, simulated: float, letters: Mapping[str, float], setting: str = "") -> Form:
    """A simulated value beside the formula that ``forms.csv`` has for a family and its variant ``of``.

    The setting in words is by default ``of`` and the letters that are whole numbers.
    """
    formula, source = _formulas()[family, of]
    expected = _value(ast.parse(formula, str(FORMULAS), "eval").body, letters)
    return Form(family, setting or f"{of}, {letter_text(letters)}", formula, expected, simulated, source)


def _value(part: ast.expr, letters: Mapping[str, float]) -> float:
    """The value of a part of a formula."""
    match part:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=letter):
            return letters[letter]
        case ast.BinOp(left=left, op=op, right=right):
            return ARITHMETIC[type(op)](_value(left, letters), _value(right, letters))
        case ast.Call(func=ast.Name(id=function), args=args):
            return FUNCTIONS[function](*(_value(each, letters) for each in args))
        case _:
            raise ValueError(
                f"{FORMULAS.name}: {ast.unparse(part)!r} is no number, letter, arithmetic, min or max"
            )


def letter_text(letters: Mapping[str, float]) -> str:
    """The letters that are whole numbers, in words."""
    return ", ".join(f"{letter} = {value}" for letter, value in letters.items() if isinstance(value, int))
