"""Partitions: disjoint green contexts of one GPU, a stream in each, and the kernels that stand for a link.

One split makes all partitions; the driver guarantees them to be disjoint. Messages travel on ordinary streams, whose
few threads and copies may run on any multiprocessor.

A link must let a message arrive a fixed time after it was written, however late the kernel that waits was started. So
the writer's stream leaves the time of the GPU's own clock behind (``%globaltimer``, nanoseconds, one for all
multiprocessors), and a kernel of one thread waits until that clock is so much further. ``torch.cuda._sleep`` counts
cycles, which last as long as the clock rate says, and from when it starts.
"""

import ctypes
import gc
import os
from collections.abc import Callable
from importlib import import_module
from statistics import median
from types import ModuleType
from typing import Any, Final

import torch

from profiles.errors import DiffusimError, InputError

LEAST_DRIVER: Final = 12040  # CUDA 12.4 brought green contexts
CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
MOST_CONNECTIONS: Final = 32  # streams beyond the connections share one, and then wait for each other
STAMPS: Final = 1 << 15
HELD_S: Final = 1e-3
HELD_ERROR: Final = 0.03
"""A hold of a millisecond must be as long by events; a coarse clock of the GPU makes it longer or shorter."""
HELD_ROUNDS: Final = 9

KERNELS: Final = """
.version 6.4
.target sm_70
.address_size 64

.visible .entry stamp(.param .u64 place)
{
    .reg .b64 %address, %time;
    ld.param.u64 %address, [place];
    cvta.to.global.u64 %address, %address;
    mov.u64 %time, %globaltimer;
    st.global.u64 [%address], %time;
    ret;
}

.visible .entry hold(.param .u64 place, .param .u64 nanoseconds)
{
    .reg .b64 %address, %until, %time;
    .reg .pred %early;
    ld.param.u64 %address, [place];
    ld.param.u64 %until, [nanoseconds];
    cvta.to.global.u64 %address, %address;
    ld.global.u64 %time, [%address];
    add.u64 %until, %until, %time;
again:
    nanosleep.u32 100;
    mov.u64 %time, %globaltimer;
    setp.lt.u64 %early, %time, %until;
    @%early bra again;
    ret;
}
"""


class GreenMark:
    """An event of a stream, and where its time stamp lies if it has one."""

    __slots__ = ("event", "place")

    def __init__(self, event: torch.cuda.Event, place: int) -> None:
        self.event, self.place = event, place


