"""Scenarios of a run: from a question to its plan, with the model's times and the emulated links, and to a job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from profiles.architectures.models import Component, MeasuredTime, Model
from profiles.costs.layers import ComponentCosts, ModelCosts
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from sim.outcomes.parts import replay
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make_strategy
from strategies.scenario import Scenario
from validate.running.links import DEVICE, emulated_cluster
from validate.running.rank import Job
from validate.running.training.samples import Training, frozen_samples

ESTIMATED_ON: Final = "p4de"
"""The cluster for whose devices times are estimated where none are measured; kernels sleep in proportion to them."""

SLEEP_S: Final = 0.025
"""Mean seconds of a stage's forward where kernels sleep: long beside a message and Python (1 ms)."""


@dataclass(frozen=True, slots=True)
class Question:
    """A strategy to run, its ranks and samples in all, and the ``link_s`` seconds of every message."""

    strategy: str
    parameters: Mapping[str, Any]
    num_gpus: int
    batch_size: int
    link_s: float
    extra_forward: bool = False

    @property
    def name(self) -> str:
        """Strategy and parameters."""
        parameters = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.strategy}({parameters})" if parameters else self.strategy


def _timed_model(model: Model, batch: int, forward_s: float) -> Model:
    """A model with times on the ranks: the first backbone's forward of a batch takes ``forward_s``.

    All else is in proportion to its times on the ranks if it has any, else to those estimated for a ``p4de``.
    """
    measured = all(dict(component.times).get(DEVICE) for component in model.components)
    device = (emulated_cluster(0.0) if measured else load_cluster(ESTIMATED_ON)).device
    costs = ModelCosts(model, device).components
    factor = forward_s / float(costs[model.backbones[0]].forward_s(batch).sum())

    def timed(component: Component, of: ComponentCosts) -> Component:
        pairs = zip(of.forward_s(batch), of.backward_s(batch), strict=True)
        seconds = [(factor * float(forward), factor * float(backward)) for forward, backward in pairs]
        times = tuple(MeasuredTime(layer, batch, *pair) for layer, pair in enumerate(seconds))
        return replace(component, times=((DEVICE, times),))

    return replace(model, components=tuple(map(timed, model.components, costs)))


def prepare(
    question: Question, model: Model, iterations: int, warm_up: int = 2, *, sleeping: bool = False
) -> Job:
    """The job of a question: to train a small model of the model's structure, or to sleep as the plan says."""
    model, strategy = model.for_task("train"), make_strategy(question.strategy, question.parameters)
    degree, count = getattr(strategy, "pipeline_degree", 1), getattr(strategy, "micro_batches", 1)
    batch = max(
        1, question.batch_size * degree // (question.num_gpus * count)
    )  # the plan refuses what leaves a rest
    extra, size = question.extra_forward, (question.num_gpus, question.batch_size)
    workload = TrainingWorkload(*size, self_conditioning=float(extra), extra_forward=extra)
    timed = _timed_model(model, batch, SLEEP_S * degree)
    scenario = Scenario(timed, emulated_cluster(question.link_s), workload)
    if len(strategy.jobs(scenario)) > 1:
        raise InputError("backbones side by side have no plan in common: run each on ranks of its own")
    plan = replay(strategy, scenario).plan
    job = Job(question.name, plan, question.link_s, iterations, warm_up)
    if sleeping:
        return job
    samples = frozen_samples(plan, scenario, batch * plan.placement.replicas)
    return replace(job, task=Training(model, question.batch_size, batch, samples, extra))
