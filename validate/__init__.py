"""Is it true? Closed forms, published measurements and real runs, held against the simulator.

Runs from the checkout, as ``python -m validate``. The names that a notebook needs to measure, fit and predict stand
here, and are imported when first used.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Settings": "profiles.measuring.timing.passes",
    "TrainingStep": "validate.steps.measured",
    "by_rates": "validate.steps.measured",
    "calibrate": "profiles.measuring.fitting.calibration",
    "calibrated_device": "profiles.measuring.fitting.calibration",
    "clock_of": "profiles.measuring.timing.clocks",
    "class_table": "profiles.measuring.fitting.calibration",
    "on_one_thread": "profiles.measuring.timing.clocks",
    "profile": "profiles.measuring.timing.profiler",
    "read_first_backwards": "profiles.measuring.fitting.layer_times",
    "scratch_folder": "profiles.measuring.writing",
    "summary": "profiles.measuring.fitting.calibration",
    "times_table": "profiles.measuring.timing.profiler",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module 'validate' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
