"""The layer cost model: what each layer of a component takes, measured or estimated.

An estimate is the *sum* of a layer's work over the device's rates plus its kernel launches. Work grows with the
batch, launches do not.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from profiles.devices import Device, Rates
from profiles.errors import InputError
from profiles.models import Component, Layer, MeasuredTime, Model
from profiles.recipes import MemoryRecipe

FloatArray = NDArray[np.float64]

BACKWARD_WORK: Final = {"full": (2.0, 2.5), "input": (1.0, 2.0), "none": (0.0, 0.0)}
"""Backward over forward work, by kind of backward pass: (attention apart, attention). A full pass computes input
and weight gradients, two products for each of the forward; attention's five for the forward's two (flash)."""


class ComponentCosts:
    """Times of all layers of one component on one device, by local batch."""

    def __init__(self, component: Component, device: Device) -> None:
        self.component = component
        self._forward: dict[int, FloatArray] = {}
        self._backward: dict[int, FloatArray] = {}
        times = dict(component.times).get(device.name)
        self.provenance: Final = "estimated" if times is None else "measured"
        if times is not None:
            self._curves = _measured_curves(times, len(component.layers))
        elif device.rates is not None:
            self._curves = [_estimated_curve(layer, device.rates) for layer in component.layers]
        else:
            others = ", ".join(name for name, _ in component.times)
            raise InputError(
                f"device '{device.name}' has no rates of its own, and {component.name} has no times measured on it"
                f" (times/{device.name}.csv)" + (f", only on {others}" if others else "")
            )

    def forward_s(self, batch: int) -> FloatArray:
        """Return the forward seconds of each layer, shape (layers,), at a local batch."""
        if batch not in self._forward:
            self._forward[batch] = _fixed([_line(curve, batch, 1) for curve in self._curves])
        return self._forward[batch]

    def backward_s(self, batch: int) -> FloatArray:
        """Return the backward seconds of each layer, shape (layers,), at a local batch."""
        if batch not in self._backward:
            self._backward[batch] = _fixed([_line(curve, batch, 2) for curve in self._curves])
        return self._backward[batch]

    def least_forward_s_per_sample(self, largest_batch: int) -> FloatArray:
        """Return for each layer the least forward seconds per sample at any local batch up to the largest.

        Between two measured batches the time per sample is monotone, so the ends of the pieces decide.
        """
        batches = {1, largest_batch}
        batches |= {int(x) for curve in self._curves for x, _, _ in curve if 1 <= x <= largest_batch}
        least: FloatArray = np.min([self.forward_s(batch) / batch for batch in sorted(batches)], axis=0)
        return least


class ModelCosts:
    """Times of all components of a model on one device, and of the optimizer."""

    def __init__(self, model: Model, device: Device) -> None:
        self.components: Final = tuple(ComponentCosts(component, device) for component in model.components)
        self._device = device

    @property
    def provenance(self) -> str:
        """``measured`` where every component's times are, else ``estimated``."""
        measured = all(costs.provenance == "measured" for costs in self.components)
        return "measured" if measured else "estimated"

    def optimizer_s(self, parameters: float, recipe: MemoryRecipe) -> float:
        """Return the seconds of one optimizer step, bound by memory traffic; 0 on a device without rates."""
        if self._device.rates is None:
            return 0.0
        return parameters * recipe.step_bytes / self._device.rates.memory_bytes_per_s


def _fixed(values: Sequence[float]) -> FloatArray:
    """Array that no caller can change, as it is kept for the next one."""
    array = np.array(values)
    array.flags.writeable = False
    return array


Curve = Sequence[tuple[float, float, float]]
"""(batch, forward seconds, backward seconds), ascending in the batch; linear between and beyond."""


def estimate_forward_s(layer: Layer, rates: Rates, batch: float) -> float:
    """Return the estimated forward seconds of a layer at a batch."""
    per_sample = (
        layer.conv_flop / rates.conv_flop_per_s
        + layer.matmul_flop / rates.matmul_flop_per_s
        + layer.attention_flop / rates.attention_flop_per_s
        + layer.moved_bytes / rates.memory_bytes_per_s
    )
    return batch * per_sample + layer.kernels * rates.kernel_s


def estimate_backward_s(layer: Layer, rates: Rates, batch: float) -> float:
    """Return the estimated backward seconds of a layer at a batch."""
    work, attention = BACKWARD_WORK[layer.backward]
    attention_s = batch * layer.attention_flop / rates.attention_flop_per_s
    return work * (estimate_forward_s(layer, rates, batch) - attention_s) + attention * attention_s


def _estimated_curve(layer: Layer, rates: Rates) -> Curve:
    return [
        (batch, estimate_forward_s(layer, rates, batch), estimate_backward_s(layer, rates, batch))
        for batch in (0.0, 1.0)
    ]


def _measured_curves(times: Sequence[MeasuredTime], num_layers: int) -> list[Curve]:
    curves: list[list[tuple[float, float, float]]] = [[] for _ in range(num_layers)]
    for time in times:
        curves[time.layer].append((time.batch_size, time.forward_s, time.backward_s))
    return [curve if len(curve) > 1 else [(0.0, 0.0, 0.0), *curve] for curve in curves]


def _line(curve: Curve, batch: float, column: int) -> float:
    upper = 1
    while upper < len(curve) - 1 and curve[upper][0] < batch:
        upper += 1
    (x0, x1), (y0, y1) = ((curve[upper - 1][i], curve[upper][i]) for i in (0, column))
    return max(0.0, y0 + (y1 - y0) * (batch - x0) / (x1 - x0))
