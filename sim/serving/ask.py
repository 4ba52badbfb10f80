"""Questions about serving made from arguments: policies, classes of requests, numbers of GPUs, and sites."""

from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError, counted, shown, wrong
from profiles.names import known_name, unknown_name
from sim.inputs.scenarios import check_size
from sim.serving.inputs import prices_of, read_mix, read_trace, slo_of
from sim.serving.load import Kind, Trace
from sim.serving.options import ServingOptions
from sim.serving.serve import Question
from sim.serving.service import Asked, Site, at_shape, frames_of, read_service, simulated
from strategies.policy import ElasticPolicy, Policy, Shape
from strategies.registry import policies
from strategies.sampling_scenario import SamplingScenario

MOST_GPUS: Final = 4096
"""GPUs of a fleet; as many are simulated in seconds."""


def ask(
    asked: Sequence[Asked],
    options: ServingOptions,
    given: Any,  # noqa: ANN401
    gpus: int | str | Iterable[int] | None,
) -> tuple[str, list[Question]]:
    """Return a question about serving in words, and for each cluster.

    Args:
        asked: a scenario for each cluster; none where service times are from a table.
        options: what is asked.
        given: policies: names with commas, classes or policies.
        gpus: of the fleet; of several, the fewest that hold the SLO.

    Raises:
        InputError: a value breaks its rule.
        InfeasibleError: no plan fits.
    """
    several = given if isinstance(given, list | tuple) else (given,)
    chosen = list(dict.fromkeys(policy for item in several for policy in _policies(item)))
    counts = _counts(gpus, [of.scenario for of in asked], options)
    fleet = counted(counts[0], "GPU") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} GPUs"
    elastic = any(isinstance(policy, ElasticPolicy) for policy in chosen)
    if elastic and options.dispatch != "shared":
        raise wrong("dispatch", f"is {options.dispatch}, but an elastic policy has one queue for all GPUs")
    if options.max_batch is not None and not any(policy.batches for policy in chosen):
        words = ", ".join(policy.name for policy in chosen)
        raise wrong("max_batch", f"is {options.max_batch}, but `policy` {words} forms no batches")
    sites: list[Site]
    if asked:
        scenario = asked[0].scenario
        of = scenario.workload
        usual = Shape(of.height, of.width, frames_of(scenario), of.steps, of.guidance)
        kinds, trace = _kinds(options, usual)
        _check_shapes(kinds, scenario)
        heaviest = max(kinds, key=lambda kind: kind.share * prod(kind.shape[:4])).shape
        degrees = [_degrees(of.scenario, options, max(counts), elastic) for of in asked]
        sites = [
            simulated(of, heaviest, sizes, staged=bool(options.stages))
            for of, sizes in zip(asked, degrees, strict=True)
        ]
        title = scenario.model.title
        fleet += f" of {', '.join(of.name for of in sites)}, stack {scenario.stack.name}"
    else:
        if options.stages:
            raise wrong("pools", "needs seconds of each stage, which the table of `service` does not have")
        table = read_service(Path(str(options.service)))
        sites, title = [table], table.source
        kinds, trace = _kinds(options, next(iter(table.rows))[1])
    prices = prices_of(options.price, [site.name for site in sites])
    for site in sites:
        site.price = prices[site.name]
    known = {of.shape: sites[0].fewest_gpus_s(of.shape) for of in kinds if of.times_alone}
    kinds = tuple(replace(of, slo_s=of.slo_s * known[of.shape]) if of.times_alone else of for of in kinds)
    return f"{title}, serving on {fleet}", [
        Question(site, options, chosen, kinds, trace, counts) for site in sites
    ]


def _check_shapes(kinds: Sequence[Kind], scenario: SamplingScenario) -> None:
    """Refuse shapes that a model cannot have."""
    for shape, where in {kind.shape: kind.where for kind in reversed(kinds)}.items():
        try:
            check_size(scenario.model, shape.width, shape.height)
            at_shape(scenario, shape, 1, 1)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def _policies(given: Any) -> list[Policy]:  # noqa: ANN401
    """Return the policies that an argument names, or is."""
    if not isinstance(given, str):
        made = given() if isinstance(given, type) else given
        if not isinstance(made, Policy) or not is_dataclass(made):
            raise InputError(f"`policy` is {shown(given)}, must be a name or a policy: a dataclass")
        return [made]
    found: list[Policy] = []
    for name in (part.strip() for part in given.split(",")):
        known = known_name("policy", name, policies())
        if known is None:
            raise unknown_name("policy", name, policies())
        found.append(policies()[known]())
    return found


def _kinds(options: ServingOptions, usual: Shape) -> tuple[Sequence[Kind], Trace | None]:
    """Return the classes of requests, and the trace where one is given."""
    if options.requests is not None:
        return read_trace(Path(options.requests), options.slo)
    if options.mix is not None:
        return read_mix(options.mix, usual, options.slo), None
    return [Kind(1.0, usual, *slo_of(options.slo))], None


def _counts(
    gpus: int | str | Iterable[int] | None, scenarios: Sequence[SamplingScenario], options: ServingOptions
) -> Sequence[int]:
    """Return the numbers of GPUs of the fleet: every one of a span; without any the largest plan's, or a node's."""
    if gpus is None:
        node = min((of.cluster.devices_per_node for of in scenarios), default=1)
        return (max(_taken(options).values(), default=node),)
    counts: Sequence[int]
    if isinstance(gpus, str):
        low, dash, high = gpus.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise wrong("gpus", f"is {shown(gpus)}, must be a number, or 1-64")
        if high and int(high) < int(low):
            raise wrong("gpus", f"is {shown(gpus)}, must go from the lower to the higher")
        counts = range(int(low), int(high or low) + 1)
    else:
        counts = tuple(gpus) if isinstance(gpus, Iterable) else (gpus,)
    if not counts or not all(isinstance(of, int) and 1 <= of <= MOST_GPUS for of in counts):
        raise wrong("gpus", f"is {shown(gpus)}, must be from 1 to {MOST_GPUS}")
    for plan, taken in _taken(options).items():
        if taken > max(counts) or (options.stages and taken not in counts):
            raise wrong("gpus", f"is {max(counts)}, but {plan} takes {taken}")
    return sorted(set(counts))


def _taken(options: ServingOptions) -> dict[str, int]:
    """Return the GPUs that each plan takes that is asked for."""
    if options.pools is not None:
        return {"`pools`": sum(options.stages.values())}
    texts = (options.replicas or "").split(",")
    return {text: sum(sizes) for text, sizes in zip(texts, options.divisions, strict=False)}


def _degrees(scenario: SamplingScenario, options: ServingOptions, most: int, elastic: bool) -> list[int]:
    """Return the numbers of GPUs that a replica may have: powers of two of a node, or those asked for."""
    most = min(most, scenario.cluster.devices_per_node)
    every = {2**k for k in range(most.bit_length())}
    given = {size for sizes in options.divisions for size in sizes}
    if odd := [of for of in sorted(given) if of.bit_count() > 1]:
        raise wrong("replicas", f"has replicas of {odd[0]} GPUs, must be a power of two")
    given |= {1} if options.stages else set()
    return sorted(given | every if elastic or not given else given)
