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
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from profiles.measuring.counting.classes import call_of, find_class, spec_of
from profiles.measuring.counting.config_files import ConfigOptions, read_config
from profiles.measuring.counting.dataflow import units_of
from profiles.measuring.counting.trace import tensors
from profiles.measuring.timing.building import build, inputs, largest_integer
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
    """Return a network with random weights, in the host's memory, and what makes the arguments of a pass on a device.

    Args:
        config: a ``config.json`` of diffusers.
        batch_size: samples of the batch.
        lora: rank of adapters, which are trained in place of all weights; 0: none.
        sizes: as ``ConfigOptions``: height and width in pixels, latent frames, ...
    """
    network = find_class(read_config(Path(config)))
    call = call_of(network, ConfigOptions(**sizes))
    spec = replace(spec_of(call, network.name), trainable=True)
    module = build(spec, torch.float32, torch.Generator().manual_seed(0)).train()
    below, sample = largest_integer(module), call.sample(call.height, call.width)
    if lora:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415  not all need it

        linears = [path for path, part in module.named_modules() if isinstance(part, nn.Linear)]
        module.requires_grad_(False)
        module = inject_adapter_in_model(LoraConfig(r=lora, target_modules=linears), module).to(
            torch.bfloat16
        )
    return module, lambda device, dtype=torch.float32: inputs(
        sample, batch_size, dtype, below, torch.Generator(device).manual_seed(0)
    )


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network in the order of its definition."""
    return [module.get_submodule(unit.path) for unit in units_of(module)]


def recompute(module: nn.Module, kind: str) -> None:
    """Recompute all blocks of a network before their backward; where ``kind`` is selective, all but attention."""
    kept = (
        partial(create_selective_checkpoint_contexts, ATTENTION) if kind == "selective" else noop_context_fn
    )
    wrapper, own = partial(checkpoint_wrapper, context_fn=kept), set(blocks_of(module))
    apply_activation_checkpointing(module, checkpoint_wrapper_fn=wrapper, check_fn=own.__contains__)


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


def steps(count: int = 5) -> Iterator[int]:
    """Yield the numbers of steps, then print the median seconds of all but the first, and the fullest GPU's peak."""
    ends, there = list[float](), torch.cuda.is_available()
    for step in range(count):
        yield step
        if there:
            torch.cuda.synchronize()
        ends.append(perf_counter())
    step_s = median(end - start for start, end in pairwise(ends))
    peaks = torch.tensor(
        [torch.cuda.max_memory_reserved() / GIB if there else 0.0], device="cuda" if there else "cpu"
    )
    if distributed.is_initialized():
        distributed.all_reduce(peaks, distributed.ReduceOp.MAX)
    say(
        f"median step: --measured step_s={step_s:.4g} of sim run; peak of reserved memory: {peaks.item():.1f} GiB"
    )
