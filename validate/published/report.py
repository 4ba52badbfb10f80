"""The command ``published``: the runs of each task, then every number with its prediction, or why it has none.

The command ``paper``: each table of a paper beside simulated numbers, and what is asked of ``sim`` for each.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Final

from profiles.checks import check_choice
from profiles.errors import counted
from profiles.files import read_text
from profiles.measuring.writing import grouped
from profiles.outputs import check_writable
from profiles.units import GB
from validate.published import clusters, diffusionpipe, pulse
from validate.published.bands import misses_of, scores_of, text_of, write_trust
from validate.published.clusters import tables
from validate.published.held import coverage_table
from validate.published.ledger import (
    NEAR,
    Contest,
    Ledger,
    all_training,
    coverage,
    error_words,
    least,
    near,
    side_by_side,
    winners,
)
from validate.published.left_out import sources_left_out
from validate.published.records import LATENCY, MEMORY, OVER, SAMPLES_PER_S, TASKS, UNSAID, Record, Standing
from validate.published.runs import NO_COMMUNICATION, Run, all_runs, sampling_records, sent_bytes
from validate.serving import mlperf
from validate.serving import systems as serving
from validate.tables import Section, parts_around, percent, print_sections, signed, write_file, write_tables

NODE: Final = 8
"""Most GPUs of a node in those clusters."""
CLUSTERS: Final = ("MosaicML", "MLPerf")
"""Beginnings of the sources that publish throughputs of real clusters."""


def run_published(options: argparse.Namespace) -> None:
    """Print the report and the summary, and write the files of the options."""
    if options.output is not None:
        check_writable("--output", options.output)
    commands = {path: commands_in(path) for path in options.readme or ()}
    ledger, sections = report()
    print_sections([*sections, ledger.not_independent(), *summary(ledger)])
    if options.output is not None:
        ledger.write(options.output)
    for path, named in commands.items():
        for command in named:
            write_tables(path, command, TABLES[command](ledger))
    if options.bands is not None:
        write_file(options.bands, text_of(misses_of(ledger.records).bands()))
    if options.trust is not None:
        write_trust(options.trust, ledger)


def report() -> tuple[Ledger, list[Section]]:
    """The ledger of both tasks, and the tables of its numbers."""
    with ProcessPoolExecutor(WORKERS) as executor:
        trained = all_training(chain.from_iterable(executor.map(_records, EXPERIMENTS)))
    runs = all_runs()
    drawn, compared = sampling_records(), contests(runs)
    sections = [coverage(trained), *tables(), winners(compared), volumes(runs), coverage(drawn)]
    return Ledger((*trained, *drawn, *mlperf.records(), *serving.served_records()), tuple(compared)), sections


EXPERIMENTS: Final[tuple[Callable[[], Iterable[Record]], ...]] = (
    *diffusionpipe.EXPERIMENTS,
    *pulse.EXPERIMENTS,
    *clusters.EXPERIMENTS,
)
"""Training experiments that papers publish: each yields records, for each number that of the base setting first."""
WORKERS: Final = 2


def _records(experiment: Callable[[], Iterable[Record]]) -> list[Record]:
    return list(experiment())


def commands_in(path: Path) -> list[str]:
    """The commands whose tables a text holds."""
    text = read_text(path)
    commands = [command for command in TABLES if f"<!-- python -m validate {command} -->\n" in text]
    for command in commands or TABLES:
        parts_around(path, command)
    return commands


def summary(ledger: Ledger) -> list[Section]:
    """The shortest tables of the summary."""
    return [ledger.by_source(), side_by_side(ledger.contests)]


def in_short(ledger: Ledger) -> list[Section]:
    """The errors of the numbers in four lines."""
    judged = [(one.row, one.error) for one in ledger.of(Standing.INDEPENDENT) if one.error is not None]
    several = [(row, error) for row, error in judged if row.quantity == LATENCY and (row.num_gpus or 1) > 1]
    sources = sorted({row.authors for row, _ in several})
    every = f"all independent published numbers ({len(judged)} of {len(ledger.records)})"
    drawn = (
        f"sampling on several GPUs ({len(several)} independent latencies of {', '.join(sources)}; the same"
        " sources' latencies of one GPU set the pace)"
    )
    rows = [[every, _median(error for _, error in judged)], _several_nodes(ledger)]
    rows.append([drawn, _median(error for _, error in several)])
    losses = [contest.loss for contest in ledger.contests]
    right = f"right winner in {losses.count(0)} of {len(losses)}"
    mean_loss = f"mean loss by a wrong pick {percent(mean(losses))}"
    rows.append(["methods published side by side", f"{right}, {mean_loss}"])
    return [Section("In short", ("compared with", "error"), rows)]


def _several_nodes(ledger: Ledger) -> list[str]:
    """Errors of training on several nodes of real clusters, and of scaling over the same source's runs on one."""
    runs = [
        (one.row, one.standing, one.error)
        for one in ledger.records
        if one.row.quantity == SAMPLES_PER_S and one.error is not None and one.row.group.startswith(CLUSTERS)
    ]
    errors, scaling = list[float](), list[float]()
    for alike in grouped(runs, lambda item: (item[0].item, item[0].resolution_px, item[0].method)).values():
        base = next((error for row, _, error in alike if (row.num_gpus or 1) <= NODE), None)
        for row, standing, error in alike:
            if (row.num_gpus or 1) > NODE and standing is not Standing.FITTED:
                errors.append(error)
                scaling += [] if base is None else [(1 + error) / (1 + base) - 1]
    where = f"training of Stable Diffusion on 64 A100 or H100 (MosaicML, MLPerf; {len(errors)} runs)"
    words = f"{signed(min(errors))} to {signed(max(errors))}"
    if scaling:
        where += f"; of {len(scaling)} a run on 8 GPUs of the same source set the pace or chose the stack"
        words += f"; scaling over those on 8 GPUs {signed(min(scaling))} to {signed(max(scaling))}"
    return [where, words]


