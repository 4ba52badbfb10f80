"""The layer cost model: times of each layer of a component, measured or estimated.

An estimate is the sum of a layer's kernels by the device's laws, under a software stack
(``profiles.costs.kernel_times``); of a component whose kernels nobody counted, of its work over the device's
rates, which may follow from its laws (``profiles.costs.layer_times``). Where the one-GPU latency of a model on a
device was published, estimates are scaled to it, so that a prediction starts from what was measured.
"""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from math import exp, log
from typing import Final

import numpy as np

from profiles.architectures.components import Anchor, Component, Layer
from profiles.architectures.extents import Extent
from profiles.architectures.kernels import PRODUCTS, Kernel
from profiles.architectures.models import Model
from profiles.architectures.shares import WHOLE, Share
from profiles.costs.calibration import PUBLISHED, UNSCALED, Calibration
from profiles.costs.checkpointing import Checkpointed, checkpointed
from profiles.costs.kernel_times import KernelTimes
from profiles.costs.layer_times import LayerTimes, LumpedTimes, MeasuredTimes, rates_of
from profiles.errors import InputError
from profiles.machines.devices import Device
from profiles.machines.laws import ELEMENT_BYTES, Smaller
from profiles.software.levers import HALF, device_in
from profiles.software.recipes import MemoryRecipe
from profiles.software.stacks import Shares, Stack, load_stack
from profiles.units import FloatArray

OPTIMIZER_TRAFFIC: Final = {"fused": 1.0, "foreach": 80 / 28, "loop": 80 / 28}
"""Memory traffic of an optimizer's step over that of a single kernel. AdamW in PyTorch's operations reads and writes 80
bytes of float32 per parameter: decay 8, first moment 12, second moment 8 + 12, root 8, division 8, epsilon 8, update
16; in one kernel 16 + 12 (torch/optim/adamw.py)."""
OPTIMIZER_OPERATORS: Final = {"fused": 0, "foreach": 0, "loop": 8}
"""Operators that the host dispatches for each tensor of parameters: those above, one after another."""
TENSORS: Final = 2
"""Tensors of parameters, weight and bias, of each product and norm; an adapter's products have no bias."""
WITH_PARAMETERS: Final = (*PRODUCTS, "group_norm", "layer_norm")


def _stack_on(device: Device, stack: Stack) -> Stack:
    """The stack as it runs on a device; its shares are 1 where laws are made of rates, which say what is reached."""
    return replace(stack, rates=stack.rates_on(device.name) if device.own_laws else Shares())


def times_of(
    component: Component, device: Device, stack: Stack, extent: Extent, *, training: bool
) -> LayerTimes:
    """Estimated times of a component; all 0 on a device without laws and rates."""
    if device.laws is None:
        return LumpedTimes(component, None, extent)
    used = _stack_on(device, stack)
    if component.kernels if training else component.half_kernels:
        return KernelTimes(component, device.laws, used, extent, training=training)
    return LumpedTimes(component, device.rates or rates_of(device.laws, used), extent)


