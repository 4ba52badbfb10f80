"""Points of training: one strategy on one scene, replayed; and what follows from its plan alone."""

from dataclasses import fields, replace
from itertools import chain

from conformance.checks import Replayed

from profiles.errors import DeadlockError, InfeasibleError
from sim.outcomes.parts import replay, variants
from strategies.plans.actions import StageAction
from strategies.plans.network import Network
from strategies.registry import strategies_of

TOLERANCE_S = 1e-9
REDUCTIONS = ("all_reduce", "reduce_scatter")
ROUNDING = 1e-12
"""A bound may add up the same seconds in another order, and no more than that."""


def kind_of(op):
    """The letter of an op on a stage; frozen work has none."""
    return op.action.kind if isinstance(op.action, StageAction) else "X"


class Point(Replayed):
    """One strategy on one scenario, in one of the iterations that occur there."""

    def __init__(self, strategy, scenario):
        self.strategy, self.scenario = strategy, scenario
        self.trace = replay(strategy, scenario)
        self.plan = self.trace.plan
        self.network = Network(self.plan.placement)

    def __repr__(self):
        return f"{self.strategy} with extra_forward={self.scenario.workload.extra_forward}"

    @property
    def micro_batches(self):
        return self.strategy.micro_batches

    @property
    def local_batch(self):
        """Samples of one micro-batch on one device."""
        workload, positions = self.scenario.workload, self.plan.placement.num_positions
        return workload.batch_size * positions // (workload.num_gpus * self.micro_batches)

    @property
    def group_batch(self):
        workload = self.scenario.workload
        return workload.batch_size * self.plan.placement.group_size // workload.num_gpus

    def actions(self, kinds):
        return [op.action for _, _, op, _, _ in self.ops if kind_of(op) in kinds]


def is_sharded(point):
    """Whether each GPU keeps a part of what is trained, and so must sum up every micro-batch."""
    scatters = any(collective.operation == "reduce_scatter" for collective in point.plan.collectives)
    return scatters and not shares_step(point)


def shares_step(point):
    """Whether the replicas of a stage share the optimizer's states alone, and scatter gradients after all backwards."""
    return getattr(point.strategy, "optimizer", "replicated") == "sharded"


def members(point, collective):
    """How many GPUs take part in a collective."""
    return len(point.plan.placement.groups(collective.devices, collective.group, collective.subgroup)[0])


def parts_of(point):
    """The GPUs among which what is trained is divided."""
    scatters = [c for c in point.plan.collectives if c.operation == "reduce_scatter"]
    (parts,) = {members(point, collective) for collective in scatters} or {1}
    return parts


def sums_of(point):
    """The sums of gradients with their spans: an all-reduce, or a scatter and what sums its result over replicas."""
    spans = zip(point.plan.collectives, point.trace.collectives, strict=True)
    reductions = [(c, span) for c, span in spans if c.operation in REDUCTIONS]
    results = {tensor for c, _ in reductions for tensor in c.writes}
    following = {t: (c, span) for c, span in reductions for t in c.reads if t in results}
    firsts = [(c, span) for c, span in reductions if not results.intersection(c.reads)]
    return [[(c, span), *(following[t] for t in c.writes if t in following)] for c, span in firsts]


def trained_of(point, number):
    """The parameters of a stage that have gradients."""
    stage = point.plan.stages[number]
    layers = point.scenario.model.components[stage.component].layers[stage.first_layer : stage.last_layer + 1]
    return sum(layer.parameters for layer in layers if layer.backward == "full")


def keeps_weights(point):
    """Whether weights stay whole where they are used, although they are gathered: after a step, not before use."""
    gathered = {t for c in point.plan.collectives if c.operation == "all_gather" for t in c.writes}
    used = {tensor for *_, op, _, _ in point.ops if kind_of(op) in "FEBIW" for tensor in op.reads}
    sizes = [point.plan.tensors[tensor].size_bytes for tensor in gathered & used]
    return not any(sizes)


def writes(point):
    """For each tensor who writes it and when: (device, seconds), or None and the end of a collective."""
    found = {}
    for device, _, op, start, end in point.ops:
        found.update({tensor: [(device, end)] for tensor in op.writes})
        found.update({tensor: [(device, start + offset)] for offset, tensor in op.early})
    for collective, (_, end) in zip(point.plan.collectives, point.trace.collectives, strict=True):
        for tensor in collective.writes:
            found[tensor] = [(device, end) for device in collective.devices]
    return found


def travel_s(point, tensor, source, target):
    """Seconds that a tensor needs to another device at least."""
    if source == target:
        return 0.0
    route = point.network.route(source, target)
    return point.plan.tensors[tensor].size_bytes * route.wire_s_per_byte + route.delay_s


def neighbours(strategy):
    """The point itself, and those that differ from it in one field with choices."""
    yield strategy
    for field in fields(strategy):
        for choice in field.metadata["choices"]:
            if choice != getattr(strategy, field.name):
                yield replace(strategy, **{field.name: choice})


class Whole:
    """One strategy on one scene: a point for each iteration of each of its jobs that occurs."""

    def __init__(self, strategy, scenario, anew):
        self.strategy, self.scenario, self.anew = strategy, scenario, anew
        self.parts = [(v, Point(v.strategy, v.scenario)) for v in variants(strategy, scenario)]

    def __repr__(self):
        return repr(self.strategy)

    def again(self):
        """Each iteration that occurs in a scenario made anew, which has kept nothing, and its point."""
        variants_again = variants(self.strategy, self.anew())
        return [(v, point) for v, (_, point) in zip(variants_again, self.parts, strict=True)]


class Replays:
    """What a strategy offers on a scene: whole points, those that deadlock, and why the others are refused."""

    def __init__(self, name, anew):
        self.wholes, self.deadlocks, self.refused = [], [], set()
        scenario = anew()
        for strategy in self._offered(name, scenario):
            try:
                self.wholes.append(Whole(strategy, scenario, anew))
            except InfeasibleError as error:
                self.refused.add(error.kind)
            except DeadlockError as error:
                self.deadlocks.append((strategy, str(error)))

    @property
    def points(self):
        return [point for whole in self.wholes for _, point in whole.parts]

    def _offered(self, name, scenario):
        """Every other candidate of a strategy, and the neighbours of a few of them."""
        try:
            candidates = list(strategies_of("train")[name].candidates(scenario))[::2]
        except InfeasibleError as error:
            self.refused.add(error.kind)
            return []
        wider = chain.from_iterable(neighbours(candidate) for candidate in candidates[::4])
        return list(dict.fromkeys([*candidates, *wider]))
