"""Orders of ours in torch.distributed.pipelining: loaded there, and run there by real processes.

torch is pinned: ``_PipelineScheduleRuntime`` and ``_load_csv`` are private names of 2.13.
"""

import pytest
import torch
from data.pipeline_worker import build_batch, build_model, gradients, run
from torch import distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    _PipelineScheduleRuntime,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from profiles.measuring.launching import launch
from strategies.orders.named import interleaved_order, zero_bubble_order
from strategies.plans.actions import format_torch
from strategies.registry import make as make_strategy

pytestmark = pytest.mark.slow

SCHEDULES = {
    "gpipe": ("gpipe", {}),
    "1f1b": ("1f1b", {}),
    "interleaved": ("interleaved", {"chunks": 2}),
    "zero-bubble": ("zero-bubble", {}),
    "wave": ("wave", {}),
    "two waves": ("wave", {"waves": 2}),
}


def order_of(schedule, ranks, micro_batches):
    strategy, parameters = SCHEDULES[schedule]
    shared = {"pipeline_degree": ranks, "micro_batches": micro_batches}
    return make_strategy(strategy, {**shared, **parameters}).order()


def ranks_of_stages(order):
    return {action.stage: rank for rank, row in enumerate(order) for action in row}


@pytest.fixture
def stages_of():
    """Make the stages of rank 0 of a pipeline, without other processes."""

    def make_stages(ranks, own, num_stages):
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        return [PipelineStage(torch.nn.Identity(), s, num_stages, torch.device("cpu")) for s in own]

    yield make_stages
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture
def load(tmp_path, stages_of):
    """Load an order as rank 0 of its pipeline, and return torch's view of it."""

    def load_order(order, micro_batches):
        path = tmp_path / "schedule.csv"
        path.write_text(format_torch(order))
        own = sorted({action.stage for action in order[0]})
        runtime = _PipelineScheduleRuntime(
            stages_of(len(order), own, len(ranks_of_stages(order))), micro_batches
        )
        runtime._load_csv(str(path), format="compute_only")
        return runtime

    return load_order


def single_process_gradients(num_stages, micro_batches):
    stages = build_model(num_stages)
    hidden, wanted = build_batch(micro_batches)
    for stage in stages:
        hidden = stage(hidden)
    torch.nn.MSELoss()(hidden, wanted).backward()
    return [gradients(stage) for stage in stages]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_torch_loads_the_order_that_we_wrote(load, schedule):
    ranks = 4
    order = order_of(schedule, ranks, 8)
    runtime = load(order, 8)
    loaded = [[str(action) for action in runtime.pipeline_order[rank]] for rank in range(ranks)]
    assert loaded == [[str(action) for action in row] for row in order]
    assert runtime.stage_index_to_group_rank == ranks_of_stages(order)


def test_gradients_of_a_real_run_equal_those_of_a_single_process(tmp_path):
    orders = {name: order_of(name, 4, 8) for name in SCHEDULES}
    for name, order in orders.items():
        (tmp_path / f"{name}.csv").write_text(format_torch(order))
    ranks = launch(4, run, 8, tmp_path)
    for name, order in orders.items():
        results = {stage: values for rank in ranks for stage, values in rank[name].items()}
        assert set(results) == set(ranks_of_stages(order)), name
        for stage, reference in enumerate(single_process_gradients(len(results), 8)):
            for values, wanted in zip(results[stage], reference, strict=True):
                assert values == pytest.approx(wanted, rel=1e-9, abs=1e-13), name
                assert max(map(abs, wanted)) > 1e-6


def rows_of_torch(schedule):
    """What torch lets each rank do, without its pauses."""
    rows = schedule.pipeline_order
    return [[str(action) for action in rows[rank] if action is not None] for rank in range(len(rows))]


@pytest.mark.parametrize(("ranks", "micro_batches", "chunks"), [(2, 2, 2), (4, 4, 3), (4, 12, 2), (3, 9, 3)])
def test_interleaved_1f1b_is_that_of_torch(stages_of, ranks, micro_batches, chunks):
    own = range(0, ranks * chunks, ranks)
    theirs = ScheduleInterleaved1F1B(stages_of(ranks, own, ranks * chunks), micro_batches)
    ours = interleaved_order(ranks, micro_batches, chunks)
    assert [[str(action) for action in row] for row in ours] == rows_of_torch(theirs)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 6), (4, 2), (4, 12)])
def test_zero_bubble_is_that_of_torch_with_one_stage_per_rank(stages_of, ranks, micro_batches):
    theirs = ScheduleInterleavedZeroBubble(stages_of(ranks, [0], ranks), micro_batches)
    ours = zero_bubble_order(ranks, micro_batches)
    assert [[str(action) for action in row] for row in ours] == rows_of_torch(theirs)