class ComponentCosts:
    """Times of all layers of one component on one device, by local batch and share of the work.

    Args:
        component: the component.
        device: the device; times measured on it come before estimates, whatever the stack.
        scale: factor on estimates, see ``published``.
        calibration: factor on all times, measured ones too.
        stack: of the software; by default ``eager``.
        extent: size of the image; by default the reference.
        training: whether it trains, in mixed precision, or samples, in half precision.
    """

    def __init__(
        self,
        component: Component,
        device: Device,
        scale: float = 1.0,
        *,
        calibration: float = 1.0,
        stack: Stack | None = None,
        extent: Extent | None = None,
        training: bool = True,
    ) -> None:
        self.component: Final = component
        self.extent: Final = Extent.reference(component) if extent is None else extent
        self._calibration: Final = calibration
        self._scaled: dict[Hashable, FloatArray] = {}
        resolved = stack or load_stack()
        times = dict(component.times).get(device.name)
        self.provenance: Final = "estimated" if times is None else "measured"
        if times is not None:
            unhurried = replace(resolved, forward_operator_s=0.0, backward_operator_s=0.0)
            here, there = (
                times_of(component, device, unhurried, size, training=training)
                for size in (self.extent, Extent.reference(component))
            )
            self._times: LayerTimes = MeasuredTimes(component, times, self.extent, here, there)
            self._scale = calibration
            return
        if device.laws is None:
            others = ", ".join(name for name, _ in component.times)
            raise InputError(
                f"device '{device.name}' has no rates of its own, and {component.name} has no times measured on it"
                f" (times/{device.name}.csv)"
                + (f", only on {others}" if others else "")
                + "; a device without rates is for models whose times are given, such as sim.equal_layers_model"
            )
        self._scale = scale * calibration
        self._times = times_of(component, device, resolved, self.extent, training=training)

    def forward_s(self, batch: float, share: Share = WHOLE) -> FloatArray:
        """Forward seconds of each layer, shape (layers,), at a local batch."""
        return self._kept("forward_s", batch, share)

    def gpu_s(self, batch: float, share: Share = WHOLE) -> FloatArray:
        """Forward seconds of each layer on the GPU alone, without waiting for the host, shape (layers,)."""
        return self._kept("gpu_s", batch, share)

    @cached_property
    def host_s(self) -> FloatArray:
        """Seconds in which the host dispatches the forward of each layer, whatever the batch, shape (layers,)."""
        return self._calibration * self._times.host_s()

    def attention_s(self, batch: float, share: Share = WHOLE, *, backward: bool = False) -> FloatArray:
        """Seconds of self-attention in ``gpu_s``, or in ``backward_s``, shape (layers,)."""
        return self._kept("attention_s", batch, share, backward=backward)

    def copied_s(self, moved_bytes: float, launches: int) -> float:
        """Seconds of copies beside the layers that read and write so many bytes in all."""
        return float(self._kept("copied_s", moved_bytes, launches))

    def backward_s(self, batch: float, share: Share = WHOLE) -> FloatArray:
        """Backward seconds of each layer, shape (layers,), at a local batch."""
        return self._kept("both_backward_s", batch, share)

    def recomputed_s(self, batch: float, share: Share = WHOLE, *, attention: bool = True) -> FloatArray:
        """Seconds in which each layer runs again before its backward, shape (layers,); 0 where it has no backward.

        Args:
            batch: local batch.
            share: of the work.
            attention: whether attention runs again; else its output was kept.
        """
        passed = np.array([layer.backward != "none" for layer in self.component.layers])
        again = "forward_s" if attention else "beside_attention_s"
        return np.where(passed, self._kept(again, batch, share), 0.0)

    def weight_s(self, batch: float) -> FloatArray:
        """Seconds of weight gradients in ``backward_s``, for which no other layer waits, shape (layers,)."""
        return self._kept("weight_s", batch)

    def least_forward_s_per_sample(self, largest_batch: int) -> FloatArray:
        """Least forward seconds per sample of each layer, at any local batch up to the largest."""
        return self._kept("least_s_per_sample", largest_batch)

    def _kept(self, name: str, *arguments: Hashable, **options: bool) -> FloatArray:
        """Scaled seconds that a method of the times gives, in an array that no caller can change: the next gets it."""
        key = (name, *arguments, *options.values())
        if key not in self._scaled:
            seconds = getattr(self._times, name)(*arguments, **options)
            self._scaled[key] = np.asarray(self._scale * np.asarray(seconds, dtype=float))
            self._scaled[key].flags.writeable = False
        return self._scaled[key]

    @cached_property
    def attention_bytes(self) -> FloatArray:
        """Bytes per sample that attention leaves in each layer: what selective checkpointing keeps, shape (layers,)."""
        return self._times.attention_bytes()

    @cached_property
    def checkpointed(self) -> Checkpointed:
        """What checkpointing keeps of each layer, and what is in flight beside."""
        times = self._times
        return checkpointed(
            self.component, self.saved_bytes, times.largest_bytes(), norms_in_single=times.norms_in_single
        )

    @cached_property
    def saved_bytes(self) -> FloatArray:
        """Bytes per sample that each layer keeps for its backward, shape (layers,)."""
        counted = np.array([layer.saved_bytes for layer in self.component.layers])
        return counted * self.extent.tokens + self._times.saved_bytes()


