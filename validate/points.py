"""Points: simulated strategies and samplers, for everything that is compared with the simulator."""

import shlex
from dataclasses import fields
from functools import cache
from typing import Any

from profiles.architectures.models import Model, load_model
from profiles.errors import flag_of
from profiles.machines.clusters import load_cluster
from profiles.software.stacks import DEFAULT_STACK, Stack, load_stack
from sim.explore.points import find_points
from sim.explore.search import run_sweep
from sim.explore.sweep import Sweep
from sim.outcomes.parts import replay
from sim.outcomes.results import Result
from sim.outcomes.runs import run_point
from sim.replay.engine import simulate
from strategies.plans.traces import Trace
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.registry import make
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario

model_of, cluster_of = cache(load_model), cache(load_cluster)
"""Shipped models and clusters by name."""


def scenario(
    model: str | Model,
    cluster: str,
    num_gpus: int,
    batch_size: int,
    *,
    stack: str = DEFAULT_STACK,
    **options: Any,  # noqa: ANN401  those of a workload
) -> Scenario:
    """The scenario of a training run; the model by name or as an object."""
    workload = TrainingWorkload(num_gpus, batch_size, **options)
    model = model_of(model) if isinstance(model, str) else model
    return Scenario(model, cluster_of(cluster), workload, stack=load_stack(stack))


def sampling(
    model: str | Model,
    cluster: str,
    num_gpus: int,
    size: tuple[int, int],
    steps: int,
    *,
    stack: Stack = load_stack(),  # noqa: B008  the default one
    **options: Any,  # noqa: ANN401  as above
) -> SamplingScenario:
    """The scenario of sampling, likewise; the size is height and width in pixels."""
    model = model_of(model) if isinstance(model, str) else model
    workload = SamplingWorkload(num_gpus, *size, steps, **options)
    return SamplingScenario(model, cluster_of(cluster), workload, stack=stack)


def command_for(name: str, point: Scenario, verb: str = "run", **parameters: Any) -> str:  # noqa: ANN401  as of make
    """The command that asks ``sim`` for a strategy in a scenario; of a sweep its first line is meant."""
    model, cluster, stack, workload = point.model.name, point.cluster.name, point.stack.name, point.workload
    flags: dict[str, Any] = {"model": model, "cluster": cluster, "gpus": workload.num_gpus}
    flags |= {"batch_size": workload.batch_size, "stack": stack, "strategy": name}
    plain = TrainingWorkload(workload.num_gpus, workload.batch_size)
    parameters |= {"checkpointing": "none"} if verb == "sweep" else {}
    differing = {field.name: getattr(workload, field.name) for field in fields(workload)}
    flags |= {key: value for key, value in differing.items() if value != getattr(plain, key)}
    words = (word for key, value in (flags | parameters).items() for word in (flag_of(key), str(value)))
    return shlex.join(["sim", verb, *words])


def train(name: str, point: Scenario, **parameters: Any) -> Result:  # noqa: ANN401  as of make
    """One iteration of a strategy."""
    return run_point(make(name, parameters), point)


def replayed(name: str, point: Scenario, **parameters: Any) -> Trace:  # noqa: ANN401  as above
    """The trace of one iteration of a strategy, likewise."""
    return replay(make(name, parameters), point)


def fastest(point: Scenario, name: str, **fixed: Any) -> Result:  # noqa: ANN401  as of find_points
    """The fastest point of a strategy, of which some point is known to fit."""
    points = tuple(find_points(point, [name], fixed))
    result = run_sweep(Sweep(point, "throughput", points, top=1), workers=1).ranked()[0].result
    assert result is not None and result.fits_memory
    return result


def sampled(name: str, point: SamplingScenario, **parameters: Any) -> Trace:  # noqa: ANN401  as above
    """The trace of all denoising steps of a sampler, one after the other."""
    return simulate(make(name, parameters).plan(point))


def forward_bytes(trace: Trace) -> float:
    """Bytes of all GPUs' messages that carry no gradients."""
    messages = [transfer for transfer in trace.wiring.transfers if transfer is not None]
    sizes = [(one.size_bytes, "gradient" in trace.plan.tensors[one.tensor].role) for one in messages]
    share = sum(size for size, back in sizes if back) / sum(size for size, _ in sizes)
    return (1 - share) * trace.p2p_bytes
