"""Timing: what each layer of the small real model takes here, for plans whose stages are balanced on it."""

import time
from statistics import median
from typing import Final

import torch
from torch import Tensor

from profiles.models import Model
from validate.running.blocks import TOKENS, WIDTH, Layers

REPEATS: Final = 3


def measure_layers(model: Model, batch: int) -> dict[tuple[int, int], tuple[float, float]]:
    """Return (forward, backward) CPU seconds of each (component, layer) at a batch, medians."""
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
    of = layers.model.components[component]
    shape = (batch, TOKENS, WIDTH)
    hidden = torch.randn(shape, dtype=torch.float64, device=layers.device, requires_grad=of.trainable)
    skips = {(s.source, s.target): torch.randn_like(hidden) for s in of.skips if s.target == layer}
    context = {c: torch.randn_like(hidden) for c in layers.model.inputs_of(component)}
    began_s = time.thread_time()
    with torch.set_grad_enabled(of.trainable):
        result = layers.run(component, range(layer, layer + 1), hidden, skips, context)
    ran_s = time.thread_time()
    if of.trainable:
        total: Tensor = result.sum()
        total.backward()  # type: ignore[no-untyped-call]
    return ran_s - began_s, time.thread_time() - ran_s
