"""Contents: what a report says and draws, as plain values; ``page.js`` draws them."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Final

from profiles.errors import InfeasibleError
from profiles.units import GIB
from sim.asking.arguments import speak_of_parameters
from sim.explore.points import Point
from sim.explore.scaling import Scaling
from sim.explore.space import pareto_front
from sim.explore.sweep import Sweep
from sim.explore.ways_out import why_none
from sim.outcomes.contents import inputs_of
from sim.outcomes.results import Result
from sim.report.descriptions import LETTERS, Tried, held_fixed, tried, varied
from sim.report.html.document import write_document
from sim.report.html.replayed import memory_of, timeline_of
from sim.report.panels import Line
from sim.report.plots.looks import BAND, FADED, GPUS, MARKERS, RECOMMENDED, label_of, strategy_look
from sim.report.reasons import Account
from sim.report.scalings import unit_of, verdict_at_knee
from sim.report.tables import account_in, command_of, lines_of, measured_words
from sim.report.verdicts import with_note
from strategies.strategy import AnyScenario

SYMBOLS: Final = dict(
    zip(
        MARKERS,
        (
            "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-left", "x",
            "triangle-right", "star", "pentagon", "hexagon", "diamond-tall",
        ),
        strict=True,
    )
)  # fmt: skip
"""Plotly's names of the markers of strategies."""
DIGITS: Final = 8
"""Significant digits of what is drawn of a point: more than are shown, which are rounded once, as in text."""
NOTHING: Final = "none: no point that is recommended fits"
WHISKERS: Final = 60
"""Points whose bands are drawn: more would hide the points."""


def write_sweep_report(sweeps: Sequence[Sweep], path: Path, asked: str = "", note: str = "") -> None:
    """Write the report of a sweep, or of sweeps over several numbers of GPUs.

    Raises:
        InfeasibleError: nothing that was asked fits, so that there is nothing to draw.
    """
    if not any(point.status == "simulated" for sweep in sweeps for point in sweep.points):
        reason = f"{path} is not written, there is nothing to draw: {why_none(sweeps[-1])}"
        raise speak_of_parameters(InfeasibleError(reason))
    write_document(path, sweep_contents(sweeps, asked, note))


def write_run_report(result: Result, path: Path, asked: str = "") -> None:
    """Write the report of a run."""
    write_document(path, _run_contents(result, asked))


def _run_contents(result: Result, asked: str = "") -> dict[str, Any]:
    """The values of a run's report.

    Raises:
        InputError: the result came without its traces.
    """
    trace = result.trace
    assert result.source is not None
    again = asked or command_of(result)
    return {
        "kind": "run",
        "title": result.title,
        "lines": lines_of(result, account := account_in(result)),
        "bars": _bars(result, account),
        "again": again,
        "timeline": timeline_of(trace),
        "memory": memory_of(trace),
        "provenance": provenance(result.source.scenario),
    }


def sweep_contents(sweeps: Sequence[Sweep], asked: str = "", note: str = "") -> dict[str, Any]:
    """The values of a sweep's report; of several, the answer is that of the knee.

    Args:
        sweeps: one, or one for each number of GPUs, ascending.
        asked: the command line that gives the report again.
        note: what the answer also says.
    """
    scaling = Scaling(tuple(sweeps))
    chosen, several = scaling.chosen, len(sweeps) > 1
    verdict = with_note(verdict_at_knee(scaling), note)
    values: dict[str, Any] = {
        "kind": "sweep",
        "title": chosen.title if verdict is None else verdict.title,
        "lines": [("best", NOTHING)] if verdict is None else [*verdict.lines, ("again", verdict.again)],
        "bars": {} if verdict is None else _bars(verdict.best, verdict.account),
        "again": asked,
        "points": _points_of(sweeps, chosen),
        "scaling": _scaling(scaling) if several else None,
        "provenance": [
            *_held(chosen, None if verdict is None else verdict.best),
            *provenance(chosen.scenario),
        ],
    }
    best = chosen.best_point()
    if best is not None:
        trace = chosen.result_of(best).trace
        values |= {"timeline": timeline_of(trace), "memory": memory_of(trace)}
    return values


def _bars(result: Result, account: Account) -> dict[str, list[float]]:
    """Shares that are drawn as bars, by the word of their line."""
    there = result.memory_bytes
    memory = {} if there is None else {"memory": [result.expected.peak_memory_bytes / there]}
    return {"time": [account.compute, account.host, account.wire], **memory}


def _held(sweep: Sweep, best: Result | None) -> list[Line]:
    return [] if best is None else [("held fixed", held_fixed(sweep.points, best))]


def _points_of(sweeps: Iterable[Sweep], chosen: Sweep) -> dict[str, Any]:
    """The points with a result, or a bound, column by column; positions of the front and of the best among them."""
    sweeps = list(sweeps)
    ranked = [point for sweep in sweeps for point in sweep.ranked() if point.reached and point.reason is None]
    sampled, values = sweeps[0].scenario.task == "sample", tried(p for sweep in sweeps for p in sweep.points)
    names = list(dict.fromkeys(point.name for point in ranked))
    scenarios = {id(point): sweep.scenario for sweep in sweeps for point in sweep.points}
    columns = [_columns(point, names, scenarios[id(point)], values) for point in ranked]
    simulated = [i for i, point in enumerate(ranked) if point.result is not None]
    places = {id(point): i for i, point in enumerate(ranked)}
    best = chosen.best_point()
    front = _front(ranked, simulated)
    ring = f"{RECOMMENDED}, at the knee" if Scaling(tuple(sweeps)).choice else RECOMMENDED
    return {
        "task": sweeps[0].scenario.task,
        "unit": unit_of(Scaling(tuple(sweeps))),
        "strategies": [_look(name, ranked) for name in names],
        "legend": {"band": BAND, "gpus": GPUS, "recommended": ring, "faded": FADED},
        "columns": {key: [column[key] for column in columns] for key in (columns[0] if columns else {})},
        "shown": _shown(columns, sampled),
        "front": front,
        "whiskers": sorted({*front, *_leaders(ranked)})[:WHISKERS],
        "best": None if best is None else places[id(best)],
        "ties": [places[id(point)] for point in chosen.ties()],
        "capacity": _capacity(chosen.scenario),
        "infeasible": sum(point.reason is not None for sweep in sweeps for point in sweep.points),
    }