class TaskCosts:
    """Times of all components of a model that trains, or samples in half precision, on one device at some resolution.

    ``backbone_device`` stands for that device where the backbones run in another precision.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        height: int,
        width: int,
        stack: Stack | None = None,
        *,
        training: bool = False,
        calibration: Calibration = UNSCALED,
        backbone_device: Device | None = None,
    ) -> None:
        self.published: Final = published(model, device, height * width)
        """Factor on the estimates of the backbones."""
        self.calibration: Final = calibration
        """Factor on all compute."""
        self.extents: Final = tuple(
            Extent.of(model, component, height, width, half=not training) for component in model.components
        )
        used = (stack or load_stack()).on_blocks_of(model.name)
        self.components: Final = tuple(
            ComponentCosts(
                component,
                (backbone_device or device) if component.trainable else device,
                self.published.factor if component.trainable else 1.0,
                calibration=calibration.factor,
                stack=used if training or component.trainable else used.of_frozen,
                extent=extent,
                training=training,
            )
            for component, extent in zip(model.components, self.extents, strict=True)
        )
        measured = all(costs.provenance == "measured" for costs in self.components)
        self.provenance: Final = "measured" if measured else "estimated"
        for costs in self.components:
            takes_time = costs.forward_s(1.0).any() or (training and costs.backward_s(1.0).any())
            if costs.component.trainable and not takes_time:
                where = f"times/{device.name}.csv: forward_ms and backward_ms are"
                if costs.provenance == "estimated":
                    where = "layers.csv: the work (conv_gflop to kernels) is"
                rule = "must be above 0 in one of a trainable component"
                raise InputError(
                    f"model {model.name}: {where} 0 in all layers of {costs.component.name}, {rule}"
                )

    def forward_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """Forward seconds of each layer of the component at an index, shape (layers,)."""
        return self.components[component].forward_s(batch, share)


class ModelCosts(TaskCosts):
    """Times of all components of a model that is trained on one device, and of the optimizer.

    Args:
        model: the model.
        device: the device.
        stack: of the software; by default ``eager``.
        calibration: of all compute.
        precision: of the matrix products of the backbones.
        pace: seconds of these over those of their law, in fewer bits.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        stack: Stack | None = None,
        *,
        calibration: Calibration = UNSCALED,
        precision: str = HALF,
        pace: float = 1.0,
    ) -> None:
        resolved = stack or load_stack()
        smaller = device_in(device, precision, pace)
        size = model.height, model.width
        super().__init__(
            model, device, *size, resolved, training=True, calibration=calibration, backbone_device=smaller
        )
        half = replace(resolved, cast_weights=False)
        self._of_half = partial(ModelCosts, model, device, half, calibration=calibration, precision=precision)
        used = _stack_on(device, resolved)
        tensors, parameters = _tensors(model)
        operators = OPTIMIZER_OPERATORS[used.optimizer] * tensors / max(1, parameters)
        self._host_s_per_parameter = operators * used.forward_operator_s
        self._traffic, self._bytes_per_s, self._smaller = OPTIMIZER_TRAFFIC[used.optimizer], 0.0, None
        if device.laws is not None and smaller.laws is not None:
            self._bytes_per_s = device.laws.memory.bytes_per_s("pointwise") * used.rates.memory
            self._smaller = smaller.laws.smaller
        self._cast_share = _cast_share(model) if self._smaller else 0.0

    @cached_property
    def of_half_weights(self) -> "ModelCosts":
        """These costs where weights lie in half precision, so that no pass casts them."""
        return self._of_half()

    @property
    def cast_weight_bytes(self) -> float:
        """Bytes for each trained parameter of weights in fewer bits, kept along rows and along columns."""
        return 2 * self._cast_share * self._smaller.element_bytes if self._smaller else 0.0

    def cast_s(self, parameters: float) -> float:
        """Seconds in which weights are cast to fewer bits, once a step; frozen ones were cast before."""
        if self._smaller is None:
            return 0.0
        moved = self._smaller.cast_bytes + self._smaller.element_bytes
        return self.calibration.factor * self._cast_share * parameters * moved / self._bytes_per_s

    def optimizer_s(self, parameters: float, recipe: MemoryRecipe) -> float:
        """The seconds of one optimizer step, bound by memory traffic or by the host; 0 on a device without rates."""
        if not self._bytes_per_s:
            return 0.0
        s_per_byte = (1.0 if recipe.moved_bytes else self._traffic) / self._bytes_per_s
        per_parameter = max(recipe.step_bytes * s_per_byte, self._host_s_per_parameter)
        return self.calibration.factor * parameters * per_parameter


