"""Results in words: a panel of lines and a table of stages."""

import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from itertools import groupby
from typing import Any, Final

from profiles.costs.bands import FAMILIES
from profiles.costs.trust import Trust, own_misses, trust_of
from profiles.errors import InfeasibleError, InputError, counted, flag_of, flag_value
from profiles.software.runtimes import find_runtime, runs_in
from profiles.units import GB, GIB
from sim.explore.legality import case_of, is_unknown, left_out, runtimes_of
from sim.inputs.calibrating import setting
from sim.inputs.scenarios import request_of, scenario_of
from sim.outcomes.parts import groups_of
from sim.outcomes.results import Result, Source
from sim.outcomes.tasks import TASKS, Task
from sim.report.blocks import Block, Column, Line, Panel, Table
from sim.report.reasons import Account, account_of
from sim.report.words import band, duration, milliseconds, sample_words, throughput
from strategies.plans.workloads import ONE_DRAW
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, Sampler, Strategy

CELLS: Final = 20
FULL, HOST, PART, NONE = "█", "▓", "▒", "░"
"""Of bars: compute or memory in use, waiting for the host, waiting for data, and nothing."""
LEAST_SHARE: Final = 0.005
"""Shares of the time that the host takes and that are below this count as compute."""
NO_RUNTIME_TODAY: Final = "no framework runs this today"
NOT_FITTED: Final = "no framework that runs this sets what it needs to fit"


def result_blocks(result: Result) -> list[Block]:
    """Return a result as ``sim run`` prints it; means over GPUs that differ."""
    return [panel_of(result), _stage_table(result)]


def panel_of(result: Result) -> Panel:
    """Return the panel of a result."""
    lines = [("memory", memory_words(result))] * (not result.fits_memory) + [("strategy", result.strategy)]
    if words := ", ".join(f"{key} {flag_value(x)}" for key, x in result.parameters.items() if x is not None):
        lines.append(("with", words))
    start = "; start it by `sim launch` with the same flags" if result.fits_memory else ""
    lines += [*result_lines(result, account_of(result)), *_quantities(result), *origin_lines(result, start)]
    asked = f"batch {result.batch_size}"
    if result.task == "sample":
        guidance = "no guidance" if result.guidance == "none" else f"guidance {result.guidance}"
        images = counted(result.batch_size, *sample_words(result))
        asked = f"{images} of {result.resolution} pixels, {counted(result.steps, 'step')}, {guidance}"
    return Panel(f"{result.title}, {asked}", lines)


