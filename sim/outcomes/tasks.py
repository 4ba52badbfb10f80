"""Training and sampling, each as one value: its words, its options, and what is measured and ranked by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from strategies.parameters import options_of
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    Attributes:
        name: as files and results name it.
        does: what its strategies do.
        batch: what a batch size is of, for help.
        objectives: what its sweeps can rank by, the default first; cost is in GPU-seconds per image.
        measured: numbers that can be measured of a run, and the quantity of a result that each is.
        unit: unit of durations in words.
        passes: of a stage that are timed.
        samples: one of what is counted: an image, or of several frames a video.
        keys: keys of rows by which scenarios differ; a sampler may use fewer GPUs than there are.
        absent: keys of results and rows that this task lacks.
    """

    name: str
    noun: str
    does: str
    workload: type[Any]
    batch: str
    objectives: tuple[str, ...]
    measured: Mapping[str, str]
    timed: str
    unit: str
    passes: tuple[str, ...]
    passed: str
    samples: tuple[str, str]
    keys: tuple[str, ...]
    absent: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options of its workloads, beside the GPUs and the batch size."""
        return ("resolution", *(item.name for item in options_of(self.workload)))

    def sample_words(self, options: Mapping[str, Any]) -> tuple[str, str]:
        """Return the names of one and of several samples of a run with these options."""
        image, video = self.samples
        one = video if (options.get("frames") or 1) > 1 else image
        return one, f"{one}s"


TRAINING: Final = Task(
    "train",
    "training",
    "trains",
    TrainingWorkload,
    "samples of all GPUs together (default: as many per GPU as the model is trained with, 1 to 32)",
    ("throughput", "latency", "memory", "pareto"),
    {"step_s": "iteration_s", "iteration_s": "iteration_s", "samples_per_s": "samples_per_s"},
    "iteration",
    "ms",
    ("forward", "backward"),
    "micro-batch",
    ("sample", "sample"),
    ("model", "cluster", "stack", "num_gpus", "batch_size"),
    ("gpu_s_per_sample", "seamless", "recommended"),
)
SAMPLING: Final = Task(
    "sample",
    "sampling",
    "draws images",
    SamplingWorkload,
    "images, or videos, drawn together (default: 1)",
    ("latency", "throughput", "memory", "cost", "pareto"),
    {"latency_s": "latency_s", "step_s": "step_s", "samples_per_s": "samples_per_s"},
    "latency",
    "s",
    ("forward",),
    "step",
    ("image", "video"),
    ("model", "cluster", "stack", "batch_size", "resolution", "steps", "guidance"),
)
TASKS: Final[Mapping[str, Task]] = {task.name: task for task in (TRAINING, SAMPLING)}
"""Tasks by name."""
