"""Orders of ours in torch.distributed.pipelining: loaded there, and run there by real processes.

torch is pinned: ``_PipelineScheduleRuntime`` and ``_load_csv`` are private names of 2.13.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.testing._internal.distributed.fake_pg import FakeStore

from strategies.actions import BACKWARD, FORWARD, format_torch
from strategies.registry import make_strategy

WORKER = Path(__file__).parent / "data" / "pipeline_worker.py"
STRATEGIES = ("gpipe", "1f1b")


def order_of(strategy, ranks, micro_batches):
    return make_strategy(strategy, {"pipeline_degree": ranks, "micro_batches": micro_batches}).order()


def without(order, micro_batch, kinds, rank):
    """An order in which a rank, or with None every rank, lost what it does with one micro-batch."""
    return tuple(
        tuple(
            action
            for action in row
            if action.micro_batch != micro_batch or action.kind not in kinds or rank not in (None, number)
        )
        for number, row in enumerate(order)
    )


@pytest.fixture
def load(tmp_path):
    """Load an order as rank 0 of its pipeline, without other processes, and return torch's view of it."""

    def load_order(order, micro_batches):
        path = tmp_path / "schedule.csv"
        path.write_text(format_torch(order))
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=len(order))
        stage = PipelineStage(torch.nn.Identity(), 0, len(order), torch.device("cpu"))
        runtime = _PipelineScheduleRuntime([stage], micro_batches)
        runtime._load_csv(str(path), format="compute_only")
        return runtime

    yield load_order
    if distributed.is_initialized():
        distributed.destroy_process_group()


def start_ranks(folder, ranks, micro_batches):
    """Start one process per rank; they meet in a file and talk over the loopback device."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(ranks), str(micro_batches), str(folder)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip


@pytest.fixture(scope="module", params=[(2, 4), (4, 8)], ids=["2 ranks", "4 ranks"])
def real_run(request, tmp_path_factory):
    """Ranks, micro-batches and, for each strategy, the gradients of every rank of a real run."""
    ranks, micro_batches = request.param
    folder = tmp_path_factory.mktemp("pipeline")
    for strategy in STRATEGIES:
        (folder / f"{strategy}.csv").write_text(format_torch(order_of(strategy, ranks, micro_batches)))
    processes = start_ranks(folder, ranks, micro_batches)
    try:
        errors = [process.communicate(timeout=50)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(errors)
    results = {
        strategy: [json.loads((folder / f"{strategy}-{rank}.json").read_text()) for rank in range(ranks)]
        for strategy in STRATEGIES
    }
    return ranks, micro_batches, results


def single_process_gradients(ranks, micro_batches):
    spec = importlib.util.spec_from_file_location("pipeline_worker", WORKER)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    stages = worker.build_model(ranks)
    hidden, targets = worker.build_batch(micro_batches)
    for stage in stages:
        hidden = stage(hidden)
    torch.nn.MSELoss()(hidden, targets).backward()
    return [worker.gradients(stage) for stage in stages]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8)])
def test_torch_loads_the_order_that_we_wrote(load, strategy, ranks, micro_batches):
    order = order_of(strategy, ranks, micro_batches)
    runtime = load(order, micro_batches)
    loaded = [[str(action) for action in runtime.pipeline_order[rank]] for rank in range(ranks)]
    assert loaded == [[str(action) for action in row] for row in order]
    assert runtime.stage_index_to_group_rank == {rank: rank for rank in range(ranks)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_of_a_real_run_equal_those_of_a_single_process(real_run, strategy):
    ranks, micro_batches, results = real_run
    expected = single_process_gradients(ranks, micro_batches)
    for own, reference in zip(results[strategy], expected, strict=True):
        for values, wanted in zip(own, reference, strict=True):
            assert values == pytest.approx(wanted, rel=0, abs=1e-6)
            assert max(map(abs, wanted)) > 1e-4


@pytest.mark.parametrize(
    ("kinds", "rank", "complaint"),
    [
        ((FORWARD, BACKWARD), None, "Got 3 .*FORWARD microbatches for stage 0, expected 4"),
        ((FORWARD, BACKWARD), 1, "Got 3 .*FORWARD microbatches for stage 1, expected 4"),
        ((BACKWARD,), None, "expected 4 total backwards"),
        ((FORWARD,), 1, "without first running Forward"),
    ],
)
def test_torch_refuses_an_order_that_lost_a_micro_batch(load, kinds, rank, complaint):
    damaged = without(order_of("1f1b", 2, 4), 3, kinds, rank)
    with pytest.raises(AssertionError, match=complaint):
        load(damaged, 4)
