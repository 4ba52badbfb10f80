"""Pages: tables of the accuracy page on some of the numbers: today's models, and sampling."""

from collections.abc import Callable, Iterable
from math import inf
from statistics import median
from typing import Final

from validate.published.ledger import NEAR, Ledger, near
from validate.published.records import LATENCY, MEMORY, UNSAID, Record, Standing
from validate.tables import Section, percent, signed

TODAY: Final = ("wan2.1-14b", "wan2.1-i2v-14b", "wan2.2", "hunyuanvideo", "qwen-image", "cogvideox-5b")
"""Beginnings of the models that were added after laws and stacks were fitted."""
JUDGED: Final = (Standing.INDEPENDENT, Standing.IN_VIEW)


def todays_models(ledger: Ledger) -> list[Section]:
    """The numbers of models that were added after laws and stacks were fitted, each with its stack."""
    told = [
        one for one in ledger.records if one.row.model.lower().startswith(TODAY) and one.error is not None
    ]
    header = ("model", "run", "GPUs", "published", "simulated", "error", "stack", "standing")
    return [Section("Today's models", header, sorted(map(_line, told), key=lambda cells: tuple(cells[:3])))]


def _line(one: Record) -> list[str]:
    row = one.row
    steps = "a step" if "per step" in row.steps else f"{row.steps} steps" if row.steps else ""
    told = [row.method_config.removeprefix("u1"), row.resolution_px or one.setting, steps]
    where = f"{row.num_gpus or UNSAID} {row.machine.partition(',')[0].partition(' (')[0]}"
    stack = "eager" if one.conditions is None else one.conditions.stack
    numbers = (f"{value:,.4g} {row.unit}" for value in (row.value, one.predicted or 0.0))
    run = ", ".join(filter(None, told))
    return [row.model, run, where, *numbers, signed(one.error or 0.0), stack, str(one.standing)]


def sampling(ledger: Ledger) -> list[Section]:
    """Errors of the numbers of sampling that set nothing, and the rows in which memory runs out."""
    judged = [one for one in ledger.records if one.row.task == "sample" and one.standing in JUDGED]
    times = [one for one in judged if one.row.quantity == LATENCY]
    several = [one for one in times if (one.row.num_gpus or 1) > 1]
    kinds: dict[str, Iterable[Record]] = {
        "one GPU, no anchor": [one for one in times if one.row.num_gpus == 1],
        "several GPUs": several,
        "several GPUs, independent": _of(several, lambda one: one.standing is Standing.INDEPENDENT),
        "several GPUs, in view": _of(several, lambda one: one.standing is Standing.IN_VIEW),
        "several GPUs over NVLink": _of(several, lambda one: "NVLink" in one.row.machine),
        "several GPUs over PCIe": _of(several, lambda one: "PCIe" in one.row.machine),
        "several GPUs at 1024 pixels": _of(several, lambda one: one.row.resolution_px == "1024"),
        "memory, in view": [one for one in judged if one.row.quantity == MEMORY],
    }
    rows = [[name, *_errors(records)] for name, records in kinds.items()]
    out = [
        one for one in ledger.records if one.row.task == "sample" and inf in (one.row.value, one.predicted)
    ]
    right = sum(one.row.value == one.predicted for one in out)
    rows.append(["out of memory", f"{len(out)}", "-", f"{right} are right"])
    return [Section("Sampling", ("numbers", "how many", "median error", f"within {NEAR:.0%}"), rows)]


def _of(records: Iterable[Record], fits: Callable[[Record], bool]) -> list[Record]:
    return [one for one in records if fits(one)]


def _errors(records: Iterable[Record]) -> list[str]:
    errors = [one.error for one in records if one.error is not None]
    return [f"{len(errors)}", percent(median(map(abs, errors))) if errors else "-", f"{near(errors)}"]