def _median(errors: Iterable[float]) -> str:
    return f"median {percent(median(map(abs, errors)))}"


ADDED: Final = ("wan2.1-14b", "wan2.1-i2v-14b", "wan2.2", "hunyuanvideo", "qwen-image", "cogvideox-5b")
"""Beginnings of the models that were added after laws and stacks were fitted."""
JUDGED: Final = (Standing.INDEPENDENT, Standing.IN_VIEW)


def todays_models(ledger: Ledger) -> list[Section]:
    """The numbers of models that were added after laws and stacks were fitted, each with its stack."""
    added = [one for one in ledger.records if one.row.model.lower().startswith(ADDED)]
    shown = [_line(one) for one in added if one.error is not None and one.row.group not in serving.GROUPS]
    header = ("model", "run", "GPUs", "published", "simulated", "error", "stack", "standing")
    return [Section("Today's models", header, sorted(shown, key=lambda cells: tuple(cells[:3])))]


def _line(one: Record) -> list[str]:
    row = one.row
    steps = "a step" if "per step" in row.steps else f"{row.steps} steps" if row.steps else ""
    setting = [row.method_config.removeprefix("u1"), row.resolution_px or one.setting, steps]
    where = f"{row.num_gpus or UNSAID} {row.machine.partition(',')[0].partition(' (')[0]}"
    stack = "eager" if one.conditions is None else one.conditions.stack
    numbers = (f"{value:,.4g} {row.unit}" for value in (row.value, one.predicted or 0.0))
    run = ", ".join(filter(None, setting))
    return [row.model, run, where, *numbers, signed(one.error or 0.0), stack, str(one.standing)]


def sampled(ledger: Ledger) -> list[Section]:
    """Errors of the numbers of sampling that set nothing, and the rows in which memory runs out."""
    drawn = [one for one in ledger.records if one.row.task == TASKS[1]]
    judged = [(one, one.error) for one in drawn if one.standing in JUDGED and one.error is not None]
    times = [(one, error) for one, error in judged if one.row.quantity == LATENCY]
    several = [(one, error) for one, error in times if (one.row.num_gpus or 1) > 1]
    kinds = {
        "one GPU, no anchor": [error for one, error in times if one.row.num_gpus == 1],
        "several GPUs": [error for _, error in several],
        **{
            f"several GPUs, {standing}": [error for one, error in several if one.standing is standing]
            for standing in JUDGED
        },
        **{
            f"several GPUs over {links}": [error for one, error in several if links in one.row.machine]
            for links in ("NVLink", "PCIe")
        },
        "several GPUs at 1024 pixels": [error for one, error in several if one.row.resolution_px == "1024"],
        "memory, in view": [error for one, error in judged if one.row.quantity == MEMORY],
    }
    rows = [
        [name, f"{len(errors)}", percent(median(map(abs, errors))) if errors else "-", f"{near(errors)}"]
        for name, errors in kinds.items()
    ]
    out = [one for one in drawn if inf in (one.row.value, one.predicted)]
    right = sum(one.row.value == one.predicted for one in out)
    rows.append(["out of memory", f"{len(out)}", "-", f"{right} are right"])
    return [Section("Sampling", ("numbers", "how many", "median error", f"within {NEAR:.0%}"), rows)]


