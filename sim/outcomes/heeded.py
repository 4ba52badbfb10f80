"""Heeded: which options of sampling change something of a point."""

from profiles.errors import counted
from profiles.software.levers import HALF
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy


def unheeded(strategy: AnyStrategy, scenario: AnyScenario) -> dict[str, str]:
    """Options of sampling that change nothing of a point, by name, each with the reason in words.

    Raises:
        InfeasibleError: the point does not exist.
    """
    if isinstance(scenario, Scenario):
        return {}
    grid = getattr(getattr(strategy, "layout", lambda _: None)(scenario), "grid", None)
    if grid is None:
        return {}
    workload, found = scenario.workload, dict[str, str]()
    gpus = counted(workload.num_gpus, "GPU")
    if workload.heads == "padded" and grid.ulysses * grid.tensor == 1:
        found["heads"] = f"`heads` is padded, but {strategy.name} does not divide attention heads on {gpus}"
    if workload.all_to_all != HALF and grid.ulysses == 1:
        asked = f"`all_to_all` is {workload.all_to_all}"
        found["all_to_all"] = f"{asked}, but {strategy.name} has no all-to-all on {gpus}"
    return found
