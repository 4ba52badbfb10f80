"""The layer cost model: times of each layer of a component, measured or estimated.

An estimate is the *sum* of a layer's work over the device's rates plus its kernel launches. Work grows with the
batch, launches do not. Where the one-GPU latency of a model on a device was published, estimates are scaled to it,
so that a prediction starts from what was measured.
"""

from collections.abc import Sequence
from math import exp, log
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.anchors import Anchor
from profiles.devices import Device, Rates
from profiles.errors import InputError
from profiles.models import Component, Layer, MeasuredTime, Model
from profiles.recipes import MemoryRecipe

FloatArray = NDArray[np.float64]

BACKWARD_WORK: Final = {"full": (2.0, 2.5), "input": (1.0, 2.0), "none": (0.0, 0.0)}
"""Backward over forward work, by kind of backward pass: (attention apart, attention). A full pass computes input
and weight gradients, two products for each of the forward; attention's five for the forward's two (flash)."""


HALF_BYTES: Final = 2.0
"""Sampling runs in half precision, whatever precision a model is trained in."""
ELEMENT_BYTES: Final = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0}


class ForwardWork(NamedTuple):
    """Forward seconds of each layer of a component, arrays of shape (layers,).

    Attributes:
        linear: of convolutions and matrix products, per sample.
        attention: of self-attention, per sample.
        memory: of the memory traffic that no matrix unit hides, per sample.
        launches: of kernel launches, per pass.
    """

    linear: FloatArray
    attention: FloatArray
    memory: FloatArray
    launches: FloatArray


class ComponentCosts:
    """Times of all layers of one component on one device, by local batch.

    Args:
        component: the component.
        device: the device; times measured on it come before estimates.
        scale: factor on estimates, see ``anchor_factor``.

    Raises:
        InputError: the device has no rates, and the component no times measured on it.
    """

    def __init__(self, component: Component, device: Device, scale: float = 1.0) -> None:
        self.component = component
        self._forward: dict[int, FloatArray] = {}
        self._backward: dict[int, FloatArray] = {}
        times = dict(component.times).get(device.name)
        self.provenance: Final = "estimated" if times is None else "measured"
        if times is not None:
            self._curves = _measured_curves(times, len(component.layers))
        elif device.rates is not None:
            self._curves = [_estimated_curve(layer, device.rates, scale) for layer in component.layers]
        else:
            others = ", ".join(name for name, _ in component.times)
            raise InputError(
                f"device '{device.name}' has no rates of its own, and {component.name} has no times measured on it"
                f" (times/{device.name}.csv)" + (f", only on {others}" if others else "")
            )
        self._estimated = _estimated_work(component, device.rates, scale)

    def forward_s(self, batch: int) -> FloatArray:
        """Forward seconds of each layer, shape (layers,), at a local batch."""
        if batch not in self._forward:
            self._forward[batch] = self._at(batch, 1)
        return self._forward[batch]

    def backward_s(self, batch: int) -> FloatArray:
        """Backward seconds of each layer, shape (layers,), at a local batch."""
        if batch not in self._backward:
            self._backward[batch] = self._at(batch, 2)
        return self._backward[batch]

    def forward_work(self, batch: float, bytes_ratio: float = 1.0) -> ForwardWork:
        """Parts of ``forward_s`` at a batch, by class of work.

        Measured seconds are divided over the classes as the estimate is; all are linear where there is none.

        Args:
            batch: samples in one pass.
            bytes_ratio: bytes of an element over those of the model's files.
        """
        work = self._estimated._replace(memory=self._estimated.memory * bytes_ratio)
        if self.provenance == "estimated":
            return work
        one, two, seconds = (self._at(samples, 1) for samples in (1, 2, batch))
        launches = np.minimum(np.maximum(0.0, one - np.maximum(0.0, two - one)), seconds)
        classes = np.array(work[:3])
        total = classes.sum(axis=0)
        shares = np.divide(classes, total, out=np.zeros_like(classes), where=total > 0)
        shares[0] = np.where(total > 0, shares[0], 1.0)
        linear, attention, memory = shares * (seconds - launches) / batch
        return ForwardWork(linear, attention, memory, launches)

    def least_forward_s_per_sample(self, largest_batch: int) -> FloatArray:
        """Least forward seconds per sample of each layer, at any local batch up to the largest.

        Between two measured batches the time per sample is monotone, so the ends of the pieces decide.
        """
        batches = {1, largest_batch}
        batches |= {int(x) for curve in self._curves for x, _, _ in curve if 1 <= x <= largest_batch}
        least: FloatArray = np.min([self.forward_s(batch) / batch for batch in sorted(batches)], axis=0)
        return least

    def _at(self, batch: float, column: int) -> FloatArray:
        return _fixed([_line(curve, batch, column) for curve in self._curves])


