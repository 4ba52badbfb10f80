"""Scaling: sweeps over several numbers of GPUs, and where more of them stop paying."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, overload

from profiles.errors import DiffusimWarning, InputError, counted
from sim.asking.arguments import speaks_of_parameters
from sim.explore.counts import counts, counts_in
from sim.explore.sweep import Sweep
from sim.outcomes.hints import Hinting
from sim.outcomes.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from sim.report.verdicts import NoVerdict, Verdict

PAYS: Final = 0.5
"""Share of the speed that GPUs added would bring if all scaled, from which on they pay."""
NAMED: Final = 16
"""Numbers of GPUs that an error names at most."""


class Step(NamedTuple):
    """The best result on one number of GPUs.

    Attributes:
        gpus: as many as there are, whether or not the result uses all.
        result: the best.
        efficiency: its speed per GPU over that on the fewest.
        gain: what the GPUs added since the step before bring, over what they would bring at that step's speed per GPU;
            1 for the first.
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


def steps_of(sweeps: Sequence[Sweep]) -> list[Step]:
    """The best results by number of GPUs; numbers on which nothing recommended fits are left out."""
    found: list[Step] = []
    for sweep in sweeps:
        best, gpus = sweep.best_point(), sweep.scenario.workload.num_gpus
        if best is None or best.result is None:
            continue
        copies, efficiency, gain = sweep.copies(best), 1.0, 1.0
        speed = sweep.samples_per_s(best)
        if found:
            first, last = found[0], found[-1]
            efficiency = speed / gpus / (first.samples_per_s / first.gpus)
            gain = (speed / last.samples_per_s - 1) / (gpus / last.gpus - 1)
        found.append(Step(gpus, sweep.result_of(best), efficiency, gain, copies))
    return found


def knee_of(steps: Sequence[Step]) -> Step | None:
    """The last step before the first that does not pay; None where there is no step."""
    last = None
    for step in steps:
        if step.gain < PAYS:
            break
        last = step
    return last


@dataclass(frozen=True, slots=True, repr=False)
class Scaling(Hinting):
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

    def _repr_html_(self) -> str:
        """The verdict at the knee and the best on each number of GPUs, in a notebook."""
        from sim.report.html.shown import scaling_html

        return scaling_html(self)

    @property
    def steps(self) -> list[Step]:
        """The best results by number of GPUs."""
        return steps_of(self.sweeps)

    @property
    def knee(self) -> Step | None:
        """The last number of GPUs up to which all that were added bring half of what they might, or more.

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
        """The best result by what the sweeps rank by, on any number of GPUs; that at the knee is ``knee.result``.

        By time it is the one of the most samples per second.

        Raises:
            InfeasibleError: nothing that is recommended fits, on any number of GPUs.
        """
        results = [step.result for step in self.steps]
        if not results:
            return self.sweeps[-1].best
        match self.sweeps[0].objective:
            case "memory":
                return min(results, key=lambda one: one.peak_memory_bytes)
            case "cost":
                return min(results, key=lambda one: one.gpu_s_per_sample)
        return max(results, key=lambda one: one.samples_per_s)

    @property
    def verdict(self) -> "Verdict | NoVerdict":
        """The verdict at the knee, which names the fastest too; where nothing fits, that of the most GPUs."""
        from sim.report.scalings import verdict_at_knee
        from sim.report.verdicts import NoVerdict

        return verdict_at_knee(self) or NoVerdict(self.sweeps[-1])

    @property
    def title(self) -> str:
        """The question in words."""
        counts = [sweep.scenario.workload.num_gpus for sweep in self.sweeps]
        workload = self.chosen.scenario.workload
        here, there = (
            f" on {counted(workload.num_gpus, 'GPU')} of ",
            f" on {counts[0]} to {counts[-1]} GPUs of ",
        )
        title = self.chosen.title.replace(here, there, 1)
        title = title.replace(f", batch {workload.batch_size}", f", {self.batch}", 1)
        return "; ".join(filter(None, (title, self.choice)))

    @property
    def choice(self) -> str:
        """The number of GPUs that is recommended and the fastest in words; empty where they are the same."""
        knee, fastest = self.knee, self.fastest
        if knee is None or fastest is None or knee.gpus == fastest.gpus:
            return ""
        return f"recommended: {counted(knee.gpus, 'GPU')}, the knee; fastest: {counted(fastest.gpus, 'GPU')}"

    @property
    def batch(self) -> str:
        """The batch in words: that of all, or of each GPU where it grows with them."""
        workloads = [sweep.scenario.workload for sweep in self.sweeps]
        if len({one.batch_size for one in workloads}) == 1:
            return f"batch {workloads[0].batch_size}"
        return f"batch {workloads[0].batch_size / workloads[0].num_gpus:g} per GPU"

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Draw the speed per GPU of each strategy over the numbers of GPUs, on axes of one's own or on a new figure.

        Raises:
            InputError: nothing was simulated.
        """
        from sim.report.plots import plot_scaling

        return plot_scaling(self.rows(best_of_each=True), "num_gpus", self.title, ax)

    def rows(self, *, best_of_each: bool = False) -> list[dict[str, Any]]:
        """The rows of all sweeps, by number of GPUs."""
        return [row for sweep in self.sweeps for row in sweep.rows(best_of_each=best_of_each)]

    def frame(self, *, best_of_each: bool = False) -> "DataFrame":
        """The rows of all sweeps as a frame, in seconds and bytes; each parameter and option has its own column."""
        from sim.explore.frames import frame_of

        return frame_of(self.rows(best_of_each=best_of_each))

    def write_report(self, path: str | Path) -> None:
        """Write the HTML page of all sweeps, with the scaling and the verdict at the knee, which needs no network.

        Raises:
            InputError: the file cannot be written, or Plotly is not installed.
            InfeasibleError: nothing that was asked fits on any number of GPUs.
        """
        from sim.report.html.contents import write_sweep_report

        write_sweep_report(self.sweeps, Path(path))

    def steps_frame(self) -> "DataFrame":
        """The best on each number of GPUs as a frame, with ``efficiency`` and ``gain``."""
        from sim.explore.frames import frame_of

        return frame_of(
            {**s.result.to_json(), "efficiency": s.efficiency, "gain": s.gain} for s in self.steps
        )


