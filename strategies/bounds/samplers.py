"""Bounds of samplers: seconds that no run of a layout can undercut.

The evaluator follows the first device of each stage through its passes, on links that nobody shares. Groups of a team
that exchange at once may share a port: it carries the last of them only after all others. Who is last is unknown, but
where other exchanges let it delay everybody before the next exchange of its kind, all begin that as late.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, chain, groupby
from math import inf
from typing import Final, NamedTuple

from profiles.checks import sum_in_order
from strategies.patching.builder import GroupCollectives, SamplingBuilder
from strategies.patching.layer_runs import LayerRunner, RunWork
from strategies.patching.layout import GridLayout
from strategies.patching.patch_parallel import Kind, Patches
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import Action, PatchAction
from strategies.plans.network import CollectiveRoute, Network
from strategies.plans.placement import Subgroup
from strategies.plans.plan import Collective
from strategies.plans.wiring import Slots
from strategies.plans.worklist import Step, walk

BELOW_SUM: Final = 1e-9
"""Share that a bound stays below what it adds up to: sums in another order differ in their last digits."""

PASS: Final = PatchAction(0, 0, 0)

Kinds = dict[tuple[int, int], float]
"""Seconds for kinds of exchanges: by the number of its collective in a run of layers, and the number of collectives."""
NONE: Final[Kinds] = {}


class Pass(NamedTuple):
    """One pass of a patch, or of the whole image, on one stage.

    Attributes:
        alone_s: seconds on links that nobody shares.
        host_s: seconds in which the host dispatches it.
        delays_s: seconds by which shared ports delay it in each kind of exchange; the last of them may delay only
            devices that are not followed.
        last_s: the longest single delay of each kind.
        meeting: whether every device waits in it for all others of its team.
    """

    alone_s: float
    host_s: float
    delays_s: Kinds = NONE
    last_s: Kinds = NONE
    meeting: bool = False

    @classmethod
    def total(cls, passes: Iterable[tuple["Pass", int]]) -> "Pass":
        """Passes one after the other, each so many times."""
        alone_s, host_s = [0.0], [0.0]
        delays_s, last_s, meeting = Kinds(), Kinds(), False
        for one, times in passes:
            meeting = meeting or one.meeting
            alone_s.append(times * one.alone_s)
            host_s.append(times * one.host_s)
            for kind, delay_s in one.delays_s.items():
                delays_s[kind] = delays_s.get(kind, 0.0) + times * delay_s
                last_s[kind] = max(last_s.get(kind, 0.0), one.last_s[kind])
        return cls(sum_in_order(alone_s), sum_in_order(host_s), delays_s, last_s, meeting)

    @property
    def delayed_s(self) -> float:
        """Seconds with the delays of the worst kind of exchange, but for one of them."""
        delays_s = [delay_s - self.last_s[kind] for kind, delay_s in self.delays_s.items()]
        return self.alone_s + max(delays_s, default=0.0)


class _Exchange(NamedTuple):
    """One collective of the first device's group, and those of all groups of its team at once."""

    groups: tuple[tuple[int, ...], ...]
    wait: bool
    seconds: float
    every: list[CollectiveRoute]


