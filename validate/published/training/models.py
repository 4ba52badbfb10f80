"""Models and machines as the published experiments may have had them: variants of the shipped ones.

PULSE publishes no layer times. Activations in single precision and products in half precision, as under autocast, are
the base of ``costs_of``: the volumes of Table III and the largest micro-batches of section VII-C2 suggest the first, 14
bytes per parameter (Eq. 14) and the throughputs the second. Its V100s and NPUs may run attention unfused.
"""

from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

from profiles.architectures.components import Component, Layer
from profiles.architectures.models import MeasuredTime, Model
from profiles.costs.layers import ComponentCosts
from profiles.machines.clusters import Cluster
from profiles.software.stacks import Fusion, Stack, load_stack
from strategies.scenario import Scenario
from validate.points import cluster_of, model_of, scenario

CONDITIONED: Final = {"sd21": 0.5, "controlnet": 0.5, "controlnet-hint-vae": 0.5}
"""Probability of the extra forward pass where DiffusionPipe trains with it (Table 5), as in Chen et al., Analog Bits
(2022). Their own recipes train without."""
STACK: Final = "eager-2023"
"""What DiffusionPipe ran: mixed precision of early 2023."""
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
"""Local batches at which layers are timed; between them times are interpolated."""
SLOWER: Final = 4.0
"""Divisor of the memory bandwidth: the extreme of the assumptions, measured nowhere."""
SINGLE: Final = "activations in single precision"
HALF: Final = "activations in half precision"
UNFUSED: Final = "attention unfused"
SLOWEST: Final = f"attention unfused, memory {SLOWER:g} times slower"
NOTHING: Final = Fusion(0.0, 0.0, 0.0, 0.0, 0.0)
COSTS: Final = (SINGLE, HALF, "FLOP alone", UNFUSED, SLOWEST)
"""Assumptions about the costs of layers. The first is the base; the others change it."""


class Costs(NamedTuple):
    """A model and the stack that runs it."""

    model: Model
    stack: Stack


def on_p4de(
    model: str | Model,
    num_gpus: int,
    batch_size: int,
    **options: Any,  # noqa: ANN401  those of a workload
) -> Scenario:
    """A scenario of DiffusionPipe's machines and stack."""
    return scenario(model, "p4de", num_gpus, batch_size, stack=STACK, **options)


@cache
def costs_of(name: str) -> dict[str, Costs]:
    """A model and its stack under each assumption about the costs of its layers."""
    single, eager = model_of(name), load_stack()
    free = replace(eager, name="eager, FLOP alone", traffic=NOTHING, launches=NOTHING, cast_weights=False)
    unfused = replace(eager, name="eager, attention unfused", attention="math")
    memory = eager.rates.memory / SLOWER
    rates = replace(eager.rates, memory=memory)
    slow = replace(unfused, name=f"{unfused.name}, slow memory", rates=rates)
    half = Costs(in_half_precision(name), eager)
    found = (Costs(single, eager), half, *(Costs(single, stack) for stack in (free, unfused, slow)))
    return dict(zip(COSTS, found, strict=True))


@cache
def with_collectives_of(name: str, other: str) -> Cluster:
    """A cluster with the collective efficiencies of another."""
    return replace(cluster_of(name), collectives=cluster_of(other).collectives)


def with_all_gradients(name: str, cluster: str) -> Model:
    """A model in which all parameters of backbones, also of locked layers, have gradients to reduce and step.

    The layers take as long as before: computing the weight gradients of locked layers is left out.
    """
    device = cluster_of(cluster).device

    def train_all(component: Component) -> Component:
        if not component.trainable:
            return component
        costs = ComponentCosts(component, device, stack=load_stack(STACK))
        times = tuple(
            MeasuredTime(layer, batch, *map(float, pair))
            for batch in BATCHES
            for layer, pair in enumerate(zip(costs.forward_s(batch), costs.backward_s(batch), strict=True))
        )
        layers = tuple(replace(layer, backward="full") for layer in component.layers)
        return replace(component, layers=layers, times=((device.name, times),))

    model = model_of(name)
    return replace(model, components=tuple(map(train_all, model.components)))


def in_half_precision(name: str) -> Model:
    """A model counted in single precision, changed to half: half the bytes, and no casts; its FLOP stay."""
    model = model_of(name)
    assert model.dtype == "float32"

    def halve(layer: Layer) -> Layer:
        sizes = {key: getattr(layer, key) / 2 for key in ("moved_bytes", "output_bytes", "saved_bytes")}
        return replace(layer, **sizes)

    def lighten(part: Component) -> Component:
        layers, carried = tuple(map(halve, part.layers)), part.carried_bytes / 2
        return replace(part, layers=layers, carried_bytes=carried, kernels=part.half_kernels)

    return replace(model, components=tuple(map(lighten, model.components)), dtype="float16")
