"""Operations on real ranks, each bound to its buffers, to be called again and again; and compute beside them."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from profiles.machines.collectives import Group
from validate.fitting.link_samples import PING_PONG

ELEMENT_BYTES: Final = 4
WIDTHS: Final = {"cpu": (256, torch.float32), "cuda": (4096, torch.bfloat16)}
"""Side and type of the matrices: some milliseconds a product on a CPU core, a quarter on an H100."""
PRODUCTS: Final = 8
"""Matrix products between two readings of the clock on a GPU; one on a processor."""

Call = Callable[[], object]


class Members(NamedTuple):
    """The ranks of one operation, ascending, on so many nodes; all ranks, and pairs, need no process group."""

    ranks: tuple[int, ...]
    num_nodes: int
    handle: dist.ProcessGroup | None = None

    @property
    def group(self) -> Group:
        """Their number and spread."""
        return Group(len(self.ranks), self.num_nodes)


def elements_of(size_bytes: int, members: Members) -> int:
    """Elements nearest to a size that the members can divide, at least one for each."""
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


def _all_reduce(members: Members, elements: int, device: torch.device) -> Call:
    buffer = torch.zeros(elements, device=device)
    return lambda: dist.all_reduce(buffer, group=members.handle)


def _between(operation: str, mine: str) -> Callable[[Members, int, torch.device], Call]:
    """Binds an operation that fills one buffer from another; ``mine`` is the one that holds a member's share alone."""

    def bind_buffers(members: Members, elements: int, device: torch.device) -> Call:
        share = elements // len(members.ranks)
        sizes = [share if mine == name else elements for name in ("output", "input")]
        received, sent = (torch.zeros(size, device=device) for size in sizes)
        return lambda: getattr(dist, operation)(received, sent, group=members.handle)

    return bind_buffers


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
    "all_gather": _between("all_gather_single", mine="input"),
    "reduce_scatter": _between("reduce_scatter_single", mine="output"),
    "all_to_all": _between("all_to_all_single", mine=""),
    "send_recv": _send_recv,
}
"""Make one call of an operation; the elements are those of ``profiles.machines.collectives.collective_time``."""


class Compute:
    """Matrix products, one after the other in a thread (on a GPU, on a stream) of its own, from ``with`` to its end."""

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