class Sweeping(Protocol):
    """A function that sweeps over one number of GPUs, or over several."""

    @overload
    def __call__(self, model: Any, cluster: Any = None, gpus: int | None = None, **given: Any) -> Sweep: ...  # noqa: ANN401

    @overload
    def __call__(self, model: Any, cluster: Any = None, *, gpus: Iterable[int], **given: Any) -> Scaling: ...  # noqa: ANN401

    @overload
    def __call__(self, model: Any, cluster: Any, gpus: Iterable[int], **given: Any) -> Scaling: ...  # noqa: ANN401


def over_counts(function: Callable[..., Sweep]) -> Sweeping:
    """Let a function that sweeps over one number of GPUs take several, for which it gives a ``Scaling``."""

    @wraps(function)
    @speaks_of_parameters
    def call(model: Any, cluster: Any = None, gpus: Any = None, **given: Any) -> Sweep | Scaling:  # noqa: ANN401
        if isinstance(gpus, str):
            found = counts_in(gpus)
            gpus = found if len(found) > 1 else found[0]
        if not isinstance(gpus, list | tuple | range):
            return function(model, cluster, gpus, **given)
        return Scaling(tuple(each_count(function, counts(gpus), model=model, cluster=cluster, **given)))

    swept: Sweeping = call  # type: ignore[assignment]  # as its overloads say
    return swept


def each_count(
    function: Callable[..., Sweep],
    gpus: Sequence[int],
    **given: Any,  # noqa: ANN401
) -> list[Sweep]:
    """What a function gives for each number of GPUs; it warns for the most of them alone.

    Raises:
        InputError: a number cannot be used.
    """
    found = []
    for count in gpus:
        with warnings.catch_warnings():
            if count != gpus[-1]:
                warnings.simplefilter("ignore", DiffusimWarning)
            try:
                found.append(function(gpus=count, **given))
            except InputError as error:
                _name_all(error, count, gpus)
                raise
    return found


def _name_all(error: InputError, count: int, gpus: Sequence[int]) -> None:
    """Let an error about a number of GPUs name those that it is one of."""
    named = [*map(str, gpus)] if len(gpus) <= NAMED else [*map(str, gpus[: NAMED - 2]), "...", str(gpus[-1])]
    one, all_of_them = f"gpus is {count}, ", f"gpus is {', '.join(named)}, of which {count} "
    error.flags = error.flags and error.flags.replace(one, all_of_them)
    error.args = (str(error).replace(one, all_of_them), *error.args[1:])
