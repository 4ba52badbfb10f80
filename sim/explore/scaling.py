"""Scaling: sweeps over several numbers of GPUs, where more of them stop paying, and over several clusters."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from math import hypot, log
from operator import attrgetter
from typing import Final, NamedTuple

from profiles.errors import InputError, counted, shown
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result

PAYS: Final = 0.5
"""Share of the speed that GPUs added would bring if all scaled, from which on they pay."""


class Step(NamedTuple):
    """The best result on one number of GPUs.

    Attributes:
        gpus: the number of the sweep, whether or not the result uses all of them.
        efficiency: its speed per GPU over that on the fewest GPUs.
        gain: the speed that the GPUs added since the step before bring, over what they would bring at that step's speed
            per GPU; 1 for the first step.
        copies: of it that work side by side, each on images of its own; 1 but where cost is ranked by.
    """

    gpus: int
    result: Result
    efficiency: float
    gain: float
    copies: int = 1

    @property
    def samples_per_s(self) -> float:
        """Throughput of all copies together."""
        return self.copies * self.result.samples_per_s


def knee_of(steps: Sequence[Step]) -> Step | None:
    """Return the last step before the first that does not pay; None where there is no step."""
    return next(reversed(list(takewhile(lambda step: step.gain >= PAYS, steps))), None)


@dataclass(frozen=True, slots=True, repr=False)
class Scaling:
    """Sweeps over several numbers of GPUs, ascending."""

    sweeps: tuple[Sweep, ...]

    def __iter__(self) -> Iterator[Sweep]:
        """The sweeps, by number of GPUs."""
        return iter(self.sweeps)

    def __len__(self) -> int:
        """How many numbers of GPUs there are."""
        return len(self.sweeps)

    def __repr__(self) -> str:
        counts = ", ".join(str(sweep.scenario.workload.num_gpus) for sweep in self.sweeps)
        words = f", knee {self.knee.gpus if self.knee and self.bends else 'none'}" if len(self) > 1 else ""
        gpus = "GPU" if counts == "1" else "GPUs"
        return f"<Scaling over {counts} {gpus}{words}>"

    @property
    def steps(self) -> list[Step]:
        """The best results by number of GPUs; numbers on which nothing recommended fits are left out."""
        steps: list[Step] = []
        for sweep in self.sweeps:
            if (best := sweep.best_point()) is None:
                continue
            gpus, speed = sweep.scenario.workload.num_gpus, sweep.samples_per_s(best)
            efficiency = gain = 1.0
            if steps:
                first, last = steps[0], steps[-1]
                efficiency = speed / gpus / (first.samples_per_s / first.gpus)
                gain = (speed / last.samples_per_s - 1) / (gpus / last.gpus - 1)
            steps.append(Step(gpus, sweep.result_of(best), efficiency, gain, sweep.copies(best)))
        return steps

    @property
    def knee(self) -> Step | None:
        """The last step before GPUs are added that bring less than half of their share of speed.

        None where nothing that is recommended fits on any.
        """
        return knee_of(self.steps)

    @property
    def bends(self) -> bool:
        """Whether there are GPUs beyond the knee, which do not pay."""
        return self.knee is not None and self.knee.gpus < self.steps[-1].gpus

    @property
    def fastest(self) -> Step | None:
        """The step of the most samples per second; None where there is no step."""
        return max(self.steps, key=lambda step: step.samples_per_s, default=None)

    @property
    def chosen(self) -> Sweep:
        """The sweep on the knee's number of GPUs; on the most where nothing that is recommended fits."""
        knee = self.knee if len(self.sweeps) > 1 else None
        if knee is None:
            return self.sweeps[-1]
        return next(one for one in self.sweeps if one.scenario.workload.num_gpus == knee.gpus)

    @property
    def best(self) -> Result:
        """The best result by what the sweeps rank by, on any number of GPUs; ``knee.result`` is that at the knee.

        Where time is ranked by, it is the result with the most samples per second.

        Raises:
            InfeasibleError: nothing that is recommended fits, on any number of GPUs.
        """
        results = [step.result for step in self.steps]
        if not results:
            return self.sweeps[-1].best
        keys = {"memory": attrgetter("peak_memory_bytes"), "cost": attrgetter("gpu_s_per_sample")}
        return min(results, key=keys.get(self.sweeps[0].objective, lambda one: -one.samples_per_s))

    @property
    def title(self) -> str:
        """The question in words."""
        counts = [sweep.scenario.workload.num_gpus for sweep in self.sweeps]
        title = self.chosen.titled(f"{counts[0]} to {counts[-1]} GPUs", self.batch)
        return "; ".join(filter(None, (title, self.choice)))

    @property
    def choice(self) -> str:
        """The number of GPUs that is recommended and the fastest in words; empty where they are the same."""
        knee, fastest = self.knee, self.fastest
        if knee is None or fastest is None or knee.gpus == fastest.gpus:
            return ""
        return f"sweet spot {counted(knee.gpus, 'GPU')}, fastest {counted(fastest.gpus, 'GPU')}"

    @property
    def batch(self) -> str:
        """The batch in words: that of all, or of each GPU where it grows with them."""
        workloads = [sweep.scenario.workload for sweep in self.sweeps]
        if len({one.batch_size for one in workloads}) == 1:
            return f"batch {workloads[0].batch_size}"
        return f"batch {workloads[0].batch_size / workloads[0].num_gpus:g} per GPU"


