"""Actions: what one op does, and how it is written.

The notation is that of ``torch.distributed.pipelining``: ``0F0``, ``2B1``, ``1I2``, ``1W2`` are stage, type and
micro-batch. Three things are ours: ``0E3`` is the extra forward of self-conditioning, ``0O`` the optimizer step
of a stage, ``X1.4:32`` layer 4 of frozen component 1 on 32 samples of each device, and ``2P1@7`` patch 1 of
sampling step 7 on stage 2.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from profiles.errors import InputError

FORWARD: Final = "F"
BACKWARD: Final = "B"
BACKWARD_INPUT: Final = "I"
BACKWARD_WEIGHT: Final = "W"
EXTRA_FORWARD: Final = "E"
OPTIMIZER: Final = "O"
TORCH_KINDS: Final = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)


class StageAction(NamedTuple):
    """A pass of one micro-batch through a stage; the optimizer step has no micro-batch (-1)."""

    stage: int
    kind: str
    micro_batch: int = -1

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.micro_batch < 0 else self.micro_batch}"


class FrozenAction(NamedTuple):
    """One layer of a frozen component on a number of samples per device."""

    component: int
    layer: int
    samples: int

    def __str__(self) -> str:
        return f"X{self.component}.{self.layer}:{self.samples}"


class PatchAction(NamedTuple):
    """One patch of one sampling step through a stage."""

    stage: int
    patch: int
    step: int

    def __str__(self) -> str:
        return f"{self.stage}P{self.patch}@{self.step}"


Action = StageAction | FrozenAction | PatchAction

_STAGE = re.compile(r"(\d+)([FBIWE])(\d+)")
_OPTIMIZER = re.compile(r"(\d+)O")
_FROZEN = re.compile(r"X(\d+)\.(\d+):(\d+)")
_PATCH = re.compile(r"(\d+)P(\d+)@(\d+)")


def parse_action(text: str) -> Action:
    """Return the action a text stands for.

    Raises:
        InputError: the text is no action.
    """
    if match := _STAGE.fullmatch(text):
        return StageAction(int(match[1]), match[2], int(match[3]))
    if match := _OPTIMIZER.fullmatch(text):
        return StageAction(int(match[1]), OPTIMIZER)
    if match := _FROZEN.fullmatch(text):
        return FrozenAction(int(match[1]), int(match[2]), int(match[3]))
    if match := _PATCH.fullmatch(text):
        return PatchAction(int(match[1]), int(match[2]), int(match[3]))
    raise InputError(f"'{text}' is no action; actions look like 0F0, 2B1, 1I2, 1W2, 0E3, 0O, X1.4:32, 2P1@7")


Order = tuple[tuple[Action, ...], ...]
"""For each device the actions of its compute stream, in order."""


def format_order(order: Iterable[Iterable[Action]]) -> str:
    """Return an order as text, one row per device."""
    return "".join(" ".join(map(str, row)) + "\n" for row in order)


def parse_order(text: str) -> Order:
    """Return the order that a text stands for; the inverse of ``format_order``."""
    return tuple(tuple(map(parse_action, line.split())) for line in text.splitlines())


def format_torch(order: Iterable[Sequence[Action]]) -> str:
    """Return an order as the compute-only CSV of ``torch.distributed.pipelining``: row i is rank i.

    torch knows forwards and backwards; optimizer steps and frozen work are left out.

    Raises:
        InputError: the order holds an action that torch has no word for and that must not be left out.
    """
    rows = []
    for row in order:
        cells = [action for action in row if isinstance(action, StageAction) and action.kind in TORCH_KINDS]
        for action in row:
            if isinstance(action, PatchAction) or (isinstance(action, StageAction) and action.kind == "E"):
                extra = "; try --self-conditioning 0" if isinstance(action, StageAction) else ""
                raise InputError(f"{action} has no counterpart in torch.distributed.pipelining{extra}")
        rows.append(",".join(map(str, cells)))
    return "".join(row + "\n" for row in rows)