def _tensors(model: Model) -> tuple[int, int]:
    """Number of trained tensors of a model, as far as kernels were counted, and of their parameters."""
    tensors = parameters = 0
    for component, layer, kernels in _trained(model):
        parameters += layer.trained_parameters
        launches = sum(
            kernel.count for kernel in kernels if kernel.weight_bytes and kernel.kind in WITH_PARAMETERS
        )
        tensors += launches * (1 if component.adapters else TENSORS)
    return tensors, parameters


def _trained(model: Model) -> Iterator[tuple[Component, Layer, tuple[Kernel, ...]]]:
    """Yield the layers that train, each with its component, and with the kernels of its weights or adapters."""
    for component in model.components:
        for layer, kernels in zip(component.layers, component.adapters or component.kernels, strict=False):
            if layer.trained_parameters:
                yield component, layer, kernels


def _cast_share(model: Model) -> float:
    """Share of a model's trained parameters that are weights of products in fewer bits; none of adapters."""
    cast = trained = 0.0
    for component, layer, kernels in _trained(model):
        if not component.adapters:
            trained += layer.trained_parameters
            weights = (kernel for kernel in kernels if kernel.kind == "matmul" and kernel.weight_bytes)
            covered = (
                kernel
                for kernel in weights
                if Smaller.covers(*np.array([[1], [kernel.m], [kernel.n], [kernel.k]]))
            )
            cast += sum(kernel.count * kernel.weight_bytes / ELEMENT_BYTES for kernel in covered)
    return cast / trained if trained else 0.0


def published(model: Model, device: Device, pixels: int) -> Calibration:
    """The calibration of a model's backbones by published one-GPU latencies; factor 1 where there are none.

    The factor is published over estimated seconds. It corrects what the model's estimates on the device miss under the
    default stack, that of the anchors, so that it holds for every pass of a backbone there: forward and backward,
    sampling and training.

    Of several latencies it is the geometric mean, between resolutions interpolated in the logarithm of the pixels,
    beyond them constant.
    """
    ratios: dict[int, list[float]] = {}
    for anchor in model.anchors:
        if anchor.device == device.name and (estimated := one_gpu_s(model, device, anchor)):
            ratios.setdefault(anchor.height * anchor.width, []).append(log(anchor.latency_s / estimated))
    if not ratios:
        return UNSCALED
    sizes = sorted(ratios)
    factors = [sum(ratios[size]) / len(ratios[size]) for size in sizes]
    factor = exp(float(np.interp(log(pixels), [log(size) for size in sizes], factors)))
    return Calibration(factor, PUBLISHED)


def one_gpu_s(model: Model, device: Device, anchor: Anchor, stack: Stack | None = None) -> float:
    """Estimated seconds of what an anchor measured, without calibration; under ``eager`` if no stack is given."""
    total, stack = 0.0, stack or load_stack()
    for component in model.anchored:
        extent = Extent.of(model, component, anchor.height, anchor.width)
        times = times_of(component, device, stack, extent, training=False)
        total += float(times.forward_s(anchor.batch, WHOLE).sum())
    return anchor.steps * total
