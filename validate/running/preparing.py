"""Preparing: from a question to a job that ranks can carry out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from profiles.models import Model
from strategies.plans.plan import Plan
from strategies.registry import make_strategy
from validate.running.job import Job
from validate.running.links import emulated_cluster
from validate.running.samples import FrozenSamples, frozen_samples
from validate.running.scenarios import Question, plan_of, scenario_of, sleeping_model, with_times
from validate.running.timing import measure_layers

SLEEP_S: Final = 0.025
"""A forward of a kernel that sleeps, in the mean over stages: long beside what a message and Python take (1 ms)."""
PLANNING_SCALE: Final = 10.0
"""The small model is planned as if all took so many times as long: bubbles under 10 ms would stay empty."""


def prepare(question: Question, mode: str, model: Model, iterations: int, warm_up: int = 2) -> Job:
    """Return the job of a question.

    Args:
        question: strategy, ranks and links.
        mode: one of ``MODES``.
        model: what is trained; of a real run the small model of its structure.
        iterations: how often, without those to warm up.
        warm_up: how often before.

    Raises:
        DiffusimError: the strategy does not apply.
    """
    model = model.for_task("train")
    batch = micro_batch_of(question)
    if mode == "sleep":
        degree = question.parameters.get("pipeline_degree", 1)
        scenario = scenario_of(question, sleeping_model(model, batch, SLEEP_S * degree))
        return Job(question.name, mode, plan_of(question, scenario), question.link_s, iterations, warm_up)
    plan, samples = plan_small(question, model, measure_layers(model, batch))
    return Job(
        question.name, mode, plan, question.link_s, iterations, warm_up, model, question.batch_size, batch,
        samples, question.extra_forward,
    )  # fmt: skip


def plan_small(
    question: Question, model: Model, times: Mapping[tuple[int, int], tuple[float, float]]
) -> tuple[Plan, FrozenSamples]:
    """Return the plan of a small real model, and which samples its frozen work takes.

    Args:
        question: strategy, ranks and links.
        model: the structure.
        times: (forward, backward) seconds of each (component, layer) for a micro-batch.

    Raises:
        DiffusimError: the strategy does not apply.
    """
    batch = micro_batch_of(question)
    scaled = {key: (PLANNING_SCALE * f, PLANNING_SCALE * b) for key, (f, b) in times.items()}
    planned = replace(question, link_s=PLANNING_SCALE * question.link_s)
    scenario = scenario_of(planned, with_times(model, scaled, batch))
    plan = plan_of(planned, scenario)
    samples = frozen_samples(plan, scenario, batch * plan.placement.replicas)
    return _on_links(plan, question.link_s), samples


def micro_batch_of(question: Question) -> int:
    """Return the samples of a micro-batch on one rank; of what does not divide the plan will complain."""
    strategy = make_strategy(question.strategy, question.parameters)
    degree, count = getattr(strategy, "pipeline_degree", 1), getattr(strategy, "micro_batches", 1)
    return max(1, question.batch_size * degree // (question.num_gpus * count))


def _on_links(plan: Plan, link_s: float) -> Plan:
    """Return a plan on links that take as long as those of the run."""
    return replace(plan, placement=replace(plan.placement, cluster=emulated_cluster(link_s)))
