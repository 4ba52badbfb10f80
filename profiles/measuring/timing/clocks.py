"""Clocks: marks in a stream of work, the seconds between two of them, and marks at the boundaries of layers.

A layer ends where its module returns, as in counting. Autograd runs the operators of a backward pass in the reverse
order of the forward pass, so a layer's backward begins when the operator that made its output comes up: all later ones
are then done.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from profiles.errors import InputError
from profiles.measuring.counting.specs import LayerSpec

Mark = Any
"""A reading of a CPU's clock in seconds, or an event in a stream of a GPU."""
DEVICES: Final = ("cpu", "cuda")


class Clock:
    """Marks points of the work that a device is given, in the order in which it is given.

    A CPU does its work as it is given; a GPU runs behind, so its marks are events in the current stream.
    """

    def __init__(self, read: Callable[[], float] = perf_counter, device: str = "cpu") -> None:
        self.device = torch.device(f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device)
        self._read = read

    def mark(self) -> Mark:
        """Mark this point of the work."""
        if self.device.type == "cpu":
            return self._read()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        """Wait until all work is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds between two marks, once the work before both is done."""
        return float(end - start if self.device.type == "cpu" else start.elapsed_time(end) / 1e3)


def clock_of(device: str) -> Clock:
    """Clock of ``cpu`` or ``cuda``; InputError where there is no GPU."""
    if device not in DEVICES:
        raise InputError(f"--device is '{device}', must be one of {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device cuda: torch {torch.__version__} finds no CUDA GPU here")
    return Clock(device=device)


class Boundaries:
    """Watches one pass of a module, until ``remove``."""

    def __init__(self, module: nn.Module, layers: Sequence[LayerSpec], clock: Clock) -> None:
        self._layers, self._clock = layers, clock
        self._ends: list[Mark] = []
        self._begins: dict[int, Mark] = {}
        modules = (module.get_submodule(layer.end) for layer in layers)
        self._handles = [of.register_forward_hook(partial(self._end, i)) for i, of in enumerate(modules)]

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def forward_s(self, start: Mark, end: Mark) -> list[float]:
        """Forward seconds of each layer; what ran after the last module is the last layer's."""
        assert len(self._ends) == len(self._layers), f"{len(self._ends)} of {len(self._layers)} layers ran"
        marks = [start, *self._ends[:-1], end]
        return [self._clock.seconds(a, b) for a, b in pairwise(marks)]

    def backward_s(self, start: Mark, end: Mark) -> list[float]:
        """Backward seconds of each layer, 0 where no gradient passes."""
        seconds = [0.0] * len(self._layers)
        passed = sorted(self._begins, reverse=True)
        marks = [start, *(self._begins[index] for index in passed[1:]), end]
        for index, (begin, stop) in zip(passed, pairwise(marks), strict=False):
            seconds[index] = self._clock.seconds(begin, stop)
        return seconds

    def _end(self, index: int, module: nn.Module, args: object, output: object) -> None:
        assert index == len(self._ends), f"layer {index} ended when layer {len(self._ends)} should"
        self._ends.append(self._clock.mark())
        hidden = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        made = (tensor.grad_fn for tensor in hidden[: self._layers[index].streams])
        nodes = [node for node in made if node is not None]
        if nodes:  # the one that made the last of them
            last = max(nodes, key=lambda node: int(node._sequence_nr()))
            last.register_prehook(partial(self._begin, index))

    def _begin(self, index: int, gradients: object) -> None:
        self._begins[index] = self._clock.mark()
