"""Stages: the integers of a pipeline, how its backbones are cut, where each stage sits, and shapes worth a look."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from profiles.errors import InfeasibleError
from strategies.parameters import OPTIMIZERS
from strategies.scenario import Scenario


class Pipelined(Protocol):
    """The fields of a strategy that say the shape of its pipelines."""

    @property
    def pipeline_degree(self) -> int:
        """Positions of one pipeline."""
        ...

    @property
    def micro_batches(self) -> int:
        """Pieces into which a group's batch is cut."""
        ...

    @property
    def group_size(self) -> int | None:
        """GPUs of one pipeline group; None: as many as positions."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """The integers of a pipeline.

    Attributes:
        degree: positions of one pipeline.
        micro_batches: pieces into which a group's batch is cut.
        group_size: GPUs of one pipeline group.
        sharded: whether the replicas of a position share the optimizer's states.
    """

    degree: int
    micro_batches: int
    group_size: int
    sharded: bool = False

    @classmethod
    def of(cls, strategy: Pipelined) -> "Shape":
        """The shape of a strategy's pipelines."""
        degree = strategy.pipeline_degree
        is_sharded = getattr(strategy, "optimizer", OPTIMIZERS[0]) == OPTIMIZERS[1]
        return cls(degree, strategy.micro_batches, strategy.group_size or degree, is_sharded)

    @property
    def replicas(self) -> int:
        """GPUs on which each position of a group is replicated."""
        return self.group_size // self.degree


@dataclass(frozen=True, slots=True)
class Cut:
    """A backbone cut into stages, where they lie, and which micro-batches pass through them.

    Attributes:
        component: the backbone.
        boundaries: ``boundaries[s]`` is the first layer of stage s, the last entry the end.
        positions: the position of each stage; by default stage s lies on position s.
        micro_batches: first and end of a range; by default all pass.
    """

    component: int
    boundaries: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    micro_batches: tuple[int, int] | None = None

    @property
    def num_stages(self) -> int:
        """Stages of the backbone."""
        return len(self.boundaries) - 1


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a stage in its chain.

    Attributes:
        cut: number of its chain.
        first: first stage of the chain.
        last: last stage of the chain.
        before: the stage it gets its hidden state from; None at the start.
        after: the stage that gets its hidden state; None at the end.
    """

    cut: int
    first: int
    last: int
    before: int | None
    after: int | None


def seats_of(cuts: Sequence[Cut]) -> tuple[Seat, ...]:
    """The seat of each stage; stages are numbered one cut after the other."""
    return _seats_of(tuple([cut.num_stages for cut in cuts]))


@lru_cache(maxsize=256)
def _seats_of(counts: tuple[int, ...]) -> tuple[Seat, ...]:
    """The seat of each stage of chains of so many."""
    seats: list[Seat] = []
    for number, count in enumerate(counts):
        first, last = len(seats), len(seats) + count - 1
        seats += [
            Seat(
                number, first, last, stage - 1 if stage > first else None, stage + 1 if stage < last else None
            )
            for stage in range(first, last + 1)
        ]
    return tuple(seats)


def _pipeline_degrees(
    scenario: Scenario, backbones: Sequence[int], stages_per_position: int = 1
) -> list[int]:
    """The pipeline degrees worth a look: divisors of the GPUs, with at most one stage per block.

    Raises:
        InfeasibleError: there is none.
    """
    gpus, components = scenario.workload.num_gpus, scenario.model.components
    blocks = min(len({layer.block for layer in components[i].layers}) for i in backbones)
    degrees = [degree for degree in divisors(gpus) if 2 <= degree <= blocks // stages_per_position]
    if not degrees:
        each = "" if stages_per_position == 1 else f" / {stages_per_position} stages per position"
        raise InfeasibleError(
            f"no divisor of `gpus({gpus})` between 2 and the {blocks} blocks of the backbone{each}",
            "no pipeline degree",
        )
    return degrees


def shapes(
    scenario: Scenario, stages_per_position: int = 1, backbones: Sequence[int] | None = None
) -> Iterator[Shape]:
    """The shapes worth a look: every degree, group size and number of micro-batches that divides.

    Raises:
        InfeasibleError: there is none, or the model has several backbones and none are named.
    """
    gpus, batch = scenario.workload.num_gpus, scenario.workload.batch_size
    for degree in _pipeline_degrees(scenario, backbones or [scenario.backbone_index], stages_per_position):
        samples = batch * degree // gpus
        counts = [1] if batch * degree % gpus else divisors(samples)
        for size in divisors(gpus):
            if size % degree == 0:
                yield from (Shape(degree, count, size) for count in counts)


def folded_shapes(scenario: Scenario, stages_per_position: Mapping[int, int]) -> Iterator[tuple[int, Shape]]:
    """The shapes worth a look for each number of chunks, or of waves, and that number.

    Args:
        scenario: what is asked about.
        stages_per_position: for each number what it means, ascending; those with too many stages are left out.

    Raises:
        InfeasibleError: there is no shape even for the first.
    """
    for place, (number, stages) in enumerate(stages_per_position.items()):
        try:
            offered = list(shapes(scenario, stages))
        except InfeasibleError:
            if place == 0:
                raise
            return
        yield from ((number, shape) for shape in offered)


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})
