"""Solution times that the papers publish, beside those of the same problems here, on one core.

They depend on the machine; no test asserts them.

Source: Tian et al., DiffusionPipe, appendix C, Table 5; PULSE, section V-B.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Final

from sim.explore.points import find_points
from sim.outcomes.runs import bound
from sim.replay.engine import simulate
from strategies.orders.problem import wave_problem
from strategies.orders.synthesis import synthesize
from strategies.plans.network import network_of
from strategies.registry import make_strategy
from strategies.scenario import Scenario
from strategies.strategy import Strategy
from validate.points import model_of, scenario
from validate.published.records import Record, published, the_published
from validate.published.training.experiment import Found, experiment
from validate.published.training.models import CONDITIONED

TIMED: Final = "timed here"
"""Provenance of seconds measured on this machine."""
GPUS: Final = 64
BATCH_SIZE: Final = 2048
"""The largest batch of the paper's single backbones on 64 GPUs; that of cascades is not published."""
SHAPE: Final = {"pipeline_degree": 4, "micro_batches": 4}
"""A pipeline whose bubbles are filled: 4 stages, 4 micro-batches, as in the paper's Fig. 6."""
PROOFS: Final = {False: "the integer programme", True: "list scheduling meets its lower bound"}
"""What proves the wave's length, by whether the lower bound may be the proof."""


def _seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _trained(model: str) -> Scenario:
    """A model under the conditions of Table 5."""
    return scenario(model, "p4de", GPUS, BATCH_SIZE, self_conditioning=CONDITIONED.get(model))


def _partition_s(model: str) -> tuple[float, int]:
    """Seconds to partition a model's backbones for every point of DiffusionPipe, bounds included; and the points."""
    point = _trained(model)
    points = find_points(point, ["diffusionpipe"], {"fill": "partial"})
    strategies = [p.strategy for p in points if isinstance(p.strategy, Strategy)]
    return _seconds(lambda: [bound(strategy, point) for strategy in strategies]), len(strategies)


def _filling_s(model: str) -> float:
    """Seconds to fill all bubbles of one plan."""
    point = _trained(model)
    strategy: Strategy = make_strategy("diffusionpipe", SHAPE)
    plan = strategy.plan(point)
    trace = simulate(plan, network_of(point, plan.placement))
    return _seconds(lambda: strategy.refine(point, trace))


def wave_s(*, certificate: bool) -> tuple[float, float]:
    """Seconds to synthesise the wave of 4 devices and 4 micro-batches with proof, and its makespan.

    With ``certificate`` the lower bound may be the proof; else the integer programme has to find it.
    """
    problem = wave_problem(SHAPE["pipeline_degree"], SHAPE["micro_batches"], 1)
    start = perf_counter()
    found = synthesize(problem, certificate=certificate)
    assert found.proven
    return perf_counter() - start, found.ordering.makespan_s


@experiment
def solution_times() -> Found:
    """Table 5 of DiffusionPipe and the time of PULSE's integer programme."""
    for row in published("Table 5"):
        if row.method == "filling" and not model_of(row.model).for_task("train").frozen:
            continue
        if row.method == "partition":
            seconds, points = _partition_s(row.model)
            setting = f"one core, {points} points, bounds included"
        else:
            seconds, setting = _filling_s(row.model), "one core, one plan"
        yield Record.of(row, seconds, setting, provenance=TIMED)
        yield [f"{row.model}, {row.method}", f"{row.value:g} s", f"{seconds:.2g} s", setting]
    row = the_published("V-B", method="ILP")
    for certificate, how in PROOFS.items():
        seconds, makespan = wave_s(certificate=certificate)
        setting = f"{how}, proven; {makespan:g} forwards long"
        yield Record.of(row, seconds, setting, provenance=TIMED)
        yield ["wave, 4 devices, 4 micro-batches", row.note, f"{seconds:.2g} s", setting]
