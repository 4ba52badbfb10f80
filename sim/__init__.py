"""Simulate parallel diffusion models, and explore the ways to parallelise them.

>>> import sim
>>> result = sim.run("sd21", "gpipe", gpus=8, pipeline_degree=4, micro_batches=8, batch_size=256)
>>> result.iteration_s, result.bubble_ratio
>>> sim.sweep("sd21", gpus=64).frame()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from profiles.errors import near

if TYPE_CHECKING:
    from profiles.architectures.models import load_model as load_model
    from profiles.architectures.synthetic import equal_layers_model as equal_layers_model
    from profiles.errors import DeadlockError as DeadlockError
    from profiles.errors import InfeasibleError as InfeasibleError
    from profiles.errors import InputError as InputError
    from profiles.machines.clusters import load_cluster as load_cluster
    from profiles.software.stacks import load_stack as load_stack
    from sim.api import calibrate as calibrate
    from sim.api import run as run
    from sim.api import schedule as schedule
    from sim.api import sweep as sweep
    from sim.asking.experiments import load_experiment as load_experiment
    from sim.explore.sweep import Sweep as Sweep
    from sim.launching.launch import launch as launch
    from sim.outcomes.results import Result as Result
    from sim.report import plots as plots
    from sim.report.comparisons import compare as compare
    from sim.report.listings import clusters as clusters
    from sim.report.listings import devices as devices
    from sim.report.listings import models as models
    from sim.report.listings import stacks as stacks
    from sim.report.listings import strategies as strategies
    from strategies.scenario import Scenario as Scenario

_HOMES = {
    "DeadlockError": "profiles.errors",
    "InfeasibleError": "profiles.errors",
    "InputError": "profiles.errors",
    "Result": "sim.outcomes.results",
    "Scenario": "strategies.scenario",
    "Sweep": "sim.explore.sweep",
    "calibrate": "sim.api",
    "clusters": "sim.report.listings",
    "compare": "sim.report.comparisons",
    "devices": "sim.report.listings",
    "equal_layers_model": "profiles.architectures.synthetic",
    "launch": "sim.launching.launch",
    "load_cluster": "profiles.machines.clusters",
    "load_experiment": "sim.asking.experiments",
    "load_model": "profiles.architectures.models",
    "load_stack": "profiles.software.stacks",
    "models": "sim.report.listings",
    "plots": "sim.report",
    "run": "sim.api",
    "schedule": "sim.api",
    "stacks": "sim.report.listings",
    "strategies": "sim.report.listings",
    "sweep": "sim.api",
}
"""Modules of the names; each is imported when it is first asked for, so that the command line starts fast."""

__all__ = [
    "DeadlockError",
    "InfeasibleError",
    "InputError",
    "Result",
    "Scenario",
    "Sweep",
    "calibrate",
    "clusters",
    "compare",
    "devices",
    "equal_layers_model",
    "launch",
    "load_cluster",
    "load_experiment",
    "load_model",
    "load_stack",
    "models",
    "plots",
    "run",
    "schedule",
    "stacks",
    "strategies",
    "sweep",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        there = f"{near(name, __all__)}it has {', '.join(__all__)}"
        raise AttributeError(f"module 'sim' has no attribute {name!r}; {there}")
    if name == "plots":
        return import_module("sim.report.plots")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
