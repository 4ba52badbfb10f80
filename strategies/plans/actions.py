"""Actions: the work of one op, and its notation.

The notation is that of ``torch.distributed.pipelining``: ``0F0``, ``2B1``, ``1I2``, ``1W2`` are stage, type and
micro-batch. The rest is ours: ``0E3`` is the extra forward of self-conditioning, ``0O`` the optimizer step of a
stage, ``X1.4:32`` layer 4 of frozen component 1 on 32 samples of each device, and ``2P1@7`` patch 1 of sampling
step 7 on stage 2. Where exchanges cut a pass into pieces, ``2P1@7.3`` and ``0F0.3`` are piece 3 of it, and
``all_to_all#12`` exchange 12 of the run, which stands under this number in the row of each of its devices.
"""

from collections import Counter
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


def passes_of(stage: int, kind: str, micro_batches: Iterable[int]) -> list[StageAction]:
    """Return the passes of a kind through a stage, one of each micro-batch."""
    return [StageAction(stage, kind, number) for number in micro_batches]


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


class Piece(NamedTuple):
    """One of several ops in which a device does one pass of a patch or a micro-batch, numbered from 0."""

    action: PatchAction | StageAction
    number: int

    def __str__(self) -> str:
        return f"{self.action}.{self.number}"


class CollectiveAction(NamedTuple):
    """A collective where one of its devices starts it; the number is that of the run, not of the device."""

    operation: str
    number: int

    def __str__(self) -> str:
        return f"{self.operation}#{self.number}"


Entry = Action | Piece | CollectiveAction
"""One word of a row: an action, a piece of one, or a collective."""
Listing = tuple[tuple[Entry, ...], ...]
"""The entries of each device, in order."""
Order = tuple[tuple[Action, ...], ...]
"""For each device the actions of its compute stream, in order."""
Rows = tuple[tuple[StageAction, ...], ...]
"""For each position of a pipeline its forwards and backwards, in order."""


def number_pieces(row: Sequence[Action]) -> list[Entry]:
    """Return the actions of a device, numbering the pieces of a pass that it does in several."""
    times, seen = Counter(row), Counter[Action]()
    numbered: list[Entry] = []
    for action in row:
        if not isinstance(action, FrozenAction) and times[action] > 1:
            numbered.append(Piece(action, seen[action]))
        else:
            numbered.append(action)
        seen[action] += 1
    return numbered


def format_order(order: Iterable[Iterable[Entry]]) -> str:
    """Return an order as text, one row per device."""
    return "".join(" ".join(map(str, row)) + "\n" for row in order)


def format_torch(order: Iterable[Sequence[Action]]) -> str:
    """Return an order as the compute-only CSV of ``torch.distributed.pipelining``: row i is rank i.

    torch knows forwards and backwards; optimizer steps and frozen work are left out.
    """
    rows = []
    for row in order:
        cells = [action for action in row if isinstance(action, StageAction) and action.kind in TORCH_KINDS]
        for action in row:
            if isinstance(action, PatchAction) or (isinstance(action, StageAction) and action.kind == "E"):
                extra = "; try `self_conditioning` 0" if isinstance(action, StageAction) else ""
                raise InputError(f"{action} has no counterpart in torch.distributed.pipelining{extra}")
        rows.append(",".join(map(str, cells)))
    return "".join(row + "\n" for row in rows)
