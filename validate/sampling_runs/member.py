"""A member: what every rank has in its hands, whatever the sampler; and what it tells the executor.

The pass of a patch is a generator. It computes up to the end of an op (``COMPUTED``), or offers what the plan lets
the device send next (``Offer``); what the plan brings is taken from the inbox, which raises where nothing is there.
"""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import torch
from torch import Tensor

from profiles.errors import DiffusimError
from strategies.plans.actions import PatchAction
from validate.sampling_runs.keys_values import KeysValues
from validate.sampling_runs.settings import LAYERS, ROWS, WRONG_VERSION, Settings
from validate.sampling_runs.transformer import Modulation, Scheduler, SmallTransformer, first_latents


class Computed(Enum):
    """The end of an op."""

    COMPUTED = "computed"


COMPUTED: Final = Computed.COMPUTED


@dataclass(frozen=True, slots=True)
class Offer:
    """Tensors for others: what they are, the step their bytes count to, one for all members or one for each."""

    kind: str
    step: int
    parts: Sequence[Tensor]


Pass = Iterator[Computed | Offer]


@dataclass(frozen=True, slots=True)
class Seen:
    """What attention of one pass saw in one layer: for each row of the image how many steps ago it was computed."""

    step: int
    patch: int
    layer: int
    ages: tuple[int, ...]


class LostTensorError(DiffusimError):
    """A pass needs what the plan does not bring."""


class Member(ABC):
    """One rank of a sampler.

    Attributes:
        latents: as far as this rank knows them.
        inbox: what has arrived and not been used, by kind.
        seen: what attention saw of keys and values that are kept.
        passes: passes that were finished, in order.
    """

    def __init__(self, settings: Settings, rank: int, device: torch.device) -> None:
        self.settings, self.rank = settings, rank
        self.model = SmallTransformer().to(device)
        self.scheduler = Scheduler(settings.steps)
        self.latents = first_latents().to(device)
        self.inbox: dict[str, deque[list[Tensor]]] = defaultdict(deque)
        self.seen: list[Seen] = []
        self.passes: list[PatchAction] = []
        wrong = settings.fault == WRONG_VERSION
        self.kept = [KeysValues(settings.batch, self.latents, wrong_version=wrong) for _ in range(LAYERS)]

    @abstractmethod
    def begin(self, action: PatchAction) -> Pass:
        """Return a pass."""

    def arriving(self, role: str, action: PatchAction) -> tuple[int, ...]:
        """Return the shape of what a pass of this rank gets in a message; nothing but the model decides it.

        Raises:
            LostTensorError: it gets none.
        """
        raise LostTensorError(f"the plan sends rank {self.rank} {role} for {action}, which needs none")

    def take(self, kind: str, action: PatchAction) -> list[Tensor]:
        """Return the oldest thing of a kind that has arrived and not been used.

        Raises:
            LostTensorError: there is none.
        """
        if not self.inbox[kind]:
            raise LostTensorError(f"rank {self.rank} needs {kind} in {action}, and the plan brings none")
        return self.inbox[kind].popleft()

    def condition(self, step: int) -> Tensor:
        """Return the condition of a step."""
        return self.model.condition(self.scheduler.time(step), self.settings.batch)

    def attended_rows(self, action: PatchAction, layer: int, own: slice) -> Tensor:
        """Return the keys and values of all rows in a layer, and note how old they are."""
        both, steps = self.kept[layer].read(own)
        self.seen.append(Seen(action.step, action.patch, layer, tuple(action.step - step for step in steps)))
        return both

    def own_rows(self) -> slice:
        """Return the rows of this rank, where all ranks divide the image."""
        size = ROWS // self.settings.ranks
        return slice(self.rank * size, (self.rank + 1) * size)

    def modulate(self, layer: int, step: int) -> Modulation:
        """Return the modulation of a layer in a step."""
        return self.model.block(layer).modulate(self.condition(step))
