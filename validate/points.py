"""Points: what the simulator says of a strategy or a sampler; the one door to it of all that is compared with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from profiles.clusters import Cluster, load_cluster
from profiles.models import Model, load_model
from sim.explore.points import find_points
from sim.explore.sweep import Sweep, run_sweep
from sim.replay.engine import simulate
from sim.results import Result
from sim.runs import replay, run_point
from strategies.plans.traces import Trace
from strategies.registry import all_samplers, make_sampler, make_strategy
from strategies.scenario import SamplingScenario, SamplingWorkload, Scenario, TrainingWorkload
from strategies.strategy import Sampler, Strategy


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration, or one image, takes.

    Attributes:
        strategy: what ran.
        time_s: seconds of the iteration or the image.
        samples_per_s: throughput.
        bubble_ratio: share of the devices' time in which they are idle.
        collective_s: seconds in which a collective runs.
        exposed_s: idle seconds while something awaited is on the wire.
        memory_bytes: peak of the fullest device.
        sent_bytes: what all GPUs together send.
        fits: whether the memory of a device suffices.
        provenance: where layer times are from.
        forwards_s: seconds of the forward of each stage.
        step_s: seconds of one steady denoising step; none in training.
    """

    strategy: Strategy | Sampler
    time_s: float
    samples_per_s: float
    bubble_ratio: float
    collective_s: float
    exposed_s: float
    memory_bytes: float
    sent_bytes: float
    fits: bool
    provenance: str
    forwards_s: tuple[float, ...]
    step_s: float | None = None

    @property
    def latency_s(self) -> float:
        """Seconds of the image."""
        return self.time_s

    @property
    def shape(self) -> str:
        """The (P, M, D) of a pipeline, in words."""
        degrees = {"P": "pipeline_degree", "M": "micro_batches", "D": "group_size"}
        return ", ".join(f"{letter} {getattr(self.strategy, name)}" for letter, name in degrees.items())


def _outcome(result: Result, strategy: Strategy | Sampler) -> Outcome:
    expected = result.expected
    return Outcome(
        strategy=strategy,
        time_s=expected.duration_s,
        samples_per_s=result.samples_per_s,
        bubble_ratio=result.bubble_ratio,
        collective_s=expected.collective_s,
        exposed_s=expected.exposed_communication_s,
        memory_bytes=expected.peak_memory_bytes,
        sent_bytes=expected.collective_bytes + expected.p2p_bytes,
        fits=result.fits_memory,
        provenance=result.provenance,
        forwards_s=tuple(float(stage["forward_s"]) for stage in result.stages),
        step_s=result.times.get("step_s"),
    )


@cache
def model_of(name: str) -> Model:
    """A shipped model."""
    return load_model(name)


@cache
def cluster_of(name: str) -> Cluster:
    """A shipped cluster."""
    return load_cluster(name)


def scenario(
    model: str | Model,
    cluster: str | Cluster,
    num_gpus: int,
    batch_size: int,
    **options: Any,  # noqa: ANN401  those of a workload
) -> Scenario:
    """What is trained where, by names or with model and cluster at hand."""
    of = model_of(model) if isinstance(model, str) else model
    where = cluster_of(cluster) if isinstance(cluster, str) else cluster
    return Scenario(of, where, TrainingWorkload(num_gpus, batch_size, **options))


def drawing(
    model: str | Model,
    cluster: str | Cluster,
    num_gpus: int,
    size: tuple[int, int],
    steps: int,
    *,
    guidance: str,
) -> SamplingScenario:
    """What is drawn where, likewise; the size is height and width in pixels."""
    of = model_of(model) if isinstance(model, str) else model
    where = cluster_of(cluster) if isinstance(cluster, str) else cluster
    return SamplingScenario(of, where, SamplingWorkload(num_gpus, *size, steps, guidance))


def trained(name: str, point: Scenario, **asked: Any) -> Outcome:  # noqa: ANN401  as of make_strategy
    """One iteration of a strategy.

    Raises:
        InfeasibleError: the strategy cannot do this.
    """
    strategy = make_strategy(name, asked)
    return _outcome(run_point(strategy, point), strategy)


def replayed(name: str, point: Scenario, **asked: Any) -> Trace:  # noqa: ANN401  as above
    """The trace of one iteration of a strategy, likewise."""
    return replay(make_strategy(name, asked), point)


def sampler(name: str, **asked: Any) -> Sampler:  # noqa: ANN401  as above
    """A sampler with these parameters; those not given take their defaults."""
    return make_sampler(name, asked)


def drawn(of: Sampler, point: SamplingScenario) -> Outcome:
    """One image of a sampler.

    Raises:
        InfeasibleError: the sampler cannot do this.
    """
    return _outcome(run_point(of, point), of)


def best(point: Scenario, name: str, **fixed: Any) -> Outcome | None:  # noqa: ANN401  as of find_points
    """The fastest point of a strategy that fits; None where none does."""
    sweep = Sweep(point, "throughput", find_points(point, [name], fixed), top=1)
    run_sweep(sweep, workers=1)
    first = sweep.ranked()[0]
    result, strategy = first.result, first.strategy
    if strategy is None or result is None or not result.fits_memory:
        return None
    return _outcome(result, strategy)


def fastest(point: Scenario, name: str, **fixed: Any) -> Outcome:  # noqa: ANN401  as above
    """The fastest point of a strategy, where some point is known to fit."""
    found = best(point, name, **fixed)
    assert found is not None
    return found


def drawn_at_once(name: str, point: SamplingScenario, **asked: Any) -> Trace:  # noqa: ANN401  as above
    """The trace of all denoising steps of a sampler, one after the other."""
    return simulate(sampler(name, **asked).plan(point))


def candidates(name: str, point: SamplingScenario) -> Sequence[Sampler]:
    """The points of a sampler."""
    return list(all_samplers()[name].candidates(point))


def forward_bytes(trace: Trace) -> float:
    """Bytes of all GPUs' messages that are no gradients."""
    messages = [transfer for transfer in trace.wiring.transfers if transfer is not None]
    sizes = [(one.size_bytes, "gradient" in trace.plan.tensors[one.tensor].role) for one in messages]
    share = sum(size for size, back in sizes if back) / sum(size for size, _ in sizes)
    return (1 - share) * trace.p2p_bytes
