"""Limits: orders that would take longer to carry out than anybody waits; they are refused before any work."""

from typing import Final

from profiles.errors import InputError
from strategies.strategy import AnyScenario, AnyStrategy

MAX_SIMULATED: Final = 2**17
"""Forwards and backwards of one simulated iteration; as many take 4 s and 350 MB."""
MAX_ORDERED: Final = 2**19
"""Forwards and backwards of an order that depends on no model; as many take 5 s."""
MAX_SWEPT_GPUS: Final = 2**15
"""GPUs of a sweep; every degree that divides them is looked at."""


def check_swept(scenario: AnyScenario) -> None:
    """Refuse more GPUs than can be swept over in seconds, and those that no point can use.

    Raises:
        InputError: there are more, or one backbone would be trained on a part of a node beside whole ones.
    """
    gpus = scenario.workload.num_gpus
    if gpus > MAX_SWEPT_GPUS:
        raise InputError(
            f"--gpus is {gpus}, must be at most {MAX_SWEPT_GPUS} where degrees are looked for; run takes more"
        )
    each = scenario.cluster.devices_per_node
    if scenario.task == "train" and len(scenario.model.backbones) == 1 and gpus > each and gpus % each:
        below = gpus // each * each
        rule = f"must be a multiple of the {each} of a node, such as {below} or {below + each}"
        raise InputError(f"--gpus is {gpus}, {rule}: no point can use a part of one beside whole ones")


def check_passes(strategy: AnyStrategy, most: int) -> None:
    """Refuse an order of more forwards and backwards than can be carried out in seconds.

    Raises:
        InputError: it has more.
    """
    degree = getattr(strategy, "pipeline_degree", None) or 1
    micro_batches = getattr(strategy, "micro_batches", None) or 1
    stages = degree * getattr(strategy, "chunks", 1)
    if hasattr(strategy, "waves"):  # each goes down the positions and up again
        stages *= 2 * strategy.waves
    passes = 2 * stages * micro_batches
    if passes > most:
        words = f"2 * stages({stages}) * micro_batches({micro_batches}) = {passes} forwards and backwards"
        raise InputError(f"{words}, must be at most {most}")
