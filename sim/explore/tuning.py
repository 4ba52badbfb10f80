"""Tuning: PULSE's search over pipeline degree P, data-parallel degree G and micro-batch b, with M = P.

Micro-batches are powers of two as far as Eq. 14 allows. Points are replayed in order of their bounds per sample: the
first of each P, then what can still beat the best. Eq. 15, which takes every stage for as long as the longest one, is
printed beside, as an estimate. Source: PULSE, section VI.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from profiles.checks import sum_in_order
from profiles.costs.bands import tied
from profiles.errors import InfeasibleError
from profiles.software.recipes import RECIPES
from sim.outcomes.results import Result
from sim.outcomes.runs import bound, run_point
from strategies.parameters import MAX_PARAMETER
from strategies.pipelining.footprint import saved_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import divisors
from strategies.scenario import Scenario
from strategies.training.pulse import Pulse

TUNED: Final = Pulse.name
"""The strategy that is tuned."""
MAX_MICRO_BATCH: Final = 1024
"""Larger micro-batches are not looked at."""


@dataclass(slots=True)
class Choice:
    """One (P, G, b) and what is known of it; seconds per iteration, bytes per device.

    Attributes:
        degree: pipeline degree P.
        replicas: data-parallel degree G.
        micro_batch: samples b of one micro-batch.
        equation_bytes: peak memory by Eq. 14.
        estimate_s: iteration by Eq. 15.
        bound_s: what no iteration can undercut.
        result: what the replay gave; None where the bound ruled it out.
        tie: whether the comparison with the best cannot tell that it is slower.
    """

    strategy: Pulse
    scenario: Scenario
    degree: int
    replicas: int
    micro_batch: int
    equation_bytes: float
    estimate_s: float
    bound_s: float
    result: Result | None = None
    tie: bool = False

    @property
    def batch_size(self) -> int:
        """Samples of one iteration, b P G."""
        return self.scenario.workload.batch_size

    @property
    def samples_per_s(self) -> float:
        """Throughput; 0 where the point was not replayed or does not fit."""
        return self.result.samples_per_s if self.result and self.result.fits_memory else 0.0

    def to_json(self) -> dict[str, Any]:
        """The choice under public keys."""
        return {
            "pipeline_degree": self.degree,
            "data_parallel_degree": self.replicas,
            "micro_batch": self.micro_batch,
            "batch_size": self.batch_size,
            "equation_14_bytes": self.equation_bytes,
            "equation_15_s": self.estimate_s,
            "bound_s": self.bound_s,
            "tie": self.tie,
            "result": None if self.result is None else self.result.to_json(),
        }


def tune(scenario: Scenario, *, p2p: str = "overlapped") -> list[Choice]:
    """All choices that fit by Eq. 14, the best first; the batch size of the scenario is not used.

    Raises:
        InfeasibleError: there is none.
    """
    choices, reasons = list[Choice](), ["not even b = 1"]
    for degree in divisors(scenario.workload.num_gpus):
        try:
            if degree <= MAX_PARAMETER:
                choices += _micro_batches(scenario, degree, p2p)
        except InfeasibleError as error:
            reasons.insert(-1, str(error))
    if not choices:
        raise InfeasibleError(f"no pipeline degree fits: {reasons[0]}")
    choices.sort(key=lambda choice: choice.bound_s / choice.batch_size)
    best, seen = 0.0, set()
    for choice in choices:
        if choice.degree not in seen or choice.batch_size / choice.bound_s > best:
            seen.add(choice.degree)
            choice.result = run_point(choice.strategy, choice.scenario)
            best = max(best, choice.samples_per_s)
    choices.sort(key=lambda choice: (-choice.samples_per_s, choice.bound_s / choice.batch_size))
    first, *others = choices
    for choice in others:
        if first.result and choice.result and choice.samples_per_s:
            one, other = 1 / first.samples_per_s, 1 / choice.samples_per_s
            choice.tie = tied(first.result.uncertainty, one, choice.result.uncertainty, other)
    return choices


def _micro_batches(scenario: Scenario, degree: int, p2p: str) -> Iterator[Choice]:
    """The choices of one (P, G), b = 1, 2, 4, ... as far as Eq. 14 allows."""
    gpus, there = scenario.workload.num_gpus, scenario.cluster.device.memory_bytes or inf
    strategy, micro_batch = Pulse(degree, degree, degree, p2p=p2p), 1
    while micro_batch <= MAX_MICRO_BATCH:
        scaled = scenario.with_options(batch_size=micro_batch * gpus)
        layout = strategy.layout(scaled)
        needed = peak_memory_bytes(scaled, layout)
        if needed > there:
            return
        estimate_s, bound_s = schedule_s(scaled, layout), bound(strategy, scaled)
        yield Choice(strategy, scaled, degree, gpus // degree, micro_batch, needed, estimate_s, bound_s)
        micro_batch *= 2


def peak_memory_bytes(scenario: Scenario, layout: Layout) -> float:
    """The peak memory of a device in bytes, one wave, M = P. Source: PULSE, Eq. 14."""
    degree = layout.shape.degree
    inner = layout.stages[degree - 1 : degree + 1]
    state = RECIPES["pulse"].parameter_bytes * sum(stage.parameters for stage in inner)
    activations = degree * sum_in_order(saved_bytes(layout, stage) for stage in inner)
    return state + activations + degree * layout.handovers_bytes[max(degree - 2, 0)]


def schedule_s(scenario: Scenario, layout: Layout) -> float:
    """The estimated seconds of an iteration, one wave, M = P. Source: PULSE, Eq. 15."""
    degree = layout.shape.degree
    forward_s = max(stage.forward_s for stage in layout.stages)
    size = max(layout.handovers_bytes)
    routes = [layout.network.route(p, p + 1) for p in range(degree - 1)]
    message_s = max((route.delay_s + size * route.wire_s_per_byte for route in routes), default=0.0)
    steps = max(10 * degree - 12, 0)
    return (10 * degree - 4) * forward_s + steps * message_s + all_reduce_s(scenario, layout)


def all_reduce_s(scenario: Scenario, layout: Layout) -> float:
    """The estimated seconds of the gradient reduction of the largest stage. Source: PULSE, Eq. 16."""
    copies, cluster = layout.placement.copies, scenario.cluster
    if copies == 1:
        return 0.0
    size = 2 * max(stage.parameters for stage in layout.stages)
    within = layout.placement.group(0).num_nodes == 1
    link = cluster.intra_node if within else cluster.inter_node or cluster.intra_node
    return link.latency_s + 2 * (copies - 1) / copies * size / link.bandwidth_bytes_per_s
