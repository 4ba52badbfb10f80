"""Is it true? Counts, closed forms, published measurements and real runs, held against the simulator.

Runs from the checkout, as ``python -m validate``; the only package that imports torch. What a notebook needs to
measure, fit and predict stands here by name, and is imported when it is first asked for.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Settings": "measuring.passes",
    "TrainingStep": "measuring.steps",
    "by_rates": "measuring.steps",
    "calibrate": "fitting.calibration",
    "calibrated_device": "fitting.calibration",
    "class_table": "fitting.calibration",
    "clock_of": "measuring.clocks",
    "on_one_thread": "measuring.clocks",
    "profile": "measuring.profiler",
    "read_first_backwards": "fitting.layer_times",
    "scratch_folder": "writing",
    "summary": "fitting.calibration",
    "times_table": "measuring.profiler",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module 'validate' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(import_module(f"validate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
