"""Stages: successive layers of any network, which a pipeline runs on a device of their own.

One pass on the meta device shows which outputs of modules later layers read. A stage runs the whole network, but
modules of earlier layers return what was handed on, and the pass is left once the last layer has run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from profiles.measuring.counting.dataflow import parts_run, units_of
from profiles.measuring.counting.module import on_meta, without_weights
from profiles.measuring.counting.trace import Ran, Returned, Trace, record, storage, tensors


class Part(NamedTuple):
    """A module with weights of its own, the layer that it belongs to, and what it returns, without contents."""

    path: str
    layer: int
    output: object


class Elsewhere(nn.Module):
    """Stands for a module of another stage: returns what that handed on, and zeros for what nobody reads here."""

    def __init__(self, twin: nn.Module, output: object, given: dict[int, Tensor]) -> None:
        super().__init__()
        self.__dict__ |= {"twin": twin, "output": output, "given": given}  # no weights of the twin are ours

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the module has
        return getattr(self.__dict__["twin"], name)

    def forward(self, *_: object, **__: object) -> object:
        """Return the output of the module that is elsewhere."""
        device = next(iter(self.given.values())).device

        def known(tensor: Tensor) -> Tensor:
            zeros = torch.zeros((), dtype=tensor.dtype, device=device)
            given: dict[int, Tensor] = self.__dict__["given"]
            return given.get(id(tensor), zeros.expand(tensor.shape))

        return tree_map_only(Tensor, known, self.output)


class Reached(Exception):  # noqa: N818  no error
    """The last layer of a stage has run."""


class Stage(nn.Module):
    """Successive layers of a network: from the tensors that earlier ones hand on to those that later ones read.

    Args:
        network: modules of other stages are taken out of it.
        arguments: of each pass.
        first: index of the first layer, among those of ``sim measure count``.
        last: index of the last layer.
        type: precision of products.
    """

    def __init__(
        self, network: nn.Module, arguments: Mapping[str, Any], first: int, last: int, type: torch.dtype
    ) -> None:
        super().__init__()
        self.network, self._arguments, self._type = network, arguments, type
        self._given: dict[int, Tensor] = {}
        twin = without_weights(network).float()
        units, parts, spans = _handed_on(twin, on_meta(arguments))
        self._received = [key for key, (written, read) in spans.items() if written < first <= read]
        self._sent = [key for key, (written, read) in spans.items() if written <= last < read]
        for part in parts:
            if first <= part.layer <= last:
                end = part.path == units[last] and last < len(units) - 1
                network.get_submodule(part.path).register_forward_hook(partial(self._keep, part.output, end))
            else:
                parent, _, name = part.path.rpartition(".")
                instead = Elsewhere(twin.get_submodule(part.path), part.output, self._given)
                network.get_submodule(parent)._modules[name] = instead

    def _keep(self, known: object, end: bool, _: nn.Module, __: object, output: object) -> None:
        """Note what a module returns; the last one ends the pass."""
        self._given |= dict(zip(map(id, tensors(known)), tensors(output), strict=True))
        if end:
            raise Reached

    def forward(self, *received: Tensor) -> tuple[Tensor, ...]:
        """Return what later layers read, or the output of the whole network."""
        for tensor in received:
            if tensor.requires_grad:
                tensor.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]  # what is sent back must be
        self._given.clear()
        self._given |= dict(zip(self._received, received, strict=True))
        device = next(self.parameters()).device.type
        try:
            with torch.autocast(device, self._type, enabled=self._type is not torch.float32):
                return tensors(self.network(**self._arguments))
        except Reached:
            sent = (self._given[key].contiguous() for key in self._sent)
            return tuple(tensor.view_as(tensor) for tensor in sent)  # one that is only passed on is no leaf


def _handed_on(
    twin: nn.Module, arguments: Mapping[str, Any]
) -> tuple[list[str], list[Part], dict[int, tuple[int, int]]]:
    """Return the units that end layers, all parts, and of each output the layer that writes and the last that reads it.

    Outputs are known by the identity of their tensors, which the parts keep.
    """
    outputs: dict[str, object] = {}
    for path, module in twin.named_modules():
        module.register_forward_hook(lambda _, __, output, path=path: outputs.__setitem__(path, output))
    trace = record(twin, arguments, grad=False)
    units = [part.path for part in parts_run(trace, units_of(twin))]
    paths, layer = set(_parts(trace, twin, units, "")), 0
    parts, spans = list[Part](), dict[int, tuple[int, int]]()
    origins: dict[int, set[int]] = {}  # outputs from which the contents of a storage follow
    returned: dict[int, set[int]] = {}  # outputs that are views of a storage
    for event in trace.events:
        if isinstance(event, Ran):
            sources = set[int]().union(*(origins.get(storage(one), ()) for one in event.reads))
            spans |= {key: (spans[key][0], layer) for key in sources}
            for one in event.writes:
                origins[storage(one)] = origins.get(storage(one), set()) | sources
        elif isinstance(event, Returned) and event.path in paths:
            parts.append(Part(event.path, layer, outputs[event.path]))
            for one in event.outputs:
                spans.setdefault(id(one), (layer, layer))
                origins[storage(one)] = returned[storage(one)] = returned.get(storage(one), set()) | {id(one)}
            layer = min(layer + (event.path in units), len(units) - 1)  # the last one ends with the network
    return units, parts, spans


def _parts(trace: Trace, module: nn.Module, units: list[str], prefix: str) -> Iterator[str]:
    """Yield the largest modules that run once, hold weights, and no unit unless they are one."""
    runs = Counter(event.path for event in trace.events if isinstance(event, Returned))
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        inside = any(unit.startswith(f"{path}.") for unit in units)
        if runs[path] == 1 and not inside and next(child.parameters(), None) is not None:
            yield path
        elif path not in units:
            yield from _parts(trace, child, units, f"{path}.")
