"""FSDP2 beside its plan: torch shards a small transformer on real ranks, whose exchanges are compared with the plan.

``torch.distributed.fsdp.fully_shard`` is applied block by block, after ``parallelize_module`` where tensors are divided
too; tokens that lie on several ranks are attended to by Ulysses or torch's ring. All collectives are noted where torch
hands them to a process group. They must be those of the plan, in its order and with its bytes; each rank must own as
many parameters as the plan says; and gradients must be those of one process. In float64, where gradients compare well,
bytes are twice those of the plan, which is in float32; in bfloat16 they are the plan's own, sums in float32 among them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from math import inf, isnan
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import Replicate, Shard, parallel
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiles.architectures.kernels import Kernel
from profiles.architectures.models import Model
from profiles.architectures.shares import ELEMENT_BYTES
from profiles.errors import DiffusimError, InputError
from profiles.measuring.launching import launch
from strategies.pipelining.mesh import CONTEXT, REPLICAS, SHARDS, TENSOR
from strategies.plans.plan import Plan
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario
from strategies.training.fsdp import FSDP
from validate.equal_blocks import equal_blocks_transformer
from validate.running.model import Block, attend
from validate.running.rank import joined
from validate.running.sampling.settings import HEADS, HIDDEN, emulated_cluster

torch_ring: Any = _attention
ROWS: Final = 4
TOKENS: Final = ROWS**2
BLOCKS: Final = 4
WIDTHS: Final = [HIDDEN * (number + 2) for number in range(BLOCKS)]
"""Inner width of each block's feed-forward."""
GRADIENT_BYTES: Final = 4
"""Bytes of a parameter's gradient in the plan, whatever the precision."""
OPERATIONS: Final = {
    "_allgather_base_": "all_gather", "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce", "all_reduce": "all_reduce",
    "alltoall_base_": "all_to_all", "all_to_all_single": "send_recv",
}  # fmt: skip
"""Operators by which torch exchanges, and the operations of a plan; torch passes on around a ring by the last."""

Calls = Mapping[int, list[tuple[str, int]]]
"""Operation and bytes of each exchange, by stream."""


class Precision(NamedTuple):
    """A precision: that of the plan's model and recipe, the plan's bytes over the ranks', and the rounding allowed."""

    dtype: str
    recipe: str
    bytes: int
    rounding: float


PRECISIONS: Final = {
    "float64": Precision("float32", "fp32", 2, 1e-9),
    "bfloat16": Precision("bfloat16", "mixed", 1, 0.05),
}


@dataclass(frozen=True, slots=True)
class ShardedTraining:
    """A strategy on ranks and samples, with blocks checkpointed or not, in one of ``PRECISIONS``."""

    strategy: FSDP
    num_ranks: int
    batch_size: int
    checkpointing: str = "none"
    precision: str = "float64"


class RankResult(NamedTuple):
    """The records of one rank: its exchanges, the parameters it owns, and the error of its gradients."""

    calls: Calls
    owned: int
    gradient_error: float