class _FirstDevice(SamplingBuilder):
    """Writes the steps of the first device of a team, and of the exchanges in which it takes part."""

    def __init__(self, layout: GridLayout, device: int) -> None:
        super().__init__(layout.placement, layout.scenario.calls)
        self.network, self.device, self.host_s = layout.network, device, 0.0
        self.exchanges: list[_Exchange] = []
        self._steps: list[list[Step]] = [[], []]
        self._last: Slots = ()
        self._waits: Slots = ()

    def _step(self, row: int, waits: Slots, duration_s: float) -> Slots:
        slot = len(self._steps[0]) + len(self._steps[1])
        self._steps[row].append((waits, duration_s, ((slot, 0.0),)))
        return (slot,)

    def compute(self, device: int, action: Action, duration_s: float, host_s: float = 0.0) -> None:
        """Append an op."""
        self._last, self._waits = self._step(0, self._waits, duration_s), ()
        self.host_s += host_s

    def compute_together(
        self, devices: Sequence[int], action: Action, duration_s: float, host_s: float = 0.0
    ) -> None:
        """Append an op of the first device."""
        self.compute(self.device, action, duration_s, host_s)

    def exchange(self, what: GroupCollectives, action: PatchAction) -> Sequence[int]:
        """Start the collectives of the device's group."""
        results: Slots = ()
        own = next(number for number, group in enumerate(what.groups) if self.device in group)
        alone = len(what.groups[own]) == 1 and what.subgroup is None
        for size_bytes in what.sizes_bytes:
            every = [
                _route(self.network, what.operation, group, size_bytes, what.subgroup, calls=what.calls)
                for group in what.groups
            ]
            route = every[own]
            self.exchanges.append(_Exchange(what.groups, what.wait, route.fixed_s + route.wire_s, every))
            if self._last and not alone:
                self.host_s += self.calls.collective_s(what.dispatched_as or what.operation, what.calls)
            results = self._step(1, self._last, route.wire_s + route.fixed_s)
            self._waits += results if what.wait else ()
        return results

    def gather(self, devices: tuple[int, ...], size_bytes: float, *, wait: bool = True) -> None:
        """Gather parts of all devices."""
        self.exchange(GroupCollectives("all_gather", (devices,), (size_bytes,), wait=wait), PASS)

    def expect_each(self, groups: Sequence[tuple[int, ...]], results: Sequence[int]) -> None:
        """Let the next op wait for the group's result."""
        self._waits += (results[0],)

    def _free_s(self, seconds: Sequence[float]) -> float:
        """When the device is free again, where its exchanges take so long."""
        computed, exchanged = self._steps
        rows = [computed, [(step[0], of, *step[2:]) for step, of in zip(exchanged, seconds, strict=True)]]
        return walk(rows, [inf] * (len(computed) + len(exchanged)), (0.0, 0.0))[0][-1]

    def measure(self) -> Pass:
        """The pass: seconds until the device is free again, and those of its host."""
        self.compute(self.device, PASS, 0.0)
        seconds, every = [of.seconds for of in self.exchanges], [of.every for of in self.exchanges]
        free_s = self._free_s(seconds)
        if any(len({(route.fixed_s, route.wire_s) for route in routes}) > 1 for routes in every):
            return Pass(free_s, self.host_s)  # the last group may lose less in other exchanges than the first
        delays_s = {
            (number, len(every)): self._free_s(delayed) - free_s for number, delayed in self._delayed(seconds)
        }
        meeting = bool(every) and self._all_wait([(device,) for device in self._devices], range(len(every)))
        return Pass(free_s, self.host_s, delays_s, delays_s, meeting)

    def _delayed(self, seconds: Sequence[float]) -> Iterator[tuple[int, list[float]]]:
        """For each exchange that shared ports delay its number, and the seconds of all with that delay."""
        count = len(seconds)
        rounds = groupby(range(count), lambda at: at if self.exchanges[at].wait else -1)  # of a ring
        for first, *others in [[*numbers] for _, numbers in rounds]:
            shared_s, end = _busiest_port_s(self.exchanges[first].every), first + len(others) + 1
            following = [*range(end, count), *range(first)]
            if shared_s > seconds[first] and self._all_wait(self.exchanges[first].groups, following):
                yield first, [*seconds[:first], *[shared_s] * (end - first), *seconds[end:]]

    @property
    def _devices(self) -> frozenset[int]:
        """The devices of the team."""
        return frozenset[int]().union(*self.exchanges[0].groups)

    def _all_wait(self, delayed: Iterable[tuple[int, ...]], following: Iterable[int]) -> bool:
        """Whether each delayed group lets all devices of the team wait in the exchanges that follow."""
        awaited = [self.exchanges[number].groups for number in following if self.exchanges[number].wait]
        for group in delayed:  # of what is not awaited others compute meanwhile what the first did before it
            waiting = set(group)
            for groups in awaited:
                waiting = waiting.union(*(other for other in groups if not waiting.isdisjoint(other)))
            if waiting != self._devices:
                return False
        return True


def _route(
    network: Network,
    operation: str,
    devices: tuple[int, ...],
    size_bytes: float,
    subgroup: Subgroup | None,
    *,
    calls: int = 1,
) -> CollectiveRoute:
    group = devices if subgroup else None
    return network.collective(Collective(operation, devices, size_bytes, group, (), (), calls, subgroup))


