"""Throughputs that PULSE compares: sections VII-A and VII-B.

Source: PULSE, sections VII-A and VII-B; the settings are explained in ``validate.published.settings``.
"""

from collections.abc import Iterator
from typing import Final

from validate.published.rows import Prediction, Published, Section, published, the_published
from validate.published.settings import BASELINES, Setting, Task, base_of, cells, changed, largest, over, run

HEADER: Final = ("PULSE, samples/s", "peak memory", *(f"over {name}" for name in BASELINES))
DEGREES: Final = (2, 4, 8)
ON_ASCEND: Final = (
    "base",
    "pipelines inside the nodes",
    "messages overlap",
    "collectives as on p4de",
    "activations in half precision",
)
"""The settings that are printed for all three models."""
BRACKETS: Final = "In brackets: does not fit."


def two_nodes() -> Section:
    """Return section VII-A on 16 V100s: the base setting, and what the ratios depend on."""
    row = the_published("VII-A", method="pulse")
    task = Task.of(row)
    base = base_of(task)
    rows: list[list[str]] = []
    predictions: list[Prediction] = []
    for words, setting in changed(base):
        rows.append([words, *cells(task, setting)])
        own = run(task, setting, "pulse")
        if own is not None:
            predictions.append(Prediction(row, own.samples_per_s, f"{base}; {words}"))
        predictions += _ratios(task, setting, f"{base}; {words}")
    first = ["published", f"{row.value:g}", "-", *_printed(task.cluster)]
    return Section(
        f"PULSE, section VII-A: {task.model} on {task.num_gpus} GPUs of {task.cluster}, {base}",
        ("setting", *HEADER),
        [first, *rows],
        "The printed gain over 1F1B asks for a block-wise stage three times as long as the mean, as in Fig. 6; the four"
        " stages of the counted U-Net reach 1.8. The gain over ZeRO-2 follows the bytes of a gradient. The guessed"
        f" shape is too heavy for these devices: most of its parameters lie in the innermost stages. {BRACKETS}",
        predictions,
    )


def _printed(cluster: str) -> Iterator[str]:
    """Yield the published ratios over the baselines."""
    for baseline in BASELINES:
        rows = published("VII-A", cluster=cluster, method=f"pulse/{baseline}")
        yield f"{rows[0].value:g}" if rows else "-"


def _ratios(task: Task, setting: Setting, words: str) -> Iterator[Prediction]:
    for baseline in BASELINES:
        ratio = over(task, setting, baseline)
        for row in published("VII-A", cluster=task.cluster, method=f"pulse/{baseline}"):
            if ratio is not None:
                yield Prediction(row, ratio, words)


def eight_nodes() -> Section:
    """Return section VII-A on 64 Ascend 910A: three models, of which the paper prints the largest ratios."""
    tasks = [Task(model, "ascend910a-8node", 64) for model in _models()]
    rows: list[list[str]] = []
    predictions: list[Prediction] = []
    for task in tasks:
        cases = dict(changed(base_of(task)))
        rows += [[f"{task.model}, {base_of(task)}", words, *cells(task, cases[words])] for words in ON_ASCEND]
    for words in ON_ASCEND:
        found: dict[Published, list[Prediction]] = {}
        for task in tasks:
            setting = dict(changed(base_of(task)))[words]
            for one in _ratios(
                task, setting, f"largest of {len(tasks)}: {task.model}, {base_of(task)}; {words}"
            ):
                found.setdefault(one.row, []).append(one)
        predictions += [max(of, key=lambda one: one.simulated) for of in found.values()]
    return Section(
        "PULSE, section VII-A: 64 devices of ascend910a-8node, largest ratios",
        ("model", "setting", *HEADER),
        [["published, the largest", "-", "-", "-", *_printed("ascend910a-8node")], *rows],
        "What ZeRO-2 loses depends on its collectives: at line rate, as the cluster file has them for want of a source,"
        " it is the faster one for two models; at the shares of it that p4de's reach over as many nodes (Table 2 of"
        " DiffusionPipe), PULSE gains about what is printed. What 1F1B loses depends on where skips travel: between"
        f" nodes, as section VI implies, up to twice what is printed, inside them half of it. {BRACKETS}",
        predictions,
    )


def _models() -> list[str]:
    """Return the models of Table III."""
    return list(dict.fromkeys(row.model for row in published("Table III")))


def larger_models() -> Section:
    """Return section VII-B: U-ViT of 6 B over the better of the two pipelines, by degree."""
    row = the_published("VII-B")
    task = Task.of(row)
    rows: list[list[str]] = []
    predictions: list[Prediction] = []
    for degree in DEGREES:
        setting = largest(task, Setting(degree, 1))
        if setting is None:
            rows.append([f"P = {degree}", *["does not fit"] * len(HEADER), "-"])
            continue
        ratios = [over(task, setting, baseline) for baseline in ("1f1b", "wave")]
        best = min(ratio for ratio in ratios if ratio is not None)
        rows.append([f"{setting}", *cells(task, setting), f"{best:.2f}"])
        predictions.append(Prediction(row, best, f"{setting}, the largest that fits"))
    return Section(
        f"PULSE, section VII-B: {task.model} on {task.num_gpus} GPUs of {task.cluster}",
        ("setting", *HEADER, "over the better pipeline"),
        [["published", *["-"] * len(HEADER), f"{row.value:g}"], *rows],
        BRACKETS,
        predictions,
    )
