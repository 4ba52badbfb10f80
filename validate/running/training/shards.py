"""Shards: the weights of stages divided among data-parallel ranks, as ZeRO does.

What a rank does not own is not a number wherever the plan says that it is not there, so a gather too few, or one too
early, shows in every gradient.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch import distributed as dist

from validate.running.training.blocks import LEARNING_RATE, Layers


class Shards:
    """The weights and gradients of the stages of one rank, which owns as many numbers of each stage as any other."""

    def __init__(
        self, layers: Layers, ranges: Mapping[int, tuple[int, range]], rank: int, num_ranks: int
    ) -> None:
        self._parameters = {stage: layers.parameters(*own) for stage, own in ranges.items()}
        self._weights: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._own: dict[int, slice] = {}
        for stage, parameters in self._parameters.items():
            share = -(-sum(parameter.numel() for parameter in parameters) // num_ranks)
            self._own[stage] = slice(rank * share, (rank + 1) * share)
            kind = {"dtype": torch.float64, "device": layers.device}
            weights, gradients = (torch.zeros(share * num_ranks, **kind) for _ in range(2))  # type: ignore[call-overload]
            for parameter, weight, gradient in zip(
                parameters, self._pieces(stage, weights), self._pieces(stage, gradients), strict=True
            ):
                weight.copy_(parameter.data)
                parameter.data, parameter.grad = weight, gradient
            self._weights[stage], self._gradients[stage] = weights, gradients
        self.clear()

    def _pieces(self, stage: int, flat: Tensor) -> list[Tensor]:
        """The parts of something flat that stand for each parameter, as views."""
        parameters = self._parameters[stage]
        ends = torch.tensor([0, *(parameter.numel() for parameter in parameters)]).cumsum(0).tolist()
        return [
            flat[start:end].view_as(parameter)
            for start, end, parameter in zip(ends, ends[1:], parameters, strict=False)
        ]

    def clear(self) -> None:
        """Forget all gradients."""
        self._aside: dict[tuple[int, int], Tensor] = {}
        for gradients in self._gradients.values():
            gradients.zero_()
        self._sums = {stage: torch.zeros_like(self._weights[stage][own]) for stage, own in self._own.items()}

    def free(self, stage: int) -> None:
        """Lose all weights but those that the rank owns."""
        weights, own = self._weights[stage], self._own[stage]
        kept = weights[own].clone()
        weights.fill_(torch.nan)
        weights[own] = kept

    def gather(self, stage: int, group: dist.ProcessGroup) -> None:
        """Get the weights that other ranks own."""
        weights = self._weights[stage]
        dist.all_gather_single(weights, weights[self._own[stage]].clone(), group=group)

    def set_aside(self, stage: int, op: int) -> None:
        """Keep the gradients of one backward apart: the next one may begin while they are still scattered."""
        self._aside[stage, op] = self._gradients[stage].clone()
        self._gradients[stage].zero_()

    def scatter(self, stage: int, op: int, group: dist.ProcessGroup) -> None:
        """Sum the gradients of one backward over all ranks, and keep the part that the rank owns."""
        received = torch.empty_like(self._sums[stage])
        dist.reduce_scatter_single(received, self._aside.pop((stage, op)), group=group)
        self._sums[stage] += received

    def step(self, stage: int) -> None:
        """Step the optimizer on what the rank owns; all else is out of date."""
        self._weights[stage][self._own[stage]].sub_(self._sums[stage], alpha=LEARNING_RATE)
        self.free(stage)

    def gradients(self, stage: int) -> list[Tensor]:
        """The gradients of each parameter, of all ranks; all ranks must ask."""
        whole = torch.empty_like(self._gradients[stage])
        dist.all_gather_single(whole, self._sums[stage])
        return self._pieces(stage, whole)
