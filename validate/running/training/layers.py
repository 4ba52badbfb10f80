"""Layers: a small real model with the structure of a model folder, one torch module for each of its layers.

Kept of the folder are components, layers, skips, which layers read what, what is locked or frozen, and of each layer
its relative work; sizes and kinds are not. Every layer outputs tokens of one size, so that a cut can be after any
layer. Tensors are small, and float64, to compare gradients.

The gradients of one process that trains it are the reference.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import inf, isnan
from typing import Final

import torch
from torch import Tensor, nn

from profiles.architectures.components import Component
from profiles.architectures.models import Model
from validate.running.model import WIDER, Block, linear
from validate.running.sampling.settings import HEADS, HIDDEN

STATE: Final = (8, HIDDEN)  # tokens and channels of a sample
LEARNING_RATE: Final = 1e-3

State = dict[tuple[int, int], Tensor]
"""Skips by (source, target); also the hidden state beside them, or gradients of both."""
Context = Mapping[int, Tensor]
"""Outputs of frozen components."""
Gradients = dict[tuple[int, int], list[Tensor]]
"""For each (component, layer) the gradients of its trained parameters."""


class ChainLayer(nn.Module):
    """One layer: adds its skips and the frozen outputs that it reads, then runs its block."""

    def __init__(self, inner: int, skips: int, sources: Sequence[int]) -> None:
        super().__init__()
        self.sources = tuple(sources)
        self.fuse = nn.ModuleList(linear(HIDDEN, HIDDEN) for _ in range(skips))
        self.read = nn.ModuleList(linear(HIDDEN, HIDDEN) for _ in sources)
        self.block = Block(inner)

    def forward(self, hidden: Tensor, skips: Sequence[Tensor], context: Context) -> Tensor:
        """Return the hidden state after the layer, (samples, *STATE), like that before it and its skips."""
        for fuse, skip in zip(self.fuse, skips, strict=True):
            hidden = hidden + fuse(skip)
        for read, source in zip(self.read, self.sources, strict=True):
            hidden = hidden + read(context[source])
        result: Tensor = self.block(hidden)
        return result


def _inner(component: Component, layer: int) -> int:
    """Inner width of a layer's block, by its work over the mean of its component."""
    works = [layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in component.layers]
    mean = sum(works) / len(works)
    relative = min(3.0, max(0.25, works[layer] / mean if mean else 1.0))
    return HEADS * round(WIDER * HIDDEN / HEADS * relative)


def batch_of(iteration: int, component: int, samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one component in one iteration; the same in every process."""
    generator = torch.Generator().manual_seed(10**6 * (component + 1) + iteration)
    inputs, targets = torch.randn((2, samples, *STATE), generator=generator, dtype=torch.float64)
    return inputs, targets


class Layers:
    """The layers of a model that lie on one rank; each is built when it is first asked for."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._built: dict[tuple[int, int], ChainLayer] = {}

    def get(self, component: int, layer: int) -> ChainLayer:
        """A layer, the same in every process."""
        if (component, layer) not in self._built:
            description, inputs = self.model.components[component], self.model.inputs_of(component)
            sources = [source for source in inputs if layer in self._readers(component, source)]
            skips = sum(skip.target == layer for skip in description.skips)
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(1 + 1000 * component + layer)
                built = ChainLayer(_inner(description, layer), skips, sources).double()
            trained = description.trainable and description.layers[layer].backward == "full"
            self._built[component, layer] = built.requires_grad_(trained)
        return self._built[component, layer]

    def _readers(self, component: int, source: int) -> set[int]:
        """The layers of a component that read the output of a frozen one."""
        if source not in self.model.frozen:
            return set()
        if component in self.model.frozen:
            return {0}
        return {layer for layer, _ in self.model.reads_of(component, source)}

    def run(self, component: int, layers: range, hidden: Tensor, skips: State, context: Context) -> Tensor:
        """The hidden state after some layers; skips that end there are taken, those that start there added."""
        description = self.model.components[component]
        for layer in layers:
            ending = [skips[skip.source, skip.target] for skip in description.skips if skip.target == layer]
            hidden = self.get(component, layer)(hidden, ending, context)
            skips.update({(s.source, s.target): hidden for s in description.skips if s.source == layer})
        return hidden

    def parameters(self, component: int, layers: range) -> list[nn.Parameter]:
        """The trained parameters of some layers, in order."""
        every = (parameter for layer in layers for parameter in self.get(component, layer).parameters())
        return [parameter for parameter in every if parameter.requires_grad]

    def gradients(self, ranges: Iterable[tuple[int, range]]) -> Gradients:
        """Copies of the gradients of some ranges of layers."""
        places = [(component, layer) for component, layers in ranges for layer in layers]
        trained = {place: self.parameters(place[0], range(place[1], place[1] + 1)) for place in places}
        return {
            place: [one.grad.clone() for one in tensors if one.grad is not None]
            for place, tensors in trained.items()
        }

    def frozen_outputs(self, iteration: int, batch_size: int) -> dict[int, Tensor]:
        """The outputs of all frozen components for the batch of one iteration."""
        outputs: dict[int, Tensor] = {}
        with torch.no_grad():
            for component in self.model.frozen:
                hidden, _ = batch_of(iteration, component, batch_size)
                every = range(len(self.model.components[component].layers))
                outputs[component] = self.run(component, every, hidden, {}, outputs)
        return outputs


@cache
def single_process_gradients(
    model: Model, iterations: int, batch_size: int, *, extra_forward: bool
) -> Gradients:
    """The gradients of the last of some iterations on one process, with the whole batch at once."""
    layers = Layers(model)
    ranges = [(component, range(len(model.components[component].layers))) for component in model.backbones]
    for iteration in range(iterations):
        context = layers.frozen_outputs(iteration, batch_size)
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
    return layers.gradients(ranges)


def gradient_error(ranks: Sequence[Gradients], expected: Gradients) -> float:
    """Largest difference of any rank's gradient over the largest of its layer; infinite if one is missing."""
    if set().union(*ranks) != set(expected):
        return inf
    errors = [0.0]
    for gradients, wanted in (
        (gradients, expected[key]) for rank in ranks for key, gradients in rank.items()
    ):
        if len(gradients) != len(wanted):
            return inf
        scale = max((float(right.abs().max()) for right in wanted), default=0.0) or 1.0
        pairs = zip(gradients, wanted, strict=True)
        errors += [float((left - right).abs().max()) / scale for left, right in pairs]
    return max(inf if isnan(error) else error for error in errors)