NO_RIVALS: Final = (NO_COMMUNICATION, "hybrid(best)")
"""Methods that do not compete: an ideal, and one that is the best of all others by definition."""


def contests(runs: Iterable[Run]) -> list[Contest]:
    """The contests of at least two methods that a source ran on the same GPUs at the same size.

    Several figures of one such setting make one contest, as some show the same runs again.
    """
    alike = defaultdict[tuple[str, bool], list[Run]](list)
    for one in runs:
        row = one.row
        if not row["latency_s"] or row.num_gpus == 1 or row["method"] in NO_RIVALS:
            continue
        where = f"{row['num_gpus']} GPUs of {one.place.cluster.name}"
        what = f"{one.place.model}, {row['resolution_px']} px, {row['steps']} steps"
        fits_links = row["why"].startswith("sets the links")
        alike[f"{row.published.paper}: {what}, {where}", fits_links].append(one)
    every = [_contest(words, rivals) for (words, _), rivals in alike.items()]
    return [contest for contest in every if len(contest.published) > 1]


def _contest(words: str, rivals: Sequence[Run]) -> Contest:
    """The contest of some runs, each method by its fastest."""
    published, predicted = dict[str, float](), dict[str, float]()
    for one in rivals:
        method = one.row["method"]
        predicted_s = one.outcome.latency_s if one.outcome.fits_memory else inf
        published[method] = min(published.get(method, inf), one.row.latency_s or inf)
        predicted[method] = min(predicted.get(method, inf), predicted_s)
    return Contest(words, published, predicted, least(one.record.standing for one in rivals))


def volumes(runs: Sequence[Run]) -> Section:
    """Published and predicted bytes that one device sends in one step for one sample."""
    rows = []
    for one in runs:
        if gb := one.row.number("comm_GB"):
            sent = sent_bytes(one) / GB
            rows.append([f"{one.row.published}", f"{gb:g}", f"{sent:.3f}", signed(sent / gb - 1)])
    remark = "DistriFusion, Table 2, counts one sample without guidance; 1.48 there is a misprint of 1.58."
    header = ("row", "published", "predicted", "error")
    return Section("GB that one device sends in one step", header, rows, remark)


TABLES: Final[Mapping[str, Callable[[Ledger], list[Section]]]] = {
    "published --readme": summary,
    "published --readme: in short": in_short,
    "published --readme: today's models": todays_models,
    "published --readme: sampling": sampled,
    "published --readme: bands": lambda ledger: [coverage_table(scores_of(misses_of(ledger.records)))],
    "published --readme: serving": serving.tables,
    "published --readme: sources left out": sources_left_out,
}
"""The tables by the command that stands before them in a text."""


PAPERS: Final = {"diffusionpipe": diffusionpipe.TABLES, "pulse": pulse.TABLES}


def run_paper(options: argparse.Namespace) -> None:
    """Print one table of a paper, or all, and write them between their markers."""
    tables = PAPERS[options.name]
    if options.table is not None:
        check_choice("paper", "--table", options.table, tuple(tables))
        tables = {options.table: tables[options.table]}
    header = ("number", "published", "simulated", "error", "asked")
    for name, experiments in tables.items():
        section = Section(name, header, [*_paper_rows(experiments)])
        print_sections([section])
        if options.readme is not None:
            write_tables(options.readme, f"paper {options.name} --table {name}", [section])


def _paper_rows(experiments: Sequence[Callable[[], Iterable[Record]]]) -> Iterator[list[str]]:
    """The rows of a table: of each number its base setting, then the other choices that the paper leaves open."""
    records = (record for run in experiments for record in run())
    for row, alike in grouped(records, lambda one: one.row).items():
        gpus = row.num_gpus and counted(row.num_gpus, "GPU")
        batch = row.batch_size and f"batch {row.batch_size}"
        what = (row.item, row.method, row.quantity.replace("_", " "), row.model, gpus, batch)
        cells = [", ".join(f"{word}" for word in what if word and word != UNSAID), f"{row.value:.4g}"]
        for one in {record.setting: record for record in alike}.values():
            commands = OVER.join(f"`{command}`" for command in one.setting.split(OVER))
            yield [*cells, f"{one.predicted:.3g}", error_words(one), commands]
            cells = ["", ""]
