"""Measuring links: operations on real ranks, ping-pong and collectives, and how these slow down compute.

A time is the least of the means of short rounds, as other programs disturb in bursts, read on the first rank of its
group. Odd and even rounds give a time each: the links are fitted to the former and judged by the latter.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from statistics import median
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

from profiles.errors import InputError
from profiles.machines.collectives import Group
from profiles.machines.fabrics import OPERATIONS
from profiles.measuring.launching import Place, unbroken
from profiles.measuring.linking.samples import PING_PONG, Measurement, Sample
from profiles.measuring.timing.environment import environment

ELEMENT_BYTES: Final = 4
WIDTHS: Final = {"cpu": (256, torch.float32), "cuda": (4096, torch.bfloat16)}
"""Side and type of the matrices: a product takes some milliseconds on a CPU core, a quarter of one on an H100."""
PRODUCTS: Final = 8
"""Matrix products between two readings of the clock on a GPU; one on a processor."""

Call = Callable[[], object]


class Members(NamedTuple):
    """The ranks of one operation, ascending, and how many nodes they span; all ranks, and pairs, need no ``handle``."""

    ranks: tuple[int, ...]
    num_nodes: int
    handle: dist.ProcessGroup | None = None

    @property
    def group(self) -> Group:
        """Their number and spread."""
        return Group(len(self.ranks), self.num_nodes)


def elements_of(size_bytes: int, members: Members) -> int:
    """Number of elements nearest to a size that the members can divide evenly, at least one for each."""
    size = len(members.ranks)
    return max(1, round(size_bytes / ELEMENT_BYTES / size)) * size


def _ping_pong(members: Members, elements: int, device: torch.device) -> Call:
    first, second = members.ranks
    buffer = torch.ones(elements, device=device)

    def there_and_back() -> None:
        if dist.get_rank() == first:
            dist.send(buffer, second)
            dist.recv(buffer, second)
        else:
            dist.recv(buffer, first)
            dist.send(buffer, first)

    return there_and_back


def _filling(operation: str, mine: str) -> Callable[[Members, int, torch.device], Call]:
    """Bind an operation that fills one buffer from another; ``mine`` names the one with only a member's share."""

    def bind_buffers(members: Members, elements: int, device: torch.device) -> Call:
        share = elements // len(members.ranks)
        received, sent = (
            torch.zeros(share if mine == name else elements, device=device) for name in ("output", "input")
        )
        return lambda: getattr(dist, operation)(received, sent, group=members.handle)

    return bind_buffers


def _all_reduce(members: Members, elements: int, device: torch.device) -> Call:
    buffer = torch.zeros(elements, device=device)
    return lambda: dist.all_reduce(buffer, group=members.handle)


def _send_recv(members: Members, elements: int, device: torch.device) -> Call:
    """Each member sends to the next of the ring and receives from the one before."""
    ranks = members.ranks
    at = ranks.index(dist.get_rank())
    following, before = ranks[(at + 1) % len(ranks)], ranks[at - 1]
    sent, received = torch.ones(elements, device=device), torch.ones(elements, device=device)

    def one_round() -> None:
        there = dist.P2POp(dist.isend, sent, following, members.handle)
        here = dist.P2POp(dist.irecv, received, before, members.handle)
        for request in dist.batch_isend_irecv([there, here]):
            request.wait()

    return one_round


BINDERS: Final[dict[str, Callable[[Members, int, torch.device], Call]]] = {
    PING_PONG: _ping_pong,
    "all_reduce": _all_reduce,
    "all_gather": _filling("all_gather_single", mine="input"),
    "reduce_scatter": _filling("reduce_scatter_single", mine="output"),
    "all_to_all": _filling("all_to_all_single", mine=""),
    "send_recv": _send_recv,
}
"""Make one call of an operation; the elements are those of ``profiles.machines.collectives.collective_time``."""


