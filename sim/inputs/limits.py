"""Limits: what is refused before any work, as it cannot exist, or would take longer than anybody waits."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice
from math import inf
from typing import Any, Final

from profiles.architectures.models import Model
from profiles.costs.resolutions import in_words
from profiles.errors import DiffusimWarning, InfeasibleError, InputError, flag_value, warn_caller, wrong
from sim.outcomes.runs import bound
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy

MOST: Final = 60
"""Candidates that are looked at."""


def check_exists(strategy: AnyStrategy, scenario: AnyScenario, held: Mapping[str, Any]) -> None:
    """Refuse a point that does not exist, and name parameters that would do beside those that are held."""
    try:
        bound(strategy, scenario)
    except InfeasibleError as error:
        flags: list[str] = []
        with suppress(InfeasibleError):
            offered: Any = type(strategy).candidates(scenario)  # type: ignore[arg-type]  # of its own task
            kept = (one for one in offered if all(getattr(one, key) == held[key] for key in held))
            best = min(islice(kept, MOST), key=lambda one: _bound_s(one, scenario), default=None)
            if best is not None and _bound_s(best, scenario) < inf:
                flags = list(_needed(best, scenario, held))
        if not flags:
            raise
        raise InfeasibleError(f"{error.message}; {' '.join(flags)} would do", error.kind) from None


def _bound_s(strategy: AnyStrategy, scenario: AnyScenario) -> float:
    """Return the seconds that a point cannot undercut; infinite where it does not exist."""
    try:
        return bound(strategy, scenario)
    except InfeasibleError:
        return inf


def _needed(strategy: Any, scenario: AnyScenario, held: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401
    """Yield the flags of a point but for those without which it exists, too."""
    for item in fields(strategy):
        value = getattr(strategy, item.name)
        if item.name in held or value == item.default:
            continue
        plain = replace(strategy, **{item.name: item.default})
        if _bound_s(plain, scenario) < inf:
            strategy = plain
        else:
            yield f"`{item.name}` {flag_value(value)}"


MAX_SIMULATED: Final = 2**17
"""Forwards and backwards of one simulated iteration; as many take 4 s and 350 MB."""
MAX_ORDERED: Final = 2**19
"""Forwards and backwards of an order that depends on no model; as many take 5 s."""
MAX_LISTED: Final = 2**14
"""Forwards and backwards of an order in waves that depends on no model; list scheduling takes 6 s for as many."""
MAX_SWEPT_GPUS: Final = 2**15
"""GPUs of a sweep; every degree that divides them is looked at."""
MAX_SWEPT_LAYERS: Final = 256
"""Layers of a backbone of a sweep, which is cut in every way; the largest that is shipped has 80."""
MAX_SWEPT_SAMPLES: Final = 1024
"""Samples per GPU of a training sweep; every number of micro-batches that divides them is looked at."""
MOST_PIXELS: Final = 256
"""Pixels over those of a model's reference; its tables say nothing of 16 times its sides."""
HELD_PIXELS: Final = 64
"""The most pixels over those of the reference that published numbers reach: PipeFusion's of PixArt at 8,192."""


def check_pixels(model: Model, width: int, height: int) -> None:
    """Refuse, or warn of, resolutions that are far from what a model's tables were counted at."""
    resolution, times = in_words(height, width), width * height / (model.width * model.height)
    reference = f"{times:,.0f} times the pixels of the {in_words(model.height, model.width)} of {model.name}"
    if times > MOST_PIXELS:
        raise wrong("resolution", f"is {resolution}, {reference}, must be at most {MOST_PIXELS} times those")
    if times > HELD_PIXELS:
        held = f"published numbers were held against estimates up to {HELD_PIXELS} times"
        words = f"{held}: the band is of those, and says nothing of this"
        warn_caller(f"resolution {resolution} is {reference}; {words}", DiffusimWarning)


def check_swept(scenario: AnyScenario) -> None:
    """Refuse more GPUs or layers than can be swept over in seconds, and GPUs that no point can use."""
    gpus = scenario.workload.num_gpus
    if gpus > MAX_SWEPT_GPUS:
        rule = f"must be at most {MAX_SWEPT_GPUS} where degrees are looked for"
        raise wrong("gpus", f"is {gpus}, {rule}; run takes more")
    for backbone in (scenario.model.components[index] for index in scenario.model.backbones):
        if (layers := len(backbone.layers)) > MAX_SWEPT_LAYERS:
            rule = f"must have at most {MAX_SWEPT_LAYERS} where strategies are looked for; run takes more"
            raise InputError(f"{scenario.model_name}: {backbone.name} has {layers} layers, {rule}")
    if scenario.task == "train" and scenario.workload.batch_size > MAX_SWEPT_SAMPLES * gpus:
        rule = f"must be at most {MAX_SWEPT_SAMPLES} for each of `gpus({gpus})` where micro-batches are looked for"
        raise InputError(f"`batch_size` is {scenario.workload.batch_size}, {rule}; run takes more")
    each = scenario.cluster.devices_per_node
    if scenario.task == "train" and len(scenario.model.backbones) == 1 and gpus > each and gpus % each:
        below = gpus // each * each
        fewest, most = gpus // each + 1, scenario.cluster.max_nodes
        spread = [f"`nodes` {n}x{gpus // n}" for n in range(fewest, most + 1) if gpus % n == 0][:1]
        forms = " or ".join([f"{below}, {below + each}", *spread])
        rule = f"must be a multiple of the {each} of a node, such as {forms}"
        raise InputError(f"`gpus` is {gpus}, {rule}: no point can use a part of one beside whole ones")


def check_passes(strategy: AnyStrategy, scenario: AnyScenario | None = None) -> None:
    """Refuse an order of more forwards and backwards than can be carried out in seconds.

    Args:
        strategy: with its parameters.
        scenario: what it is to run; None where the order depends on no model, and nothing is simulated.
    """
    degree = getattr(strategy, "pipeline_degree", None) or 1
    micro_batches = getattr(strategy, "micro_batches", None) or 1
    stages = degree * getattr(strategy, "chunks", 1)
    if hasattr(strategy, "waves"):  # each goes down the positions and up again
        stages *= 2 * strategy.waves
    passes = 2 * stages * micro_batches
    words = f"2 * stages({stages}) * `micro_batches({micro_batches})` = {passes} forwards and backwards"
    most = MAX_SIMULATED
    if scenario is None:
        most = MAX_LISTED if hasattr(strategy, "waves") else MAX_ORDERED
    elif isinstance(scenario, Scenario) and not hasattr(strategy, "pipeline_degree"):
        frozen = sum(len(scenario.model.components[index].layers) for index in scenario.frozen)
        passes = (2 + frozen) * micro_batches  # frozen layers run with each
        words = f"(2 + frozen layers({frozen})) * `micro_batches({micro_batches})` = {passes} forwards and backwards"
    if passes > most:
        raise InputError(f"{words}, must be at most {most}")
