"""Measuring: every layer of one component in place, during real passes of the whole component.

Each round runs a pass with marks, and one without, to check the sum of the layers. Gradients are added to those of
earlier rounds, as in all micro-batches but the first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from profiles.checks import sum_in_order
from profiles.errors import InputError
from profiles.measuring.counting.component import ComponentCount
from profiles.measuring.counting.specs import DTYPES, LayerSpec
from profiles.measuring.fitting.layer_times import QUANTITIES
from profiles.measuring.launching import check_least
from profiles.measuring.timing import building
from profiles.measuring.timing.building import draws
from profiles.measuring.timing.clocks import Boundaries, Clock, Mark
from profiles.units import FloatArray

Inputs = Sequence[dict[str, Any]]
"""Inputs of each pass that a sample takes."""

WHOLE_LAYER: Final = (LayerSpec("whole", 0, ""),)
SMALLER: Final = "choose smaller --batch-sizes, --height and --width, or other --components"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a measurement: ``rounds`` rounds after ``warmup`` ones that do not count."""

    batch_sizes: tuple[int, ...]
    dtype: str = "float32"
    warmup: int = 3
    rounds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        smallest = min(self.batch_sizes, default=0)
        check_least(
            ("--warmup", self.warmup, 1), ("--rounds", self.rounds, 1), ("--batch-sizes", smallest, 1)
        )
        if len(set(self.batch_sizes)) < len(self.batch_sizes):
            raise InputError(f"--batch-sizes is {','.join(map(str, self.batch_sizes))}, must name each once")


class BatchTimes(NamedTuple):
    """Median seconds of one component at one batch size, by quantity.

    ``layers`` are of each layer, 0 where there is no backward pass; ``whole`` of passes without marks.
    """

    batch: int
    layers: dict[str, list[float]]
    whole: dict[str, float]

    def sum_over_whole(self, quantity: str) -> float:
        """Sum of the layers over the whole."""
        return sum_in_order(self.layers[quantity]) / self.whole[quantity]


class ComponentTimes(NamedTuple):
    """Times of one component, by batch size, and the seconds that one update of its weights takes."""

    counted: ComponentCount
    batches: tuple[BatchTimes, ...]
    optimizer_s: float | None = None

    @property
    def name(self) -> str:
        """Name of the component."""
        return self.counted.spec.name


class Subject:
    """A component, as it is counted, on a device, ready to run passes of ``size``: height and width in pixels."""

    def __init__(
        self, counted: ComponentCount, size: tuple[int, int], dtype: str, clock: Clock, seed: int = 0
    ) -> None:
        self.spec: Final = counted.spec
        self.clock: Final = clock
        self._dtype = DTYPES[dtype]
        self.generator: Final = torch.Generator(clock.device).manual_seed(seed)
        self.module: Final = building.build(self.spec, self._dtype, self.generator)
        self._samples = [make(*size) for make in (self.spec.sample, *self.spec.again)]
        self._below = building.largest_integer(self.module)

    @property
    def trained(self) -> list[Tensor]:
        """Parameters that get a gradient."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def inputs(self, batch: int) -> Inputs:
        """Inputs of each pass."""
        made = (batch, self._dtype, self._below, self.generator)
        return [building.inputs(sample, *made) for sample in self._samples]

    def forward(self, inputs: dict[str, Any]) -> Tensor:
        """Output of one pass; a backbone's has its autograd graph."""
        with torch.set_grad_enabled(self.spec.trainable):
            output = self.module(**inputs)
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        return next((tensor for tensor in tensors if tensor.requires_grad), tensors[0])


def measure(
    counted: ComponentCount, height: int, width: int, settings: Settings, clock: Clock
) -> ComponentTimes:
    """The times of every layer of a component at every batch size; InputError where it does not fit in memory."""
    with out_of_memory(f"{counted.spec.name} at {height}x{width}"):
        subject = Subject(counted, (height, width), settings.dtype, clock, settings.seed)
    batches = []
    for batch in settings.batch_sizes:
        where = f"{counted.spec.name} at {height}x{width}, batch {batch}"
        with out_of_memory(where):
            batches.append(_measure_batch(subject, batch, settings))
    if not counted.spec.trainable:
        return ComponentTimes(counted, tuple(batches))
    with out_of_memory(f"the optimizer of {counted.spec.name}"):
        output = subject.forward(subject.inputs(min(settings.batch_sizes))[0])
        torch.autograd.backward([output], [draws(output, subject.generator)])
        update_s = timed(clock, settings, building.update_of(subject.trained))
        return ComponentTimes(counted, tuple(batches), update_s)


@contextmanager
def out_of_memory(where: str) -> Iterator[None]:
    """Turn torch's errors of memory into one line."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise InputError(f"{where}: memory ran out; {SMALLER}") from None
        raise


def _measure_batch(subject: Subject, batch: int, settings: Settings) -> BatchTimes:
    inputs, both = subject.inputs(batch), (subject.spec.layers, WHOLE_LAYER)
    rounds = [
        [_seconds(subject, inputs, layers) for layers in both]
        for _ in range(settings.warmup + settings.rounds)
    ]
    subject.module.zero_grad(set_to_none=True)
    kept = zip(*rounds[settings.warmup :], strict=True)
    each, whole = (dict(zip(QUANTITIES, np.median(of, axis=0).tolist(), strict=True)) for of in kept)
    return BatchTimes(batch, each, {name: seconds for name, (seconds,) in whole.items()})


def timed(clock: Clock, settings: Settings, work: Callable[[], object]) -> float:
    """Median seconds of some work over the rounds."""
    rounds = []
    for _ in range(settings.warmup + settings.rounds):
        clock.settle()
        start = clock.mark()
        work()
        end = clock.mark()
        clock.settle()
        rounds.append(clock.seconds(start, end))
    return float(np.median(rounds[settings.warmup :]))


def _seconds(subject: Subject, inputs: Inputs, layers: Sequence[LayerSpec]) -> FloatArray:
    """Forward and backward seconds of each layer, summed over the passes of a sample, shape (2, layers)."""
    passes = []
    for sample in inputs:
        boundaries = Boundaries(subject.module, layers, subject.clock)
        try:
            marks = _run(subject, sample)
            passes.append((boundaries.forward_s(*marks[:2]), boundaries.backward_s(*marks[2:])))
        finally:
            boundaries.remove()
    return np.asarray(np.sum(passes, axis=0))


def _run(subject: Subject, inputs: dict[str, Any]) -> list[Mark]:
    """Marks where forward and backward of one pass begin and end."""
    clock = subject.clock
    clock.settle()
    marks = [clock.mark()]
    output = subject.forward(inputs)
    marks.append(clock.mark())
    gradient = draws(output, subject.generator) if subject.spec.trainable else None
    marks.append(clock.mark())
    if gradient is not None:
        torch.autograd.backward([output], [gradient])
    marks.append(clock.mark())
    clock.settle()
    return marks
