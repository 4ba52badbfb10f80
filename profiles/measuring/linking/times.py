"""Measuring links: operations on real ranks, ping-pong and collectives, and how these slow down compute.

A time is the least of the means of short rounds, as other programs disturb in bursts, read on the first rank of its
group. Odd and even rounds give a time each: the links are fitted to the former and judged by the latter.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

from profiles.errors import InputError
from profiles.machines.collectives import Group
from profiles.machines.fabrics import OPERATIONS
from profiles.measuring.fitting.collective_laws import PING_PONG, MeasuredCurve
from profiles.measuring.launching import Place, unbroken
from profiles.measuring.linking.samples import Measurement, merged
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

    def elements_of(self, size_bytes: int) -> int:
        """Number of elements nearest to a size that the members can divide evenly, at least one for each."""
        return max(1, round(size_bytes / ELEMENT_BYTES / len(self.ranks))) * len(self.ranks)


def bind(operation: str, members: Members, elements: int, device: torch.device) -> Call:
    """One call of an operation as this rank makes it; elements are those of ``collective_time``.

    A member sends to the next of the ring and receives from the one before.
    """
    handle, ranks = members.handle, members.ranks
    at, share = ranks.index(dist.get_rank()), elements // len(ranks)
    following, before = ranks[(at + 1) % len(ranks)], ranks[at - 1]
    sent = torch.zeros(share if operation == "all_gather" else elements, device=device)
    received = torch.zeros(share if operation == "reduce_scatter" else elements, device=device)

    def there_and_back() -> None:
        for way in (dist.recv, dist.send) if at else (dist.send, dist.recv):
            way(sent, following)

    def one_round() -> None:
        there = dist.P2POp(dist.isend, sent, following, handle)
        here = dist.P2POp(dist.irecv, received, before, handle)
        for request in dist.batch_isend_irecv([there, here]):
            request.wait()

    own: dict[str, Call] = {
        PING_PONG: there_and_back,
        "send_recv": one_round,
        "all_reduce": partial(dist.all_reduce, sent, group=handle),
    }
    return own.get(operation) or partial(getattr(dist, f"{operation}_single"), received, sent, group=handle)


def product_s(device: torch.device, work: Call) -> float:
    """Mean seconds of matrix products in a thread, on a GPU on a stream of its own, while some work is done."""
    threads, stop = torch.get_num_threads(), threading.Event()

    def multiply() -> float:
        torch.set_num_threads(threads)  # a thread has a number of its own
        width, dtype = WIDTHS[device.type]
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            matrix = torch.full((width, width), 1 / width, dtype=dtype, device=device)
            moments = list[float]()
            while len(moments) < 2 or not stop.is_set():
                for _ in range(PRODUCTS if stream else 1):
                    matrix = matrix @ matrix
                if stream:
                    stream.synchronize()
                moments.append(time.perf_counter())
        return (moments[-1] - moments[0]) / (len(moments) - 1)

    with ThreadPoolExecutor(1) as thread:
        seconds = thread.submit(multiply)
        try:
            work()
        finally:
            stop.set()
        return seconds.result()


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
    what = [(PING_PONG, pair) for pair in _pairs(place)]
    what += [(operation, members) for members in _groups(place) for operation in OPERATIONS]
    measured = [_curve(*test, sizes_up_to(max_bytes), device) for test in what]
    slowdowns = tuple(_slowdowns(everyone, max_bytes, device))
    gathered = [halves for of_rank in _of_all_ranks(measured) for halves in of_rank if halves]
    dist.barrier()
    dist.destroy_process_group()
    if place.rank > 0:
        return None
    fitted, judging = (merged(halves[number] for halves in gathered) for number in (0, 1))
    curves = fitted, slowdowns, judging
    return Measurement(place.devices_per_node, place.num_nodes, _source(place, backend, device), *curves)


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


def _curve(
    operation: str, members: Members, sizes_bytes: Sequence[int], device: torch.device
) -> Sequence[MeasuredCurve]:
    """Idle times of odd and of even rounds, on the first rank of the group; none on others; all ranks call it."""
    means_by_size: dict[int, list[float]] = {members.elements_of(size): [] for size in sizes_bytes}
    for _ in range(ROUNDS):
        for elements, means in means_by_size.items():
            if dist.get_rank() in members.ranks:
                call = bind(operation, members, elements, device)
                repeats = np.clip(REPEATED_BYTES // (elements * ELEMENT_BYTES), *REPEATS)
                means.append(mean_s(call, int(repeats)))
            dist.barrier()
    if dist.get_rank() != members.ranks[0]:
        return ()
    group, one_way = Group(len(members.ranks), members.num_nodes), 0.5 if operation == PING_PONG else 1.0
    sizes, rounds_s = ELEMENT_BYTES * np.array([*means_by_size], float), np.array([*means_by_size.values()])
    halves = (one_way * rounds_s[:, half::2].min(axis=1) for half in (0, 1))
    return [MeasuredCurve(operation, group, sizes, seconds) for seconds in halves]


def mean_s(call: Call, repeats: int) -> float:
    """Mean seconds of some calls, after two that warm up."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.timeit(repeats).mean


def _slowdowns(everyone: Members, size_bytes: int, device: torch.device) -> Iterator[float]:
    """How much longer compute takes beside collectives of a size, by operation."""
    elements = everyone.elements_of(size_bytes)
    dist.barrier()
    alone_s = product_s(device, partial(time.sleep, 2 * BESIDE_S))
    for operation in OPERATIONS:
        call = bind(operation, everyone, elements, device)
        repeats = _of_all_ranks(max(3, round(BESIDE_S / mean_s(call, 3))))[0]
        slowed_s = product_s(device, partial(mean_s, call, repeats))
        dist.barrier()
        yield median(_of_all_ranks(slowed_s / alone_s))


def _of_all_ranks(value: T) -> list[T]:
    values: list[T] = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
