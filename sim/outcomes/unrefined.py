"""Unrefined plans: those that a refining strategy replays first; points that refine the same plan share its replay."""

from typing import cast

from sim.replay.engine import simulate
from strategies.orders.excerpts import Excerpt
from strategies.plans.network import network_of
from strategies.plans.traces import Trace
from strategies.scenario import Scenario
from strategies.strategy import AnyStrategy, Refining, Repeating, Strategy


def unrefined(strategy: AnyStrategy) -> AnyStrategy:
    """The point whose plan is replayed before a strategy refines it: itself where none does."""
    if issubclass(type(strategy), Refining):  # of a class it is known once it was asked, of a value never
        return cast(Refining, strategy).unrefined()
    return strategy


def unrefined_trace(strategy: Strategy, scenario: Scenario, excerpt: Excerpt | None = None) -> Trace:
    """The trace of a plan, or of its excerpt, before any refinement; the last one is kept for points that share it.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
        DeadlockError: the strategy's order can never be carried out.
    """

    def make() -> Trace:
        plan = (
            strategy.plan(scenario) if excerpt is None else cast(Repeating, strategy).plan(scenario, excerpt)
        )
        return simulate(plan, network_of(scenario, plan.placement))

    if not issubclass(type(strategy), Refining):
        return make()
    kind = "unrefined whole" if excerpt is None else "unrefined excerpt"
    key = unrefined(strategy), scenario.workload.extra_forward
    return scenario.remember_last(kind, key, make)
