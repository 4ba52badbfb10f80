"""One rank of a pipeline that torch.distributed.pipelining runs from the CSVs of a folder.

Which stages a rank holds stands in its row of the file. The model is ``build_model``, on which a single process can
compute the same gradients.
"""

import csv
import re
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH = 8
SAMPLES_PER_MICRO_BATCH = 3


def build_model(num_stages: int) -> nn.ModuleList:
    """Return the stages of a model, in float64; the same in every process."""
    torch.manual_seed(20)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_stages)]
    return nn.ModuleList(layers).double()


def build_batch(micro_batches: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets; the same in every process."""
    torch.manual_seed(21)
    shape = (micro_batches * SAMPLES_PER_MICRO_BATCH, WIDTH)
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


def gradients(module: nn.Module) -> list[list[float]]:
    """Return the gradient of every parameter, flattened."""
    return [parameter.grad.flatten().tolist() for parameter in module.parameters()]


def stages_of_ranks(schedule: Path) -> list[list[int]]:
    """Return the stages of each rank, in order, as the rows of a schedule name them."""
    with schedule.open(newline="") as file:
        return [sorted({int(re.split(r"\D", cell)[0]) for cell in row}) for row in csv.reader(file)]


def run(micro_batches: int, folder: Path) -> dict[str, dict[int, list[list[float]]]]:
    """Run one iteration of this rank's stages for each ``*.csv`` in a folder, and return the gradients by its name."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    rank, schedules = dist.get_rank(), sorted(folder.glob("*.csv"))
    found = {schedule.stem: run_schedule(rank, micro_batches, schedule) for schedule in schedules}
    dist.destroy_process_group()
    return found


def run_schedule(rank: int, micro_batches: int, schedule: Path) -> dict[int, list[list[float]]]:
    """Run one iteration of this rank's stages in the order of a file, and return the gradients of each."""
    stages_of = stages_of_ranks(schedule)
    num_stages = sum(map(len, stages_of))
    model, own = build_model(num_stages), stages_of[rank]
    stages = [PipelineStage(model[number], number, num_stages, torch.device("cpu")) for number in own]
    runtime = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=nn.MSELoss())
    runtime._load_csv(str(schedule), format="compute_only")
    inputs, targets = build_batch(micro_batches)
    arguments = (inputs,) if 0 in own else ()
    runtime.step(*arguments, target=targets if num_stages - 1 in own else None)
    return {number: gradients(model[number]) for number in own}
