"""Clocks: marks in a stream of work, and the seconds between two of them."""

import gc
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from typing import Final

import torch

from profiles.errors import InputError

Mark = float | torch.cuda.Event
DEVICES: Final = ("cpu", "cuda")
WALL: Final = "wall"
THREAD: Final = "thread"
CLOCKS: Final = (WALL, THREAD)
"""The time that passes, or the CPU time of this thread alone, which other programs hardly lengthen."""
RATE_CYCLES: Final = 10_000_000
"""How long a stream spins to tell its rate: some milliseconds."""


class Clock:
    """Marks points of the work that a device is given, in the order in which it is given.

    The CPU does its work as it is given: its marks are times, and there is nothing to wait for or to hold.

    Args:
        read: the time in seconds.
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

    def hold(self, seconds: float) -> bool:
        """Keep the device from the work that follows for so long; False where it does no work behind the host."""
        return False

    def free_bytes(self) -> int:
        """Memory that can be taken, once what nobody uses any more was given back; by the kernel's estimate."""
        gc.collect()  # a graph that refers to itself outlives its last name
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":") for line in lines)
        return 1024 * int(fields["MemAvailable"].split()[0])


class EventClock(Clock):
    """A GPU works behind the CPU, so its marks are events in the current stream; they resolve half a microsecond."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._cycles_per_s = 0.0

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

    def hold(self, seconds: float) -> bool:  # noqa: D102  the stream spins, the host goes on to enqueue
        if self._cycles_per_s == 0.0:
            self._spin(RATE_CYCLES)
            self.settle()
            start = self.mark()
            self._spin(RATE_CYCLES)
            end = self.mark()
            self.settle()
            self._cycles_per_s = RATE_CYCLES / self.seconds(start, end)
        self._spin(int(seconds * self._cycles_per_s))
        return True

    def free_bytes(self) -> int:  # noqa: D102
        gc.collect()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def _spin(self, cycles: int) -> None:
        """Let the current stream do nothing for so many cycles."""
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def clock_of(device: str, clock: str = WALL) -> Clock:
    """Clock of ``cpu`` or ``cuda``.

    Raises:
        InputError: there is no such device or clock, no GPU here, or torch runs on threads that the clock misses.
    """
    for flag, value, choices in (("device", device, DEVICES), ("clock", clock, CLOCKS)):
        if value not in choices:
            raise InputError(f"--{flag} is '{value}', must be one of {', '.join(choices)}")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"--device cuda: torch {torch.__version__} finds no CUDA GPU here")
        return EventClock()
    if clock == THREAD and torch.get_num_threads() > 1:
        raise InputError(
            f"--clock thread counts one thread, and torch runs on {torch.get_num_threads()}: give --threads 1"
        )
    return Clock(thread_time if clock == THREAD else perf_counter)


def on_one_thread() -> None:
    """Let torch compute on the calling thread alone, whose CPU time the clock ``thread`` counts."""
    torch.set_num_threads(1)