def _busiest_port_s(routes: Iterable[CollectiveRoute]) -> float:
    """Seconds for which exchanges at once hold the port that they hold longest."""
    held_s: dict[int, float] = {}
    for route in routes:
        for port, hold_s in (*route.ports, *route.shared):
            held_s[port] = held_s.get(port, 0.0) + hold_s
    return max(held_s.values(), default=0.0)


def least_run_seconds(layout: GridLayout) -> float:
    """Seconds below which no run of a layout can take."""
    if isinstance(layout, Patches):
        return (1 - BELOW_SUM) * _patches_s(layout)
    if isinstance(layout, PatchPipeline):
        return (1 - BELOW_SUM) * _Rounds(layout).least_s()
    return layout.num_steps * max(layout.stage_s(stage) for stage in range(layout.grid.pipeline))


def _patches_s(patches: Patches) -> float:
    """Seconds of all steps of patches: of the first device, on ports of its own."""
    warmup, steps = patches.warmup_steps or 0, patches.num_steps
    parts = (Kind.SYNCHRONOUS, warmup), (patches.kind, steps - warmup)
    return sum_in_order(times * _patch_step_s(patches, kind) for kind, times in parts if times)


def _patch_step_s(patches: Patches, kind: Kind) -> float:
    """Seconds of a step of a kind; its host dispatches before the last gathering, if not between."""
    devices, builder = patches.grid.team(0, 0), _FirstDevice(patches, 0)
    for seconds, sent in patches.pieces(kind):
        if sent and kind is Kind.SYNCHRONOUS:
            builder.gather(devices, sent)
        builder.compute(0, PASS, seconds)
        if sent and kind is not Kind.SYNCHRONOUS:
            builder.gather(devices, sent, wait=False)
    builder.gather(tuple(range(patches.grid.positions)), patches.output_bytes)
    hosted_s = patches.host_s + patches.scenario.solver_s + builder.exchanges[-1].seconds
    return max(builder.measure().alone_s, hosted_s)


