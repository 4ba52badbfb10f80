"""Timing: what each layer of the small real model takes here, for plans whose stages are balanced on it."""

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import torch
from torch import Tensor

from profiles.models import Model
from validate.running.training.blocks import Layers

REPEATS: Final = 3


def measure_layers(model: Model, batch: int) -> dict[tuple[int, int], tuple[float, float]]:
    """(Forward, backward) CPU seconds of each (component, layer) at a batch, medians."""
    layers = Layers(model, {})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            (component, layer): _measure(layers, component, layer, batch)
            for component, of in enumerate(model.components)
            for layer in range(len(of.layers))
        }
    finally:
        torch.set_num_threads(threads)


def _measure(layers: Layers, component: int, layer: int, batch: int) -> tuple[float, float]:
    tries = [exercise(layers, component, layer, batch) for _ in range(1 + REPEATS)][1:]
    return median(forward_s for forward_s, _ in tries), median(backward_s for _, backward_s in tries)


def exercise(layers: Layers, component: int, layer: int, batch: int) -> tuple[float, float]:
    """Run one layer forwards and, where it is trained, backwards on random numbers; return the CPU seconds of both."""
    seconds = []
    for work in passes_of(layers, component, layer, batch):
        began_s = time.thread_time()
        work()
        seconds.append(time.thread_time() - began_s)
    forward_s, backward_s = seconds
    return forward_s, backward_s


def passes_of(
    layers: Layers, component: int, layer: int, batch: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Forward and backward of one layer on random numbers, to be called in turn."""
    of, shape = layers.model.components[component], layers.shape
    layers.get(component, layer)
    hidden = torch.randn(shape.hidden_states(batch), dtype=shape.dtype, device=layers.device)
    hidden.requires_grad_(of.trainable)
    skips = {(s.source, s.target): torch.randn_like(hidden) for s in of.skips if s.target == layer}
    context = {c: torch.randn_like(hidden) for c in layers.model.inputs_of(component)}
    made: list[Tensor] = []

    def forward() -> None:
        with torch.set_grad_enabled(of.trainable):
            every = range(layer, layer + 1)
            made.append(layers.run(component, every, hidden, dict(skips), context))

    def backward() -> None:
        if of.trainable:
            output = made.pop()
            torch.autograd.backward([output], [torch.ones_like(output)])

    return forward, backward
