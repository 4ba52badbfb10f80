"""Timing: what each layer of the small real model takes here, for plans whose stages are balanced on it."""

import time
from collections.abc import Callable
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
    of = layers.model.components[component]
    shape = (batch, TOKENS, WIDTH)
    hidden = torch.randn(shape, dtype=torch.float64, requires_grad=of.trainable)
    skips = {(s.source, s.target): torch.randn_like(hidden) for s in of.skips if s.target == layer}
    context = {c: torch.randn_like(hidden) for c in layers.model.inputs_of(component)}

    def forward() -> Tensor:
        with torch.set_grad_enabled(of.trainable):
            return layers.run(component, range(layer, layer + 1), hidden, dict(skips), context)

    forward_s, backward_s = [], []
    for _ in range(1 + REPEATS):
        result, seconds = _timed(forward)
        forward_s.append(seconds)
        if of.trainable:
            total = result.sum()
            backward_s.append(_timed(lambda total=total: total.backward())[1])  # type: ignore[misc]
    return median(forward_s[1:]), median(backward_s[1:]) if backward_s else 0.0


def _timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    began_s = time.thread_time()
    result = work()
    return result, time.thread_time() - began_s