def _capacity(scenario: AnyScenario) -> float | None:
    there = scenario.cluster.device.memory_bytes
    return None if there is None else there / GIB


def _look(name: str, ranked: Sequence[Point]) -> dict[str, Any]:
    """Name, colour and symbol of a strategy, and what the legend calls it; pale where it is not recommended."""
    colour, marker = strategy_look(name)
    seams = any(point.name == name and not point.recommended for point in ranked)
    return {
        "name": name,
        "label": label_of(name, seams=seams),
        "colour": colour,
        "symbol": SYMBOLS[marker],
        "pale": seams,
    }


def _columns(point: Point, names: Sequence[str], scenario: AnyScenario, values: Tried) -> dict[str, Any]:
    """What is drawn of a point; of one that is only bounded, what it cannot undercut."""
    parameters, result, workload = point.parameters, point.result, scenario.workload
    samples = workload.batch_size * len(scenario.model.backbones)
    found = {
        "strategy": names.index(point.name),
        "gpus": point.num_gpus or workload.num_gpus,
        **{letter: parameters.get(key) or 1 for key, letter in LETTERS.items()},
        "patches": parameters.get("patches") or 1,
        "simulated": int(result is not None),
        "recommended": int(point.recommended),
        "time": _digits(point.bound_s),
        "low": None,
        "high": None,
        "speed": _digits(samples / point.bound_s) if point.bound_s else 0.0,
        "memory": _digits(point.least_memory_bytes / GIB),
        "bubble": None,
        "how": varied(point.name, parameters, values),
    }
    if result is not None:
        found |= {
            "time": _digits(result.expected.duration_s),
            "low": _digits(result.low_s),
            "high": _digits(result.high_s),
            "speed": _digits(result.samples_per_s),
            "memory": _digits(result.expected.peak_memory_bytes / GIB),
            "bubble": _digits(100 * result.bubble_ratio),
        }
    return found


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _shown(columns: Sequence[dict[str, Any]], sampled: bool) -> list[str]:
    """Columns that axes are drawn for: those in which points differ, in the order of a question."""
    keys = ["strategy", "gpus", "P", *(["patches"] if sampled else ["M", "D"]), "time", "memory", "bubble"]
    kept = ("strategy", "time", "memory", "bubble")
    return [key for key in keys if key in kept or len({column[key] for column in columns}) > 1]


def _front(ranked: Sequence[Point], simulated: Sequence[int]) -> list[int]:
    """Places of the points that no other recommended one beats in both throughput and memory."""
    found: list[dict[str, Any]] = []
    for i in simulated:
        result = ranked[i].result
        if result is not None and ranked[i].recommended and result.fits_memory:
            speed, memory = result.samples_per_s, result.expected.peak_memory_bytes
            found.append({"place": i, "peak_memory_bytes": memory, "samples_per_s": speed})
    return [item["place"] for item in pareto_front(found)]


def _leaders(ranked: Sequence[Point]) -> Iterable[int]:
    """The best of each strategy."""
    first: dict[str, int] = {}
    for i, point in enumerate(ranked):
        if point.result is not None:
            first.setdefault(point.name, i)
    return first.values()


def _scaling(scaling: Scaling) -> dict[str, Any]:
    steps, knee = scaling.steps, scaling.knee
    return {
        "gpus": [step.gpus for step in steps],
        "speed": [step.samples_per_s for step in steps],
        "low": [step.samples_per_s * step.result.expected.duration_s / step.result.high_s for step in steps],
        "high": [step.samples_per_s * step.result.expected.duration_s / step.result.low_s for step in steps],
        "efficiency": [100 * step.efficiency for step in steps],
        "strategy": [step.result.strategy for step in steps],
        "knee": None if knee is None else knee.gpus,
        "unit": unit_of(scaling),
    }


def provenance(scenario: AnyScenario) -> list[Line]:
    """Where the answer is from: model, cluster, device and stack with their sources, and the versions."""
    cluster, stack = scenario.cluster, scenario.stack
    return [
        ("model", f"{scenario.model.title} ({scenario.model_name}). {scenario.model.source}"),
        ("cluster", f"{scenario.cluster_name}. {cluster.source}"),
        ("device", f"{cluster.device.name}. {cluster.device.source}"),
        ("stack", f"{scenario.stack_name}: {stack.summary}. {stack.source}"),
        ("layer times", scenario.costs.provenance),
        *([("measured", measured_words(scenario))] if scenario.measured is not None else []),
        ("content", ", ".join(f"{name} {key}" for name, key in inputs_of(scenario).items())),
        ("diffusim", f"{version('diffusim')}, Python {python_version()}"),
    ]
