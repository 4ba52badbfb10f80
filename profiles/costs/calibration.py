"""Calibrations: one factor on compute, from a run that somebody measured.

Published one-GPU latencies (``anchors.csv``) scale the estimates of a shipped model's backbones; a run that the user
measured scales all compute of a model on a device under a stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from profiles.checks import Positive, check_fields
from profiles.costs.bands import Uncertainty
from profiles.errors import wrong

PUBLISHED: Final = "published latencies of one GPU"
OWN: Final = "your measured run"
DOING: Final[Mapping[str, str]] = {"train": "training", "sample": "sampling"}
"""Tasks in words."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A factor on seconds of compute, and what it is from."""

    factor: Positive = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        check_fields("calibration", self)

    def __str__(self) -> str:
        return f"times {self.factor:.2f}, from {self.source}" if self.source else f"times {self.factor:.2f}"


UNSCALED: Final = Calibration()
"""The calibration that changes nothing."""


@dataclass(frozen=True, slots=True, repr=False)
class MeasuredRun:
    """A run that the user measured, for all others of its model, device and stack.

    Attributes:
        calibration: the factor on compute with which the simulated run takes as long as the measured one.
        task: ``train`` or ``sample``.
        uncertainty: what the error of its estimate is made of.
        options: options with the values of their flags; given back, they make the same calibration.
    """

    calibration: Calibration
    task: str
    model: str
    device: str
    stack: str
    uncertainty: Uncertainty
    options: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"<MeasuredRun of {self.what}: compute {self.calibration}>"

    @property
    def factor(self) -> float:
        """Factor on compute."""
        return self.calibration.factor

    def words(self, task: str) -> str:
        """The factor and its run in words, with a warning where that run is of another task than ``task``."""
        run = dict(self.options).get("measured_run", "")
        where = "" if run.lstrip().startswith("{") else run
        first = " ".join(filter(None, (f"compute {self.calibration}", where)))
        warning = f"; that is of {DOING[self.task]}, and {DOING[task]} may take another factor"
        other = "" if self.task == task else warning
        return first + other

    @property
    def what(self) -> str:
        """Model, device and stack in words."""
        return _in_words(self.of)

    @property
    def of(self) -> tuple[str, str, str]:
        """Names of model, device and stack."""
        return self.model, self.device, self.stack


def check_same(measured: tuple[str, str, str], simulated: tuple[str, str, str]) -> None:
    """Refuse a measured run of another model, device or stack than is asked about."""
    if measured != simulated:
        whose = f"is of {_in_words(measured)}, but {_in_words(simulated)} is asked about"
        raise wrong("measured_run", f"{whose}: compute is scaled for one model, device and stack")


def _in_words(subject: tuple[str, str, str]) -> str:
    return "{} on {} by stack {}".format(*subject)
