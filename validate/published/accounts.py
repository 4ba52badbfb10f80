"""Every published number once: judged, fitted, set apart, or not covered, and why."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from math import inf
from pathlib import Path
from typing import Final

from profiles.costs import anchor_factor
from profiles.files import read_rows
from profiles.models import load_model
from profiles.units import GIB
from validate.published.report import why_not
from validate.published.rows import Prediction, Published, all_published
from validate.published.sampling_misses import why
from validate.published.sampling_scenes import SamplingPrediction
from validate.published.sampling_sections import printed_before, same_number, sets_memory

SOURCES: Final = Path(__file__).parent / "sources.csv"
TASKS: Final = ("train", "sample")
LATENCY: Final = "latency_s"
MEMORY: Final = "memory_GiB"
SECONDS_OF_A_SOLVER: Final = "solve_s"


class Standing(StrEnum):
    """What becomes of a published number; each has one.

    ``APART``: there is a prediction, but no error that could be judged: the number is a bound, a zero, seconds of
    another machine's solver, memory that ran out, or printed a second time.
    """

    JUDGED = "judged"
    FITTED = "fitted"
    APART = "apart"
    UNCOVERED = "not covered"


@dataclass(frozen=True, slots=True)
class Account:
    """One published number: what it is about, what is predicted, and what becomes of it.

    Attributes:
        task: ``train`` or ``sample``.
        source: as the file has it.
        item: table, figure or section.
        about: columns ``ABOUT``, as the file has them.
        name: the source, in the words of ``sources.csv``.
        quantity: what was measured.
        published: the number; infinite where memory ran out.
        predicted: likewise; None where the row is not covered.
        standing: what becomes of it.
        reason: why it is not judged; empty where it is.
        provenance: where the layer times are from.
        setting: what was simulated.
        miss: what is known of a large error.
        memory_bytes: predicted bytes of the fullest device; None in training.
    """

    task: str
    source: str
    item: str
    about: tuple[str, ...]
    name: str
    quantity: str
    published: float
    predicted: float | None
    standing: Standing
    reason: str = ""
    provenance: str = ""
    setting: str = ""
    miss: str = ""
    memory_bytes: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted over published, less one; None where one of them is missing, a bound or no number."""
        if (
            self.predicted is None
            or self.standing is Standing.APART
            or inf in (self.predicted, self.published)
        ):
            return None
        return self.predicted / self.published - 1

    @property
    def num_gpus(self) -> str:
        """GPUs, as the file has them; empty where it does not say."""
        return self.about[ABOUT.index("num_gpus")]

    @property
    def method(self) -> str:
        """What was run, and what was measured where that is no latency; all degrees of one method as one."""
        method = self.about[ABOUT.index("method")].strip("-").split(" P=")[0]
        words = [] if self.quantity == LATENCY else [self.quantity.replace("_", " ")]
        return ", ".join(filter(None, (method, *words)))


ABOUT: Final = (
    "model",
    "machine",
    "num_gpus",
    "method",
    "method_config",
    "batch_size",
    "resolution_px",
    "steps",
)
"""Columns of ``Account.about``."""


@cache
def _names() -> tuple[tuple[str, str, str], ...]:
    rows = read_rows(SOURCES, ("source", "item", "name"))
    return tuple((row.text("source"), row.text("item"), row.text("name")) for row in rows)


def source_names() -> list[str]:
    """Return the sources in the order in which they are listed."""
    return list(dict.fromkeys(name for *_, name in _names()))


def source_name(source: str, item: str) -> str:
    """Return the name of a source: that of the first pattern it fits.

    Raises:
        ValueError: it fits none.
    """
    for source_pattern, item_pattern, name in _names():
        if fnmatchcase(source, source_pattern) and fnmatchcase(item, item_pattern):
            return name
    raise ValueError(f"{SOURCES.name} has no name for source '{source}', {item}")


def training_accounts(predictions: Iterable[Prediction]) -> list[Account]:
    """Return an account of every number of training, in the order of the file.

    Args:
        predictions: of one number the base setting first; the others do not count.
    """
    first: dict[Published, Prediction] = {}
    for prediction in predictions:
        first.setdefault(prediction.row, prediction)
    return [_trained(row, first.get(row)) for row in all_published()]


