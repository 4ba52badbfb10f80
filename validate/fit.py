"""Fitting: the rates of a device, from published latencies and ratios.

The cost model is linear in the seconds per unit of work, so a latency is one linear equation, and so is a
ratio of two times: frozen - ratio * trainable = 0. Each is weighted so that its residual is relative. Seconds
are bounded from below by the device's peaks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy.optimize import lsq_linear

from profiles.costs import BACKWARD_WORK, FloatArray
from profiles.devices import RATE_KEYS
from profiles.errors import InputError
from profiles.files import read_rows
from profiles.models import BACKWARDS
from validate.targets import Target

OBSERVATIONS: Final = Path(__file__).parent / "observations"
LATENCY: Final = "latency_s"
RATIO: Final = "frozen_over_trainable"
OBSERVATION_COLUMNS: Final = (
    "source",
    "quantity",
    "model",
    "height",
    "width",
    "batch",
    "steps",
    "value",
    "role",
    "note",
)
WORK_COLUMNS: Final = (
    "model",
    "component",
    "backward",
    "height",
    "width",
    "conv_gflop",
    "matmul_gflop",
    "attention_gflop",
    "moved_MB",
    "kernels",
)
WORK_UNITS: Final = np.array([1e-3, 1e-3, 1e-3, 1e-3, 1e-6])
"""From the units of the columns of work to TFLOP, GB and million kernels; over rates in the device file's units
that gives seconds."""
SETTLED: Final = 1e-12
MAX_ROUNDS: Final = 200

Resolution = tuple[str, int, int]
"""Model, height and width in pixels."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One published number.

    Attributes:
        quantity: ``latency_s``, of ``steps`` forward passes of the backbones at ``batch``; or
            ``frozen_over_trainable``, forward time of the frozen part over forward and backward of the rest.
        role: ``fit``, or ``check`` where the number is predicted only.
    """

    source: str
    quantity: str
    model: str
    height: int
    width: int
    batch: int
    steps: int
    value: float
    role: str
    note: str

    @property
    def resolution(self) -> Resolution:
        """What its work is counted at."""
        return (self.model, self.height, self.width)


@dataclass(frozen=True, slots=True)
class Work:
    """Forward work of one component at one resolution: TFLOP of three classes, GB, million kernels."""

    component: str
    backward: str
    amounts: tuple[float, ...]

    def forward(self, batch: int) -> FloatArray:
        """Return the amounts of a forward pass; launches do not grow with the batch."""
        return np.array(self.amounts) * (batch, batch, batch, batch, 1)

    def backward_pass(self, batch: int) -> FloatArray:
        """Return the amounts of a backward pass."""
        work, attention = BACKWARD_WORK[self.backward]
        return self.forward(batch) * (work, work, attention, work, work)


@dataclass(frozen=True, slots=True)
class Equation:
    """An observation as amounts of work: the numerator's and, for a ratio, the denominator's."""

    observation: Observation
    numerator: FloatArray
    denominator: FloatArray | None

    def predict(self, seconds: FloatArray) -> float:
        """Return the predicted value, from the seconds per unit of work."""
        over = 1.0 if self.denominator is None else float(self.denominator @ seconds)
        return float(self.numerator @ seconds) / over

    def row(self, seconds: FloatArray) -> tuple[FloatArray, float]:
        """Return the equation, scaled so that its residual is the relative error near ``seconds``."""
        value = self.observation.value
        if self.denominator is None:
            return self.numerator / value, 1.0
        scale = value * float(self.denominator @ seconds)
        return (self.numerator - value * self.denominator) / scale, 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A solution: seconds per unit of work, whether each rests on its bound, and how well-posed it was.

    A class of work that costs nothing has an infinite rate. ``condition`` is the condition number of the
    equations in units of the bounds (a launch: 1 us); 0 where nothing was fitted.
    """

    seconds: FloatArray
    bound: tuple[bool, ...]
    condition: float

    @property
    def rates(self) -> dict[str, float]:
        """Rates under the keys and in the units of a device file."""
        with np.errstate(divide="ignore"):
            values = [*(1 / self.seconds[:4]), self.seconds[4]]
        return {key: float(value) for key, value in zip(RATE_KEYS, values, strict=True)}


