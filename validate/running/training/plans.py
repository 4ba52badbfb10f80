"""Plans of a training: with the model's times and the emulated links, and with the samples of their frozen ops.

A plan says how many samples frozen ops take; which ones follows from the order in which they are handed out, so they
are handed out once more.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from profiles.architectures.components import Component, MeasuredTime
from profiles.architectures.models import Model
from profiles.costs.layers import ComponentCosts, ModelCosts
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from sim.outcomes.parts import replay
from strategies.pipelining.frozen import FROZEN, FrozenWork
from strategies.plans.actions import FORWARD, FrozenAction, StageAction
from strategies.plans.plan import Plan
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make
from strategies.scenario import Scenario
from validate.running.rank import Job, Outcome
from validate.running.sampling.settings import DEVICE, emulated_cluster
from validate.running.training.kernels import FrozenSamples, ModuleKernels, Training
from validate.running.training.layers import gradient_error, single_process_gradients

ESTIMATED_ON: Final = "p4de"
"""The cluster for whose devices times are estimated where none are measured; kernels sleep in proportion to them."""
SLEEP_S: Final = 0.025
"""Mean seconds of a stage's forward where kernels sleep: long beside a message and Python (1 ms)."""
WARM_UP: Final = 2
"""Iterations before those that count; gradients depend on the steps and the frozen work of earlier ones."""


def prepare(
    model: Model,
    name: str,
    parameters: Mapping[str, Any],
    *,
    num_gpus: int,
    batch_size: int,
    link_s: float,
    iterations: int = 1,
    extra_forward: bool = False,
    sleeping: bool = False,
) -> Job:
    """The job of a strategy: to train a small model of the model's structure, or to sleep as the plan says."""
    model, strategy = model.for_task("train"), make(name, parameters)
    degree, count = getattr(strategy, "pipeline_degree", 1), getattr(strategy, "micro_batches", 1)
    batch = max(1, batch_size * degree // (num_gpus * count))  # the plan refuses what leaves a rest
    workload = TrainingWorkload(
        num_gpus, batch_size, self_conditioning=float(extra_forward), extra_forward=extra_forward
    )
    scenario = Scenario(_timed_model(model, batch, SLEEP_S * degree), emulated_cluster(link_s), workload)
    if len(strategy.jobs(scenario)) > 1:
        raise InputError("backbones side by side have no plan in common: run each on ranks of its own")
    plan, words = replay(strategy, scenario).plan, ", ".join(f"{k}={v}" for k, v in parameters.items())
    job = Job(f"{name}({words})" if words else name, plan, link_s, iterations, WARM_UP)
    if sleeping:
        return job
    samples = frozen_samples(plan, scenario, batch * plan.placement.replicas)
    training = Training(model, batch_size, batch, samples, extra_forward)
    return replace(job, task=training, kernels=ModuleKernels)


def error_of(job: Job, outcome: Outcome) -> float | None:
    """Largest difference of a gradient from that of a single process, over the largest gradient of its layer."""
    task = job.task
    if task is None:
        return None
    iterations, extra = job.warm_up + job.iterations, task.extra_forward
    expected = single_process_gradients(task.model, iterations, task.batch_size, extra_forward=extra)
    return gradient_error(outcome.results, expected)


def _timed_model(model: Model, batch: int, forward_s: float) -> Model:
    """A model with times on the ranks: the first backbone's forward of a batch takes ``forward_s``.

    All else is in proportion to its times on the ranks if it has any, else to those estimated for a ``p4de``.
    """
    measured = all(dict(component.times).get(DEVICE) for component in model.components)
    device = (emulated_cluster(0.0) if measured else load_cluster(ESTIMATED_ON)).device
    costs = ModelCosts(model, device).components
    factor = forward_s / float(costs[model.backbones[0]].forward_s(batch).sum())

    def timed(component: Component, costs: ComponentCosts) -> Component:
        pairs = zip(costs.forward_s(batch), costs.backward_s(batch), strict=True)
        seconds = [(factor * float(forward), factor * float(backward)) for forward, backward in pairs]
        times = tuple(MeasuredTime(layer, batch, *pair) for layer, pair in enumerate(seconds))
        return replace(component, times=((DEVICE, times),))

    return replace(model, components=tuple(map(timed, model.components, costs)))


def frozen_samples(plan: Plan, scenario: Scenario, micro_batch: int) -> FrozenSamples:
    """The samples of the frozen work of a plan, where a micro-batch has ``micro_batch`` samples of the group."""
    placement, group_batch = plan.placement, scenario.workload.batch_size // plan.placement.num_groups
    work = FrozenWork(scenario, group_batch, placement.replicas, [])
    for layer in plan.filling.layers if plan.filling else ():
        work.place(layer)
    ops = {}
    for device, row in enumerate(plan.ops):
        indices = [index for index, op in enumerate(row) if isinstance(op.action, FrozenAction)]
        taken = [batch.samples for batch in work.placed if batch.position == device]
        ops.update({(device, index): spans for index, spans in zip(indices, taken, strict=True)})
    for number, stage in enumerate(plan.stages):  # the plan hands frozen outputs to stages in this order
        passes = [op.action for op in plan.ops[stage.position] if isinstance(op.action, StageAction)]
        numbers = [a.micro_batch for a in passes if a.stage == number and a.kind == FORWARD]
        first, end = min(numbers), max(numbers) + 1
        for source in (i for i in scenario.model.inputs_of(stage.component) if i in scenario.frozen):
            readers = [layer for layer, _ in scenario.model.reads_of(stage.component, source)]
            if any(stage.first_layer <= layer <= stage.last_layer for layer in readers):
                pieces = [(first, end)] if plan.cross_iteration else [(m, m + 1) for m in range(first, end)]
                for start, stop in pieces:
                    work.output(source, start * micro_batch, stop * micro_batch, 1.0)
    frozen = [index for index, tensor in enumerate(plan.tensors) if tensor.role == FROZEN]
    return FrozenSamples(ops, dict(zip(frozen, work.spans, strict=True)))
