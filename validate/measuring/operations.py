"""Operations on real ranks: each bound to its buffers, to be called again and again."""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from profiles.collectives import Group
from validate.fitting.link_samples import PING_PONG

ELEMENT_BYTES: Final = 4

Call = Callable[[], object]


class Members(NamedTuple):
    """The ranks of one operation.

    Attributes:
        ranks: ascending.
        num_nodes: that they are on.
        handle: their process group; none for all ranks, and for pairs, which need no group of their own.
    """

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


def bind(operation: str, members: Members, elements: int, device: torch.device) -> Call:
    """One call of an operation; ``elements`` are those of ``profiles.collectives.collective_time``."""
    return _BINDERS[operation](members, elements, device)


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
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, following, members.handle),
                dist.P2POp(dist.irecv, received, before, members.handle),
            ]
        )
        for request in requests:
            request.wait()

    return one_round


_BINDERS: Final[dict[str, Callable[[Members, int, torch.device], Call]]] = {
    PING_PONG: _ping_pong,
    "all_reduce": _all_reduce,
    "all_gather": _between("all_gather_single", mine="input"),
    "reduce_scatter": _between("reduce_scatter_single", mine="output"),
    "all_to_all": _between("all_to_all_single", mine=""),
    "send_recv": _send_recv,
}
