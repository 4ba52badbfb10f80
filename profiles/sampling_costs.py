"""Costs of sampling: forward times of all components of a model at a resolution, for any share of a layer's work."""

from profiles.costs import FloatArray, TaskCosts
from profiles.devices import Device
from profiles.models import Model
from profiles.shares import REPLICATED_SHARE, WHOLE, Extent, Share
from profiles.stacks import Stack

__all__ = ["REPLICATED_SHARE", "WHOLE", "Extent", "SamplingCosts", "Share"]


class SamplingCosts(TaskCosts):
    """Forward times and sizes of all components of a model on one device at one resolution.

    Args:
        model: the model, in half precision.
        device: the device.
        height: pixels.
        width: pixels.
        stack: of the software; by default ``eager``.

    Raises:
        InputError: the device has no rates, and a component no times measured on it.
    """

    def __init__(
        self, model: Model, device: Device, height: int, width: int, stack: Stack | None = None
    ) -> None:
        super().__init__(model, device, height, width, stack, training=False)

    def forward_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """The forward seconds of each layer of a component, shape (layers,).

        Args:
            component: its index.
            batch: samples in one pass.
            share: what one device does of them.
        """
        return self.components[component].forward_s(batch, share)

    def attention_s(self, component: int, batch: float, share: Share = WHOLE) -> FloatArray:
        """The seconds of each layer's self-attention alone, shape (layers,)."""
        return self.components[component].attention_s(batch, share)
