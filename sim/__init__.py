"""Simulate parallel diffusion models, and explore the ways to parallelise them.

>>> import sim
>>> result = sim.run("sd21", "gpipe", gpus=8, pipeline_degree=4, micro_batches=8, batch_size=256)
>>> result.iteration_s, result.bubble_ratio
>>> sim.sweep("sd21", gpus=64).frame()
"""

from typing import TYPE_CHECKING

try:
    from profiles.architectures.models import load_model
    from profiles.architectures.synthetic import equal_layers_model
    from profiles.errors import DeadlockError, InfeasibleError, InputError
    from profiles.machines.clusters import load_cluster
    from sim.api import balance, calibrate, run, schedule, serve, sweep
    from sim.counting import count
    from sim.inputs.experiments import load_experiment
    from sim.launching.launch import launch
    from sim.report.comparisons import compare
    from sim.report.listings import clusters, devices, models, stacks, strategies
    from sim.report.views import Result, Sweep
    from strategies.scenario import Scenario
except KeyboardInterrupt:  # a command that has hardly begun ends without a traceback
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from sim import plots
else:

    def __getattr__(name):  # noqa: ANN001, ANN202
        """Import the plots once they are used: matplotlib takes long."""
        if name != "plots":
            raise AttributeError(f"module 'sim' has no attribute '{name}'")
        import sim.plots  # noqa: PLC0415

        return sim.plots

    def __dir__():  # noqa: ANN202
        return __all__


__all__ = [
    "DeadlockError",
    "InfeasibleError",
    "InputError",
    "Result",
    "Scenario",
    "Sweep",
    "balance",
    "calibrate",
    "clusters",
    "compare",
    "count",
    "devices",
    "equal_layers_model",
    "launch",
    "load_cluster",
    "load_experiment",
    "load_model",
    "models",
    "plots",
    "run",
    "schedule",
    "serve",
    "stacks",
    "strategies",
    "sweep",
]
