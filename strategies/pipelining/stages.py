"""Stages: the integers of a pipeline, how its backbones are cut, where each stage sits, and shapes worth a look."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from profiles.errors import InfeasibleError
from strategies.scenario import Scenario


class Shape(NamedTuple):
    """The integers of a pipeline: its positions, micro-batches of a group's batch, and GPUs of a group.

    Attributes:
        sharded: whether the replicas of a position share the optimizer's states.
    """

    degree: int
    micro_batches: int
    group_size: int
    sharded: bool = False


class Cut(NamedTuple):
    """A backbone cut into stages, where they lie, and which micro-batches pass through them.

    Attributes:
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


class Seat(NamedTuple):
    """The number of a stage's chain, the chain's first and last stage, and the stages before and after it in there."""

    cut: int
    first: int
    last: int
    before: int | None
    after: int | None


def shapes(
    scenario: Scenario, stages_per_position: int = 1, backbones: Sequence[int] | None = None
) -> Iterator[Shape]:
    """The shapes worth a look: every degree, group size and number of micro-batches that divides.

    Degrees are divisors of the GPUs, with at most one stage per block.
    """
    gpus, batch = scenario.workload.num_gpus, scenario.workload.batch_size
    components = [scenario.model.components[i] for i in backbones or [scenario.backbone_index]]
    blocks = min(len({layer.block for layer in component.layers}) for component in components)
    degrees = [degree for degree in divisors(gpus) if 2 <= degree <= blocks // stages_per_position]
    if not degrees:
        each = "" if stages_per_position == 1 else f" / {stages_per_position} stages per position"
        raise InfeasibleError(
            f"no divisor of `gpus({gpus})` between 2 and the {blocks} blocks of the backbone{each}",
            "no pipeline degree",
        )
    for degree in degrees:
        samples = batch * degree // gpus
        counts = [1] if batch * degree % gpus else divisors(samples)
        for size in divisors(gpus):
            if size % degree == 0:
                yield from (Shape(degree, count, size) for count in counts)


def folded_shapes(scenario: Scenario, stages_per_position: Mapping[int, int]) -> Iterator[tuple[int, Shape]]:
    """The shapes worth a look for each number of chunks, or of waves, with stages of a position, and that number."""
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
