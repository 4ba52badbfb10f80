"""What the published experiments ran: models, machines and the best point of a strategy there."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, Final

from profiles.clusters import Cluster, load_cluster
from profiles.components import Component, Layer
from profiles.costs import ComponentCosts, FloatArray
from profiles.models import MeasuredTime, Model, load_model
from sim.explore.points import find_points
from sim.explore.sweep import Sweep, run_sweep
from sim.results import Result
from strategies.scenario import Scenario, TrainingWorkload

TWO_BATCHES: Final = (1, 2)
"""Two points fix a time that is linear in the batch."""
LARGE_BATCH: Final = 64
"""The local batch at which the longest layers of DiffusionPipe's Fig. 5 are given."""

HEAD_CHANNELS: Final = 32
"""Of the widened U-Nets: self-attention takes 4 FLOP per score and channel."""
SCORE_PASSES: Final = 4
"""Unfused attention writes its scores, reads and writes them for the softmax, and reads them again: an estimate."""


def scenario(
    model: str | Model,
    cluster: str | Cluster,
    num_gpus: int,
    batch_size: int,
    **options: Any,  # noqa: ANN401
) -> Scenario:
    """Return what is trained where, by names or with model and cluster at hand."""
    of = _model(model) if isinstance(model, str) else model
    where = _cluster(cluster) if isinstance(cluster, str) else cluster
    return Scenario(of, where, TrainingWorkload(num_gpus, batch_size, **options))


@cache
def _model(name: str) -> Model:
    return load_model(name)


@cache
def _cluster(name: str) -> Cluster:
    return load_cluster(name)


@cache
def with_collectives_of(name: str, other: str) -> Cluster:
    """Return a cluster whose collectives reach the shares of its bandwidths that another's reach."""
    return replace(_cluster(name), collectives=_cluster(other).collectives)


def best(point: Scenario, strategy: str, **fixed: Any) -> Result | None:  # noqa: ANN401
    """Return the fastest point of a strategy that fits; None where none does."""
    sweep = Sweep(point, "throughput", find_points(point, [strategy], fixed), top=1)
    run_sweep(sweep, workers=1)
    result = sweep.ranked()[0].result
    return result if isinstance(result, Result) and result.fits_memory else None


def fastest(point: Scenario, strategy: str, **fixed: Any) -> Result:  # noqa: ANN401
    """Return the fastest point of a strategy, where some point is known to fit."""
    found = best(point, strategy, **fixed)
    assert found is not None
    return found


def with_all_gradients(name: str, cluster: str) -> Model:
    """Return a model all of whose backbone gradients are reduced, and stepped, also those of locked layers.

    The layers take as long as before: computing the weight gradients of locked layers is left out.
    """
    device = _cluster(cluster).device

    def train_all(component: Component) -> Component:
        if not component.trainable:
            return component
        costs = ComponentCosts(component, device)
        times = _times(TWO_BATCHES, costs.forward_s, costs.backward_s)
        layers = tuple(replace(layer, backward="full") for layer in component.layers)
        return replace(component, layers=layers, times=((device.name, times),))

    return _changed(_model(name), train_all)


def with_long_layers(name: str, cluster: str, layers: tuple[int, ...], long_s: float) -> Model:
    """Return a model in whose VAE encoders some layers take that long at ``LARGE_BATCH``.

    Each encoder takes as long as before; its other layers share the rest in the proportions they had.
    """
    device = _cluster(cluster).device

    def lengthen(component: Component) -> Component:
        if component.trainable or not component.name.startswith(("vae", "hint")):
            return component
        forward_s = ComponentCosts(component, device).forward_s(LARGE_BATCH)
        longer_s = forward_s.copy()
        longer_s[list(layers)] = 0.0
        longer_s *= (forward_s.sum() - long_s * len(layers)) / longer_s.sum()
        longer_s[list(layers)] = long_s
        times = _times((LARGE_BATCH,), lambda _: longer_s, lambda _: 0.0 * longer_s)
        return replace(component, times=((device.name, times),))

    return _changed(_model(name), lengthen)


def _times(
    batches: Iterable[int], forward_s: Callable[[int], FloatArray], backward_s: Callable[[int], FloatArray]
) -> tuple[MeasuredTime, ...]:
    """Return the times of all layers as a model file would give them."""
    return tuple(
        MeasuredTime(layer, batch, float(there), float(back))
        for batch in batches
        for layer, (there, back) in enumerate(zip(forward_s(batch), backward_s(batch), strict=True))
    )


def _changed(model: Model, change: Callable[[Component], Component]) -> Model:
    return replace(model, components=tuple(change(component) for component in model.components))


def in_half_precision(name: str) -> Model:
    """Return a model counted in single precision with all its bytes halved; its FLOP stay."""
    model = _model(name)
    assert model.dtype == "float32"

    def halve(layer: Layer) -> Layer:
        return replace(
            layer,
            moved_bytes=layer.moved_bytes / 2,
            output_bytes=layer.output_bytes / 2,
            saved_bytes=layer.saved_bytes / 2,
        )

    def halve_all(component: Component) -> Component:
        halved = _with_layers(component, halve)
        return replace(halved, carried_bytes=component.carried_bytes / 2)

    return replace(_changed(model, halve_all), dtype="float16")


def with_unfused_attention(model: Model) -> Model:
    """Return a model whose self-attention writes and reads its score matrices.

    ``SCORE_PASSES`` times over, in the model's type; saved bytes stay, as if they were computed again.
    """
    size = {"float32": 4, "float16": 2}[model.dtype]

    def unfuse(layer: Layer) -> Layer:
        scores = layer.attention_flop / (4 * HEAD_CHANNELS)
        return replace(layer, moved_bytes=layer.moved_bytes + SCORE_PASSES * size * scores)

    return _changed(model, lambda component: _with_layers(component, unfuse))


def with_more_traffic(model: Model, factor: float) -> Model:
    """Return a model whose memory traffic takes that much longer."""

    def slow(layer: Layer) -> Layer:
        return replace(layer, moved_bytes=layer.moved_bytes * factor)

    return _changed(model, lambda component: _with_layers(component, slow))


def _with_layers(component: Component, change: Callable[[Layer], Layer]) -> Component:
    return replace(component, layers=tuple(change(layer) for layer in component.layers))