class TaskCosts:
    """Times of all components of a model on one device, training or sampling at some pixels.

    Raises:
        InputError: the device has no rates, and a component no times measured on it.
    """

    def __init__(self, model: Model, device: Device, pixels: int) -> None:
        self.anchor_factor: Final = anchor_factor(model, device, pixels)
        """Factor on the estimates of the backbones."""
        self.components: Final = tuple(
            ComponentCosts(c, device, self.anchor_factor if c.trainable else 1.0) for c in model.components
        )
        measured = all(costs.provenance == "measured" for costs in self.components)
        self.provenance: Final = "measured" if measured else "estimated"


class ModelCosts(TaskCosts):
    """Times of all components of a model on one device, and of the optimizer."""

    def __init__(self, model: Model, device: Device) -> None:
        super().__init__(model, device, model.height * model.width)
        self._device = device

    def optimizer_s(self, parameters: float, recipe: MemoryRecipe) -> float:
        """The seconds of one optimizer step, bound by memory traffic; 0 on a device without rates."""
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
    """Estimated forward seconds of a layer at a batch."""
    linear, attention, memory, launches = _layer_work(layer, rates)
    return batch * (linear + attention + memory) + launches


def estimate_backward_s(layer: Layer, rates: Rates, batch: float) -> float:
    """The estimated backward seconds of a layer at a batch."""
    work, attention = BACKWARD_WORK[layer.backward]
    attention_s = batch * layer.attention_flop / rates.attention_flop_per_s
    return work * (estimate_forward_s(layer, rates, batch) - attention_s) + attention * attention_s


def _layer_work(layer: Layer, rates: Rates) -> tuple[float, float, float, float]:
    """Estimated forward seconds of a layer, by class as in ``ForwardWork``."""
    return (
        layer.conv_flop / rates.conv_flop_per_s + layer.matmul_flop / rates.matmul_flop_per_s,
        layer.attention_flop / rates.attention_flop_per_s,
        layer.moved_bytes / rates.memory_bytes_per_s,
        layer.kernels * rates.kernel_s,
    )


def _estimated_work(component: Component, rates: Rates | None, scale: float = 1.0) -> ForwardWork:
    """Estimated forward work of a component; none on a device without rates."""
    if rates is None:
        return ForwardWork(*np.zeros((4, len(component.layers))))
    return ForwardWork(*(scale * np.array([_layer_work(layer, rates) for layer in component.layers]).T))


def _estimated_curve(layer: Layer, rates: Rates, scale: float) -> Curve:
    return [
        (
            batch,
            scale * estimate_forward_s(layer, rates, batch),
            scale * estimate_backward_s(layer, rates, batch),
        )
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


def tokens_ratio(model: Model, component: Component, height: int, width: int) -> float:
    """Tokens of a component at a resolution over those at its reference; 1 where it has no image tokens."""
    image, text = component.image_tokens, component.text_tokens
    pixels = height * width / (model.height * model.width)
    return (image * pixels + text) / (image + text) if image else 1.0


def half_precision_ratio(model: Model) -> float:
    """Bytes of an element in half precision over those of the model's files."""
    return HALF_BYTES / ELEMENT_BYTES[model.dtype]


def anchor_factor(model: Model, device: Device, pixels: int) -> float:
    """Published over estimated one-GPU seconds of the backbones, at some pixels.

    It corrects what the model's estimates on the device miss, so that it holds for every pass of a backbone there:
    forward and backward, sampling and training.

    1 where nothing was published; the geometric mean where several latencies were; interpolated in the logarithm
    of the pixels between resolutions, constant beyond.
    """
    if device.rates is None:
        return 1.0
    found: dict[int, list[float]] = {}
    for anchor in model.anchors:
        if anchor.device == device.name:
            estimated = _one_gpu_s(model, device.rates, anchor)
            found.setdefault(anchor.height * anchor.width, []).append(log(anchor.latency_s / estimated))
    if not found:
        return 1.0
    sizes = sorted(found)
    factors = [sum(found[size]) / len(found[size]) for size in sizes]
    return exp(float(np.interp(log(pixels), [log(size) for size in sizes], factors)))


def _one_gpu_s(model: Model, rates: Rates, anchor: Anchor) -> float:
    """Estimated seconds of what an anchor measured."""
    total = 0.0
    for component in model.anchored:
        *work, launches = _estimated_work(component, rates)
        tokens = tokens_ratio(model, component, anchor.height, anchor.width)
        scale = np.array([tokens, tokens**2, tokens * half_precision_ratio(model)])
        total += float(anchor.batch * (scale @ np.array(work)).sum() + launches.sum())
    return anchor.steps * total
