"""Measuring: every layer of one component in place, during real passes of the whole component.

Each round runs a pass with marks, and one without, to check the sum of the layers. Gradients are added to those of
earlier rounds, as in all micro-batches but the first.

A layer ends where its module returns, as in counting. Autograd runs the operators of a backward pass in the reverse
order of the forward pass, so a layer's backward begins when the operator that made its output comes up: all later ones
are then done.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from profiles.errors import InputError
from profiles.measuring.counting.component import ComponentCount
from profiles.measuring.counting.specs import DTYPES, LayerSpec
from profiles.measuring.fitting.calibration import QUANTITIES
from profiles.measuring.launching import check_least
from profiles.measuring.timing import building
from profiles.measuring.timing.building import draws
from profiles.units import FloatArray

Mark = Any
"""A reading of a CPU's clock in seconds, or an event in a stream of a GPU."""


class Clock:
    """Marks points of the work that a device is given, in the order in which it is given.

    A CPU does its work as it is given; a GPU runs behind, so its marks are events in the current stream.
    """

    def __init__(self, read: Callable[[], float] = perf_counter, device: str = "cpu") -> None:
        self.device = torch.device(f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device)
        self._read = read

    def mark(self) -> Mark:
        """Mark this point of the work."""
        if self.device.type == "cpu":
            return self._read()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        """Wait until all work is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds between two marks, once the work before both is done."""
        return float(end - start if self.device.type == "cpu" else start.elapsed_time(end) / 1e3)


def clock_of(device: str) -> Clock:
    """Clock of ``cpu`` or ``cuda``; InputError where there is no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device cuda: torch {torch.__version__} finds no CUDA GPU here")
    return Clock(device=device)


class Boundaries:
    """Watches one pass of a module, until ``remove``."""

    def __init__(self, module: nn.Module, layers: Sequence[LayerSpec], clock: Clock) -> None:
        self._layers, self._clock = layers, clock
        self._ends: list[Mark] = []
        self._begins: dict[int, Mark] = {}
        modules = (module.get_submodule(layer.end) for layer in layers)
        self._handles = [part.register_forward_hook(partial(self._end, i)) for i, part in enumerate(modules)]

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def forward_s(self, start: Mark, end: Mark) -> list[float]:
        """Forward seconds of each layer; what ran after the last module is the last layer's."""
        assert len(self._ends) == len(self._layers), f"{len(self._ends)} of {len(self._layers)} layers ran"
        marks = [start, *self._ends[:-1], end]
        return [self._clock.seconds(a, b) for a, b in pairwise(marks)]

    def backward_s(self, start: Mark, end: Mark) -> list[float]:
        """Backward seconds of each layer, 0 where no gradient passes."""
        seconds = [0.0] * len(self._layers)
        passed = sorted(self._begins, reverse=True)
        marks = [start, *(self._begins[index] for index in passed[1:]), end]
        for index, (begin, stop) in zip(passed, pairwise(marks), strict=False):
            seconds[index] = self._clock.seconds(begin, stop)
        return seconds

    def _end(self, index: int, module: nn.Module, args: object, output: object) -> None:
        assert index == len(self._ends), f"layer {index} ended when layer {len(self._ends)} should"
        self._ends.append(self._clock.mark())
        hidden = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        made = (tensor.grad_fn for tensor in hidden[: self._layers[index].streams])
        nodes = [node for node in made if node is not None]
        if nodes:  # the one that made the last of them
            last = max(nodes, key=lambda node: int(node._sequence_nr()))
            last.register_prehook(partial(self._begin, index))

    def _begin(self, index: int, gradients: object) -> None:
        self._begins[index] = self._clock.mark()


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


class BatchTimes(NamedTuple):
    """Median seconds of one component at one batch size, by quantity.

    ``layers`` are of each layer, 0 where there is no backward pass; ``whole`` of passes without marks.
    """

    batch: int
    layers: dict[str, list[float]]
    whole: dict[str, float]

    def sum_over_whole(self, quantity: str) -> float:
        """Sum of the layers over the whole."""
        return sum(self.layers[quantity]) / self.whole[quantity]


class ComponentTimes(NamedTuple):
    """Times of one component, by batch size, and the seconds that one update of its weights takes."""

    counted: ComponentCount
    batches: tuple[BatchTimes, ...]
    optimizer_s: float | None = None


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
    for batch in dict.fromkeys(settings.batch_sizes):
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
    each, whole = (dict(zip(QUANTITIES, np.median(times, axis=0).tolist(), strict=True)) for times in kept)
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
