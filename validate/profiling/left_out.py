"""Left out: a fit made without some layers is judged by them; three ways to choose what is left out.

A fit can know a layer without having seen it: where layers repeat, most have a twin of identical work in the other
half. So layers of one shape are left out together, in whichever model they are, and whole models.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from validate.fit import Fit, fit
from validate.profiling.timed_work import CLASSES, UPDATE, Sample
from validate.targets import Target

STAND_INS: Final = {"conv": "matmul", "attention": "matmul", "matmul": "conv"}
"""Whose rate work gets that no measured layer does."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Rates, and samples that they are judged by."""

    rates: Fit
    left_out: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of some samples: of each one, and of their times together."""

    num_samples: int
    seconds: float
    together: float
    median: float
    worst: float

    @classmethod
    def of(cls, *folds: Fold) -> "Errors":
        """Return the errors of what rates predict; the median and the worst are of absolute values."""
        pairs = [
            (sample.seconds, sample.equation.predict(fold.rates.seconds))
            for fold in folds
            for sample in fold.left_out
        ]
        errors = [abs(predicted / seconds - 1) for seconds, predicted in pairs]
        seconds = sum(measured for measured, _ in pairs)
        together = sum(predicted for _, predicted in pairs) / seconds - 1
        return cls(len(pairs), seconds, together, median(errors), max(errors))


def fit_samples(device: str, samples: Sequence[Sample]) -> Fit:
    """Return the rates that fit measured times best, no work taking negative time."""
    target = Target(device, "measured", "", np.inf, matrix_peak=np.inf, memory_peak=np.inf)
    return fit([sample.equation for sample in samples], target)


def halves(device: str, samples: Sequence[Sample]) -> tuple[Fold, ...]:
    """Return the fits to every other layer, judged by those in between, then the other way round."""
    keys = list(dict.fromkeys(sample.key for sample in _of_layers(samples)))
    parts = {key: number % 2 for number, key in enumerate(keys)}
    folds = _folds(device, samples, lambda sample: parts[sample.key], updates_stay=True)
    return tuple(reversed(list(folds)))


def by_shape(device: str, samples: Sequence[Sample]) -> tuple[Fold, ...]:
    """Return for each shape of layers the fit to all others; none where there is but one."""
    return tuple(_folds(device, samples, lambda sample: sample.shape, updates_stay=True))


def by_model(device: str, samples: Sequence[Sample]) -> dict[str, Fold]:
    """Return for each model the fit to all others, without its updates, too; none where there is but one."""
    folds = _folds(device, samples, lambda sample: sample.model, updates_stay=False)
    return {fold.left_out[0].model: fold for fold in folds}


def twins(folds: Sequence[Fold]) -> float:
    """Return the share of layers left out of one half that have a twin of identical work in the other."""
    shapes = [{sample.key: sample.shape for sample in fold.left_out} for fold in folds]
    first, second = shapes
    pairs = [(shape, set(second.values())) for shape in first.values()]
    pairs += [(shape, set(first.values())) for shape in second.values()]
    return sum(shape in others for shape, others in pairs) / len(pairs)


def _folds(
    device: str, samples: Sequence[Sample], group: Callable[[Sample], Hashable], *, updates_stay: bool
) -> Iterator[Fold]:
    groups: dict[Hashable, list[Sample]] = defaultdict(list)
    for sample in _of_layers(samples):
        groups[group(sample)].append(sample)
    updates = [sample for sample in samples if sample.quantity == UPDATE]
    for name, left_out in groups.items() if len(groups) > 1 else ():
        rest = [sample for other, kept in groups.items() if other != name for sample in kept]
        rest += [update for update in updates if updates_stay or group(update) != name]
        yield Fold(_completed(fit_samples(device, rest), rest), tuple(left_out))


def _completed(rates: Fit, samples: Sequence[Sample]) -> Fit:
    """Return rates in which work that no sample does takes what it does in a device file."""
    done = np.sum([sample.equation.numerator for sample in samples], axis=0) > 0
    seconds = rates.seconds.copy()
    for name, stand_in in STAND_INS.items():
        if not done[CLASSES.index(name)]:
            seconds[CLASSES.index(name)] = seconds[CLASSES.index(stand_in)]
    return replace(rates, seconds=seconds)


def _of_layers(samples: Sequence[Sample]) -> Iterator[Sample]:
    return (sample for sample in samples if sample.quantity != UPDATE)