def _trained(row: Published, prediction: Prediction | None) -> Account:
    standing, reason = _training_standing(row, prediction)
    gpus, batch = ("" if number is None else str(number) for number in (row.num_gpus, row.batch_size))
    return Account(
        task=TASKS[0],
        source=row.source,
        item=row.item,
        about=(row.model, row.cluster, gpus, row.method, "", batch, "", ""),
        name=source_name(row.source, row.item),
        quantity=row.metric,
        published=row.value,
        predicted=prediction.simulated if prediction else None,
        standing=standing,
        reason=reason,
        provenance=prediction.provenance if prediction else "",
        setting=prediction.setting if prediction else "",
    )


def _training_standing(row: Published, prediction: Prediction | None) -> tuple[Standing, str]:
    if prediction is None:
        return Standing.UNCOVERED, why_not(row)
    if row.metric == SECONDS_OF_A_SOLVER:
        return Standing.APART, "seconds of another machine's solver"
    if row.metric.endswith("_below"):
        return Standing.APART, f"a bound, which {prediction.error}"
    if not row.value:
        return Standing.APART, "no gain: a zero has no relative error"
    if prediction.fitted:
        return Standing.FITTED, prediction.fitted
    return Standing.JUDGED, ""


def sampling_accounts(predictions: Sequence[SamplingPrediction]) -> list[Account]:
    """Return an account of every row of sampling, in the order of the predictions."""
    again = printed_before(predictions)
    return [_sampled(one, one.row.line in again) for one in predictions]


def _sampled(one: SamplingPrediction, again: bool) -> Account:
    row = one.row
    standing, reason = _sampling_standing(one, again)
    remembered = bool(row["memory_GB"]) and not row["latency_s"]
    published = row.memory_gib if remembered else row.latency_s
    return Account(
        task=TASKS[1],
        source=row["source"],
        item=row.figure,
        about=(
            row["model"],
            ", ".join(filter(None, (row["hardware"], row["interconnect"]))),
            row["num_gpus"],
            row["method"],
            row["method_config"],
            row["batch"],
            row["resolution_px"],
            row["steps"],
        ),
        name=source_name(row["source"], row.figure),
        quantity=MEMORY if remembered else LATENCY,
        published=inf if published is None else published,
        predicted=_predicted(one, remembered),
        standing=standing,
        reason=reason,
        provenance=_provenance(one),
        setting=one.remark if one.outcome else "",
        miss=why(one),
        memory_bytes=one.outcome.memory_bytes if one.outcome else None,
    )


def _predicted(one: SamplingPrediction, remembered: bool) -> float | None:
    if one.outcome is None:
        return None
    if one.row.out_of_memory and one.out_of_memory:
        return inf
    return one.outcome.memory_bytes / GIB if remembered else one.outcome.latency_s


def _sampling_standing(one: SamplingPrediction, again: bool) -> tuple[Standing, str]:
    if one.outcome is None:
        return Standing.UNCOVERED, one.remark
    if one.row.out_of_memory:
        return Standing.APART, f"memory runs out, as {'' if one.out_of_memory else 'not '}predicted"
    for reason in _set_by(one):
        return Standing.FITTED, reason
    return (Standing.APART, "printed a second time") if again else (Standing.JUDGED, "")


def _set_by(one: SamplingPrediction) -> Iterator[str]:
    """Yield what a row was used to set."""
    if one.for_links:
        yield f"in view when the links of {one.cluster} were set"
    if sets_memory(one):
        yield "sets the constants of memory"
    if anchored(one):
        yield "a one-GPU latency that predictions start from"


def anchored(one: SamplingPrediction) -> bool:
    """Return whether a row is a one-GPU latency, or one of its printings, to which a model's times are scaled."""
    if one.place is None or one.row.num_gpus != 1 or one.row.latency_s is None:
        return False
    there = (one.place.cluster.device.name, one.place.height, one.place.width, one.place.steps)
    return any(
        (anchor.device, anchor.height, anchor.width, anchor.steps) == there
        and same_number(anchor.latency_s, one.row.latency_s)
        for anchor in load_model(one.model).anchors
    )


def _provenance(one: SamplingPrediction) -> str:
    """Return where layer times are from, and by what published latencies of one GPU scale them."""
    if one.place is None or one.outcome is None:
        return ""
    device, pixels = one.place.cluster.device, one.place.height * one.place.width
    model = load_model(one.model)
    if all(anchor.device != device.name for anchor in model.anchors):
        return one.outcome.provenance
    return (
        f"{one.outcome.provenance}, times {anchor_factor(model, device, pixels):.3f} from one GPU's latencies"
    )
