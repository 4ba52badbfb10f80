"""Points of sampling: one sampler on one scene, replayed as a whole and phase by phase."""

from dataclasses import fields, replace

import numpy as np
from conformance.checks import Replayed

from profiles.errors import InfeasibleError
from sim.outcomes.parts import replay_parts
from sim.replay.engine import simulate
from strategies.plans.network import Network
from strategies.registry import strategies_of

MOST_POINTS = 4
"""Of one sampler on one scene: evenly spread over those that it offers, the first and the last among them."""
TOLERANCE_S = 1e-9
ROUNDING = 1e-12


class Point(Replayed):
    """One sampler on one scenario: its whole run, and the same phase by phase."""

    def __init__(self, sampler, scenario, anew):
        self.sampler, self.scenario, self.anew = sampler, scenario, anew
        self.plan = sampler.plan(scenario)
        self.network = Network(self.plan.placement)
        self.trace = simulate(self.plan, self.network)
        self.phases = replay_parts(sampler, scenario)

    def __repr__(self):
        return repr(self.sampler)

    @property
    def iterations(self):
        """How often the plan goes over images: once a step, unless the sampler iterates on several at once."""
        count = getattr(self.sampler, "iterations", None)
        return count(self.scenario) if count else self.scenario.workload.steps

    @property
    def exactness(self):
        """Where groups share a node's port or a PCIe host, which is served first may differ from step to step."""
        cluster = self.scenario.cluster
        return 1e-3 if cluster.inter_node else 5e-3 if cluster.intra_node.kind == "pcie" else 1e-9

    @property
    def warmup_steps(self):
        """Steps in which the data of the step before are not used; all of them, where there is no such setting."""
        stages = getattr(self.sampler, "pipeline_degree", 2)
        return getattr(self.sampler, "warmup_steps", None) if stages != 1 else None

    def is_displaced(self, step):
        return self.warmup_steps is not None and step >= self.warmup_steps


def neighbours(sampler, scenario):
    """The point itself, and with each other choice; of the warm-up, all and none."""
    yield sampler
    for field in fields(sampler):
        for choice in field.metadata["choices"]:
            if choice != getattr(sampler, field.name):
                yield replace(sampler, **{field.name: choice})
    if hasattr(sampler, "warmup_steps"):
        yield replace(sampler, warmup_steps=0)
        yield replace(sampler, warmup_steps=scenario.workload.steps)


class Replays:
    """What a sampler offers on a scene: replayed points, all that it would offer, and why others are refused."""

    def __init__(self, name, anew):
        self.points, self.refused = [], set()
        scenario = anew()
        try:
            self.candidates = list(strategies_of("sample")[name].candidates(scenario))
        except InfeasibleError as error:
            self.candidates = []
            self.refused.add(error.kind)
        for sampler in dict.fromkeys(self._picked(scenario)):
            try:
                self.points.append(Point(sampler, scenario, anew))
            except InfeasibleError as error:
                self.refused.add(error.kind)

    def _picked(self, scenario):
        """Some of the candidates, from the first to the last, and those with another choice."""
        found = self.candidates
        picked = {round(i) for i in np.linspace(0, len(found) - 1, min(MOST_POINTS, len(found)))}
        return [other for i in sorted(picked) for other in neighbours(found[i], scenario)]