def read_observations(path: Path) -> list[Observation]:
    """Read published numbers.

    Raises:
        InputError: the file breaks a rule.
    """
    observations = []
    for row in read_rows(path, OBSERVATION_COLUMNS):
        if row.number("value") == 0:
            raise row.fail("value", "must be positive")
        observation = Observation(
            source=row.text("source"),
            quantity=row.choice("quantity", (LATENCY, RATIO)),
            model=row.text("model"),
            height=row.integer("height", minimum=1),
            width=row.integer("width", minimum=1),
            batch=row.integer("batch", minimum=1),
            steps=row.integer("steps", minimum=1),
            value=row.number("value"),
            role=row.choice("role", ("fit", "check")),
            note=row.text("note"),
        )
        observations.append(observation)
    return observations


def read_work(path: Path) -> dict[Resolution, list[Work]]:
    """Read the counted work by model and resolution.

    Raises:
        InputError: the file breaks a rule.
    """
    table: dict[Resolution, list[Work]] = {}
    for row in read_rows(path, WORK_COLUMNS):
        amounts = np.array([row.number(key) for key in WORK_COLUMNS[5:]]) * WORK_UNITS
        key = (row.text("model"), row.integer("height", minimum=1), row.integer("width", minimum=1))
        components = table.setdefault(key, [])
        work = Work(row.text("component"), row.choice("backward", BACKWARDS), tuple(amounts.tolist()))
        if work.component in (other.component for other in components):
            raise row.fail("component", f"stands twice for {key[0]} at {key[1]}x{key[2]}")
        components.append(work)
    return table


def equations(
    path: Path, observations: Sequence[Observation], work: dict[Resolution, list[Work]]
) -> list[Equation]:
    """Return the equations of observations.

    Args:
        path: the file of the observations, for messages.
        observations: its rows.
        work: counted work; a component without a backward pass is frozen.

    Raises:
        InputError: the work of an observation was not counted.
    """
    found = []
    for line, row in enumerate(observations, start=2):
        parts = work.get(row.resolution, [])
        frozen = [part for part in parts if part.backward == "none"]
        trained = [part for part in parts if part.backward != "none"]
        if not trained or (row.quantity == RATIO and not frozen):
            where = f"{row.model} at {row.height}x{row.width}"
            raise InputError(
                f"{path}:{line}: the work of {where} is not counted; run python -m validate work"
            )
        forward = sum(part.forward(row.batch) for part in trained) + np.zeros(5)
        if row.quantity == LATENCY:
            found.append(Equation(row, row.steps * forward, None))
        else:
            both = forward + sum(part.backward_pass(row.batch) for part in trained)
            found.append(Equation(row, sum(part.forward(row.batch) for part in frozen) + np.zeros(5), both))
    return found


def fit(rows: Sequence[Equation], target: Target) -> Fit:
    """Return the least-squares solution within the bounds.

    A ratio's weight depends on the solution: it starts from the latencies alone and is renewed until it settles.

    Raises:
        InputError: no latency is to be fitted; ratios alone leave the scale open.
    """
    if not target.basis.size:
        return Fit(target.base, (False,) * len(target.modes), 0.0)
    latencies = [row for row in rows if row.denominator is None]
    if not latencies:
        raise InputError(f"{target.name}: no row has quantity {LATENCY} and role fit, must have one")
    solution = _solve(latencies, target, target.least)
    for _ in range(MAX_ROUNDS):
        before, solution = solution, _solve(rows, target, solution.seconds)
        if np.allclose(before.seconds, solution.seconds, rtol=SETTLED, atol=0):
            break
    return solution


def fit_without_peaks(rows: Sequence[Equation], target: Target) -> Fit:
    """Return the fit under the one rule that no work takes negative time.

    Raises:
        InputError: no latency is to be fitted.
    """
    return fit(rows, replace(target, matrix_peak=np.inf, memory_peak=np.inf))


def leave_one_out(rows: Sequence[Equation], target: Target) -> list[Fit]:
    """Return for each row the fit to all others; nothing where they would not determine the unknowns."""
    if len(rows) <= target.basis.shape[1]:
        return []
    return [fit([*rows[:number], *rows[number + 1 :]], target) for number in range(len(rows))]


def _solve(rows: Sequence[Equation], target: Target, near: FloatArray) -> Fit:
    pairs = [row.row(near) for row in rows]
    work = np.array([left for left, _ in pairs])
    wanted = np.array([right for _, right in pairs]) - work @ target.base
    matrix, bounds = work @ target.basis, (target.lower, np.full(len(target.lower), np.inf))
    found = lsq_linear(matrix, wanted, bounds, method="bvls", tol=1e-14)
    unknowns = np.maximum(found.x, target.lower)  # the solver may end a rounding below a bound
    seconds = target.base + target.basis @ unknowns
    return Fit(seconds, target.per_class(found.active_mask != 0), float(np.linalg.cond(matrix)))
