"""Orders read back from their notation."""

import re

from profiles.machines.fabrics import OPERATIONS
from strategies.plans.actions import (
    OPTIMIZER,
    CollectiveAction,
    FrozenAction,
    PatchAction,
    Piece,
    StageAction,
)

WORD = re.compile(
    r"(?:(?P<stage>\d+)(?P<kind>[FBIWE])(?P<number>\d+)|(?P<on>\d+)P(?P<patch>\d+)@(?P<step>\d+))(?:\.(?P<piece>\d+))?"
    r"|(?P<stepped>\d+)O|X(?P<component>\d+)\.(?P<layer>\d+):(?P<samples>\d+)"
    rf"|(?P<operation>{'|'.join(OPERATIONS)})#(?P<at>\d+)"
)


def parse_action(text):
    """Return the action, piece or exchange that a text denotes."""
    match = WORD.fullmatch(text)
    assert match, f"'{text}' is no action"
    parts = {name: value for name, value in match.groupdict().items() if value is not None}
    operation, kind, piece = parts.pop("operation", ""), parts.pop("kind", ""), parts.pop("piece", None)
    numbers = [int(value) for value in parts.values()]
    if operation:
        return CollectiveAction(operation, *numbers)
    if "stepped" in parts:
        return StageAction(numbers[0], OPTIMIZER)
    if "component" in parts:
        return FrozenAction(*numbers)
    action = StageAction(numbers[0], kind, numbers[1]) if kind else PatchAction(*numbers)
    return action if piece is None else Piece(action, int(piece))


def parse_order(text):
    """Return the rows of a text; the inverse of ``format_order``."""
    return tuple(tuple(map(parse_action, line.split())) for line in text.splitlines())
