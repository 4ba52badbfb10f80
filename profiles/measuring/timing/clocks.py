"""Clocks: marks in a stream of work, the seconds between two of them, and marks at the boundaries of layers.

A layer ends where its module returns, as in counting. Autograd runs the operators of a backward pass in the reverse
order of the forward pass, so a layer's backward begins when the operator that made its output comes up: all later ones
are then done.
"""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter, thread_time
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from profiles.errors import InputError
from profiles.measuring.counting.specs import LayerSpec

Mark = float | torch.cuda.Event
DEVICES: Final = ("cpu", "cuda")
WALL: Final = "wall"
THREAD: Final = "thread"
CLOCKS: Final = (WALL, THREAD)
"""Wall time, or the CPU time of this thread alone, which other programs hardly lengthen."""


class Clock:
    """Marks points of the work that a device is given, in the order in which it is given.

    The CPU does its work as it is given: its marks are times, as read in seconds, and there is nothing to wait for.
    """

    def __init__(self, read: Callable[[], float] = perf_counter) -> None:
        self.device = torch.device("cpu")
        self._read = read

    def mark(self) -> Mark:
        """Mark this point of the work."""
        return self._read()

    def settle(self) -> None:
        """Wait until all work is done."""

    def wait(self, mark: Mark) -> None:
        """Wait until the work before a mark is done."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds between two marks, once the work before both is done."""
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start

    def free_bytes(self) -> int:
        """Bytes of free memory after collecting garbage, by the kernel's estimate."""
        gc.collect()  # a graph that refers to itself outlives its last name
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":") for line in lines)
        return 1024 * int(fields["MemAvailable"].split()[0])


class EventClock(Clock):
    """Marks points of a GPU's work, which runs behind the CPU: events in the current stream, to half a microsecond."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())

    def mark(self) -> Mark:  # noqa: D102
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:  # noqa: D102
        torch.cuda.synchronize(self.device)

    def wait(self, mark: Mark) -> None:  # noqa: D102
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()

    def seconds(self, start: Mark, end: Mark) -> float:  # noqa: D102
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return float(start.elapsed_time(end)) / 1e3

    def free_bytes(self) -> int:  # noqa: D102
        gc.collect()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])


def clock_of(device: str, clock: str = WALL) -> Clock:
    """Clock of ``cpu`` or ``cuda``; InputError where there is no GPU, or several threads of which it would see one."""
    for flag, value, choices in (("device", device, DEVICES), ("clock", clock, CLOCKS)):
        if value not in choices:
            raise InputError(f"--{flag} is '{value}', must be one of {', '.join(choices)}")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"--device cuda: torch {torch.__version__} finds no CUDA GPU here")
        return EventClock()
    if clock == THREAD and torch.get_num_threads() > 1:
        runs = f"torch runs on {torch.get_num_threads()}"
        raise InputError(f"--clock thread counts one thread, and {runs}: give --threads 1")
    return Clock(thread_time if clock == THREAD else perf_counter)


class Boundaries:
    """Watches one pass of a module, within a ``with``."""

    def __init__(self, module: nn.Module, layers: Sequence[LayerSpec], clock: Clock) -> None:
        self._module, self._layers, self._clock = module, layers, clock
        self._ends: list[Mark] = []
        self._begins: dict[int, Mark] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> "Boundaries":
        for index, layer in enumerate(self._layers):
            end = self._module.get_submodule(layer.end)
            self._handles.append(end.register_forward_hook(partial(self._end, index)))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

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
        node = _last_node(hidden[: self._layers[index].streams])
        if node is not None:
            node.register_prehook(partial(self._begin, index))

    def _begin(self, index: int, gradients: object) -> None:
        self._begins[index] = self._clock.mark()


def _last_node(tensors: Sequence[Tensor]) -> Node | None:
    """Operator that made the last of some tensors; None where no gradient passes."""
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    return max(nodes, key=lambda node: int(node._sequence_nr()), default=None)


def on_one_thread() -> None:
    """Let torch compute on the calling thread alone, whose CPU time the clock ``thread`` counts."""
    torch.set_num_threads(1)
