"""The patches of a sampler's timeline: a colour for each, and one for the whole image."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Final

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from sim.replay.timelines import Bar
from strategies.plans.actions import PatchAction

WHOLE: Final = "#7A7A7A"
MOST: Final = 8
"""Patches with an entry in the legend."""


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

    def face(self, action: PatchAction) -> tuple[float, float, float]:
        """The colour of a patch."""
        if action.step in self.whole_steps:
            return to_rgb(WHOLE)
        red, green, blue, _ = mpl.colormaps["viridis"](0.95 * action.patch / max(1, self.count - 1))
        return red, green, blue

    def label(self, action: PatchAction, room: float) -> str:
        """The label of a bar: patch and step, or less where there is no room for so many letters."""
        step = f"@{action.step}"
        words = [step] if action.step in self.whole_steps else [f"{action.patch}{step}", str(action.patch)]
        return next((word for word in words if len(word) <= room), "")

    def legend(self) -> list[Patch]:
        """The entries of a legend."""
        handles = [Patch(facecolor=WHOLE, label="whole image")] if self.whole_steps else []
        if self.count > 1:
            every = ceil(self.count / MOST)
            for patch in range(0, self.count, every):
                action = PatchAction(0, patch, -1)
                handles.append(Patch(facecolor=self.face(action), label=f"patch {patch}"))
        return handles