def result_lines(result: Result, account: Account) -> Iterator[Line]:
    """Yield speed, groups of GPUs, memory, the account of the time, and phases."""
    yield "speed", speed_words(result)
    groups, approximation = image_groups(result)
    if groups > 1:
        gpus = result.num_gpus // groups
        each = counted(result.batch_size // groups, *sample_words(result))
        each = f"one{each[1:]}" if result.batch_size == groups else each
        yield "", f"{groups} replicas{f' of {gpus} GPUs' * (gpus > 1)}, {each} each"
    if result.fits_memory:  # else it stands first
        yield "memory", memory_words(result)
    yield "time", time_words(account)
    yield from (("" if number else "why", words) for number, words in enumerate(account.reasons))
    if words := _draw_words(result):
        yield "draws", words
    if approximation:
        yield sample_words(result)[0], f"approximate: {approximation}"
    if names := [key.removesuffix("_s") for key in result.phases if key.endswith("_s")]:
        phases = (
            f"{name} {result.phases[f'{name}_s']:,.3f} s,"
            f" {result.phases[f'{name}_peak_memory_bytes'] / GIB:.1f} GiB"
            for name in names
        )
        yield "phases", "; ".join(phases)


def image_groups(result: Result) -> tuple[int, str]:
    """Return groups of GPUs that each draw their images; why an image differs from that of a single GPU."""
    source = result.source
    if source is None or not isinstance(source.strategy, Sampler):
        return 1, ""
    return source.strategy.image_groups(source.scenario), source.strategy.approximation(source.scenario)


def _draw_words(result: Result) -> str:
    """Return who draws self-conditioning, and the draw that runs the extra forward less often; empty without any."""
    if result.source is None or result.task != "train" or not 0 < result.options["self_conditioning"] < 1:
        return ""
    (point, scenario), *_ = result.source.strategy.jobs(result.source.scenario)
    assert isinstance(point, Strategy) and isinstance(scenario, Scenario)
    groups, usual = groups_of(point, scenario), scenario.self_conditioning
    often = scenario.extra_forward_probability(groups, point.draws)
    if scenario.draws(point.draws) == ONE_DRAW or groups == 1:
        return f"all at once: {often:.1%} of the iterations run the extra forward"
    words = f"each of {groups} groups by itself: {often:.1%} of the iterations wait for an extra forward; "
    return f"{words}`--self-conditioning-draw iteration`: {usual:.1%}"


def origin_lines(result: Result, start: str = "") -> Iterator[Line]:
    """Yield the runtimes of a result and how to start it, the origin of its layer times, and the trust in these."""
    if result.source is None:
        yield "times", result.provenance
        return
    scenario = result.source.scenario
    where = _runtime_words(result, scenario)
    none = f"no framework has {scenario.model.name} today" if is_unknown(scenario) else NO_RUNTIME_TODAY
    none = NOT_FITTED if runs_in(result.task, case_of(result.source.strategy, scenario)) else none
    yield "runs in", f"{where}{start}" if where else none
    trust, device = trust_in(result), scenario.cluster.device.name
    measured, words = scenario.measured, [result.provenance]
    if result.provenance == "estimated" and trust is not None:
        by_sheet = f"of {device}, known by its data sheet"
        origins = f"measured on {device}", f"of {device}, derived from other GPUs or its data sheet", by_sheet
        counted_whole = all(part.kernels for part in scenario.model.components if part.trainable)
        rates = "by rates of the device, as no kernels.csv lists the layers' kernels"
        words[0] += f" from kernels {origins[FAMILIES.index(trust.family)]}" if counted_whole else f" {rates}"
    if result.provenance != "measured" and scenario.costs.published.source:
        words.append(f"those of the backbone {scenario.costs.published}")
    paced = ""
    if measured is not None:
        words.append(measured.words(scenario.task))
        paced = "; beside these, a measured run of yours sets the pace of compute"
        paced *= measured.task == scenario.task
    yield "times", "; ".join(filter(None, words))
    if own := own_misses(result.task, result.model, device):
        yield "trust", own
    yield "" if own else "trust", f"exact: all times are given{paced}" if trust is None else f"{trust}{paced}"


def _runtime_words(result: Result, scenario: AnyScenario) -> str:
    """Return the runtimes that start a result, those together that set as much of what its time is of."""
    groups: dict[str, list[str]] = {}
    for name in runtimes_of(result):
        left = left_out(find_runtime(name), scenario).items()
        groups.setdefault(" ".join(f"{flag_of(key)} {value}" for key, value in left), []).append(name)
    return "; ".join(f"without {flags}: " * bool(flags) + ", ".join(names) for flags, names in groups.items())


def trust_in(result: Result) -> Trust | None:
    """Return the trust of published numbers in such estimates; None where nothing is estimated."""
    device, timed = result.origin.scenario.cluster.device.name, result.provenance == "measured"
    return trust_of(result.task, device, result.strategy, result.num_gpus, timed=timed)


def bar(*parts: float, marks: str = FULL + PART) -> str:
    """Return a bar of shares of a whole, a shade for each; the rest is empty."""
    text, filled = "", 0.0
    for share, mark in zip(parts, marks, strict=False):
        filled += max(0.0, share)
        text += mark * (min(CELLS, round(CELLS * filled)) - len(text))
    return text.ljust(CELLS, NONE)


def speed_words(result: Result) -> str:
    """Return the duration with its band, and the throughput."""
    between = f" ({words})" if (words := band(result)) else ""
    took = f"{duration(result)} {per_words(result)}{between}"
    if result.task == "sample":
        return f"{took}, {result.gpu_s_per_sample:,.2f} GPU-seconds each"
    several = result.num_backbones > 1
    each = f", each counted once for each of {result.num_backbones} backbones" if several else ""
    return f"{took}, {throughput(result.samples_per_s)} samples/s{each}"


def per_words(result: Result) -> str:
    """Return what a duration is of: an iteration, an image, or several."""
    if result.task == "train":
        return "an iteration"
    one, more = sample_words(result)
    article = "an" if one == "image" else "a"
    return f"{article} {one}" if result.batch_size == 1 else f"for {result.batch_size} {more}"


def memory_words(result: Result) -> str:
    """Return the peak memory of the fullest device, as a bar of its capacity."""
    peak, there = result.expected.peak_memory_bytes, result.device_memory_bytes
    if there is None:
        return f"{peak / GIB:.1f} GiB"
    low, middle, high = (size / GIB for size in result.reserved)
    remark = f"{': nearly full' * result.nearly_full}, {low:.1f} to {high:.1f} reserved"
    remark = remark if result.fits_memory else f": does not fit, {middle:.1f} reserved"
    return f"{bar(peak / there)} {peak / GIB:.1f} of {there / GIB:.1f} GiB{remark}"


def time_words(account: Account) -> str:
    """Return the shares of the devices' time, with a bar."""
    host, wire, idle = account.host, account.wire, account.idle
    behind = f", host {host:.1%}" if host >= LEAST_SHARE else ""
    compute = account.compute if behind else account.compute + host
    parts, slowed = bar(compute, host, wire, marks=FULL + HOST + PART), ""
    if account.slowed >= LEAST_SHARE:
        compute, slowed = compute - account.slowed, f", slowed by overlap {account.slowed:.1%}"
    return f"{parts} compute {compute:.1%}{slowed}{behind}, bubble: wire {wire:.1%}, idle {idle:.1%}"


def _quantities(result: Result) -> Iterator[Line]:
    """Yield quantities beside speed and memory."""
    expected, whose = result.expected, "by all GPUs together"
    if result.task == "train":
        yield "first", f"{milliseconds(expected.first_s)} the first iteration alone"
    else:
        whose = f"per {sample_words(result)[0]} {whose}"
        yield "step", f"{milliseconds(result.step_s)}, once steady"
    waiting = f"waiting for data on the wire {milliseconds(expected.exposed_communication_s)}"
    yield "collectives", f"{milliseconds(expected.collective_s)}; {waiting}"
    sent = f"{result.p2p_bytes / GB:,.2f} GB point to point"
    yield "sent", f"{sent}, {result.collective_bytes / GB:,.2f} GB in collectives, {whose}"


def command_of(result: Result, command: str = "run", runtime: str = "") -> str:
    """Return the command line that gives a result again, or launches it, without most flags at their defaults."""
    usual = () if result.source is None else _usual(result.source, runtime)
    flags = [
        (flag_of(key), str(flag_value(value)))
        for key, value in result.flags.items()
        if value not in (None, "") and key not in usual
    ]
    flags += [("--runtime", runtime)] if runtime else []
    return shlex.join(["sim", command, *(word for pair in flags for word in pair)])


def _usual(source: Source, runtime: str) -> set[str]:
    """Return the flags that are at their defaults; ``--steps`` counts as none, since it says what is asked."""
    strategy: Any = source.strategy
    scenario, usual = source.scenario, set[str]()
    for item in fields(strategy):
        same_as = getattr(strategy, str(item.metadata.get("same_as")), None)
        usual |= {item.name} if getattr(strategy, item.name) in (item.default, same_as) else set()
    where = scenario.model_name, scenario.cluster_name, scenario.workload.num_gpus
    with suppress(InputError, InfeasibleError), warnings.catch_warnings():  # as of a model that no file holds
        warnings.simplefilter("ignore")
        plain = scenario_of(request_of(*where, {}, strategies=(strategy.name,), runtime=runtime or None))
        same = setting(plain).items() & setting(scenario).items()
        usual |= dict(same).keys() - {"model", "cluster", "gpus", "steps"}
    return usual


def _stage_table(result: Result) -> Table:
    """Return the stages as a table; neighbours that differ in nothing but their layers share a row."""
    task, rows = TASKS[result.task], list[tuple[str, ...]]()
    for (devices, count, *cells), group in groupby(enumerate(result.stages), partial(_stage_look, task)):
        (number, stage), *others = group
        last, end = others[-1] if others else (number, stage)
        layers = f"{stage['first_layer']}-{end['last_layer']}" if count != "0" else "none"
        each, to = (f", each {count}", f" to {last}") if others else ("", "")
        rows.append((f"{number}{to}", devices, f"{layers}{each}", *cells))
    columns = [Column("stage"), Column("devices", 1, widest=30), Column("layers"), *map(Column, task.passes)]
    return Table(f"stages, per {task.passed}", [*columns, Column("parameters", 2)], rows)


def _stage_look(task: Task, item: tuple[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the devices of a numbered stage, how many layers it has, and its other columns."""
    stage, devices = item[1], list(item[1]["devices"])
    words = ",".join(map(str, devices))
    if len(devices) > 2 and devices == list(range(devices[0], devices[-1] + 1)):
        words = f"{devices[0]}-{devices[-1]}"
    count = stage["last_layer"] - stage["first_layer"] + 1
    times = (milliseconds(stage[f"{name}_s"]) for name in task.passes)
    return words, str(count), *times, f"{stage['parameters'] / 1e6:,.1f} M"