@dataclass(frozen=True, slots=True, repr=False)
class Clusters:
    """Sweeps of one question on several clusters.

    Attributes:
        scalings: of each cluster, over the same numbers of GPUs.
        prices: dollars of a GPU-hour by cluster; None where there is none.
    """

    scalings: tuple[Scaling, ...]
    prices: Mapping[str, float | None]

    def __iter__(self) -> Iterator[Sweep]:
        """The sweeps, by cluster and by number of GPUs."""
        return chain.from_iterable(self.scalings)

    def __repr__(self) -> str:
        words = ", ".join(f"{knee.result.cluster} {knee.result!r}" for knee, _ in self.ranked())
        return f"<Clusters, {self.order} first: {words or 'none'}>"

    @property
    def order(self) -> str:
        """What the first cluster is, in words."""
        if self.scalings[0].sweeps[0].objective != "cost":
            return "fastest"
        return "cheapest" if all(self.prices.values()) else "fewest GPU-s"

    def ranked(self) -> list[tuple[Step, Sweep]]:
        """The knee and its sweep on each cluster on which something recommended fits, best first."""
        knees = [(knee, one.chosen) for one in self.scalings if (knee := one.knee) is not None]
        return sorted(knees, key=lambda pair: self.score(pair[0]))

    def score(self, step: Step) -> float:
        """What clusters are ranked by: seconds of a sample, or its dollars, or its GPU-seconds without all prices."""
        if self.order == "fastest":
            return 1 / step.samples_per_s
        dollars = self.dollars_per_1000(step)
        return dollars if dollars and self.order == "cheapest" else step.result.gpu_s_per_sample

    @property
    def leading(self) -> Scaling:
        """The best cluster; the last where nothing that is recommended fits on any."""
        first = [sweep for _, sweep in self.ranked()[:1]]
        return next((one for one in self.scalings if one.chosen in first), self.scalings[-1])

    def ties(self, step: Step) -> bool:
        """Return whether a knee cannot be told from the best; the errors of two clusters are independent."""
        first, _ = self.ranked()[0]
        error = hypot(*(knee.result.uncertainty.band.spread for knee in (first, step)))
        return step is not first and log(self.score(step) / self.score(first)) <= error

    def dollars_per_1000(self, step: Step) -> float | None:
        """Dollars of 1,000 samples; None where the cluster has no price."""
        price = self.prices[step.result.cluster]
        return None if price is None else 1000 * price / 3600 * step.result.gpu_s_per_sample


WORDS: Final = r"\s*\d{1,12}(-\d{1,12})?\s*(,\s*\d{1,12}(-\d{1,12})?\s*)*"
"""Numbers of GPUs, or two that others lie between, with commas."""


def gpus_in(text: str) -> int | tuple[int, ...]:
    """Return the only number of GPUs that words give, or all of several: between commas, or doublings up to another."""
    if not re.fullmatch(WORDS, text, re.ASCII):
        rule = "must be numbers of GPUs, such as 8, or 1,2,4, or 8-64, of which each doubles the one before"
        raise InputError(f"`gpus` is {shown(text)}, {rule}")
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if not 1 <= low <= high:
            rule = "must lead from a positive number to one no smaller" if last else "must be positive"
            raise InputError(f"`gpus` is {shown(text)}, of which {part.strip()} {rule}")
        numbers |= {high, *(low * 2**n for n in range((high // low).bit_length()) if low * 2**n < high)}
    return tuple(sorted(numbers)) if len(numbers) > 1 else numbers.pop()


def counts(gpus: Iterable[int]) -> tuple[int, ...]:
    """Return numbers of GPUs, ascending, each once."""
    numbers = list(gpus)
    if not numbers or not all(isinstance(count, int) and not isinstance(count, bool) for count in numbers):
        raise InputError(f"`gpus` is {shown(numbers)}, must be integers, at least one")
    return tuple(sorted(set(numbers)))
