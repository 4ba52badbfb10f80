"""The reference: one process trains the same small model, and says what the gradients must be."""

from collections.abc import Sequence
from math import inf, isnan

import torch
from torch import Tensor

from profiles.models import Model
from validate.running.training.blocks import CPU, SMALL, Layers, Shape, batch_of

Gradients = dict[
    tuple[int, int], list[Tensor]
]  # for each (component, layer) the gradients of its trained parameters


def frozen_outputs(layers: Layers, iteration: int, batch_size: int) -> dict[int, Tensor]:
    """The outputs of all frozen components for the batch of one iteration."""
    model = layers.model
    outputs: dict[int, Tensor] = {}
    with torch.no_grad():
        for component in model.frozen:
            hidden, _ = batch_of(iteration, component, batch_size, layers.device, layers.shape)
            every = range(len(model.components[component].layers))
            outputs[component] = layers.run(component, every, hidden, {}, outputs)
    return outputs


def single_process_gradients(
    model: Model,
    iterations: int,
    batch_size: int,
    *,
    extra_forward: bool,
    device: torch.device = CPU,
    shape: Shape = SMALL,
) -> Gradients:
    """The gradients of the last of some iterations on one process, with the whole batch at once."""
    layers = Layers(model, {}, device, shape)
    for iteration in range(iterations):
        context = frozen_outputs(layers, iteration, batch_size)
        for component in model.backbones:
            every = range(len(model.components[component].layers))
            parameters = layers.parameters(component, every)
            for parameter in parameters:
                parameter.grad = None
            inputs, targets = batch_of(iteration, component, batch_size, device, shape)
            if extra_forward:
                with torch.no_grad():
                    fed_back = layers.run(component, every, inputs, {}, context)
                inputs = inputs + fed_back
            output = layers.run(component, every, inputs, {}, context)
            (output - targets).square().mean().backward()  # type: ignore[no-untyped-call]
            layers.step(component, every)
    ranges = [(component, range(len(model.components[component].layers))) for component in model.backbones]
    return layers.gradients(ranges)


def gradient_error(found: Sequence[Gradients], expected: Gradients) -> float:
    """Largest difference of any rank's gradient over the largest of its layer; infinite if one is missing."""
    if set().union(*found) != set(expected):
        return inf
    return max(_layer_error(values, expected[key]) for own in found for key, values in own.items())


def _layer_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    if len(found) != len(expected):
        return inf
    scale = max((float(wanted.abs().max()) for wanted in expected), default=0.0)
    errors = [float((own - wanted).abs().max()) for own, wanted in zip(found, expected, strict=True)]
    worst = max((inf if isnan(error) else error for error in errors), default=0.0)
    return worst / scale if scale else worst
