"""One rank of a pipeline that torch.distributed.pipelining runs from CSVs; writes its gradients as JSON.

Called as ``pipeline_worker.py RANK RANKS MICRO_BATCHES FOLDER``: runs every ``NAME.csv`` of the folder and writes
``NAME-RANK.json``. The model is ``build_model``, on which a single process can compute the same gradients.
"""

import json
import sys
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


def run(rank: int, ranks: int, micro_batches: int, folder: Path) -> None:
    """Run one iteration of this rank's stage for each ``*.csv`` in a folder."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=40),
    )
    for schedule in sorted(folder.glob("*.csv")):
        found = run_schedule(rank, ranks, micro_batches, schedule)
        (folder / f"{schedule.stem}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run_schedule(rank: int, ranks: int, micro_batches: int, schedule: Path) -> list[list[float]]:
    """Run one iteration of this rank's stage in the order of a file, and return its gradients."""
    module = build_model(ranks)[rank]
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    runtime = _PipelineScheduleRuntime([stage], micro_batches, loss_fn=nn.MSELoss())
    runtime._load_csv(str(schedule), format="compute_only")
    inputs, targets = build_batch(micro_batches)
    arguments = (inputs,) if rank == 0 else ()
    runtime.step(*arguments, target=targets if rank == ranks - 1 else None)
    return gradients(module)


if __name__ == "__main__":
    run(*map(int, sys.argv[1:4]), Path(sys.argv[4]))
