"""FSDP2 beside its plan: torch shards a small transformer on real ranks, and what they do is held against the plan.

``torch.distributed.fsdp.fully_shard`` is applied block by block; its calls of collectives are noted as it makes them.
They must be those of the plan, in its order and with its numbers; each rank must own as many parameters as the plan
says; and gradients must be those of one process. Tokens that lie on several ranks are attended to by Ulysses or a ring.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from inspect import signature
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

from profiles.architectures.models import Model
from profiles.architectures.synthetic import equal_blocks_transformer
from profiles.errors import DiffusimError, InputError
from strategies.pipelining.mesh import CONTEXT, REPLICAS, SHARDS
from strategies.plans.plan import Plan
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario
from strategies.training.fsdp import FSDP
from validate.launching import launch, launched_place, unbroken
from validate.running.links import emulated_cluster
from validate.running.rank import join
from validate.running.training.attention import WAYS, Context

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ROWS, WIDTH, HEADS, BLOCKS = 4, 64, 8, 4
TOKENS: Final = ROWS**2
ROUNDING: Final = 1e-9
ELEMENT_BYTES: Final = 4
"""Of weights, gradients and activations in the plan; the ranks compute in float64, so that gradients compare well."""
RECORDED: Final = {
    "all_gather_single": ("all_gather", SHARDS, "output_tensor"),
    "reduce_scatter_single": ("reduce_scatter", SHARDS, "input"),
    "all_reduce": ("all_reduce", REPLICAS, "tensor"),
}
"""Calls by which torch exchanges; the operations and streams of a plan, and the argument that is whole."""

Calls = list[tuple[str, int]]
"""Operations and how many numbers they are of."""


@dataclass(frozen=True, slots=True)
class ShardedTraining:
    """What is trained: a strategy, on ranks and samples, with blocks checkpointed or not."""

    strategy: FSDP
    num_ranks: int
    batch_size: int
    checkpointing: str = "none"


class Found(NamedTuple):
    """What one rank found: its exchanges by stream, the parameters it owns, and how far its gradients are off."""

    calls: Mapping[int, Calls]
    owned: int
    gradient_error: float


class WideningBlock(nn.Module):
    """A block of a transformer; the wider, the later it comes."""

    def __init__(self, number: int, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        inner = WIDTH * (number + 2)
        self.norm, self.attend = nn.LayerNorm(WIDTH), attend
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden state after the block, (samples, tokens, WIDTH)."""
        parts = self.project(self.norm(hidden)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        hidden = hidden + self.out(self.attend(*parts).flatten(2))
        result: Tensor = hidden + self.inner(hidden)
        return result


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention on one rank."""
    own = [part.transpose(1, 2) for part in (queries, keys, values)]
    return nn.functional.scaled_dot_product_attention(own[0], own[1], own[2]).transpose(1, 2)


def transformer(attention: Callable[..., Tensor]) -> nn.Sequential:
    """The blocks; the same in every process."""
    torch.manual_seed(1)
    return nn.Sequential(*(WideningBlock(number, attention) for number in range(BLOCKS))).double()


def batch_of(samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets; the same in every process."""
    generator = torch.Generator().manual_seed(2)
    inputs, targets = torch.randn((2, samples, TOKENS, WIDTH), generator=generator, dtype=torch.float64)
    return inputs, targets


def profile() -> Model:
    """The same blocks as a model of the simulator."""
    model = equal_blocks_transformer(BLOCKS, rows=ROWS, hidden_size=WIDTH, heads=HEADS)
    (component,) = model.components
    sizes = [sum(p.numel() for p in block.parameters()) for block in transformer(attend)]
    layers = tuple(replace(of, parameters=size) for of, size in zip(component.layers, sizes, strict=True))
    return replace(model, dtype="float32", components=(replace(component, layers=layers),))


def plan_of(asked: ShardedTraining) -> Plan:
    """The plan of what is asked.

    Raises:
        InfeasibleError: it does not exist.
        InputError: torch does not shard so, or nobody here attends so.
    """
    workload = TrainingWorkload(
        asked.num_ranks, asked.batch_size, memory_recipe="fp32", checkpointing=asked.checkpointing
    )
    plan = asked.strategy.plan(Scenario(profile(), emulated_cluster(0.0), workload))
    if asked.strategy.tensor_degree > 1:
        raise InputError("tensor_degree is above 1: tensor parallelism is not carried out here")
    if not any(collective.operation == "all_gather" for collective in plan.collectives):
        raise InputError("nothing is sharded: that is ddp, which --schedule ddp carries out")
    return plan


def planned_calls(plan: Plan) -> dict[int, Calls]:
    """The exchanges of a plan by stream, each call on its own, in numbers."""
    found: dict[int, Calls] = {SHARDS: [], REPLICAS: [], CONTEXT: []}
    for collective in plan.collectives:
        numbers, calls = collective.size_bytes / ELEMENT_BYTES, collective.calls
        found[collective.stream] += [(collective.operation, round(numbers / calls))] * calls
    return found


def carry_out(asked: Sequence[ShardedTraining]) -> list[Found]:
    """Train for an iteration of each as one of the ranks, under ``fully_shard``."""
    place = launched_place()
    assert place is not None
    join(place)
    with unbroken(place.rank):
        found = [_carry_out(own) for own in asked]
        dist.barrier()
    dist.destroy_process_group()
    return found


def _carry_out(asked: ShardedTraining) -> Found:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415  takes a while

    strategy, ranks = asked.strategy, asked.num_ranks
    parts = (strategy.shard_size or ranks // strategy.context_degree) * strategy.context_degree
    shape = ((ranks // parts, parts), ("replicate", "shard")) if parts < ranks else ((parts,), ("shard",))
    mesh = init_device_mesh("cpu", shape[0], mesh_dim_names=shape[1])
    context = _context(strategy, ranks)
    model = transformer(_attention(strategy, context))
    _shard(model, mesh, asked)
    calls: dict[int, Calls] = {SHARDS: [], REPLICAS: [], CONTEXT: [] if context is None else context.sent}
    with _noting(calls):
        _train(model, asked)
    parameters = list(model.parameters())
    owned = sum(cast(Any, parameter).to_local().numel() for parameter in parameters)
    whole = [cast(Any, parameter.grad).full_tensor() for parameter in parameters]
    return Found(calls, owned, _error(whole, asked))


def _attention(strategy: FSDP, context: Context | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    if context is None:
        return attend
    way = WAYS[strategy.context]
    return lambda queries, keys, values: way(queries, keys, values, context)


def _context(strategy: FSDP, ranks: int) -> Context | None:
    degree = strategy.context_degree
    groups = [tuple(range(first, first + degree)) for first in range(0, ranks, degree)]
    made = [(dist.new_group(list(members)), members) for members in groups if degree > 1]
    own = [Context(group, members) for group, members in made if dist.get_rank() in members]
    return own[0] if own else None


def _shard(model: nn.Sequential, mesh: "DeviceMesh", asked: ShardedTraining) -> None:
    """Shard block by block; the last one is not freed after its forward (torchtitan, ``apply_fsdp``)."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    for number in range(BLOCKS):
        if asked.checkpointing == "block":
            model[number] = checkpoint_wrapper(model[number])
        reshard = asked.strategy.reshard == "true" and number < BLOCKS - 1
        fully_shard(model[number], mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh)


def _train(model: nn.Module, asked: ShardedTraining) -> None:
    """Forwards and backwards of this rank's samples and tokens; torch averages gradients over ranks."""
    degree, pieces, ranks = asked.strategy.context_degree, asked.strategy.micro_batches, asked.num_ranks
    team, place = divmod(dist.get_rank(), degree)
    values = (of.chunk(ranks // degree)[team].chunk(degree, 1)[place] for of in batch_of(asked.batch_size))
    numbers = asked.batch_size * TOKENS * WIDTH
    for inputs, targets in zip(*(of.chunk(pieces) for of in values), strict=True):
        error = (model(inputs) - targets).square().sum()
        (error * ranks / numbers).backward()


def _error(found: Sequence[Tensor], asked: ShardedTraining) -> float:
    """Largest difference of a gradient from that of one process, over the largest of its tensor."""
    alone = transformer(attend)
    inputs, targets = batch_of(asked.batch_size)
    (alone(inputs) - targets).square().mean().backward()
    wanted = [cast(Tensor, parameter.grad) for parameter in alone.parameters()]
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True)]
    return max(math.inf if math.isnan(error) else error for error in errors)


@contextmanager
def _noting(calls: Mapping[int, Calls]) -> Iterator[None]:
    """Note what torch exchanges: the whole of what is gathered, scattered or summed, in numbers."""
    real = {name: getattr(dist, name) for name in RECORDED}

    def noting(name: str) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:  # noqa: ANN401
            operation, stream, whole = RECORDED[name]
            given = signature(real[name]).bind(*values, **options).arguments
            calls[stream].append((operation, given[whole].numel()))
            return real[name](*values, **options)

        return call

    for name in RECORDED:
        setattr(dist, name, noting(name))
    try:
        yield
    finally:
        for name, call in real.items():
            setattr(dist, name, call)


@dataclass(frozen=True, slots=True)
class Held:
    """What the ranks did, held against the plan.

    Attributes:
        calls: exchanges of the plan by stream.
        different: ranks whose exchanges differ.
        owned: parameters of each rank, as torch has them.
        planned: as the plan has them.
        gradient_error: of the worst rank.
    """

    calls: Mapping[int, Calls]
    different: tuple[int, ...]
    owned: tuple[int, ...]
    planned: float
    gradient_error: float

    @property
    def wrong(self) -> list[str]:
        """What does not hold, in words."""
        found = [f"ranks {self.different} exchange something else"] if self.different else []
        if set(self.owned) != {self.planned}:
            found.append(f"ranks own {self.owned} parameters, the plan says {self.planned:g}")
        if self.gradient_error > ROUNDING:
            found.append(f"gradients are off by {self.gradient_error:.1e}")
        return found


def hold(plan: Plan, found: Sequence[Found]) -> Held:
    """What ranks did, held against a plan."""
    planned = planned_calls(plan)
    numbered = zip(count(), found)
    different = tuple(rank for rank, own in numbered if {k: list(v) for k, v in own.calls.items()} != planned)
    weights = next(of.size_bytes for of in plan.resident[0] if of.name == "weights")
    owned = tuple(own.owned for own in found)
    return Held(planned, different, owned, weights / ELEMENT_BYTES, max(own.gradient_error for own in found))


def check(asked: Sequence[ShardedTraining]) -> list[Held]:
    """Carry out what is asked on ranks started for it, as many of each, and hold it against the plans."""
    plans = [plan_of(own) for own in asked]
    (ranks,) = {own.num_ranks for own in asked}
    by_rank = launch(ranks, carry_out, asked)
    return [hold(plan, found) for plan, found in zip(plans, zip(*by_rank, strict=True), strict=True)]


def result(asked: ShardedTraining) -> dict[str, Any]:
    """What was held against what, under public keys.

    Raises:
        DiffusimError: something differs.
    """
    (held,) = check([asked])
    if held.wrong:
        raise DiffusimError(f"fsdp: {'; '.join(held.wrong)}")
    operations = [operation for calls in held.calls.values() for operation, _ in calls]
    return {
        "schedule": asked.strategy.name,
        "mode": "torch",
        "torch": torch.__version__,
        "ranks": asked.num_ranks,
        "parameters": asdict(asked.strategy),
        "exchanges": {name: operations.count(name) for name in dict.fromkeys(operations)},
        "numbers": sum(size for calls in held.calls.values() for _, size in calls),
        "owned": held.owned[0],
        "gradient_error": held.gradient_error,
    }


def describe(found: Mapping[str, Any]) -> str:
    """The same as lines of text."""
    given = ", ".join(f"{key} {value}" for key, value in found["parameters"].items() if value is not None)
    exchanges = ", ".join(f"{number} {name}" for name, number in found["exchanges"].items())
    return (
        f"fsdp, torch {found['torch']}, {found['ranks']} ranks: {given}\n"
        f"  exchanges   {exchanges}: {found['numbers']:,} numbers, as planned and in that order on every rank\n"
        f"  parameters  {found['owned']:,} on every rank, as planned\n"
        f"  gradients   within {found['gradient_error']:.1e} of a single process"
    )