class GreenLanes:
    """Lanes that are streams: the first ones of green contexts, the others of the whole GPU."""

    def __init__(self, partitions: int, sms: int, count: int) -> None:
        self._driver = check_gpu(partitions, sms)
        self.device = torch.device("cuda", torch.cuda.current_device())
        torch.cuda.synchronize()  # the primary context is there, and current
        self._contexts: list[Any] = []
        self._own: list[Any] = []
        self._streams: list[torch.cuda.Stream] = []
        self._library: Any = None
        try:
            self._split(partitions, sms)
            others = range(count - partitions)
            self._streams += [torch.cuda.Stream(self.device, priority=-1) for _ in others]  # type: ignore[no-untyped-call]
            self._load()
            self._check_hold()
        except BaseException:
            self.close()
            raise

    def _split(self, partitions: int, sms: int) -> None:
        """Make the green contexts, all of one split, and a stream in each."""
        driver = self._driver
        device = self._call("cuDeviceGet", torch.cuda.current_device())
        whole = self._call("cuDeviceGetDevResource", device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
        groups, number, _ = self._call("cuDevSmResourceSplitByCount", partitions, whole, 0, sms)
        found = [group.sm.smCount for group in groups[:number]]
        if found != [sms] * partitions:
            raise InputError(
                f"--partitions {partitions} --sms {sms}: the driver splits the GPU's {whole.sm.smCount}"
                f" multiprocessors into {found}; choose another --sms (a multiple of 8 on recent GPUs)"
            )
        for group in groups[:number]:
            described = self._call("cuDevResourceGenerateDesc", [group], 1)
            flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
            self._contexts.append(self._call("cuGreenCtxCreate", described, device, flags))
            kind = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            stream = self._call("cuGreenCtxStreamCreate", self._contexts[-1], kind, 0)
            self._own.append(stream)
            self._streams.append(torch.cuda.get_stream_from_external(int(stream), self.device))

    def _load(self) -> None:
        """Load the kernels; the driver compiles them for the GPU, and runs them in the context of their stream."""
        code = KERNELS.encode() + b"\0"
        self._library = self._call("cuLibraryLoadData", code, [], [], 0, [], [], 0)
        self._stamp, self._hold = (
            self._driver.CUfunction(int(self._call("cuLibraryGetKernel", self._library, name)))
            for name in (b"stamp", b"hold")
        )
        self._places = torch.zeros(STAMPS, dtype=torch.int64, device=self.device)
        self._next = 0
        torch.cuda.synchronize()

    def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401  whatever the driver returns
        error, *results = getattr(self._driver, name)(*arguments)
        if int(error):
            raise DiffusimError(f"{name}: the CUDA driver says {error.name}")
        return results[0] if len(results) == 1 else tuple(results)

    def _check_hold(self) -> None:
        """Refuse a GPU whose clock and events disagree about a millisecond, on any lane."""
        for lane in range(len(self._streams)):
            found = []
            for _ in range(HELD_ROUNDS):
                start = self.record(lane, stamped=True)
                self.hold(lane, start, HELD_S)
                end = self.record(lane)
                self.settle()
                found.append(self.seconds(start, end))
            if abs(median(found) / HELD_S - 1) > HELD_ERROR:
                raise DiffusimError(
                    f"a hold of {1e3 * HELD_S:g} ms takes {1e3 * median(found):.3f} ms by events on lane {lane}: this"
                    " GPU's clock cannot stand for a link"
                )

    def stream(self, lane: int) -> torch.cuda.Stream:
        """The stream of a lane, to capture graphs on."""
        return self._streams[lane]

    def submit(self, lane: int, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self._streams[lane]):
            work()

    def record(self, lane: int, *, stamped: bool = False) -> GreenMark:
        """Record an event, after a time stamp if ``hold`` is to count from there."""
        place = 0
        if stamped:
            assert self._next < STAMPS, "more stamps than places between two times that the lanes settle"
            place = self._places.data_ptr() + 8 * self._next
            self._next += 1
            self._launch(self._stamp, lane, (place,), (ctypes.c_void_p,))
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[lane])
        return GreenMark(event, place)

    def wait(self, lane: int, mark: GreenMark) -> None:
        self._streams[lane].wait_event(mark.event)

    def hold(self, lane: int, mark: GreenMark, seconds: float) -> None:
        """Let a lane's stream wait until the GPU's clock is so far beyond a stamp."""
        assert mark.place, "only a stamped mark can be counted from"
        self._launch(self._hold, lane, (mark.place, round(1e9 * seconds)), (ctypes.c_void_p, ctypes.c_uint64))

    def _launch(self, kernel: Any, lane: int, values: tuple[int, ...], kinds: tuple[type, ...]) -> None:  # noqa: ANN401
        stream = self._driver.CUstream(self._streams[lane].cuda_stream)
        self._call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, (values, kinds), 0)

    def settle(self) -> None:
        torch.cuda.synchronize()
        self._next = 0

    def seconds(self, start: GreenMark, end: GreenMark) -> float:
        """The time between two events; resolution about half a microsecond."""
        return float(start.event.elapsed_time(end.event)) / 1e3

    def close(self) -> None:
        """Destroy streams and contexts; all graphs that were captured on them must be gone."""
        gc.collect()  # a graph that refers to itself outlives its last name
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._streams.clear()
        for stream in self._own:
            self._call("cuStreamDestroy", stream)
        for context in self._contexts:
            self._call("cuGreenCtxDestroy", context)
        if self._library is not None:
            self._call("cuLibraryUnload", self._library)
        self._own, self._contexts, self._library = [], [], None


def check_gpu(partitions: int, sms: int | None) -> ModuleType:
    """The driver's functions, where a GPU can be split so; without a number of ``sms`` where it can at all."""
    os.environ.setdefault(CONNECTIONS, str(MOST_CONNECTIONS))  # read when the context is made
    if not torch.cuda.is_available():
        raise InputError(f"torch {torch.__version__} finds no CUDA GPU here; --rehearse needs none")
    driver = _bindings()
    _, version = driver.cuDriverGetVersion()
    if version < LEAST_DRIVER:
        raise InputError(
            f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}, green contexts need 12.4"
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    there, sms = properties.multi_processor_count, sms or default_sms(partitions)
    if partitions * sms > there:
        raise InputError(
            f"partitions({partitions}) * sms({sms}) = {partitions * sms}, but {properties.name} has {there}"
            " multiprocessors: give --sms or --partitions"
        )
    return driver


def _bindings() -> ModuleType:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError:
        raise InputError("green contexts need the package cuda-bindings: pip install cuda-bindings") from None


def default_sms(partitions: int) -> int:
    """The most multiprocessors that each of so many partitions of this GPU can have: 4 x 32 of an H200's 132.

    Partitions are multiples of 8 multiprocessors since compute capability 9, of 2 before (CUDA driver API).
    """
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    step = 8 if properties.major >= 9 else 2
    return max(step, int(properties.multi_processor_count) // partitions // step * step)
