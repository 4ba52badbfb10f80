"""Starting: what the scripts that ``sim launch`` writes train, until weights and data of the user's own stand there."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch
from accelerate import init_empty_weights
from diffusers.training_utils import cast_training_params
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapping
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from profiles.architectures.kernels import FEW_ROWS
from profiles.measuring.counting import component
from profiles.measuring.counting.classes import call_of, find_class, spec_of
from profiles.measuring.counting.dataflow import units_of
from profiles.measuring.counting.module import without_weights
from profiles.measuring.counting.specs import ConfigOptions, read_config
from profiles.measuring.counting.trace import record, tensors
from profiles.measuring.timing.building import fill, inputs, largest_integer
from profiles.units import GIB

Batch = Callable[..., dict[str, Any]]
"""From a device, and a precision, to the keyword arguments of one pass on a random batch."""
ATTENTION: Final = [
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
]
"""Kernels of attention, which selective recomputation keeps."""


def start(config: str, batch_size: int, *, lora: int = 0, **sizes: Any) -> tuple[nn.Module, Batch]:  # noqa: ANN401  whole numbers
    """Return a network whose weights, not its buffers, are on the meta device, and what makes the arguments of a pass.

    Args:
        config: a ``config.json`` of diffusers.
        batch_size: samples of the batch.
        lora: rank of adapters in float32, which are trained beside weights in bfloat16; 0: all weights are trained.
        sizes: as ``ConfigOptions``: height and width in pixels, latent frames, ...
    """
    call = call_of(find_class(read_config(Path(config))), ConfigOptions(**sizes))
    spec = replace(spec_of(call, call.network.name), trainable=True)
    with init_empty_weights(include_buffers=False):
        module = component.build(spec, torch.float32, "cpu").train()
    below, sample = largest_integer(module), call.sample(call.height, call.width)
    if lora:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415  not all need it

        known = record(without_weights(module), sample, grad=False).returned()
        every = [
            path for path, part in module.named_modules() if path in known and isinstance(part, nn.Linear)
        ]
        linears = [path for path in every if known[path][0][..., 0].numel() > FEW_ROWS]  # of tokens
        nn.Module.to(module.requires_grad_(False), torch.bfloat16)
        module = inject_adapter_in_model(LoraConfig(r=lora, lora_alpha=lora, target_modules=linears), module)
        cast_training_params(module)  # AdamW rounds no step of theirs away
    return module, lambda device, dtype=torch.float32: inputs(
        sample, batch_size, dtype, below, torch.Generator(device).manual_seed(0)
    )


def placed(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Return a network on a device, where weights that were on the meta device have no known contents."""
    return module._apply(  # type: ignore[no-untyped-call,no-any-return]
        lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
    )


def draw(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Return a network on a device with random weights, the same on each rank; of shards with their parts of them."""
    return fill(placed(module, device), torch.Generator(device).manual_seed(0))


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network in the order of its definition."""
    return [module.get_submodule(unit.path) for unit in units_of(module)]


def recompute(module: nn.Module, kind: str) -> None:
    """Recompute all blocks of a network before their backward; where ``kind`` is selective, all but attention."""
    kept = {"selective": partial(create_selective_checkpoint_contexts, ATTENTION)}.get(kind, noop_context_fn)
    wrapper, own = partial(wrapping.checkpoint_wrapper, context_fn=kept), set(blocks_of(module))
    wrapping.apply_activation_checkpointing(module, checkpoint_wrapper_fn=wrapper, check_fn=own.__contains__)


def loss_of(output: object) -> Tensor:
    """Return the mean squared difference of a prediction from noise, the same at each step."""
    losses = []
    for one in tensors(output):
        draws = torch.Generator(one.device).manual_seed(0)
        noise = torch.randn(one.shape, generator=draws, device=one.device)
        losses.append(mse_loss(one.float(), noise))
    return torch.stack(losses).mean()


def say(text: str) -> None:
    """Print a line on the first rank alone."""
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        print(text)


def steps(command: str, count: int = 5) -> Iterator[int]:
    """Yield the numbers of steps, then print the fullest GPU's peak, and a command with the median of later steps."""
    ends, there = list[float](), torch.cuda.is_available()
    if there:  # the peak is of steps, not of making the network
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for step in range(count):
        yield step
        if there:
            torch.cuda.synchronize()
        ends.append(perf_counter())
    step_s = median(end - start for start, end in pairwise(ends))
    peak = torch.full((), torch.cuda.max_memory_reserved() / GIB, device="cuda") if there else torch.zeros(())
    if distributed.is_initialized():
        distributed.all_reduce(peak, distributed.ReduceOp.MAX)
    say(f"peak of reserved memory: {peak:.1f} GiB; median step:\n{command} --measured step_s={step_s:.4g}")