class Compute:
    """Matrix products, one after the other, in a thread (on a GPU, on a stream) of their own, within a ``with``."""

    def __init__(self, device: torch.device) -> None:
        width, dtype = WIDTHS[device.type]
        self._device = device
        self._threads = torch.get_num_threads()
        self._matrix = torch.full((width, width), 1 / width, dtype=dtype, device=device)
        self._stop = threading.Event()
        self._spans: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def __enter__(self) -> "Compute":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        on_gpu = self._device.type == "cuda"
        torch.set_num_threads(self._threads)  # a thread has a number of its own
        stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            value = self._matrix
            while not self._stop.is_set():
                begin = time.perf_counter()
                for _ in range(PRODUCTS if on_gpu else 1):
                    value = self._matrix @ value
                if stream:
                    stream.synchronize()
                self._spans.append((begin, time.perf_counter()))

    def mean_s(self, begin: float, end: float) -> float | None:
        """Seconds of one product between two readings of ``time.perf_counter``, all delays included."""
        spans = [(first, last) for first, last in list(self._spans) if first >= begin and last <= end]
        return (spans[-1][1] - spans[0][0]) / len(spans) if spans else None


ROUNDS: Final = 8
"""Rounds in which all sizes are measured; links are fitted to odd rounds and judged by even ones."""
SMALLEST_BYTES: Final = 1024
STEP: Final = 4
REPEATS: Final = (3, 9)
REPEATED_BYTES: Final = 2**23
"""Bytes in all after which a size is not repeated further, within the bounds of ``REPEATS``."""
BESIDE_S: Final = 0.2
"""Seconds that each operation runs beside compute, and that compute runs alone."""
TIMEOUT: Final = timedelta(seconds=120)

T = TypeVar("T")


class Session(NamedTuple):
    """One measurement of this process and the ranks it is joined to."""

    place: Place
    device: torch.device
    sizes: tuple[int, ...]
    everyone: Members


def sizes_up_to(max_bytes: int) -> tuple[int, ...]:
    """Message sizes in steps of four, ``max_bytes`` the largest."""
    smaller = max_bytes // STEP
    return (*sizes_up_to(smaller), max_bytes) if smaller >= SMALLEST_BYTES else (max_bytes,)


def measure(place: Place, backend: str | None, max_bytes: int) -> Measurement | None:
    """The measurement of the links of all ranks, on rank 0; None on the others."""
    backend, device = choose_backend(place, backend)
    with unbroken(place.rank):
        gpu = device if device.type == "cuda" else None
        dist.init_process_group(backend, timeout=TIMEOUT, device_id=gpu)
        return _measure_all(place, backend, device, max_bytes)


