"""Layers: a small real model with the structure of a model folder, one torch module for each of its layers.

Kept of the folder are components, layers, skips, which layers read what, what is locked or frozen, and of each layer
its relative work; sizes and kinds are not. Every layer outputs tokens of one size, so that a cut can be after any
layer. Tensors are small, and float64, to compare gradients.

The gradients of one process that trains it are the reference.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Final

import torch
from torch import Tensor, nn

from profiles.architectures.models import Component, Model
from profiles.checks import sum_in_order
from validate.running.model import WIDER, Block, linear
from validate.running.sampling.settings import HEADS, HIDDEN

STATE: Final = (8, HIDDEN)  # tokens and channels of a sample
LEARNING_RATE: Final = 1e-3


class ChainLayer(nn.Module):
    """One layer: adds its skips and the frozen outputs that it reads, then runs its block."""

    def __init__(self, inner: int, skips: int, sources: Sequence[int]) -> None:
        super().__init__()
        self.sources = tuple(sources)
        self.fuse = nn.ModuleList(linear(HIDDEN, HIDDEN) for _ in range(skips))
        self.read = nn.ModuleList(linear(HIDDEN, HIDDEN) for _ in sources)
        self.block = Block(inner)

    def forward(self, hidden: Tensor, skips: Sequence[Tensor], context: Mapping[int, Tensor]) -> Tensor:
        """Return the hidden state after the layer, (samples, *STATE), like that before it and its skips."""
        for fuse, skip in zip(self.fuse, skips, strict=True):
            hidden = hidden + fuse(skip)
        for read, source in zip(self.read, self.sources, strict=True):
            hidden = hidden + read(context[source])
        result: Tensor = self.block(hidden)
        return result


def build_layer(model: Model, component: int, layer: int) -> ChainLayer:
    """One layer; the same in every process."""
    of = model.components[component]
    generator_state = torch.get_rng_state()
    torch.manual_seed(1 + 1000 * component + layer)
    sources = [s for s in model.inputs_of(component) if layer in _readers(model, component, s)]
    skips = sum(skip.target == layer for skip in of.skips)
    built = ChainLayer(_inner(of, layer), skips, sources).double()
    torch.set_rng_state(generator_state)
    return built.requires_grad_(of.trainable and of.layers[layer].backward == "full")


def _readers(model: Model, component: int, source: int) -> set[int]:
    """The layers of a component that read the output of a frozen one."""
    if source not in model.frozen:
        return set()
    if component in model.frozen:
        return {0}
    return {layer for layer, _ in model.reads_of(component, source)}


def _inner(component: Component, layer: int) -> int:
    """Inner width of a layer's block, by its work over the mean of its component."""
    works = [of.conv_flop + of.matmul_flop + of.attention_flop for of in component.layers]
    mean = sum_in_order(works) / len(works)
    relative = min(3.0, max(0.25, works[layer] / mean if mean else 1.0))
    return HEADS * round(WIDER * HIDDEN / HEADS * relative)


def batch_of(iteration: int, component: int, samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one component in one iteration; the same in every process."""
    generator = torch.Generator().manual_seed(10**6 * (component + 1) + iteration)
    inputs, targets = torch.randn((2, samples, *STATE), generator=generator, dtype=torch.float64)
    return inputs, targets


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a model that lie on one rank."""

    model: Model
    built: dict[tuple[int, int], ChainLayer]

    def get(self, component: int, layer: int) -> ChainLayer:
        """A layer, built when it is first asked for."""
        key = (component, layer)
        if key not in self.built:
            self.built[key] = build_layer(self.model, *key)
        return self.built[key]

    def run(
        self,
        component: int,
        layers: range,
        hidden: Tensor,
        skips: dict[tuple[int, int], Tensor],
        context: Mapping[int, Tensor],
    ) -> Tensor:
        """The hidden state after some layers; skips that end there are taken, those that start there added."""
        of = self.model.components[component]
        for layer in layers:
            ending = [skips[skip.source, skip.target] for skip in of.skips if skip.target == layer]
            hidden = self.get(component, layer)(hidden, ending, context)
            skips.update({(s.source, s.target): hidden for s in of.skips if s.source == layer})
        return hidden

    def parameters(self, component: int, layers: range) -> list[nn.Parameter]:
        """The trained parameters of some layers, in order."""
        return [
            parameter
            for layer in layers
            for parameter in self.get(component, layer).parameters()
            if parameter.requires_grad
        ]


Gradients = dict[tuple[int, int], list[Tensor]]
"""For each (component, layer) the gradients of its trained parameters."""


def gradients_of(layers: Layers, ranges: Iterable[tuple[int, range]]) -> Gradients:
    """Copies of the gradients of some ranges of layers."""
    keys = [(component, layer) for component, of in ranges for layer in of]
    parameters = {key: layers.parameters(key[0], range(key[1], key[1] + 1)) for key in keys}
    return {key: [one.grad.clone() for one in of if one.grad is not None] for key, of in parameters.items()}


def frozen_outputs(layers: Layers, iteration: int, batch_size: int) -> dict[int, Tensor]:
    """The outputs of all frozen components for the batch of one iteration."""
    model = layers.model
    outputs: dict[int, Tensor] = {}
    with torch.no_grad():
        for component in model.frozen:
            hidden, _ = batch_of(iteration, component, batch_size)
            every = range(len(model.components[component].layers))
            outputs[component] = layers.run(component, every, hidden, {}, outputs)
    return outputs


def single_process_gradients(
    model: Model, iterations: int, batch_size: int, *, extra_forward: bool
) -> Gradients:
    """The gradients of the last of some iterations on one process, with the whole batch at once."""
    layers = Layers(model, {})
    ranges = [(component, range(len(model.components[component].layers))) for component in model.backbones]
    for iteration in range(iterations):
        context = frozen_outputs(layers, iteration, batch_size)
        for component, every in ranges:
            optimizer = torch.optim.SGD(layers.parameters(component, every), LEARNING_RATE)
            optimizer.zero_grad()
            inputs, targets = batch_of(iteration, component, batch_size)
            if extra_forward:
                with torch.no_grad():
                    inputs = inputs + layers.run(component, every, inputs, {}, context)
            output = layers.run(component, every, inputs, {}, context)
            (output - targets).square().mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return gradients_of(layers, ranges)


def gradient_error(ranks: Sequence[Gradients], expected: Gradients) -> float:
    """Largest difference of any rank's gradient over the largest of its layer; infinite if one is missing."""
    if set().union(*ranks) != set(expected):
        return inf
    return max(_layer_error(values, expected[key]) for rank in ranks for key, values in rank.items())


def _layer_error(gradients: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    if len(gradients) != len(expected):
        return inf
    scale = max((float(right.abs().max()) for right in expected), default=0.0)
    errors = [
        float((gradient - right).abs().max()) for gradient, right in zip(gradients, expected, strict=True)
    ]
    worst = max((inf if isnan(error) else error for error in errors), default=0.0)
    return worst / scale if scale else worst
