"""The patches of a sampler's timeline: a colour for each, and one for the whole image."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Final

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch

from sim.replay.timelines import Bar
from strategies.plans.actions import PatchAction

WHOLE: Final = "#7A7A7A"
ALONE: Final = "#0072B2"
"""The colour of an image that is never divided, that of forward passes."""
WHOLE_IMAGE: Final = "whole image"
MOST: Final = 8
"""Patches with an entry in the legend; of so many or fewer each has the same colour in every picture."""


@dataclass(frozen=True, slots=True)
class PatchColours:
    """Colours of the patches of a timeline.

    Attributes:
        count: patches of the image.
        whole_steps: steps in which the whole image passes at once.
    """

    count: int
    whole_steps: frozenset[int]

    @classmethod
    def of(cls, bars: Iterable[Bar]) -> "PatchColours":
        """The colours of some bars; a step that has one patch alone is one of the whole image."""
        patches: dict[int, set[int]] = {}
        for bar in bars:
            if isinstance(bar.action, PatchAction):
                patches.setdefault(bar.action.step, set()).add(bar.action.patch)
        most = max((max(numbers) for numbers in patches.values()), default=-1)
        return cls(most + 1, frozenset(step for step, numbers in patches.items() if numbers == {0}))

    @property
    def whole(self) -> str:
        """The colour of a whole image."""
        return WHOLE if self.count > 1 else ALONE

    def name(self, action: PatchAction) -> str:
        """What the legend calls a patch."""
        return WHOLE_IMAGE if action.step in self.whole_steps else f"patch {action.patch}"

    def face(self, action: PatchAction) -> tuple[float, float, float]:
        """The colour of a patch."""
        if action.step in self.whole_steps:
            return to_rgb(self.whole)
        red, green, blue, _ = mpl.colormaps["viridis"](0.95 * action.patch / (max(MOST, self.count) - 1))
        return red, green, blue

    def label(self, action: PatchAction, room: float) -> str:
        """The label of a bar: patch and step, or less where there is no room for so many letters."""
        step = f"@{action.step}"
        words = [step] if action.step in self.whole_steps else [f"{action.patch}{step}", str(action.patch)]
        return next((word for word in words if len(word) <= room), "")

    def named(self) -> list[str]:
        """What the legend names: the whole image where it passes at once, and so many patches at most."""
        every = max(1, ceil(self.count / MOST))
        return [WHOLE_IMAGE] * bool(self.whole_steps) + [self.name(one) for one in self._actions()[::every]]

    def colours(self) -> dict[str, str]:
        """The colours of the whole image and of all patches, by name."""
        patches = {self.name(action): to_hex(self.face(action)) for action in self._actions()}
        return {WHOLE_IMAGE: self.whole} | patches

    def _actions(self) -> list[PatchAction]:
        """An action of each patch, where there are several."""
        return [PatchAction(0, patch, -1) for patch in range(self.count)] if self.count > 1 else []

    def legend(self) -> list[Patch]:
        """The entries of a legend."""
        colours = self.colours()
        return [Patch(facecolor=colours[name], label=name) for name in self.named()]