def choose_backend(place: Place, backend: str | None) -> tuple[str, torch.device]:
    """Backend and the device of this rank: NCCL where every rank of a node has a GPU, else gloo."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if backend == "nccl" and gpus < place.devices_per_node:
        needed = f"{place.devices_per_node} ranks per node need as many GPUs"
        raise InputError(f"--backend nccl: {needed}, found {gpus}")
    if backend == "gloo" or gpus < place.devices_per_node:
        return "gloo", torch.device("cpu")
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return "nccl", device


def _measure_all(place: Place, backend: str, device: torch.device, max_bytes: int) -> Measurement | None:
    if device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // place.devices_per_node))
    everyone = Members(tuple(range(place.num_ranks)), place.num_nodes)
    session = Session(place, device, sizes_up_to(max_bytes), everyone)
    measured = [_curve(session, PING_PONG, pair) for pair in _pairs(place)]
    groups = _groups(place)
    measured += [_curve(session, operation, members) for members in groups for operation in OPERATIONS]
    slowdowns = tuple(_slowdowns(session))
    gathered = [curves for of_rank in _of_all_ranks(measured) for curves in of_rank]
    dist.barrier()
    dist.destroy_process_group()
    if place.rank > 0:
        return None
    fitted, judging = ([sample for curves in gathered for sample in curves[half]] for half in (0, 1))
    samples = tuple(fitted), slowdowns, tuple(judging)
    return Measurement(place.devices_per_node, place.num_nodes, _source(place, backend, device), *samples)


def _source(place: Place, backend: str, device: torch.device) -> str:
    """One sentence for the ``source`` of a cluster file: what ran where and when."""
    nodes = "one node" if place.num_nodes == 1 else f"{place.num_nodes} nodes"
    parts = [f"{key} {value}" for key, value in environment(device).items()]
    if backend == "nccl":
        parts.append(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")  # type: ignore[no-untyped-call]
    rounds = f"for each size the least of the means of {ROUNDS // 2} rounds, as many judge"
    return f"sim measure links, {place.num_ranks} ranks on {nodes}, {backend}, {', '.join(parts)}; {rounds}"


def _pairs(place: Place) -> list[Members]:
    """Neighbours: ranks that follow one another."""
    pairs = [(first, first + 1) for first in range(place.num_ranks - 1)]
    return [Members(pair, len({rank // place.devices_per_node for rank in pair})) for pair in pairs]


def _groups(place: Place) -> list[Members]:
    """Groups of growing size: 2, 4, 8 ranks and so on of the first node, then of 2, 4 nodes and so on."""
    per_node = place.devices_per_node
    inside = [Members(tuple(range(size)), 1) for size in doublings(per_node)]
    across = [Members(tuple(range(nodes * per_node)), nodes) for nodes in doublings(place.num_nodes)]
    return [members._replace(handle=dist.new_group(list(members.ranks))) for members in inside + across]


def doublings(largest: int) -> list[int]:
    """2, 4, 8 and so on, and the largest; nothing where that is 1."""
    smaller = [2**power for power in range(1, largest.bit_length()) if 2**power < largest]
    return [*smaller, largest] if largest > 1 else []


def _curve(session: Session, operation: str, members: Members) -> tuple[list[Sample], list[Sample]]:
    """Idle samples of odd and of even rounds, on the first rank of the group; all ranks call it."""
    means_by_size: dict[int, list[float]] = {elements_of(size, members): [] for size in session.sizes}
    for _ in range(ROUNDS):
        for elements, means in means_by_size.items():
            if session.place.rank in members.ranks:
                call = BINDERS[operation](members, elements, session.device)
                repeats = np.clip(REPEATED_BYTES // (elements * ELEMENT_BYTES), *REPEATS)
                means.append(mean_s(call, int(repeats)))
            dist.barrier()
    if session.place.rank != members.ranks[0]:
        return [], []
    odd, even = (
        [_sample(operation, members, of, min(means[half::2])) for of, means in means_by_size.items()]
        for half in (0, 1)
    )
    return odd, even


def _sample(operation: str, members: Members, elements: int, seconds: float) -> Sample:
    """Sample of one call; of a round trip only one way counts."""
    one_way = 0.5 if operation == PING_PONG else 1.0
    return Sample(operation, members.group, elements * ELEMENT_BYTES, one_way * seconds)


def mean_s(call: Call, repeats: int) -> float:
    """Mean seconds of some calls, after two that warm up."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.timeit(repeats).mean


def _slowdowns(session: Session) -> Iterator[tuple[str, float]]:
    """How much longer compute takes beside collectives of the largest size, by operation."""
    elements = elements_of(session.sizes[-1], session.everyone)
    with Compute(session.device) as compute:
        dist.barrier()
        begin = time.perf_counter()
        time.sleep(2 * BESIDE_S)
        alone = compute.mean_s(begin + BESIDE_S / 2, time.perf_counter())
        for operation in OPERATIONS:
            call = BINDERS[operation](session.everyone, elements, session.device)
            repeats = _of_all_ranks(max(3, round(BESIDE_S / mean_s(call, 3))))[0]
            begin = time.perf_counter()
            mean_s(call, repeats)
            slowed = compute.mean_s(begin, time.perf_counter())
            dist.barrier()
            ratios = _of_all_ranks(slowed / alone if slowed and alone else None)
            if known := [ratio for ratio in ratios if ratio is not None]:
                yield operation, median(known)


def _of_all_ranks(value: T) -> list[T]:
    values: list[T] = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
