"""Clocks: marks in a stream of work, and the seconds between two of them."""

import gc
from time import perf_counter, thread_time
from typing import Final, Protocol

import torch

from profiles.errors import InputError

Mark = float | torch.cuda.Event
DEVICES: Final = ("cpu", "cuda")
WALL: Final = "wall"
THREAD: Final = "thread"
CLOCKS: Final = (WALL, THREAD)
RATE_CYCLES: Final = 10_000_000
"""How long a stream spins to tell its rate: some milliseconds."""


class Clock(Protocol):
    """Marks points of the work that a device is given, in the order in which it is given."""

    device: torch.device

    def mark(self) -> Mark:
        """Mark this point of the work."""

    def settle(self) -> None:
        """Wait until all work is done."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two marks, once all work is done."""

    def hold(self, seconds: float) -> bool:
        """Keep the device from the work that follows for so long; False where it does no work behind the host."""

    def free_bytes(self) -> int:
        """Give back what nobody uses any more, and return the memory that can be taken."""


class WallClock:
    """The CPU does its work as it is given, so its marks are times."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def mark(self) -> Mark:
        """Return the time."""
        return perf_counter()

    def settle(self) -> None:
        """Do nothing."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the difference."""
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start

    def hold(self, seconds: float) -> bool:
        """Do nothing: work is done as it is given."""
        return False

    def free_bytes(self) -> int:
        """Return what the kernel estimates can be taken without swapping."""
        gc.collect()  # a graph that refers to itself outlives its last name
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123  a file of the kernel
            fields = dict(line.split(":") for line in file)
        return 1024 * int(fields["MemAvailable"].split()[0])


class ThreadClock(WallClock):
    """Counts the CPU time of this thread alone, which other programs hardly lengthen; torch must run on no other."""

    def mark(self) -> Mark:
        """Return the CPU time."""
        return thread_time()


class EventClock:
    """A GPU works behind the CPU, so its marks are events in its stream."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._cycles_per_s = 0.0

    def mark(self) -> Mark:
        """Put an event into the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self.device)

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the time between two events; resolution about half a microsecond."""
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return float(start.elapsed_time(end)) / 1e3

    def hold(self, seconds: float) -> bool:
        """Let the current stream spin for so long, while the host goes on to enqueue."""
        if self._cycles_per_s == 0.0:
            self._cycles_per_s = self._rate()
        _spin(int(seconds * self._cycles_per_s))
        return True

    def _rate(self) -> float:
        """Return the cycles per second of a spinning stream."""
        _spin(RATE_CYCLES)
        self.settle()
        start = self.mark()
        _spin(RATE_CYCLES)
        end = self.mark()
        self.settle()
        return RATE_CYCLES / self.seconds(start, end)

    def free_bytes(self) -> int:
        """Return the free memory of the GPU."""
        gc.collect()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])


def _spin(cycles: int) -> None:
    """Let the current stream do nothing for so many cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def clock_of(device: str, clock: str = WALL) -> Clock:
    """Return the clock of ``cpu`` or ``cuda``.

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
    return ThreadClock() if clock == THREAD else WallClock()