class _Rounds:
    """The rounds of a pipeline's whole image and of its patches.

    Args:
        pipeline: the stages.
    """

    def __init__(self, pipeline: PatchPipeline) -> None:
        self.pipeline, self.stages = pipeline, range(pipeline.grid.pipeline)
        self.stage_pass, self._hop_s = cache(self._stage_pass), cache(self._least_hop_s)
        kinds = Counter((rows, patch == 0) for patch, rows in enumerate(pipeline.patches))
        first_of = {(rows, patch == 0): patch for patch, rows in reversed([*enumerate(pipeline.patches)])}
        self.times = {first_of[kind]: count for kind, count in kinds.items()}
        self.last = first_of[pipeline.patches[-1], len(pipeline.patches) == 1]

    def least_s(self) -> float:
        """Seconds below which no run can take."""
        pipeline, steps = self.pipeline, self.pipeline.num_steps
        if not pipeline.steps_overlap:
            return steps * self._step_s()
        whole = pipeline.warmup_steps or 0
        rounds, around_s = steps - whole, self._ways_s(None)[-1]
        if not rounds:
            return max(whole * around_s - self._hop_s(self.stages[-1], None), self._hosts_s(whole, 0))
        ways_s = {patch: self._ways_s(patch) for patch in self.times}
        back_s = max(self._hop_s(self.stages[-1], patch) for patch in self.times)
        longest_s = rounds * max(way_s[-1] for way_s in ways_s.values()) - back_s
        for stage in self.stages:
            busy = Pass.total(
                (self.stage_pass(stage, patch), times * rounds) for patch, times in self.times.items()
            )
            way_s = ways_s[self.last]
            after_s = self._hop_s(stage, self.last) + way_s[-1] - way_s[stage + 1]
            after_s -= self._hop_s(self.stages[-1], self.last)
            busy_s = max(busy.delayed_s, busy.host_s - pipeline.scenario.calls.ahead_s)
            longest_s = max(longest_s, ways_s[0][stage] + busy_s + max(0.0, after_s))
        return max(whole * around_s + longest_s, self._hosts_s(whole, rounds))

    def _step_s(self) -> float:
        """Seconds of a step after which all devices wait for one another."""
        hops_s = (self._hop_s(stage, None) for stage in self.stages[:-1])
        passes = [self.stage_pass(stage, None) for stage in self.stages]
        seconds = sum_in_order([*(one.delayed_s for one in passes), *hops_s])
        return max(seconds, *(one.host_s for one in passes))

    def _hosts_s(self, whole: int, rounds: int) -> float:
        """Seconds in which the busiest host dispatches all."""
        parts = {None: whole} | {patch: times * rounds for patch, times in self.times.items()}
        return max(
            sum_in_order(
                times * self.stage_pass(stage, patch).host_s for patch, times in parts.items() if times
            )
            for stage in self.stages
        )

    def _ways_s(self, patch: int | None) -> list[float]:
        """Seconds from the first stage to each stage, and back to the first."""
        each_s = (self.stage_pass(stage, patch).alone_s + self._hop_s(stage, patch) for stage in self.stages)
        return [*accumulate(each_s, initial=0.0)]

    def _least_hop_s(self, stage: int, patch: int | None) -> float:
        """Least seconds from the end of a stage's pass to the start of it in the next, or in the first.

        Messages between the devices of two stages may share ports. Where all devices of the next wait for one another,
        they wait for the last.
        """
        pipeline, last, following = self.pipeline, self.stages[-1], (stage + 1) % len(self.stages)
        if not last:
            return 0.0
        size = pipeline.hidden_bytes(stage, patch) if stage < last else pipeline.latents_bytes(patch)
        teams = (pipeline.grid.team(0, at) for at in (stage, following))
        routes = [pipeline.network.route(*pair) for pair in zip(*teams, strict=True)]
        if not self.stage_pass(following, patch).meeting:
            return min(size * route.wire_s_per_byte + route.delay_s for route in routes)
        held_s: dict[int, float] = {}
        for port, hold in chain.from_iterable(route.ports for route in routes):
            held_s[port] = held_s.get(port, 0.0) + hold
        return size * max(held_s.values(), default=0.0) + min(route.delay_s for route in routes)

    def _stage_pass(self, stage: int, patch: int | None) -> Pass:
        """A pass of a stage, with the gathers of a noise prediction after the last."""
        return Pass.total([(self._layers(stage, patch), 1), (self._after(stage, patch), 1)])

    def _layers(self, stage: int, patch: int | None) -> Pass:
        """The layers of a stage; each run is measured once for teams that lie alike and layers alike."""
        scenario, team = self.pipeline.scenario, self.pipeline.grid.team(0, stage)
        first = team[0] % scenario.cluster.devices_per_node
        alike = tuple(range(first, first + len(team)))

        def measure(work: RunWork) -> Pass:
            builder = _FirstDevice(self.pipeline, first)
            LayerRunner(builder, grid, alike, work, PASS).append()
            return builder.measure()

        grid, run = self.pipeline.grid, self.pipeline.run(stage, patch)
        where = "pass", grid.positions, grid.degrees, alike, run.batch, run.tokens, run.cached
        every = self.pipeline.works(stage, patch)
        works = {work[1:]: work for work in every}
        counts = Counter(work[1:] for work in every)
        return Pass.total(
            (scenario.remember((*where, what), partial(measure, works[what])), times)
            for what, times in counts.items()
        )

    def _after(self, stage: int, patch: int | None) -> Pass:
        """What follows the layers of a stage: a message to the next, or the solver and gathers of the last."""
        pipeline, calls = self.pipeline, self.pipeline.scenario.calls
        if stage < self.stages[-1]:
            return Pass(0.0, calls.message_s)
        device = pipeline.grid.team(0, stage)[0]
        gathers = [
            _route(pipeline.network, "all_gather", group, size, subgroup)
            for group, size, subgroup in pipeline.gathers(patch)
            if device in group
        ]
        gathered_s = sum_in_order(route.fixed_s + route.wire_s for route in gathers)
        host_s = pipeline.scenario.solver_s + len(gathers) * calls.collective_s("all_gather", 1)
        return Pass(gathered_s, host_s)
