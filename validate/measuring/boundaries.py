"""Boundaries: marks where layers end in the forward pass, and where they begin in the backward pass.

A layer ends where its module returns, as it is counted (``validate.tally``). Autograd runs the operators of a
backward pass in the reverse of the order in which the forward pass made them, so a layer's backward begins when
the operator that made its output comes up: all that was made later is then done.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from profiles.errors import InputError
from validate.counting.specs import LayerSpec
from validate.measuring.clocks import Clock, Mark


class Limit:
    """A time after which a measurement gives up, with the words to say so."""

    def __init__(self, seconds: float, message: str) -> None:
        self._end_s, self._message = perf_counter() + seconds, message

    def check(self) -> None:
        """Give up if the time is over."""
        if perf_counter() > self._end_s:
            raise InputError(self._message)


class Boundaries:
    """Watches one pass of a module while it is entered.

    Args:
        layers: the module's layers, in execution order.
        clock: what marks.
        limit: checked at every boundary.
    """

    def __init__(self, layers: Sequence[LayerSpec], clock: Clock, limit: Limit) -> None:
        self._layers, self._clock, self._limit = layers, clock, limit
        self._ends: list[Mark] = []
        self._begins: dict[int, Mark] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> "Boundaries":
        for index, layer in enumerate(self._layers):
            self._handles.append(layer.end.register_forward_hook(partial(self._end, index)))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def forward_s(self, start: Mark, end: Mark) -> list[float]:
        """Forward seconds of each layer; what ran after the last module is the last layer's."""
        assert len(self._ends) == len(self._layers), f"{len(self._ends)} of {len(self._layers)} layers ran"
        marks = [start, *self._ends[:-1], end]
        return [self._clock.seconds(a, b) for a, b in pairwise(marks)]

    def backward_s(self, start: Mark, end: Mark) -> list[float]:
        """Backward seconds of each layer, 0 of those that gradients do not pass."""
        seconds = [0.0] * len(self._layers)
        passed = sorted(self._begins, reverse=True)
        marks = [start, *(self._begins[index] for index in passed[1:]), end]
        for index, (begin, stop) in zip(passed, pairwise(marks), strict=False):
            seconds[index] = self._clock.seconds(begin, stop)
        return seconds

    def _end(self, index: int, module: nn.Module, args: object, output: object) -> None:
        self._limit.check()
        assert index == len(self._ends), f"layer {index} ended when layer {len(self._ends)} should"
        self._ends.append(self._clock.mark())
        hidden = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        node = _last_node(hidden[: self._layers[index].streams])
        if node is not None:
            node.register_prehook(partial(self._begin, index))

    def _begin(self, index: int, gradients: object) -> None:
        self._limit.check()
        self._begins[index] = self._clock.mark()


def _last_node(tensors: Sequence[Tensor]) -> Node | None:
    """Operator that made the last of some tensors; None where no gradient passes."""
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    return max(nodes, key=lambda node: int(node._sequence_nr()), default=None)
