"""Costs of sampling: forward times of all components of a model at a resolution, for any share of a layer's work."""

from profiles.architectures.extents import Extent
from profiles.architectures.models import Model
from profiles.architectures.shares import REPLICATED_SHARE, WHOLE, Share
from profiles.costs.calibration import UNSCALED, Calibration
from profiles.costs.layers import FloatArray, TaskCosts
from profiles.machines.devices import Device
from profiles.software.levers import HALF, device_in
from profiles.software.stacks import Stack

__all__ = ["REPLICATED_SHARE", "WHOLE", "Extent", "SamplingCosts", "Share"]


class SamplingCosts(TaskCosts):
    """Forward times and sizes of all components of a model on one device at one resolution.

    Args:
        model: the model, in half precision.
        device: the device.
        height: pixels.
        width: pixels.
        stack: of the software; by default ``eager``.
        calibration: of all compute.
        precision: of the backbone's products, one of ``PRECISIONS``.
        factor: seconds of its products in half precision over those in a smaller one; by default the median.

    Raises:
        InputError: the device has no rates, and a component no times measured on it.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        height: int,
        width: int,
        stack: Stack | None = None,
        *,
        calibration: Calibration = UNSCALED,
        precision: str = HALF,
        factor: float | None = None,
    ) -> None:
        own = device_in(device, precision, factor)
        super().__init__(
            model, device, height, width, stack, training=False, calibration=calibration, backbone_device=own
        )

    def forward_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """The forward seconds of each layer of a component, shape (layers,).

        Args:
            component: its index.
            batch: samples in one pass.
            share: part of the work that one device does.
        """
        return self.components[component].forward_s(batch, share)
