"""The figure: every predicted number against the published one, on logarithmic axes, training beside sampling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError
from sim.plots.charts import (
    ENDINGS,
    FRONT,
    GRID,
    INK,
    STRATEGY_COLOURS,
    STRATEGY_MARKERS,
    Chart,
    save_figure,
    set_title,
)
from validate.published.rows import Prediction, Published
from validate.published.sampling_scenes import SamplingPrediction

NEAR: Final = 0.15
"""Relative error of the lines on both sides of the diagonal."""
FITTED: Final = ("used in the fit",)
"""How the setting of a number begins that set a rate."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One number: published, predicted, what it is about, and whether a rate or a link was fitted to it."""

    group: str
    published: float
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True)
class PublishedInfo:
    """What ``plot_published`` draws."""

    training: list[Mark]
    sampling: list[Mark]


def plot_published_info(
    training: Iterable[Prediction], sampling: Iterable[SamplingPrediction]
) -> PublishedInfo:
    """Return what ``plot_published`` draws: of each number its base prediction; bounds and zeros are left out.

    Args:
        training: predictions, of one number the base setting first.
        sampling: predictions; those of one GPU, which sampling starts from, are left out.
    """
    first: dict[Published, Prediction] = {}
    for prediction in training:
        first.setdefault(prediction.row, prediction)
    return PublishedInfo(
        [_trained(one) for one in first.values() if _drawable(one)],
        [_sampled(one) for one in sampling if one.error is not None and one.row.num_gpus != 1],
    )


def _drawable(one: Prediction) -> bool:
    timed = one.row.metric == "solve_s"  # seconds of this machine's solver, no prediction
    return one.row.value > 0 and one.simulated > 0 and not timed and not one.row.metric.endswith("_below")


def _trained(one: Prediction) -> Mark:
    metric = one.row.metric.replace("_", " ")
    fitted = one.setting.startswith(FITTED)
    return Mark(f"{one.row.source}: {metric}", one.row.value, one.simulated, fitted)


def _sampled(one: SamplingPrediction) -> Mark:
    assert one.row.latency_s is not None and one.outcome is not None
    return Mark(one.row["method"], one.row.latency_s, one.outcome.latency_s, one.for_links)


def plot_published(training: Iterable[Prediction], sampling: Iterable[SamplingPrediction]) -> Chart:
    """Return predicted against published numbers; hollow ones were fitted to, dotted lines are 15 % off.

    Raises:
        InputError: nothing is predicted.
    """
    info = plot_published_info(training, sampling)
    panels = [
        (title, marks, unit)
        for title, marks, unit in (
            ("training", info.training, "each in its own unit"),
            ("sampling on several GPUs", info.sampling, "latency in s"),
        )
        if marks
    ]
    if not panels:
        raise InputError("no published number is predicted: nothing to plot")
    figure = Chart(figsize=(6.6 * len(panels), 7.4), layout="constrained")
    for number, (title, marks, unit) in enumerate(panels, start=1):
        _draw(figure.add_subplot(1, len(panels), number), title, marks, unit)
    return figure


def _draw(axes: Any, title: str, marks: Sequence[Mark], unit: str) -> None:  # noqa: ANN401  only plots know axes
    axes.spines[["top", "right"]].set_visible(False)
    _diagonals(axes, marks)
    for number, group in enumerate(sorted({mark.group for mark in marks})):
        colour, marker = STRATEGY_COLOURS[number % 7], STRATEGY_MARKERS[number % 11]
        for fitted in (False, True):
            own = [mark for mark in marks if mark.group == group and mark.fitted == fitted]
            axes.scatter(
                [mark.published for mark in own], [mark.predicted for mark in own], s=30, marker=marker,
                facecolor="none" if fitted else colour, edgecolor=colour if fitted else "white",
                linewidth=1.0 if fitted else 0.5, zorder=2,
            )  # fmt: skip
        axes.scatter([], [], s=30, marker=marker, color=colour, label=group)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"published, {unit}")
    axes.set_ylabel(f"predicted, {unit}")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=7.5)
    free = [mark for mark in marks if not mark.fitted]
    near = sum(abs(mark.error) <= NEAR for mark in free)
    set_title(axes, title, f"{near} of {len(free)} that were not fitted to within {NEAR:.0%}")


def _diagonals(axes: Any, marks: Sequence[Mark]) -> None:  # noqa: ANN401  as above
    values = [value for mark in marks for value in (mark.published, mark.predicted)]
    ends = (min(values) / 1.3, max(values) * 1.3)
    for factor, style, colour in ((1, "-", INK), (1 + NEAR, ":", FRONT), (1 / (1 + NEAR), ":", FRONT)):
        heights = [factor * end for end in ends]
        axes.plot(ends, heights, linestyle=style, color=colour, linewidth=1.0, zorder=1)


def check_figure(path: Path | None) -> None:
    """Refuse a file that could not be written at the end.

    Raises:
        InputError: its ending is unknown, or its folder is missing.
    """
    if path is None:
        return
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"--figure is '{path}', must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not path.parent.is_dir():
        raise InputError(f"--figure is '{path}', but {path.parent} is no folder")


def write_figure(
    training: Sequence[Prediction], sampling: Sequence[SamplingPrediction], path: Path | None
) -> None:
    """Draw the figure into a file if one is given.

    Raises:
        InputError: the file cannot be written.
    """
    if path is not None:
        save_figure(plot_published(training, sampling), path)
