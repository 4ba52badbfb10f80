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
from validate.running.job import Job
from validate.running.training.blocks import Gradients, Layers, batch_of, frozen_outputs
from validate.running.training.device import Training
from validate.running.training.passes import Crossing, stage_ranges

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
        """The hidden state, and live skips beside it."""
        skips = dict(zip(self._taken, arrived, strict=True))
        frozen = {int(name.removeprefix("frozen")): values for name, values in context.items()}
        hidden = self._run(self._component, self._range, hidden, skips, frozen)
        # torch frees what a stage returns: a skip that only passes through must not be what arrived
        given = [skips[key].clone() for key in self._given]
        return (hidden, *given) if given else hidden


def check_schedule(job: Job) -> None:
    """Refuse what torch's runtime cannot carry out."""
    name = job.name.partition("(")[0]
    if name not in SCHEDULES:
        raise InputError(f"--runtime torch carries out {', '.join(SCHEDULES)}, not {name}")
    if not isinstance(job.task, Training) or any(
        tensor.role.startswith("skip to ") for tensor in job.plan.tensors
    ):
        raise InputError(
            "--runtime torch trains real layers and relays skips: no --mode sleep, no local skips"
        )
    if job.task.extra_forward or job.plan.placement.copies > 1:
        raise InputError("--runtime torch knows neither the extra forward nor replicas of a pipeline")


def run_torch(plan: Plan, training: Training, warm_up: int, iterations: int) -> tuple[list[float], Gradients]:
    """Carry out a schedule with torch's runtime; return seconds of each step and this rank's gradients.

    Every iteration trains on the batch of the first one, and takes no optimizer step: the gradients are of that batch.
    """
    layers, crossing, rank = Layers(training.model, {}), Crossing(training.model, plan), dist.get_rank()
    own = [number for number, stage in enumerate(plan.stages) if stage.position == rank]
    stages = [
        PipelineStage(
            StageModule(layers, crossing, plan, number), number, len(plan.stages), torch.device("cpu")
        )
        for number in own
    ]
    inputs, targets = batch_of(0, plan.stages[0].component, training.batch_size)
    context: dict[str, Any] = {
        f"frozen{c}": values for c, values in frozen_outputs(layers, 0, training.batch_size).items()
    }
    seconds = []
    for _ in range(warm_up + iterations):
        runtime = _load(plan, stages)
        for parameter in (p for stage in stages for p in stage.submod.parameters()):
            parameter.grad = None
        target = targets if len(plan.stages) - 1 in own else None
        dist.barrier()
        began_s = time.perf_counter()
        runtime.step(*((inputs,) if 0 in own else ()), target=target, **context)
        dist.barrier()
        seconds.append(time.perf_counter() - began_s)
    ranges = stage_ranges(plan, rank)
    return seconds[warm_up:], layers.gradients(ranges.values())


def _load(plan: Plan, stages: Sequence[Any]) -> _PipelineScheduleRuntime:
    passes = [[a for a in row if isinstance(a, StageAction) and a.kind != OPTIMIZER] for row in plan.order]
    micro_batches = 1 + max(action.micro_batch for row in passes for action in row)
    runtime = _PipelineScheduleRuntime(list(stages), micro_batches, loss_fn=nn.MSELoss())  # type: ignore[no-untyped-call]
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(format_torch(passes))
        file.flush()
        runtime._load_csv(str(Path(file.name)), format="compute_only")
    return runtime
