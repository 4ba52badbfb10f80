"""Scenarios of a run: from a question to a plan for this model, these times and these links, and to a job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from profiles.clusters import load_cluster
from profiles.costs import ModelCosts
from profiles.errors import InputError
from profiles.models import Component, MeasuredTime, Model
from sim.runs import jobs, replay
from strategies.plans.plan import Plan
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make_strategy
from strategies.scenario import Scenario
from validate.running.comparison import Job
from validate.running.links import DEVICE, emulated_cluster
from validate.running.training.blocks import LayerTimes, measure_layers
from validate.running.training.samples import Training, frozen_samples

ESTIMATED_ON: Final = "p4de"
"""Where nothing is measured, sleeping kernels take times in proportion to those estimated for its devices."""

SLEEP_S: Final = 0.025
"""A forward of a kernel that sleeps, in the mean over stages: long beside what a message and Python take (1 ms)."""
PLANNING_SCALE: Final = 10.0
"""The small model is planned as if all took so many times as long: bubbles under 10 ms would stay empty."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be run: a strategy on ranks and samples in all, every message taking ``link_s``."""

    strategy: str
    parameters: Mapping[str, Any]
    num_gpus: int
    batch_size: int
    link_s: float
    extra_forward: bool = False

    @property
    def name(self) -> str:
        """The strategy and what was asked of it."""
        asked = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.strategy}({asked})" if asked else self.strategy


def scenario_of(question: Question, model: Model) -> Scenario:
    """The scenario of a question; the model has times on the ranks."""
    extra, asked = question.extra_forward, (question.num_gpus, question.batch_size)
    workload = TrainingWorkload(*asked, self_conditioning=float(extra), extra_forward=extra)
    return Scenario(model, emulated_cluster(question.link_s), workload)


def plan_of(question: Question, scenario: Scenario) -> Plan:
    """The plan that a strategy makes of a scenario, as good as it gets."""
    strategy = make_strategy(question.strategy, question.parameters)
    if len(jobs(strategy, scenario)) > 1:
        raise InputError("backbones side by side have no plan in common: run each on ranks of its own")
    return replay(strategy, scenario).plan


def with_times(model: Model, times: LayerTimes, batch: int) -> Model:
    """A model whose layers take these (forward, backward) seconds at a batch, more or less in proportion."""

    def timed(number: int, component: Component) -> Component:
        layers = range(len(component.layers))
        measured = tuple(MeasuredTime(layer, batch, *times[number, layer]) for layer in layers)
        return replace(component, times=((DEVICE, measured),))

    return replace(model, components=tuple(timed(*pair) for pair in enumerate(model.components)))


def sleeping_model(model: Model, batch: int, forward_s: float) -> Model:
    """A model whose kernels sleep: the first backbone's forward of a batch takes so long, all else in proportion.

    Times on the ranks are taken where it has them, else those estimated for a ``p4de``.
    """
    measured = all(dict(component.times).get(DEVICE) for component in model.components)
    device = (emulated_cluster(0.0) if measured else load_cluster(ESTIMATED_ON)).device
    costs = ModelCosts(model, device).components
    factor = forward_s / float(costs[model.backbones[0]].forward_s(batch).sum())
    times = {
        (number, layer): (factor * float(forward), factor * float(backward))
        for number, of in enumerate(costs)
        for layer, (forward, backward) in enumerate(
            zip(of.forward_s(batch), of.backward_s(batch), strict=True)
        )
    }
    return with_times(model, times, batch)


def prepare(question: Question, mode: str, model: Model, iterations: int, warm_up: int = 2) -> Job:
    """The job of a question in one of ``MODES``; a real run trains a small model of the model's structure."""
    model = model.for_task("train")
    batch = micro_batch_of(question)
    if mode == "sleep":
        degree = question.parameters.get("pipeline_degree", 1)
        scenario = scenario_of(question, sleeping_model(model, batch, SLEEP_S * degree))
        return Job(question.name, mode, plan_of(question, scenario), question.link_s, iterations, warm_up)
    times = measure_layers(model, batch)
    scaled = {key: (PLANNING_SCALE * f, PLANNING_SCALE * b) for key, (f, b) in times.items()}
    planned = replace(question, link_s=PLANNING_SCALE * question.link_s)
    scenario = scenario_of(planned, with_times(model, scaled, batch))
    plan = plan_of(planned, scenario)
    samples = frozen_samples(plan, scenario, batch * plan.placement.replicas)
    plan = replace(plan, placement=replace(plan.placement, cluster=emulated_cluster(question.link_s)))
    training = Training(model, question.batch_size, batch, samples, question.extra_forward)
    return Job(question.name, mode, plan, question.link_s, iterations, warm_up, training)


def micro_batch_of(question: Question) -> int:
    """The samples of a micro-batch on one rank; of what does not divide the plan will complain."""
    strategy = make_strategy(question.strategy, question.parameters)
    degree, count = getattr(strategy, "pipeline_degree", 1), getattr(strategy, "micro_batches", 1)
    return max(1, question.batch_size * degree // (question.num_gpus * count))
