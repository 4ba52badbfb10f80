"""Data flow: which units of a network ran in which order in one pass, and which tensors later ones read."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from validate.counting.specs import CLASSES
from validate.counting.trace import EndedTwiceError, Ran, Returned, Trace, storage, tensor_bytes, tensors
from validate.counting.units import Unit, coarser

NEAR: Final = 2
SMALL: Final = 10
"""What one unit alone reads is carried if that is a later one than NEAR, or if SMALL times it is less than the hidden
state; else the units up to its reader are one, so that no cut has to carry it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What one pass shows.

    Attributes:
        units: those that can be cut apart, in execution order.
        ends: paths of the modules at whose return they end.
        streams: how many of the tensors that each returns are the hidden state.
        carried: bytes of what later units read beside the hidden state, by its names.
    """

    units: tuple[Unit, ...]
    ends: tuple[str, ...]
    streams: tuple[int, ...]
    carried: Mapping[str, int]


def flow_of(trace: Trace, units: Sequence[Unit], *, anywhere: bool = False) -> Flow:
    """The flow of one pass through units that can be cut apart.

    A unit that runs several times is one with what holds it, and with the next where no cut can be after it.

    Args:
        trace: the pass.
        units: in any order.
        anywhere: whether a cut can be after every unit, since what it has to carry is known.
    """
    while True:
        try:
            watch = Watch(trace, units)
        except EndedTwiceError as error:
            units = coarser(trace.module, units, error.path)
            continue
        uncut = [] if anywhere else watch.uncut()
        if not uncut:
            return watch.flow()
        units = [unit for unit in watch.units if unit not in uncut]


def attended(trace: Trace) -> int:
    """Tokens of the longest self-attention."""
    runs = (event for event in trace.events if isinstance(event, Ran) and event.attends_to_itself)
    return max((run.args[0].shape[-2] for run in runs), default=0)


def unread(trace: Trace) -> list[str]:
    """Names of the parameters that no operator reads."""
    runs = (event for event in trace.events if isinstance(event, Ran))
    read = {storage(tensor) for run in runs for tensor in run.reads}
    return [name for name, parameter in trace.module.named_parameters() if storage(parameter) not in read]


class Watch:
    """Who writes and reads what; positions count the units that have ended.

    A tensor is *made* where it depends on parameters or conditions; tables of positions and masks do not.
    """

    def __init__(self, trace: Trace, units: Sequence[Unit]) -> None:
        self.units: list[Unit] = []
        self._outputs: list[tuple[Tensor, ...]] = []
        self._output = next(reversed(trace.returned().values()))
        self._parameters = {storage(p) for p in trace.module.parameters()}
        self._names: dict[int, str] = {}
        self._returned: dict[int, tuple[str, int]] = {}
        self._early: dict[int, str] = {}
        self._written: dict[int, tuple[int, Tensor]] = {}
        self._read: defaultdict[int, set[int]] = defaultdict(set)
        self._made: set[int] = set()
        for name, value in trace.sample.items():
            for tensor in tensors(value):
                self._give(name, tensor)
        known = {unit.path: unit for unit in units}
        inside = tuple(f"{unit.path}." for unit in units)
        for event, position in zip(trace.events, trace.positions(known), strict=True):
            if isinstance(event, Ran) and not event.func.is_view:
                self._note(event, position)
            elif isinstance(event, Returned):
                self._return(event, known, inside)

    def flow(self) -> Flow:
        """What the pass shows of units that can be cut apart."""
        positions = range(len(self.units))
        ends = [unit.path for unit in self.units[:-1]] + [self._last()] if self.units else []
        carried: defaultdict[str, int] = defaultdict(int)
        for one, later in self._beside():
            if self._is_carried(one, later):
                name = self._names.get(one) or self._early.get(one, "computed")
                carried[name] += tensor_bytes([self._written[one][1]])
        return Flow(tuple(self.units), tuple(ends), tuple(map(self._streams, positions)), carried)

    def uncut(self) -> list[Unit]:
        """The first units after which something is alive that is neither carried nor a unit's output."""
        loose = [later for one, later in self._beside() if not self._is_carried(one, later)]
        return self.units[: max((max(later) for later in loose), default=0)]

    def _give(self, name: str, tensor: Tensor) -> None:
        self._names[storage(tensor)], self._written[storage(tensor)] = name, (-1, tensor)
        if not any(part in name for part in CLASSES["arguments"]["everywhere"]):
            self._made.add(storage(tensor))

    def _note(self, ran: Ran, position: int) -> None:
        inputs = {storage(tensor) for tensor in ran.reads}
        for one in inputs:
            self._read[one].add(position)
        for tensor in ran.writes:
            self._written.setdefault(storage(tensor), (position, tensor))
        if not inputs.isdisjoint(self._made | self._parameters):
            self._made |= {storage(tensor) for tensor in ran.writes}

    def _return(self, event: Returned, known: Mapping[str, Unit], inside: tuple[str, ...]) -> None:
        if event.path in known:
            self.units.append(known[event.path])
            self._outputs.append(event.outputs)
        if event.path and not event.path.startswith(inside):
            for one in map(storage, event.outputs):
                self._returned[one] = (event.path, len(self.units))
                if len(self.units) <= 1:
                    self._early[one] = event.path

    def _streams(self, position: int) -> int:
        """How many of the tensors that a unit returns are new, shaped like the first, and read later."""
        outputs = self._outputs[position] if position < len(self.units) - 1 else ()
        count = 0
        for tensor in outputs:
            written = self._written.get(storage(tensor), (-1, tensor))[0]
            later = any(reader > position for reader in self._read[storage(tensor)])
            if not (tensor.dim() == outputs[0].dim() and later and written == position):
                break
            count += 1
        return max(count, 1)

    def _last(self) -> str:
        """Path of the module that returned the largest tensor of the output after the last unit."""
        largest = max(self._output, key=lambda tensor: tensor.numel())
        path, position = self._returned.get(storage(largest), ("", len(self.units)))
        return path if position == len(self.units) or path == self.units[-1].path else ""

    def _beside(self) -> Iterator[tuple[int, set[int]]]:
        """What is made before or in the first unit but is no hidden state, and which later units read it."""
        hidden = {
            storage(tensor)
            for position, outputs in enumerate(self._outputs)
            for tensor in outputs[: self._streams(position)]
        }
        final = len(self.units) - 1
        for one, (written, _) in self._written.items():
            later = {min(position, final) for position in self._read[one] if position > 0} - {0}
            if written <= 0 and later and one in self._made and one not in hidden:
                yield one, later

    def _is_carried(self, one: int, later: set[int]) -> bool:
        """Whether every unit is given a tensor, rather than that those up to its only reader are one."""
        size, hidden = (
            tensor_bytes([self._written[one][1]]),
            tensor_bytes(self._outputs[0][: self._streams(0)]),
        )
        small = size * SMALL < hidden or (size < hidden and max(later) > NEAR)
        return len(later) > 1 or len(self.units) - 1 in later or small