def ulysses(queries: Tensor, keys: Tensor, values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Attention on heads of their own, on all tokens (Jacobs et al., 2023)."""

    def exchanged(part: Tensor, divided: int, united: int) -> Tensor:
        parts = torch.stack(part.chunk(group.size(), divided))
        result = all_to_all_single(torch.empty_like(parts), parts, group=group)  # type: ignore[no-untyped-call]
        return torch.cat(list(result), united)

    return exchanged(attend(*(exchanged(part, 2, 1) for part in (queries, keys, values))), 1, 2)


class _Ring(torch.autograd.Function):
    """Attention of a rank's queries to the keys and values of one rank after another (Liu et al., 2023).

    The ring is that of torch's ``context_parallel``, whose context manager knows only the three fused kernels of GPUs:
    on a CPU each rank would attend to its own tokens alone. The functions behind it take any kernel.
    """

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, *parts: Tensor) -> Tensor:  # noqa: ANN401
        kernel, ctx.group = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, group
        torch_ring._cp_options.enable_load_balance = False
        torch_ring._cp_options.rotate_method = torch_ring._RotateMethod.ALL_TO_ALL
        torch_ring._cp_options.convert_to_f32 = parts[0].dtype is not torch.float64  # sums are in single
        seen, weight = torch_ring._templated_ring_attention(group, 2, kernel, *parts)
        ctx.save_for_backward(*parts, seen, weight)
        return cast(Tensor, seen)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, *tuple[Tensor, ...]]:  # noqa: ANN401
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        start, back = (gradients[0].contiguous(), "grad_out"), torch_ring._templated_ring_attention_backward
        return None, *back(ctx.group, 2, kernel, *start, *ctx.saved_tensors, is_causal=False, dropout_p=0.0)


def ring(queries: Tensor, keys: Tensor, values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Attention of a rank's tokens to all tokens, which pass by."""
    parts = [part.transpose(1, 2) for part in (queries, keys, values)]
    return cast(Tensor, _Ring.apply(group, *parts)).transpose(1, 2)  # type: ignore[no-untyped-call]


def transformer(attention: Callable[..., Tensor]) -> nn.Sequential:
    """The blocks; the same in every process."""
    torch.manual_seed(1)
    return nn.Sequential(*(Block(width, attention) for width in WIDTHS)).double()


def batch_of(samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets; the same in every process."""
    generator = torch.Generator().manual_seed(2)
    inputs, targets = torch.randn((2, samples, TOKENS, HIDDEN), generator=generator, dtype=torch.float64)
    return inputs, targets


def profile(dtype: str) -> Model:
    """The same blocks as a model of the simulator."""
    model = equal_blocks_transformer(BLOCKS, rows=ROWS, hidden_size=HIDDEN, heads=HEADS)
    size, (component,) = ELEMENT_BYTES[dtype], model.components

    def product(count: int, n: int, k: int) -> Kernel:
        return Kernel("matmul", count, 1, TOKENS, n, k, image_m=TOKENS, weight_bytes=size * n * k)

    norms = Kernel("layer_norm", 3, 1, TOKENS * HIDDEN, weight_bytes=2 * size * HIDDEN)
    kernels = tuple(
        (product(4, HIDDEN, HIDDEN), product(1, width, HIDDEN), product(1, HIDDEN, width), norms)
        for width in WIDTHS
    )
    sizes = [sum(p.numel() for p in block.parameters()) for block in transformer(attend)]
    layers = tuple(
        replace(layer, parameters=size) for layer, size in zip(component.layers, sizes, strict=True)
    )
    return replace(model, dtype=dtype, components=(replace(component, layers=layers, kernels=kernels),))


def plan_of(training: ShardedTraining) -> Plan:
    """Return the plan of a training.

    Raises:
        InfeasibleError: it does not exist.
        InputError: torch does not shard so.
    """
    precision = PRECISIONS[training.precision]
    size = training.num_ranks, training.batch_size
    workload = TrainingWorkload(*size, memory_recipe=precision.recipe, checkpointing=training.checkpointing)
    plan = training.strategy.plan(Scenario(profile(precision.dtype), emulated_cluster(0.0), workload))
    if not any(
        (collective.operation, collective.stream) == ("all_gather", SHARDS) for collective in plan.collectives
    ):
        raise InputError("nothing is sharded: that is ddp, which --schedule ddp carries out")
    return plan


def planned_calls(training: ShardedTraining) -> Calls:
    """Return the planned exchanges, each call on its own."""
    calls = defaultdict[int, list[tuple[str, int]]](list)
    for collective in plan_of(training).collectives:
        size = round(collective.size_bytes * PRECISIONS[training.precision].bytes / collective.calls)
        calls[collective.stream] += [(collective.operation, size)] * collective.calls
    return calls


def carry_out(trainings: Sequence[ShardedTraining]) -> list[RankResult]:
    """Train for an iteration of each as one of the ranks, under ``fully_shard``."""
    with joined():
        return [_carry_out(training) for training in trainings]


def _carry_out(training: ShardedTraining) -> RankResult:
    strategy, ranks = training.strategy, training.num_ranks
    context, tensor = strategy.context_degree, strategy.tensor_degree
    parts = (strategy.shard_size or ranks // (context * tensor)) * context
    mesh = _mesh(ranks // (parts * tensor), parts, tensor)
    groups = dict(zip((REPLICAS, SHARDS, TENSOR), mesh.get_all_groups(), strict=True))
    attention = attend
    if context > 1:
        contexts = groups[CONTEXT] = _contexts(ranks, context, tensor)
        way = ring if strategy.context == "ring" else ulysses
        attention = lambda queries, keys, values: way(queries, keys, values, contexts)  # noqa: E731
    model = transformer(attention)
    _shard(model, mesh, training)
    with Noting(groups) as noting:
        _train(model, training)
    parameters = [cast(Any, parameter) for parameter in model.parameters()]
    owned = sum(parameter.to_local().numel() for parameter in parameters)
    whole = [parameter.grad.full_tensor() for parameter in parameters]
    return RankResult(noting.calls, owned, _error(whole, training))


@cache
def _mesh(*degrees: int) -> DeviceMesh:
    """The ranks by axes; one mesh for equal degrees, as DTensor confuses equal meshes."""
    return init_device_mesh("cpu", degrees, mesh_dim_names=("replicas", "shards", "tensors"))


def _contexts(ranks: int, degree: int, tensor: int) -> dist.ProcessGroup:
    """This rank's group of those that hold different tokens of the same samples."""
    firsts = (one + offset for one in range(0, ranks, degree * tensor) for offset in range(tensor))
    members = [list(range(first, first + degree * tensor, tensor)) for first in firsts]
    return cast(dist.ProcessGroup, dist.new_subgroups_by_enumeration(members)[0])  # type: ignore[no-untyped-call]


def _shard(model: nn.Sequential, mesh: DeviceMesh, training: ShardedTraining) -> None:
    """Shard block by block; the last one is not freed after its forward (torchtitan, ``apply_fsdp``)."""
    options: dict[str, Any] = {"mesh": mesh["replicas", "shards"] if mesh.size(0) > 1 else mesh["shards"]}
    if training.precision == "bfloat16":
        model.float()
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for number in range(BLOCKS):
        if mesh.size(2) > 1:
            _divide(model[number], mesh["tensors"])
        if training.checkpointing == "block":
            model[number] = checkpoint_wrapper(model[number])
        reshard = training.strategy.reshard == "true" and number < BLOCKS - 1
        fully_shard(model[number], reshard_after_forward=reshard, **options)
    fully_shard(model, **options)


def _divide(block: nn.Module, mesh: DeviceMesh) -> None:
    """Divide a block's matrices and heads, and the tokens of its norms (torchtitan, ``apply_tp``)."""
    divide, rows, halves = parallel, ("attention.out", "inner.2"), ("attention", "inner")
    columns = [f"attention.{name}" for name in ("query", "key", "value")]
    norms = ("before", "between", "after")
    gathered = partial(divide.PrepareModuleInput, input_layouts=Shard(1), desired_input_layouts=Replicate())
    styles = {
        **{name: divide.ColwiseParallel() for name in (*columns, "inner.0")},
        **{name: divide.RowwiseParallel(output_layouts=Shard(1)) for name in rows},
        **{name: divide.SequenceParallel(use_local_output=name == "after") for name in norms},
        **{name: gathered() for name in halves},
    }
    divide.parallelize_module(block, mesh, styles)


def _train(model: nn.Module, training: ShardedTraining) -> None:
    """Forwards and backwards of this rank's samples and tokens; torch averages gradients over ranks."""
    degree, pieces = training.strategy.group_size, training.strategy.micro_batches
    team, place = divmod(dist.get_rank(), degree)
    teams, numbers = training.num_ranks // degree, training.batch_size * TOKENS * HIDDEN
    values = (whole.chunk(teams)[team].chunk(degree, 1)[place] for whole in batch_of(training.batch_size))
    averaged = training.num_ranks // training.strategy.tensor_degree
    for inputs, targets in zip(*(value.chunk(pieces) for value in values), strict=True):
        error = (model(inputs) - targets).square().sum()
        (error * averaged / numbers).backward()


def _error(gradients: Sequence[Tensor], training: ShardedTraining) -> float:
    """Largest difference of a gradient from that of one process, over the largest of its tensor."""
    alone = transformer(attend)
    inputs, targets = batch_of(training.batch_size)
    (alone(inputs) - targets).square().mean().backward()
    wanted = [cast(Tensor, parameter.grad) for parameter in alone.parameters()]
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(gradients, wanted, strict=True)]
    return max(inf if isnan(error) else error for error in errors)


class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the calls of some process groups, by their stream."""

    def __init__(self, groups: Mapping[int, dist.ProcessGroup]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._streams = {str(group.group_name): stream for stream, group in groups.items()}
        self.calls = defaultdict[int, list[tuple[str, int]]](list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run one operator and note it, if it is a collective."""
        result = func(*args, **(kwargs or {}))
        if "c10d" in func.namespace and (operation := OPERATIONS.get(func.overloadpacket.__name__)):
            names = (arg if isinstance(arg, str) else _name_of(arg) for arg in args)
            stream = next((self._streams[name] for name in names if name in self._streams), None)
            if stream is not None:
                leaves = (tree_leaves(value) for value in (*args, result))
                sizes = (sum(t.nbytes for t in leaf if isinstance(t, Tensor)) for leaf in leaves)
                self.calls[stream].append((operation, max(sizes)))
        return result


def _name_of(argument: object) -> str:
    """The name of a process group among the arguments of an operator."""
    boxed = isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type())
    return str(dist.ProcessGroup.unbox(cast(Any, argument)).group_name) if boxed else ""


