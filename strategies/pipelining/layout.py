"""Layouts: where the stages of a pipeline lie, and what follows from it whatever their order."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Final, TypeVar

from profiles.checks import sum_in_order
from profiles.errors import InfeasibleError
from strategies.orders.problem import Chain, Problem
from strategies.parameters import SKIP_ROUTES, check_option
from strategies.pipelining.cutting import cut_chain
from strategies.pipelining.footprint import (
    recomputed_bytes,
    resident_bytes,
    saved_sample_bytes,
    trained_parameters,
)
from strategies.pipelining.pipeline import Hop, Pipeline
from strategies.pipelining.stages import Cut, Seat, Shape, seats_of
from strategies.plans.plan import Stage
from strategies.scenario import Scenario

T = TypeVar("T")

BELOW_PRODUCT: Final = 1e-12
"""Share that seconds multiplied stay below the same added one by one."""

STILL = Hop(0.0, 0.0)
"""Between stages of one device nothing moves."""


@dataclass(frozen=True, eq=False)
class Layout(Pipeline):
    """The stages of a pipeline on its positions; bounds, plans and memory start from it.

    Attributes:
        cuts: its chains.
        skip_route: how skips travel.
    """

    cuts: tuple[Cut, ...]
    skip_route: str = "relay"

    def __post_init__(self) -> None:
        check_option("skip_route", self.skip_route, SKIP_ROUTES)

    @classmethod
    def folded(
        cls, scenario: Scenario, shape: Shape, positions: tuple[int, ...], partition: str, skip_route: str
    ) -> "Layout":
        """The only backbone in one stage per entry of ``positions``, where it lies.

        Raises:
            InfeasibleError: it cannot be cut so, or a skip that must stay local leaves its device.
        """

        def cut(pipeline: Pipeline) -> tuple[Cut, ...]:
            # with one stage per position a skip that no cut crosses stays on its device
            local = skip_route == "local" and len(positions) == shape.degree
            return (cut_chain(pipeline, scenario.backbone_index, positions, partition, local_skips=local),)

        return cls.once(scenario, shape, (positions, partition), skip_route, cut)

    @classmethod
    def once(
        cls,
        scenario: Scenario,
        shape: Shape,
        key: Hashable,
        skip_route: str,
        cut: Callable[[Pipeline], tuple[Cut, ...]],
        *,
        distant_skips: bool = False,
    ) -> "Layout":
        """The layout of the cuts that ``cut`` makes, laid out once for each key.

        Args:
            scenario: what is asked about.
            shape: the integers of the pipeline.
            key: what the cuts depend on besides.
            skip_route: how skips travel.
            cut: makes the cuts.
            distant_skips: local skips may lead from one device to another.

        Raises:
            InfeasibleError: it cannot be cut so, or a skip that must stay local leaves its device.
        """

        def lay_out() -> "Layout":
            layout = cls(scenario, shape, cut(Pipeline(scenario, shape)), skip_route)
            if skip_route == "local" and not distant_skips:
                layout.refuse_distant_skips()
            return layout

        return scenario.remember(("layout", shape, key, skip_route, scenario.workload.extra_forward), lay_out)

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value that ``make`` makes, once for each key, layout and variant of an iteration."""
        alike = (self.shape, self.cuts, self.skip_route, self.scenario.workload.extra_forward)
        return self.scenario.remember((key, alike), make)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, numbered one chain after the other."""
        return tuple(stage for cut in self.cuts for stage in self.stages_of(cut))

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """The seat of each stage."""
        return seats_of(self.cuts)

    def chain(self, cut: int) -> range:
        """The stages of a chain, in the order in which a micro-batch passes them."""
        first = sum(before.num_stages for before in self.cuts[:cut])
        return range(first, first + self.cuts[cut].num_stages)

    def micro_batches(self, cut: int) -> range:
        """The micro-batches that pass through a chain."""
        return range(*(self.cuts[cut].micro_batches or (0, self.shape.micro_batches)))

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """For each position the stages that lie on it."""
        found: list[list[int]] = [[] for _ in range(self.shape.degree)]
        for number, stage in enumerate(self.stages):
            found[stage.position].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def trained_parameters(self) -> tuple[int, ...]:
        """The parameters of each stage that have gradients."""
        return tuple(trained_parameters(self, stage) for stage in self.stages)

    @cached_property
    def handovers_bytes(self) -> tuple[float, ...]:
        """Bytes that each stage hands over to the next for one micro-batch, and gets the gradient of."""
        return tuple(self.handover_bytes(stage, self.skip_route) for stage in self.stages)

    @cached_property
    def hops(self) -> tuple[tuple[Hop, Hop], ...]:
        """For each stage the message of one micro-batch to the next stage, and that of its gradient back."""
        return tuple(self._hop(number) for number in range(len(self.stages)))

    def _hop(self, number: int) -> tuple[Hop, Hop]:
        stage, after = self.stages[number], self.seats[number].after
        if after is None or self.stages[after].position == stage.position:
            return STILL, STILL
        source, target = stage.position, self.stages[after].position
        there, back = self.network.route(source, target), self.network.route(target, source)
        size = self.handovers_bytes[number]
        carried = self.component(stage).carried_bytes * self.local_batch
        return (
            Hop((size + carried) * there.wire_s_per_byte, there.delay_s),
            Hop(size * back.wire_s_per_byte, back.delay_s),
        )

    def problem(self, *, in_flight: tuple[int, ...] | None = None) -> Problem:
        """The problem that list scheduling solves: the stages' real times, and messages on ports nobody shares."""
        chains = range(len(self.cuts))
        before = [seat.before for seat in self.seats]
        return Problem(
            forward_s=tuple(stage.forward_s for stage in self.stages),
            backward_s=tuple(stage.backward_s for stage in self.stages),
            positions=tuple(stage.position for stage in self.stages),
            chains=tuple(Chain(tuple(self.chain(c)), tuple(self.micro_batches(c))) for c in chains),
            forward_lag_s=tuple(there.duration_s for there, _ in self.hops),
            backward_lag_s=tuple(0.0 if s is None else self.hops[s][1].duration_s for s in before),
            in_flight=in_flight,
        )

    def least_memory_bytes(
        self,
        in_flight: Sequence[int],
        *,
        recomputed: Sequence[int] | None = None,
        frozen_first: bool = False,
        inputs_first: bool = False,
    ) -> float:
        """Bytes that the fullest device cannot do without.

        Args:
            in_flight: for each stage the micro-batches whose activations it holds at once at least.
            recomputed: how many of these it has recomputed by then; None: what is recomputed is not kept.
            frozen_first: all frozen work runs before the pipeline.
            inputs_first: what stages read of frozen components is there from the start on, of all micro-batches that
                are still to come.
        """
        saved, resident = self.held_bytes
        read = self.inputs_bytes if inputs_first else (0.0,) * len(saved)
        count = self.shape.micro_batches
        of_stages = [
            k * own + (count - k) * come for k, own, come in zip(in_flight, saved, read, strict=True)
        ]
        if recomputed is not None:
            again = (recomputed_bytes(self, stage) for stage in self.stages)
            of_stages = [own + k * more for own, k, more in zip(of_stages, recomputed, again, strict=True)]
        held = (sum_in_order(of_stages[s] for s in hosted) for hosted in self.hosted)
        fullest = max(state + own for state, own in zip(resident, held, strict=True))
        return max(fullest, max(resident) + self.frozen_first_bytes) if frozen_first else fullest

    @cached_property
    def inputs_bytes(self) -> tuple[float, ...]:
        """Bytes of one micro-batch that each stage reads of frozen components."""
        reads = (self.frozen_reads(stage) for stage in self.stages)
        return tuple(sum_in_order(size for _, size in read) * self.local_batch for read in reads)

    @property
    def frozen_first_bytes(self) -> float:
        """Bytes that each position holds at once at least where it runs its share of all frozen work at a time."""
        return self.frozen_samples * self.frozen_sample_bytes

    @property
    def frozen_samples(self) -> float:
        """Samples of the frozen work that each GPU gets at least where all positions share it."""
        replicas = self.placement.group_size // self.placement.num_positions  # refused where it is none
        return self.group_batch // self.shape.degree / replicas

    @property
    def frozen_sample_bytes(self) -> float:
        """Bytes per sample that the frozen layer which takes most reads and writes.

        Not all that the last layer of a component writes need be read.
        """
        return self.scenario.remember("frozen sample", self._frozen_sample_bytes)

    def _frozen_sample_bytes(self) -> float:
        components = (self.scenario.model.components[index] for index in self.scenario.frozen)
        inner = (pairwise(component.layers[:-1]) for component in components)
        sizes = (before.output_bytes + after.output_bytes for before, after in chain.from_iterable(inner))
        return max(sizes, default=0.0)

    @cached_property
    def held_bytes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Activations that each stage saves of one micro-batch, and what lies on each position throughout."""
        of_positions = ([self.stages[s] for s in hosted] for hosted in self.hosted)
        saved = (saved_sample_bytes(self, stage) * self.held_batch for stage in self.stages)
        return tuple(saved), tuple(resident_bytes(self, stages) for stages in of_positions)

    @property
    def keeps_skips_local(self) -> bool:
        """Whether skips stay on their device, so that what stages save depends on where others lie."""
        return self.skip_route == "local"

    def keeps_beside(self, stage: Stage, source: int) -> bool:
        """Whether an earlier stage on the same device keeps the output of a layer, as input of a block of its own."""
        if not self.keeps_skips_local:
            return False
        layers, number = self.component(stage).layers, self.stages.index(stage)
        chain = (self.stages[s] for s in self.chain(self.seats[number].cut))
        maker = next(of for of in chain if of.first_layer <= source <= of.last_layer)
        follows = source < maker.last_layer and layers[source].block != layers[source + 1].block
        return follows and maker.position == stage.position

    def refuse_distant_skips(self) -> None:
        """Refuse skips that must stay on one device although their ends lie on two.

        Raises:
            InfeasibleError: there is one.
        """
        for number, cut in enumerate(self.cuts):
            own = [self.stages[s] for s in self.chain(number)]
            at = {layer: s.position for s in own for layer in range(s.first_layer, s.last_layer + 1)}
            for skip in self.scenario.model.components[cut.component].skips:
                if at[skip.source] != at[skip.target]:
                    raise InfeasibleError(
                        f"`skip_route` is local, but the skip from layer {skip.source} to {skip.target} leads from"
                        f" position {at[skip.source]} to {at[skip.target]}",
                        "a skip that must stay local leaves its device",
                    )
