"""Results, sweeps and scalings as ``sim`` returns them, with plots, accounts and reports.

Matplotlib is imported in the methods, since it is slow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sim.explore import balance, scaling, sweep
from sim.explore.points import Point
from sim.explore.sweep import pareto_front
from sim.outcomes import results
from sim.replay.metrics import bubbles
from sim.replay.timelines import compute_bars
from sim.report.balances import balance_blocks
from sim.report.blocks import Answer, html
from sim.report.frames import frame_of, rows
from sim.report.page import run_page, write_page, write_sweep_report
from sim.report.rankings import cluster_blocks, table_blocks, table_of, verdict_at_knee
from sim.report.reasons import Account, account_of
from sim.report.results import panel_of
from sim.report.serving import serving_blocks, serving_page, verdict_of_serving
from sim.report.verdicts import NoVerdict, Verdict, verdict_of
from sim.serving import answers
from sim.serving.serve import request_rows
from strategies.strategy import AnyStrategy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

MORE: Final = "More: .frame(), .plot(), .best.plot_timeline(), .write_report('report.html')"


@dataclass(frozen=True, repr=False)
class Result(results.Result):  # noqa: D101  its base says what it is
    __slots__ = ()
    __doc__ = results.Result.__doc__

    @classmethod
    def of(cls, result: results.Result) -> "Result":
        """Return a result with its pictures and its account."""
        if isinstance(result, cls):
            return result
        return cls(**{item.name: getattr(result, item.name) for item in fields(result)})

    def _repr_html_(self) -> str:
        """Return the result as ``sim run`` says it, in a notebook."""
        return html(panel_of(self))

    @property
    def verdict(self) -> Answer:
        """The result as ``sim run`` says it; it prints itself."""
        return Answer(panel_of(self))

    @property
    def account(self) -> Account:
        """Shares of compute, host, wire and idle in the GPUs' time, and ``reasons`` for them in words."""
        return account_of(self)

    def plot_timeline(self, ax: "Axes | None" = None) -> "Figure":
        """Plot the trace as a Gantt chart, on ``ax`` or on a new figure."""
        from sim.report.plots.timeline import plot_timeline

        return plot_timeline(self.trace, self.title, ax=ax)

    def plot_memory(self, ax: "Axes | None" = None) -> "Figure":
        """Plot the memory of every device over the trace, on ``ax`` or on a new figure."""
        from sim.report.plots.timeline import plot_memory

        return plot_memory(self.trace, self.title, ax=ax)

    def write_report(self, path: str | Path, asked: str = "") -> None:
        """Write an HTML page with the timeline and the memory over time, which needs no network.

        ``asked`` is the command line that it says to run again; by default that of the result.
        """
        write_page(Path(path), lambda: run_page(self, asked))

    def ops(self) -> "DataFrame":
        """Return the ops of the trace as a frame: device, start and duration in seconds, category and action."""
        import pandas as pd

        ops = [
            (bar.device, bar.start_s, bar.duration_s, bar.category, str(bar.action))
            for bar in compute_bars(self.trace)
        ]
        return pd.DataFrame(ops, columns=["device", "start_s", "duration_s", "category", "action"])

    def bubbles(self) -> "DataFrame":
        """Return the bubbles of the trace as a frame: start and duration in seconds, idle devices and their seconds."""
        import pandas as pd

        idle = [
            (bubble.start_s, bubble.duration_s, bubble.positions, bubble.duration_s * len(bubble.positions))
            for bubble in bubbles(self.trace)
        ]
        return pd.DataFrame(idle, columns=["start_s", "duration_s", "devices", "device_s"])

    def frame(self) -> "DataFrame":
        """Return the result as a frame of one row, with the columns of a sweep's."""
        return frame_of([self.to_json()])


class _Swept:
    """Rows of sweeps and scalings."""

    __slots__ = ()

    def rows(self: "Sweep | Scaling | Clusters", *, best_of_each: bool = False) -> list[dict[str, Any]]:  # type: ignore[misc]
        """Return all points, or the best of each strategy, under their public keys: the recommended, then by rank."""
        return rows(self, best_of_each=best_of_each)

    to_json = rows

    def frame(self: "Sweep | Scaling | Clusters", *, best_of_each: bool = False) -> "DataFrame":  # type: ignore[misc]
        """Return all points, or the best of each strategy; each parameter and option has its own column.

        The recommended point, which need not be the fastest, comes first; the others stand by what is ranked by.
        Columns stand as in files of rows: the question, then the result, in seconds and bytes. Choose by name:
        ``frame()[["strategy", "iteration_s", "peak_memory_bytes"]]``. ``tie`` is whether its time cannot be told from
        that of the recommended point, nor from the best of its strategy; a faster one may be passed over.
        """
        return frame_of(self.rows(best_of_each=best_of_each))


