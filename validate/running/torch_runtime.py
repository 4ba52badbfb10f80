"""torch's runtime: the exported CSV of a schedule, run by ``torch.distributed.pipelining`` on the same small model.

It knows one stage per rank and cut, skips relayed from stage to stage, and no frozen work in bubbles: frozen outputs
are there before it starts. ``_PipelineScheduleRuntime`` and ``_load_csv`` are private names of torch 2.13.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from profiles.errors import InputError
from strategies.plans.actions import OPTIMIZER, StageAction, format_torch
from strategies.plans.plan import Plan
from validate.running.blocks import Layers, batch_of
from validate.running.crossing import Crossing
from validate.running.job import Job
from validate.running.reference import Gradients, frozen_outputs

SCHEDULES: Final = ("gpipe", "1f1b", "spp", "interleaved", "wave", "zero-bubble")


class StageModule(nn.Module):
    """One stage: takes and returns the hidden state and the skips that cross its cuts."""

    def __init__(self, layers: Layers, crossing: Crossing, plan: Plan, stage: int) -> None:
        super().__init__()
        of = plan.stages[stage]
        self._run = layers.run
        self._component, self._range = of.component, range(of.first_layer, of.last_layer + 1)
        self._taken = [] if crossing.is_first(stage) else crossing.relayed(stage - 1)
        self._given = crossing.relayed(stage)
        self.layers = nn.ModuleList(layers.get(of.component, layer) for layer in self._range)

    def forward(self, hidden: Tensor, *arrived: Tensor, **context: Tensor) -> Any:  # noqa: ANN401
        """Return the hidden state, and live skips beside it."""
        skips = dict(zip(self._taken, arrived, strict=True))
        frozen = {int(name.removeprefix("frozen")): values for name, values in context.items()}
        hidden = self._run(self._component, self._range, hidden, skips, frozen)
        # torch frees what a stage returns: a skip that only passes through must not be what arrived
        given = [skips[key].clone() for key in self._given]
        return (hidden, *given) if given else hidden


def check_schedule(job: Job) -> None:
    """Refuse what torch's runtime cannot carry out.

    Raises:
        InputError: the strategy is not among those that it can.
    """
    name = job.name.partition("(")[0]
    if name not in SCHEDULES:
        raise InputError(f"--runtime torch carries out {', '.join(SCHEDULES)}, not {name}")
    if job.model is None or any(tensor.role.startswith("skip to ") for tensor in job.plan.tensors):
        raise InputError(
            "--runtime torch trains real layers and relays skips: no --mode sleep, no local skips"
        )
    if job.extra_forward or job.plan.placement.copies > 1:
        raise InputError("--runtime torch knows neither the extra forward nor replicas of a pipeline")


def run_torch(job: Job) -> tuple[list[float], Gradients]:
    """Carry out a job's schedule with torch's runtime; return seconds of each step and this rank's gradients.

    Every iteration trains on the batch of the first one, and takes no optimizer step: the gradients are of that batch.
    """
    assert job.model is not None
    layers, crossing, rank = Layers(job.model, {}), Crossing(job.model, job.plan), dist.get_rank()
    own = [number for number, stage in enumerate(job.plan.stages) if stage.position == rank]
    stages = [
        PipelineStage(
            StageModule(layers, crossing, job.plan, number), number, len(job.plan.stages), torch.device("cpu")
        )
        for number in own
    ]
    component = job.plan.stages[0].component
    inputs, targets = batch_of(0, component, job.batch_size)
    context: dict[str, Any] = {
        f"frozen{c}": values for c, values in frozen_outputs(layers, 0, job.batch_size).items()
    }
    seconds = []
    for _ in range(job.warm_up + job.iterations):
        runtime = _load(job.plan, stages)
        for number in own:
            _forget_gradients(layers, job.plan, number)
        dist.barrier()
        began_s = time.perf_counter()
        runtime.step(*((inputs,) if 0 in own else ()), target=_target(targets, own, job.plan), **context)
        dist.barrier()
        seconds.append(time.perf_counter() - began_s)
    return seconds[job.warm_up :], _gradients(layers, job.plan, own)


def _load(plan: Plan, stages: Sequence[Any]) -> _PipelineScheduleRuntime:
    passes = [[a for a in row if isinstance(a, StageAction) and a.kind != OPTIMIZER] for row in plan.order]
    micro_batches = 1 + max(action.micro_batch for row in passes for action in row)
    runtime = _PipelineScheduleRuntime(list(stages), micro_batches, loss_fn=nn.MSELoss())  # type: ignore[no-untyped-call]
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(format_torch(passes))
        file.flush()
        runtime._load_csv(str(Path(file.name)), format="compute_only")
    return runtime


def _target(targets: Tensor, own: Sequence[int], plan: Plan) -> Tensor | None:
    return targets if len(plan.stages) - 1 in own else None


def _forget_gradients(layers: Layers, plan: Plan, stage: int) -> None:
    of = plan.stages[stage]
    for parameter in layers.parameters(of.component, range(of.first_layer, of.last_layer + 1)):
        parameter.grad = None


def _gradients(layers: Layers, plan: Plan, own: Sequence[int]) -> Gradients:
    found: Gradients = {}
    for number in own:
        of = plan.stages[number]
        for layer in range(of.first_layer, of.last_layer + 1):
            parameters = layers.parameters(of.component, range(layer, layer + 1))
            found[of.component, layer] = [p.grad.clone() for p in parameters if p.grad is not None]
    return found
