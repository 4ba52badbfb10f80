"""Counting the components of a model, with what a partitioner and a sampler need to know besides the work.

That is skips, what every layer needs, and what patches and shards of the weights exchange.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from profiles.architectures.components import Exchange
from profiles.architectures.kernels import FEW_ROWS
from profiles.errors import InputError
from profiles.measuring.counting.dataflow import attended, parts_run, units_of
from profiles.measuring.counting.specs import DTYPES, Architecture, ComponentSpec, LayerSpec
from profiles.measuring.counting.tally import Tally, Work, exchanges_of, together, total
from profiles.measuring.counting.trace import Trace, cast, record, tensor_bytes, tensors

LATENTS: Final = ("hidden_states", "sample", "x")
"""Names of the argument that is to be denoised; each backbone takes one of them."""


@dataclass(frozen=True, slots=True)
class ComponentCount:
    """One component, counted: layer i of its specification does ``work[i]``; skips are pairs of layer indices.

    ``reads`` are (name of an input, layer that reads it, bytes that it reads); ``carried`` bytes that every layer
    needs besides, by name; ``latent_bytes`` the bytes that a backbone denoises; ``traces`` those of its passes. Layers
    that the specification left to the structure are filled in.
    """

    spec: ComponentSpec
    image_tokens: int
    text_tokens: int
    work: tuple[Work, ...]
    skips: tuple[tuple[int, int], ...]
    reads: tuple[tuple[str, int, int], ...]
    exchanges: tuple[Exchange, ...]
    carried: Mapping[str, int]
    latent_bytes: int = 0
    traces: tuple[Trace, ...] = field(default=(), repr=False, compare=False)

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """Its layers."""
        return self.spec.layers

    @property
    def total(self) -> Work:
        """The work of all layers."""
        return total(self.work)


@dataclass(frozen=True, slots=True)
class ModelCount:
    """All components of an architecture, counted at one resolution in pixels."""

    architecture: Architecture
    height: int
    width: int
    components: tuple[ComponentCount, ...]


def count_model(
    architecture: Architecture, height: int | None = None, width: int | None = None
) -> ModelCount:
    """Count every component of an architecture, by default at its own resolution in pixels."""
    height = architecture.height if height is None else height
    width = architecture.width if width is None else width
    step, largest = architecture.granularity, architecture.largest
    for side, pixels in (("height", height), ("width", width)):
        if pixels < 1 or pixels % step or (largest is not None and pixels > largest):
            limit = "" if largest is None else f", up to {largest},"
            rule = f"a positive multiple of {step} pixels{limit} for {architecture.title}"
            raise InputError(f"{side} is {pixels}, must be {rule}")
    dtype = architecture.dtype
    components = tuple(count_component(spec, height, width, dtype) for spec in architecture.components)
    return ModelCount(architecture, height, width, components)


def count_component(spec: ComponentSpec, height: int, width: int, dtype: str = "float16") -> ComponentCount:
    """Count one component at a resolution in pixels, its weights and activations of one precision."""
    samples, known = (spec.sample, *spec.again), {}
    for sample in dict.fromkeys(samples):
        trace = trace_of(spec, build(spec, DTYPES[dtype]), sample(height, width))
        known[sample] = counted_by(spec, trace, height, width)
    passes = [known[sample] for sample in samples]
    work = (together(layer) for layer in zip(*(each.work for each in passes), strict=True))
    return replace(passes[0], work=tuple(work), traces=tuple(each.traces[0] for each in passes))


def build(spec: ComponentSpec, dtype: torch.dtype, device: str | torch.device = "meta") -> nn.Module:
    """Build a component on a device, its weights of one precision."""
    with torch.device(device):
        module = spec.build().eval().requires_grad_(spec.trainable)
    for path in spec.locked if spec.gradients == "trained" else ():
        module.get_submodule(path).requires_grad_(False)
    nn.Module.to(module, dtype)  # diffusers' own `to` warns that some modules might want float32
    return module


def trace_of(spec: ComponentSpec, module: nn.Module, sample: Mapping[str, Any]) -> Trace:
    """Run one pass of a component, its activations as precise as its weights."""
    dtype = next(parameter.dtype for parameter in module.parameters())
    return record(module, cast(sample, dtype), grad=spec.trainable)


def counted_by(spec: ComponentSpec, trace: Trace, height: int, width: int) -> ComponentCount:
    """Count one component from one pass at a resolution in pixels; one without blocks is refused."""
    spec = spec if spec.layers else replace(spec, layers=tuple(_layers(spec, trace)))
    image_tokens = spec.image_tokens(height, width)
    text_tokens = max(attended(trace) - image_tokens, 0)
    inputs = {name: tensors(trace.sample[argument]) for argument, name in spec.reads.items()}
    locked = [tensor for path in spec.locked for tensor in trace.module.get_submodule(path).parameters()]
    tally = Tally(trace, spec.layers, inputs, locked)
    exchanges = exchanges_of(trace, spec.layers, spec.sums, image_tokens, text_tokens) if spec.sums else ()
    known = trace.returned() | {name: tensors(value) for name, value in trace.sample.items()}
    return ComponentCount(
        spec=spec,
        image_tokens=image_tokens,
        text_tokens=text_tokens,
        work=tally.work,
        skips=tuple(sorted(tally.skips)),
        reads=tuple((name, layer, size) for (name, layer), size in sorted(tally.reads.items())),
        exchanges=tuple(exchanges),
        carried={name: tensor_bytes(known[name]) for name in spec.carried},
        latent_bytes=tensor_bytes(latents_of(trace)) if spec.trainable else 0,
        traces=(trace,),
    )


def latents_of(trace: Trace) -> tuple[Tensor, ...]:
    """What a pass denoises: of arguments of other names, the tensor of the most dimensions."""
    named = tensors([trace.sample[name] for name in LATENTS if name in trace.sample])
    return named or tuple(sorted(tensors(trace.sample), key=Tensor.dim)[-1:])


def _layers(spec: ComponentSpec, trace: Trace) -> Iterator[LayerSpec]:
    """Yield the layers that one pass shows."""
    units = units_of(trace.module, spec.word)
    parts = parts_run(trace, [unit._replace(path=spec.ends.get(unit.path, unit.path)) for unit in units])
    if not parts:
        raise ValueError("it has no list of blocks (nn.ModuleList) that one pass runs")
    block = -1
    for part in parts:
        name = part.name
        for words, instead in spec.names.items():
            name = name.replace(words, instead)
        block += spec.apart or part.block or block < 0
        yield part._replace(name=name, block=block, end=part.path if spec.ends else part.end)


class _Beside(torch.autograd.Function):
    """An adapter that keeps the input of its linear, and nothing of its own."""

    @staticmethod
    def forward(ctx: FunctionCtx, linear_input: Tensor, output: Tensor, trained: Tensor) -> Tensor:
        ctx.save_for_backward(linear_input)
        return output


def adapted_bytes(count: ComponentCount) -> tuple[int, ...]:
    """Bytes that each layer of a frozen backbone keeps per sample for its backward beside adapters, from a second pass.

    A frozen linear keeps only its weight, but its adapter keeps its input; a product with a factor that nothing trains,
    such as a modulation by the time step, keeps only that factor. Inputs of the adapters' second products are left out.
    """
    saved = [0] * len(count.layers)
    for known in count.traces:
        module = deepcopy(known.module)
        for path in count.spec.locked:
            module.get_submodule(path).requires_grad_(False)
        trained = torch.empty(1, device="meta", requires_grad=True)
        for part in module.modules():
            if isinstance(part, nn.Linear) and part.weight.requires_grad:
                part.register_forward_hook(partial(_beside, trained), with_kwargs=True)
        module.requires_grad_(False)
        tally = Tally(record(module, known.sample, grad=True), count.layers, {})
        saved = [max(size, work.saved_bytes) for size, work in zip(saved, tally.work, strict=True)]
    return tuple(saved)


def _beside(
    trained: Tensor, linear: nn.Linear, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor
) -> Tensor:
    """Put an adapter beside a linear through which tokens pass."""
    tokens = (*inputs, *named.values())[0]
    if tokens.numel() <= FEW_ROWS * linear.in_features:
        return output
    result: Tensor = _Beside.apply(tokens, output, trained)  # type: ignore[no-untyped-call]
    return result
