"""Throughputs that PULSE compares, and which pipeline degree 8 V100s want.

Source: PULSE, sections VII-A, VII-B, VII-C2, Fig. 14, Eq. 14; the settings are explained in ``settings``.
"""

from collections.abc import Iterator
from typing import Final

from profiles.units import GIB
from validate.published.records import Record, published, the_published
from validate.published.training.experiment import Found, experiment
from validate.published.training.settings import (
    Setting,
    Task,
    base_of,
    changed,
    largest,
    largest_by_equation,
    over,
    run,
)
from validate.reporting.sections import grouped

BASELINES: Final = ("1f1b", "wave", "zero2")
DEGREES: Final = (2, 4, 8)
ON_ASCEND: Final = (
    "base",
    "pipelines inside the nodes",
    "messages overlap",
    "collectives as on p4de",
    "activations in half precision",
)
"""The settings that are printed for all three models."""
ON_ONE_NODE: Final = ("sdv2-1.7b", "uvit-1b", "hunyuan-1.5b")


@experiment
def two_nodes() -> Found:
    """Section VII-A on 16 V100s: the base setting, and what the ratios depend on."""
    row = the_published("VII-A", method="pulse")
    task = Task.of(row)
    base = base_of(task)
    yield ["published", f"{row.value:g}", "-", *_printed(task.cluster)]
    for words, setting in changed(base):
        yield [words, *cells(task, setting)]
        own = run(task, setting, "pulse")
        if own is not None:
            yield Record.of(row, own.samples_per_s, f"{base}; {words}")
        yield from _ratios(task, setting, f"{base}; {words}")


@experiment
def eight_nodes() -> Found:
    """Section VII-A on 64 Ascend 910A: three models, of which the paper prints the largest ratios."""
    models = dict.fromkeys(row.model for row in published("Table III"))
    tasks = [Task(model, "ascend910a-8node", 64) for model in models]
    yield ["published, the largest", "-", "-", "-", *_printed("ascend910a-8node")]
    ratios: dict[str, list[Record]] = {words: [] for words in ON_ASCEND}
    for task in tasks:
        base, cases = base_of(task), dict(changed(base_of(task)))
        for words, found in ratios.items():
            yield [f"{task.model}, {base}", words, *cells(task, cases[words])]
            setting = f"largest of {len(tasks)}: {task.model}, {base}; {words}"
            found.extend(_ratios(task, cases[words], setting))
    for found in ratios.values():
        for same in grouped(found, lambda one: one.row).values():
            yield max(same, key=lambda one: one.predicted or 0.0)


def _printed(cluster: str) -> Iterator[str]:
    """The published ratios over the baselines."""
    for baseline in BASELINES:
        rows = published("VII-A", machine=cluster, method=f"pulse/{baseline}")
        yield f"{rows[0].value:g}" if rows else "-"


def _ratios(task: Task, setting: Setting, words: str) -> Iterator[Record]:
    for baseline in BASELINES:
        ratio = over(task, setting, baseline)
        for row in published("VII-A", machine=task.cluster, method=f"pulse/{baseline}"):
            if ratio is not None:
                yield Record.of(row, ratio, words)


def cells(task: Task, setting: Setting) -> list[str]:
    """PULSE's throughput and memory and its ratios, in words; in brackets where memory does not suffice."""
    own = run(task, setting, "pulse")
    if own is None:
        return ["-"] * (2 + len(BASELINES))
    found = [_bracketed(f"{own.samples_per_s:.1f}", own.fits), f"{own.memory_bytes / GIB:.1f} GiB"]
    for baseline in BASELINES:
        ratio, other = over(task, setting, baseline), run(task, setting, baseline)
        found.append("-" if ratio is None or other is None else _bracketed(f"{ratio:.2f}", other.fits))
    return found


def _bracketed(words: str, fits: bool) -> str:
    return words if fits else f"({words})"


@experiment
def larger_models() -> Found:
    """Section VII-B: U-ViT of 6 B over the better of the two pipelines, by degree."""
    row = the_published("VII-B")
    task = Task.of(row)
    columns = 2 + len(BASELINES)
    yield ["published", *["-"] * columns, f"{row.value:g}"]
    for degree in DEGREES:
        setting = largest(task, Setting(degree, 1))
        if setting is None:
            yield [f"P = {degree}", *["does not fit"] * columns, "-"]
            continue
        ratios = [over(task, setting, baseline) for baseline in ("1f1b", "wave")]
        best = min(ratio for ratio in ratios if ratio is not None)
        yield [f"{setting}", *cells(task, setting), f"{best:.2f}"]
        yield Record.of(row, best, f"{setting}, the largest that fits")


@experiment
def degrees() -> Found:
    """Section VII-C2: the largest micro-batches and what they give, by degree."""
    for model, degree in ((model, degree) for model in ON_ONE_NODE for degree in DEGREES):
        task = Task(model, "v100-2node", 8)
        setting = largest(task, Setting(degree, 1))
        assert setting is not None
        result = run(task, setting, "pulse")
        assert result is not None
        found = {"samples_per_s": result.samples_per_s, "micro_batch": float(setting.micro_batch)}
        rows = {row.quantity: row for row in published("VII-C2", model=model, method=f"pulse P={degree}")}
        yield from (Record.of(rows[key], found[key], f"{setting}") for key in found if key in rows)
        by_equation = largest_by_equation(task, setting)
        yield [
            f"{model}, P = {degree}",
            *(f"{rows[key].value:g}" if key in rows else "-" for key in found),
            f"{result.samples_per_s:.1f}",
            f"{setting.micro_batch} ({result.memory_bytes / GIB:.1f} GiB)",
            "none" if by_equation is None else f"{by_equation.micro_batch}",
        ]
