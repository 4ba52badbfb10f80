"""Inputs of serving: questions made from arguments; traces, mixes, SLOs and prices read from files and words."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from math import inf, prod
from pathlib import Path
from typing import Any, Final

import profiles
from profiles.architectures.models import Model
from profiles.costs.resolutions import named_size, sides_of
from profiles.errors import DiffusimNote, DiffusimWarning, InputError, counted, shown, warn_caller, wrong
from profiles.files import Table, read_rows
from profiles.names import known_name, unknown_name
from sim.explore.balance import read_mixture
from sim.inputs.scenarios import check_size
from sim.serving.options import Kind, ServingOptions, Trace, positive
from sim.serving.serve import Question
from sim.serving.service import Simulated, Site, at_shape, frames_of, read_service
from strategies.policy import ElasticPolicy, Policy, Shape
from strategies.registry import policies
from strategies.sampling_scenario import SamplingScenario

MOST_GPUS: Final = 4096
"""GPUs of a fleet; as many are simulated in seconds."""
TRAFFIC: Final = Path(profiles.__file__).parent / "traffic"
"""Mixes that are shipped."""
NEEDED: Final = ("arrival_s", "height", "width", "frames", "steps")
OPTIONAL: Final = ("guidance", "deadline_s", "latency_s")
"""Columns of a trace; a deadline is in seconds after the arrival."""


def ask(
    simulated: Sequence[Simulated],
    options: ServingOptions,
    given: Any,  # noqa: ANN401
    gpus: int | str | Iterable[int] | None,
) -> tuple[str, list[Question]]:
    """Return a question about serving in words, and for each site.

    Without simulated sites service times are from a table; ``given`` are policies: names with commas, classes or
    policies. Of several numbers of ``gpus``, the fewest that hold the SLO are meant.
    """
    several = given if isinstance(given, list | tuple) else (given,)
    chosen = list(dict.fromkeys(policy for item in several for policy in _policies(item)))
    if not chosen:
        raise InputError("`policy` names none")
    counts = _counts(gpus, min((site.per_node for site in simulated), default=1), options)
    fleet = counted(counts[0], "GPU") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} GPUs"
    _check_policies(options, chosen)
    sites: Sequence[Site] = simulated
    if simulated:
        scenario, workload = simulated[0].scenario, simulated[0].scenario.workload
        usual = Shape(workload.height, workload.width, frames_of(scenario), workload.steps, workload.guidance)
        kinds, trace = _kinds(options, usual, scenario.model)
        scene = _check_shapes(kinds, scenario)
        heaviest = max(kinds, key=lambda kind: kind.share * prod(kind.shape[:4])).shape
        shapes = {kind.shape for kind in kinds}
        largest = max(shapes, key=lambda shape: prod(shape[:3]))
        elastic = any(isinstance(policy, ElasticPolicy) for policy in chosen)
        for one in simulated:
            degrees = _degrees(min(max(counts), one.per_node), options, elastic)
            one.choose_samplers(heaviest, largest, degrees, staged=bool(options.stages))
        drawn = [f"{scene.asked['resolution']} pixels", counted(heaviest.steps, "step"), *scene.departures]
        if len(shapes) > 1:
            drawn = [f"requests of {len(shapes)} shapes", *scene.departures[len(scene.frames) :]]
        title, names = scenario.model.title, ", ".join(site.name for site in sites)
        fleet = ", ".join([f"{fleet} of {names}, stack {scenario.stack.name}", *drawn])
    else:
        if options.stages:
            raise wrong("pools", "needs seconds of each stage, which the table of `service` does not have")
        table = read_service(Path(str(options.service)))
        sites, title = [table], table.source
        kinds, trace = _kinds(options, next(iter(table.rows))[1], None)
    prices = prices_of(options.price, [site.name for site in sites])
    for site in sites:
        site.price = prices[site.name]
    alone = sites[0].alone_s
    every = tuple(
        replace(kind, slo_s=kind.slo_s * alone(kind.shape)) if kind.times_alone else kind for kind in kinds
    )
    questions = [Question(site, options, chosen, every, trace, counts) for site in sites]
    return f"{title}, serving on {fleet}", questions


def _check_shapes(kinds: Sequence[Kind], scenario: SamplingScenario) -> SamplingScenario:
    """Refuse shapes that a model cannot draw; return the scenario of the last."""
    scene = scenario
    for shape, where in {kind.shape: kind.where for kind in reversed(kinds)}.items():
        try:
            check_size(scenario.model, shape.width, shape.height)
            scene = at_shape(scenario, shape, 1, 1)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    return scene


def _policies(given: Any) -> list[Policy]:  # noqa: ANN401
    """Return the policies that an argument names, or is."""
    if not isinstance(given, str):
        made = given() if isinstance(given, type) else given
        if not isinstance(made, Policy) or not is_dataclass(made):
            raise InputError(f"`policy` is {shown(given)}, must be a name or a policy: a dataclass")
        return [made]
    chosen: list[Policy] = []
    for name in map(str.strip, given.split(",")):
        known = known_name("policy", name, policies())
        if known is None:
            raise unknown_name("policy", name, policies())
        chosen.append(policies()[known]())
    return chosen


def _check_policies(options: ServingOptions, chosen: Sequence[Policy]) -> None:
    """Refuse options that mean nothing under the policies."""
    elastic = [isinstance(policy, ElasticPolicy) for policy in chosen]
    words = ", ".join(policy.name for policy in chosen)
    if any(elastic) and options.dispatch != "shared":
        raise wrong("dispatch", f"is {options.dispatch}, but an elastic policy has one queue for all GPUs")
    for name in ("max_batch", "batch_wait"):
        if (value := getattr(options, name)) and not any(policy.batches for policy in chosen):
            raise wrong(name, f"is {value:g}, but `policy` {words} forms no batches")
    if options.replicas is not None and all(elastic):
        raise wrong("replicas", f"is {shown(options.replicas)}, but `policy` {words} divides the GPUs itself")


def _kinds(options: ServingOptions, usual: Shape, model: Model | None) -> tuple[list[Kind], Trace | None]:
    """Return the classes of requests, and the trace where one is given."""
    trace, whose = None, ""
    if options.requests is not None:
        (kinds, trace), whose = read_trace(Path(options.requests), options.slo), "request has a deadline_s"
    elif options.mix is not None:
        read = partial(_kind_of, usual, options.slo, model)
        kinds, whose = read_mixture(options.mix, TRAFFIC, "class", read), "class has an slo"
    else:
        kinds = [Kind(1.0, usual, *slo_of(options.slo))]
    if options.slo is not None and slo_of(options.slo) not in {
        (kind.slo_s, kind.times_alone) for kind in kinds
    }:
        warn_caller(f"`slo` is given, but every {whose} of its own", DiffusimWarning)
    return kinds, trace


def _counts(gpus: int | str | Iterable[int] | None, node: int, options: ServingOptions) -> Sequence[int]:
    """Return the numbers of GPUs of the fleet: every one of a span; without any the largest plan's, or a node's."""
    taken = dict(zip((options.replicas or "").split(","), map(sum, options.divisions), strict=False))
    if options.stages:
        taken = {"`pools`": sum(options.stages.values())}
    if gpus is None:
        gpus = max(taken.values(), default=node)
    if isinstance(gpus, Iterable) and not isinstance(gpus, str):
        counts: Sequence[int] = tuple(gpus)
    else:
        span = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", str(gpus), re.ASCII)
        counts = range(int(span[1]), int(span[2] or span[1]) + 1) if span else ()
    if not counts or not all(isinstance(count, int) and 1 <= count <= MOST_GPUS for count in counts):
        raise wrong("gpus", f"is {shown(gpus)}, must be from 1 to {MOST_GPUS}, or a span such as 1-64")
    for plan, number in taken.items():
        if number > max(counts) or (options.stages and number not in counts):
            raise wrong("gpus", f"is {max(counts)}, but {plan} takes {number}")
    return sorted(set(counts))


def _degrees(most: int, options: ServingOptions, elastic: bool) -> list[int]:
    """Return the numbers of GPUs that a replica may have: powers of two up to the most, or those asked for."""
    every = {2**k for k in range(most.bit_length())}
    given = {size for sizes in options.divisions for size in sizes}
    if odd := [size for size in sorted(given) if size.bit_count() > 1]:
        raise wrong("replicas", f"has replicas of {odd[0]} GPUs, must be a power of two")
    given |= {1} if options.stages else set()
    return sorted(given | every if elastic or not given else given)


def slo_of(value: float | str | None) -> tuple[float, bool]:
    """Return the number of an SLO, and whether it counts times alone in place of seconds; infinite without one."""
    times = isinstance(value, str) and value.endswith("x")
    return (inf if value is None else positive("slo", str(value)[:-1] or value if times else value)), times


def _kind_of(usual: Shape, slo: float | str | None, model: Model | None, table: Table) -> Kind:
    """Return a class of a mix; what it does not say is as usual."""
    size, wanted = table.values().get("resolution"), table.values().get("slo", slo)
    for key, value in (("resolution", size), ("slo", wanted)):
        _ = table.text(key, "-") if isinstance(value, str) else table.positive(key, 1.0)
    frames, steps = (table.integer(key, getattr(usual, key), minimum=1) for key in ("frames", "steps"))
    guidance = table.text("guidance", usual.guidance or "-")
    asked = (usual.width, usual.height) if size is None else str(size)
    height, width = sides_of(asked if model is None else named_size(model, asked))
    shape = Shape(height, width, frames, steps, guidance)
    return Kind(table.positive("share"), shape, *slo_of(wanted), table.where, "steps" in table.values())


def read_trace(path: Path, slo: float | str | None) -> tuple[list[Kind], Trace]:
    """Return the classes of a trace and its requests; a deadline goes before the SLO."""
    usual, first = slo_of(slo), dict[tuple[Shape, float, bool], tuple[int, str]]()
    order: list[int] = []
    arrivals, latencies = list[float](), list[float]()
    for row in read_rows(path, NEEDED, OPTIONAL):
        cells, arrival_s = row.values(), row.number("arrival_s")
        if arrivals and arrival_s < arrivals[-1]:
            raise row.fail("arrival_s", f"must not be before the {arrivals[-1]:g} above it")
        arrivals.append(arrival_s)
        height, width, frames, steps = (row.integer(name, minimum=1) for name in NEEDED[1:])
        shape = Shape(height, width, frames, steps, cells.get("guidance") or "")
        wanted = (row.positive("deadline_s"), False) if cells.get("deadline_s") else usual
        order.append(first.setdefault((shape, *wanted), (len(first), row.where))[0])
        if cells.get("latency_s"):
            latencies.append(row.positive("latency_s"))
    if len(order) < 2:
        raise InputError(f"{path}: must have at least 2 requests")
    if latencies and len(latencies) != len(order):
        raise InputError(f"{path}: latency_s: must be given for every request or for none")
    counts = Counter(order)
    kinds = [Kind(counts[number] / len(order), *kind, where, True) for kind, (number, where) in first.items()]
    since_first_s = tuple(arrival_s - arrivals[0] for arrival_s in arrivals)
    return kinds, Trace(since_first_s, tuple(order), tuple(latencies))


def prices_of(value: float | str | None, clusters: Sequence[str]) -> dict[str, float | None]:
    """Return dollars a GPU-hour by cluster: a number for all, or of a TOML file."""
    if isinstance(value, str) and value.endswith(".toml"):
        if clusters == [""]:
            raise wrong(
                "price", f"is {shown(value)}, but the times of `service` are of no cluster: give a number"
            )
        return {name: Table.read(Path(value)).positive(name) for name in clusters}
    one = None if value is None else positive("price", value, ", or a .toml file of prices by cluster")
    if one is not None and len(clusters) > 1:
        warn_caller(f"`price` {one:g} is of every cluster; a .toml file has one of each", DiffusimNote)
    return dict.fromkeys(clusters, one)