def failures(training: ShardedTraining, ranks: Sequence[RankResult]) -> list[str]:
    """The differences between ranks and their plan, in words."""
    planned = planned_calls(training)
    different = tuple(number for number, rank in enumerate(ranks) if rank.calls != planned)
    wrong = [f"ranks {different} exchange something else"] if different else []
    summed = next(buffer.size_bytes for buffer in plan_of(training).resident[0] if buffer.name == "gradients")
    owned = tuple(rank.owned for rank in ranks)
    if set(owned) != {summed / GRADIENT_BYTES}:
        wrong.append(f"ranks own {owned} parameters, the plan says {summed / GRADIENT_BYTES:g}")
    error = max(rank.gradient_error for rank in ranks)
    if error > PRECISIONS[training.precision].rounding:
        wrong.append(f"gradients are off by {error:.1e}")
    return wrong


def run_trainings(trainings: Sequence[ShardedTraining]) -> list[tuple[RankResult, ...]]:
    """Run trainings of equally many ranks; return the results of all ranks of each."""
    for training in trainings:
        plan_of(training)
    (ranks,) = {training.num_ranks for training in trainings}
    return list(zip(*launch(ranks, carry_out, trainings), strict=True))


def result(training: ShardedTraining) -> dict[str, Any]:
    """The comparison under public keys: in every precision, with exchanges and bytes as in the plan of half precision.

    Raises:
        DiffusimError: something differs.
    """
    every = [replace(training, precision=name) for name in PRECISIONS]
    results = dict(zip(every, run_trainings(every), strict=True))
    if wrong := [
        f"{trained.precision}: {words}" for trained in every for words in failures(trained, results[trained])
    ]:
        raise DiffusimError(f"fsdp, {'; '.join(wrong)}")
    calls = [call for calls in planned_calls(every[-1]).values() for call in calls]
    operations = [operation for operation, _ in calls]
    return {
        "schedule": training.strategy.name,
        "mode": "torch",
        "torch": torch.__version__,
        "ranks": training.num_ranks,
        "parameters": asdict(training.strategy),
        "exchanges": {name: operations.count(name) for name in dict.fromkeys(operations)},
        "bytes": sum(size for _, size in calls),
        "owned": results[every[-1]][0].owned,
        "gradient_error": {
            trained.precision: max(rank.gradient_error for rank in results[trained]) for trained in every
        },
    }


def describe(run: Mapping[str, Any]) -> str:
    """The same as lines of text."""
    parameters = ", ".join(f"{key} {value}" for key, value in run["parameters"].items() if value is not None)
    exchanges = ", ".join(f"{number} {name}" for name, number in run["exchanges"].items())
    errors = ", ".join(f"{error:.1e} in {name}" for name, error in run["gradient_error"].items())
    return (
        f"fsdp, torch {run['torch']}, {run['ranks']} ranks: {parameters}\n"
        f"  exchanges   {exchanges}: {run['bytes']:,} bytes in bfloat16, as planned and in that order on every rank\n"
        f"  parameters  {run['owned']:,} on every rank, as planned\n"
        f"  gradients   of a single process within {errors}"
    )