class Sweep(_Swept, sweep.Sweep):  # noqa: D101  its base says what it is
    __slots__ = ()
    __doc__ = sweep.Sweep.__doc__

    best: Result
    """The result of the best point."""

    def best_of(self, strategy: str | type[AnyStrategy]) -> Result:
        """Return the result of the best point of a strategy, which is given by its name or its class."""
        return Result.of(super().best_of(strategy))

    def result_of(self, point: Point) -> Result:
        """Return the result of a simulated point, whose traces are replayed on demand."""
        return Result.of(super().result_of(point))

    def _repr_html_(self) -> str:
        """Return the verdict and the best points, in a notebook; why nothing fits, where nothing does."""
        table = table_blocks(self)
        return html(self.verdict.panel, *table, *([MORE] if table else []))

    @property
    def verdict(self) -> Verdict | NoVerdict:
        """The recommendation, how sure it is and what would change it.

        Where nothing that is recommended fits, the verdict is false, and prints what is lacking and what would fit.
        """
        return verdict_of(self)

    def front(self) -> "DataFrame":
        """Return the points that no other beats in both throughput and memory, by memory.

        With the objective ``pareto`` the front is exact; else it is that of the points that were simulated.
        """
        return frame_of(pareto_front(self.rows()))

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Plot speed against memory, on ``ax`` or on a new figure."""
        from sim.report.plots.space import plot_sweep

        return plot_sweep(self.rows(), self.title, self.scenario.cluster.device.memory_bytes, ax=ax)

    def write_report(self, path: str | Path) -> None:
        """Write an HTML page with the verdict, pictures and all points, which needs no network."""
        write_sweep_report(scaling.Clusters((scaling.Scaling((self,)),), {}), Path(path))


def with_views(swept: Sweep) -> Sweep:
    """Return a sweep whose results draw themselves, also those that came from other processes or a store."""
    for point in swept.points:
        point.result = point.result and Result.of(point.result)
    return swept


class Scaling(_Swept, scaling.Scaling):
    """Sweeps over several numbers of GPUs, ascending."""

    __slots__ = ()
    sweeps: tuple[Sweep, ...]
    chosen: Sweep
    """The sweep on the knee's number of GPUs; on the most where nothing that is recommended fits."""
    best: Result
    """The best result by what the sweeps rank by, on any number of GPUs; ``knee.result`` is that at the knee.

    Where time is ranked by, it is the result with the most samples per second.
    """

    def __iter__(self) -> Iterator[Sweep]:
        """Return the sweeps, by number of GPUs."""
        return iter(self.sweeps)

    def _repr_html_(self) -> str:
        """Return the verdict at the knee and the best on each number of GPUs, in a notebook."""
        verdict = self.verdict
        return html(verdict.panel, table_of(self), MORE) if verdict else html(verdict.panel)

    @property
    def verdict(self) -> Verdict | NoVerdict:
        """The verdict at the knee, which names the fastest too; where nothing fits, that of the most GPUs."""
        return verdict_at_knee(self)

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Plot the speed per GPU of each strategy over the numbers of GPUs, on ``ax`` or on a new figure."""
        from sim.report.plots.space import plot_scaling

        return plot_scaling(self.rows(best_of_each=True), "num_gpus", self.title, ax)

    def write_report(self, path: str | Path) -> None:
        """Write the HTML page of all sweeps, with the scaling and the verdict at the knee, which needs no network."""
        write_sweep_report(scaling.Clusters((self,), {}), Path(path))


class Balance(balance.Balance):
    """What a mixture of shapes costs in training; its values are those of the base class."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the verdict, the ways and the shapes, in a notebook."""
        return html(*balance_blocks(self))

    def frame(self) -> "DataFrame":
        """Return the ways of giving samples to ranks, one a row."""
        import pandas as pd

        return pd.DataFrame(self.to_json()["ways"])


class Clusters(_Swept, scaling.Clusters):
    """Sweeps of one question on several clusters."""

    __slots__ = ()
    scalings: tuple[Scaling, ...]
    leading: Scaling
    """The best cluster; the last where nothing that is recommended fits on any."""

    def __iter__(self) -> Iterator[Sweep]:
        """Return the sweeps, by cluster and by number of GPUs."""
        return chain.from_iterable(self.scalings)

    def _repr_html_(self) -> str:
        """Return the best on each cluster, in a notebook."""
        return html(*cluster_blocks(self))


class Serving(answers.Serving):
    """Plans of a fleet, best first; its values are those of the base class."""

    __slots__ = ()

    @property
    def verdict(self) -> Answer:
        """The best plan, what it gives, why, and how far to trust it."""
        return verdict_of_serving(self)

    def _repr_html_(self) -> str:
        """Return the verdict and the plans, in a notebook."""
        return html(*serving_blocks(self), MORE.replace("best.plot_timeline", "requests"))

    def requests(self) -> "DataFrame":
        """Return the requests of the best plan: seconds of arrival, start and end, shape, SLO, and whether it held."""
        import pandas as pd

        return pd.DataFrame(request_rows(self.best))

    def plot(self) -> "Figure":
        """Plot attainment and percentiles against the rate; of one rate, p99 against cost."""
        from sim.report.plots.serving import plot_costs, plot_rates

        return plot_rates(self) if self.curves else plot_costs(self)

    def write_report(self, path: str | Path, asked: str = "") -> None:
        """Write an HTML page with the verdict, plans and pictures, which needs no network; ``asked`` as of a result."""
        write_page(Path(path), lambda: serving_page(self, asked))
