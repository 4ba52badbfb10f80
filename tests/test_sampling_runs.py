"""Plans of samplers, carried out by real processes: their images, their bytes, and how old what they saw was.

Runs of as many ranks share their processes; each test looks at one of them.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import strategies.patching.layer_runs
import strategies.patching.patch_pipeline
from profiles.errors import DeadlockError, InputError
from sim.replay.engine import simulate
from validate.__main__ import main
from validate.running.comparison import compare
from validate.running.rank import fitting, run_jobs
from validate.running.sampling.comparison import SAME, ImageComparison, job_of, relative
from validate.running.sampling.passes import KeysValues
from validate.running.sampling.settings import (
    LOST_PATCH,
    ROWS,
    WRONG_SIZE,
    WRONG_VERSION,
    Settings,
    without_patch,
)
from validate.running.sampling.transformer import (
    Blockwise,
    attend,
    displaced_image,
    independent_image,
    one_device_image,
    tokens_of,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent


def pipefusion(ranks, steps=5, fault=None, guidance="none", **parameters):
    given = {"patches": 4, "warmup_steps": 1, **parameters}
    return Settings("pipefusion", ranks, steps, tuple(given.items()), guidance, fault=fault)


def distrifusion(ranks, steps=5, fault=None, guidance="none", **parameters):
    given = {"warmup_steps": 1, **parameters}
    return Settings("distrifusion", ranks, steps, tuple(given.items()), guidance, fault=fault)


def usp(ulysses, ring):
    return Settings("usp", ulysses * ring, 3, (("ulysses_degree", ulysses), ("ring_degree", ring)))


def rows_of(rows, columns, ulysses=1):
    given = {"rows": rows, "columns": columns, "ulysses_degree": ulysses}
    return Settings("attention2d", rows * columns * ulysses, 3, tuple(given.items()), "batch")


def hybrid(steps=5, guidance="none", skips=False, fault=None, **parameters):
    given = {"warmup_steps": 1, **parameters}
    return Settings("hybrid", 4, steps, tuple(given.items()), guidance, fault=fault, skips=skips)


EXACT = {
    "ulysses": lambda ranks: Settings("ulysses", ranks, 3, guidance="batch"),
    "ring": lambda ranks: Settings("ring", ranks, 3),
    "usp": lambda ranks: usp(ranks // 2, 2),
    "attention2d": lambda ranks: rows_of(ranks // 2, 2),
    "tensor": lambda ranks: Settings("tensor", ranks, 3, guidance="batch"),
    "sync-patch": lambda ranks: Settings("sync-patch", ranks, 3),
    "pipefusion, all steps synchronous": lambda ranks: pipefusion(ranks, 3, warmup_steps=3),
    "pipefusion of one patch": lambda ranks: pipefusion(ranks, patches=1),
    "distrifusion, all steps synchronous": lambda ranks: distrifusion(ranks, 3, warmup_steps=3),
}
DISPLACED = {
    "pipefusion": pipefusion,
    "pipefusion, two warm-up steps": lambda ranks: pipefusion(ranks, warmup_steps=2),
    "pipefusion, four warm-up steps": lambda ranks: pipefusion(ranks, warmup_steps=4),
    "pipefusion of uneven patches, with guidance": lambda ranks: pipefusion(
        ranks, patches=7, guidance="batch"
    ),
    "pipefusion of uneven stages": lambda ranks: pipefusion(ranks, layers=(1, 7, 0, 0)[:ranks]),
    "pipefusion that receives late": lambda ranks: pipefusion(ranks, receive="after"),
    "distrifusion": distrifusion,
    "distrifusion, two warm-up steps": lambda ranks: distrifusion(ranks, warmup_steps=2),
    "distrifusion, four warm-up steps": lambda ranks: distrifusion(ranks, warmup_steps=4),
    "distrifusion, each gather alone": lambda ranks: distrifusion(ranks, gather_layers=1, guidance="batch"),
    "distrifusion in bundles of 3": lambda ranks: distrifusion(ranks, gather_layers=3),
}
FAULTY = {
    "pipefusion reads the wrong version": lambda ranks: pipefusion(ranks, fault=WRONG_VERSION),
    "distrifusion reads the wrong version": lambda ranks: distrifusion(ranks, fault=WRONG_VERSION),
    "sync-patch reads the wrong version": lambda ranks: Settings("sync-patch", ranks, 3, fault=WRONG_VERSION),
    "a plan of pipefusion says a wrong size": lambda ranks: pipefusion(ranks, fault=WRONG_SIZE),
    "a plan of distrifusion says a wrong size": lambda ranks: distrifusion(ranks, fault=WRONG_SIZE),
    "a plan of ulysses says a wrong size": lambda ranks: Settings("ulysses", ranks, 3, fault=WRONG_SIZE),
    "a plan of ring says a wrong size": lambda ranks: Settings("ring", ranks, 3, fault=WRONG_SIZE),
    "a plan of tensor says a wrong size": lambda ranks: Settings("tensor", ranks, 3, fault=WRONG_SIZE),
    "pipefusion loses its last patch": lambda ranks: pipefusion(ranks, 3, LOST_PATCH, warmup_steps=2),
}
HYBRIDS = {
    "guidance, ulysses": lambda: hybrid(3, "batch", guidance_degree=2, ulysses_degree=2),
    "ring, tensor": lambda: hybrid(3, ring_degree=2, tensor_degree=2),
    "ulysses, tensor": lambda: hybrid(3, "batch", ulysses_degree=2, tensor_degree=2),
    "guidance, pipeline": lambda: hybrid(
        4, "batch", skips=True, guidance_degree=2, pipeline_degree=2, patches=4
    ),
    "pipeline, ulysses": lambda: hybrid(
        4, "batch", skips=True, pipeline_degree=2, ulysses_degree=2, patches=4
    ),
    "pipeline, ring": lambda: hybrid(pipeline_degree=2, ring_degree=2, patches=4),
    "pipeline, tensor": lambda: hybrid(4, pipeline_degree=2, tensor_degree=2, patches=3, layers=(3, 5)),
    "rows, ulysses": lambda: rows_of(2, 1, 2),
    "columns, ulysses": lambda: rows_of(1, 2, 2),
    "pipeline, skips, uneven patches": lambda: hybrid(4, skips=True, pipeline_degree=4, patches=7),
}
"""Products of two degrees on four ranks; that of three on eight is a run of its own."""
THREE = Settings(
    "hybrid", 8, 3, (("guidance_degree", 2), ("ulysses_degree", 2), ("pipeline_degree", 2), ("warmup_steps", 1),
                     ("patches", 4)), "batch", skips=True,
)  # fmt: skip
FAULTY_HYBRIDS = {
    "a hybrid reads the wrong version": lambda: hybrid(
        fault=WRONG_VERSION, pipeline_degree=2, ring_degree=2, patches=4
    ),
    "a plan of a hybrid says a wrong size": lambda: hybrid(
        3, fault=WRONG_SIZE, pipeline_degree=2, ulysses_degree=2, patches=4
    ),
}
ALL = EXACT | DISPLACED | FAULTY


def carried_out(settings):
    """Jobs, their outcomes, and how the images and bytes compare, by name."""
    jobs = {name: replace(job_of(own), name=name) for name, own in settings.items()}
    outcomes = run_jobs(list(jobs.values()))
    return {
        name: (job, outcome, ImageComparison(job.task, outcome.found))
        for (name, job), outcome in zip(jobs.items(), outcomes, strict=True)
    }


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def ran(request):
    """Every run, by its name."""
    return carried_out({name: make(request.param) for name, make in ALL.items()})


@pytest.fixture(scope="module")
def compared(ran):
    """The comparison of every run, by its name."""
    return {name: comparison for name, (_, _, comparison) in ran.items()}


@pytest.fixture(scope="module")
def hybrids():
    """Runs of products, by their names."""
    return carried_out({name: make() for name, make in (HYBRIDS | FAULTY_HYBRIDS).items()})


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_product_draws_the_image_and_sends_the_bytes_that_it_must(hybrids, name):
    job, outcome, comparison = hybrids[name]
    assert comparison.failures() == []
    assert comparison.displaced_error <= 1e-5
    trace = simulate(job.plan)
    assert sum(comparison.sent_bytes) == pytest.approx(
        2 * (trace.p2p_bytes + trace.collective_bytes), rel=1e-12
    )
    assert compare(job, outcome).mismatch < 1e-9


def test_a_product_of_three_draws_the_image_and_sends_the_bytes_that_it_must():
    (run,) = carried_out({"three": THREE}).values()
    assert run[2].failures() == []
    assert 1e-3 < run[2].error < run[2].allowed


def test_a_product_that_is_wrong_is_noticed(hybrids):
    stale, wrong = (hybrids[name][2] for name in FAULTY_HYBRIDS)
    assert stale.displaced_error > 1000 * SAME
    assert any("steps old, not" in line for line in stale.failures())
    assert wrong.displaced_error <= SAME
    assert any("in step 0, the plan says" in line for line in wrong.failures())


PRODUCTS = {
    "hidden_bytes": ("guidance, pipeline", strategies.patching.patch_pipeline.PatchPipeline),
    "gathers": ("pipeline, ulysses", strategies.patching.patch_pipeline.PatchPipeline),
    "latents_bytes": ("pipeline, tensor", strategies.patching.patch_pipeline.PatchPipeline),
    "skip_bytes": ("pipeline, skips, uneven patches", strategies.patching.patch_pipeline.PatchPipeline),
    "exchanged": ("pipeline, tensor", strategies.patching.layer_runs),
}


def doubled(found):
    """The same, with twice the bytes."""
    match found:
        case float():
            return 2 * found
        case list():
            return [(group, 2 * size, *rest) for group, size, *rest in found]
        case dict():
            return {key: doubled(value) for key, value in found.items()}
    return replace(found, summed_bytes=2 * found.summed_bytes)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_byte_product_that_is_wrong_turns_a_run_red(hybrids, monkeypatch, product):
    """What was sent stays as it was; the plan that it is held against, and the simulator, say something else."""
    name, where = PRODUCTS[product]
    right = getattr(where, product)
    monkeypatch.setattr(where, product, lambda *of: doubled(right(*of)))
    failures = ImageComparison(HYBRIDS[name](), hybrids[name][1].found).failures()
    assert failures
    assert all("the simulator says" in line for line in failures)


@pytest.mark.parametrize("name", [*EXACT, *DISPLACED])
def test_passes_messages_and_exchanges_run_in_the_order_of_the_simulation(ran, name):
    job, outcome, _ = ran[name]
    assert compare(job, outcome).mismatch < 1e-9


@pytest.mark.parametrize("name", EXACT)
def test_synchronous_steps_draw_the_image_of_one_device(compared, name):
    assert compared[name].settings.exact
    assert compared[name].error <= 1e-5
    assert compared[name].failures() == []


@pytest.mark.parametrize("name", DISPLACED)
def test_displaced_steps_draw_what_the_same_stale_patches_draw_in_one_process(compared, name):
    assert compared[name].displaced_error <= 1e-5
    assert 1e-3 < compared[name].error < compared[name].allowed
    assert compared[name].failures() == []


@pytest.mark.parametrize("name", ["pipefusion", "distrifusion"])
def test_more_warmup_steps_bring_the_image_closer_to_that_of_one_device(compared, name):
    one, two, four = (
        compared[name + more].error for more in ("", ", two warm-up steps", ", four warm-up steps")
    )
    assert four < two < one < compared[name].allowed


def test_patches_in_a_pipeline_are_fresher_than_patches_that_gather():
    """As the papers say; 4 patches, the reference images alone."""
    pipeline, gathering = (
        relative(displaced_image(settings), one_device_image(settings))
        for settings in (pipefusion(4), distrifusion(4))
    )
    assert pipeline < 0.9 * gathering


@pytest.mark.parametrize("name", EXACT | DISPLACED)
def test_the_bytes_of_every_step_are_those_of_the_simulator(compared, name):
    run = compared[name]
    assert run.sent_bytes == pytest.approx(run.simulated_bytes, rel=1e-12)
    trace = simulate(run.settings.plan)
    assert sum(run.sent_bytes) == pytest.approx(2 * (trace.p2p_bytes + trace.collective_bytes), rel=1e-12)
    assert min(run.sent_bytes) > 0


def test_slots_below_a_patch_are_fresh_and_those_above_one_step_old(compared):
    """Read off the buffers of an instrumented run, in every layer and displaced step."""
    seen = [seen for own in compared["pipefusion"].drawn for seen in own.seen]
    displaced = [one for one in seen if one.step >= 1]
    assert len(displaced) == 4 * 4 * 8  # steps, patches, layers
    for one in displaced:
        assert one.ages == tuple(0 if patch <= one.patch else 1 for patch in range(4))
    assert {one.ages for one in seen if one.step < 1} == {(0,) * 4}


def test_patches_that_gather_see_only_themselves_fresh(compared):
    ranks = compared["distrifusion"].settings.ranks
    for rank, own in enumerate(compared["distrifusion"].drawn):
        found = {seen.ages for seen in own.seen if seen.step >= 1}
        assert found == {tuple(0 if patch == rank else 1 for patch in range(ranks))}


@pytest.mark.parametrize("name", [name for name in FAULTY if "version" in name])
def test_reading_the_wrong_version_is_noticed_in_the_image_and_in_the_ages(compared, name):
    run = compared[name]
    assert run.displaced_error > 1000 * SAME
    failures = "\n".join(run.failures())
    assert "the image differs from that of the same patches in one process" in failures
    assert "steps old, not" in failures
    assert run.sent_bytes == pytest.approx(run.simulated_bytes)  # what was sent is right


@pytest.mark.parametrize("name", [name for name in FAULTY if "size" in name])
def test_a_wrong_size_in_the_plan_is_shown_as_a_difference_and_changes_nothing_that_is_sent(compared, name):
    """Or the bytes of the two would be the same however the plan came by them."""
    run = compared[name]
    assert run.displaced_error <= SAME
    assert run.sent_bytes[0] < run.simulated_bytes[0]
    assert run.sent_bytes[1:] == pytest.approx(run.simulated_bytes[1:])
    failures = run.failures()
    assert failures[0].startswith(f"step 0 sent {run.sent_bytes[0]} bytes, the simulator says")
    assert all("in step 0, the plan says" in line for line in failures[1:])
    senders = 1 if "pipefusion" in name else run.settings.ranks
    assert len(failures) == 1 + senders


def test_sizes_that_add_up_in_their_step_are_told_apart(compared):
    """Two wrong sizes of one step would not show in its sum."""
    right = compared["pipefusion"]
    first = right.drawn[0]
    more, less = (
        replace(first.sent[n], planned_bytes=first.sent[n].planned_bytes + d) for n, d in ((1, 8), (2, -8))
    )
    sent = [first.sent[0], more, less, *first.sent[3:]]
    run = ImageComparison(right.settings, [replace(first, sent=sent), *right.drawn[1:]])
    assert [line.split()[:2] for line in run.failures()] == [["rank", "0"], ["rank", "0"]]


def test_keys_and_values_of_a_patch_are_what_is_sent(compared):
    """By hand: 8 layers of keys and values of a patch to each other rank; and the prediction of 4 channels."""
    ranks = compared["distrifusion"].settings.ranks
    tokens = 256 // ranks
    to_one = tokens * 4 * (8 * 2 * 64 + 16)
    assert compared["distrifusion"].sent_bytes == [ranks * (ranks - 1) * to_one] * 5


def test_a_lost_patch_is_noticed_in_the_image_the_bytes_and_the_passes(compared):
    run = compared["pipefusion loses its last patch"]
    assert run.displaced_error > 1000 * SAME
    failures = run.failures()
    assert f"rank {run.settings.ranks - 1} never finished {run.settings.ranks - 1}P3@2" in failures
    assert any("step 2 sent" in line for line in failures)


def test_a_plan_that_loses_a_patch_in_mid_run_is_refused(capsys):
    """The stage before still has latents of the patch to send, and nobody waits for them."""
    arguments = "sample --strategy pipefusion --patches 2 --warmup-steps 1 --steps 4 --plant lost-patch"
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("validate: error: ")
    assert "the plan lets rank 1 compute 1P0@3, but its pass 1P1@2 sends latents here" in error
    assert "\n" not in error


def test_the_command_prints_image_bytes_and_ages(capsys):
    arguments = "sample --strategy pipefusion --ranks 2 --patches 4 --warmup-steps 1 --steps 3"
    assert main(arguments.split()) == 0
    text = capsys.readouterr().out
    assert "patch 1 of a displaced step sees patches that are 0 0 1 1 steps old" in text
    assert "the same patches in one process" in text
    assert text.strip().endswith("all checks hold")


def test_the_command_fails_where_a_check_does(capsys):
    arguments = "sample --strategy sync-patch --steps 2 --plant wrong-version"
    assert main(arguments.split()) == 2
    assert "checks failed, the first: the image differs" in capsys.readouterr().err


def test_torchrun_starts_the_ranks_as_well():
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 -m validate sample --steps 2"
    result = subprocess.run(
        [sys.executable, *command.split(), "--strategy", "ring"], cwd=ROOT, capture_output=True, text=True,
        timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("all checks hold")


def test_the_number_of_torchruns_processes_must_be_that_of_the_ranks(monkeypatch, capsys):
    with pytest.raises(InputError, match="ring takes 2 ranks, but torchrun started 4"):
        fitting(job_of(Settings("ring")), 4)
    monkeypatch.setenv("RANK", "0")
    assert main(["sample", "--strategy", "ring", "--ranks", "2"]) == 2
    assert "RANK is set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--strategy ring --ranks 1", "--ranks is 1, must be at least 2"),
        ("--strategy ring --ranks 3", r"rows(16) are no multiple of ranks(3)"),
        ("--strategy tensor --ranks 16", "8 heads, tensor 16: 8 % 16 = 8"),
        ("--strategy distrifusion --warmup-steps 0", "--warmup-steps is 0, must be at least 1"),
        ("--strategy pipefusion --warmup-steps 9", "warmup_steps(9) exceeds steps(8)"),
        ("--strategy pipefusion --patches 17", "patches(17) exceeds rows(16)"),
        ("--strategy ulysses --patches 2", "ulysses has no parameter --patches"),
        ("--strategy ring --plant wrong-version", "needs a sampler that keeps keys and values"),
        ("--strategy ring --plant lost-patch", "needs pipefusion with at least 2 patches"),
        ("--strategy usp", "ulysses_degree(2) * ring_degree(2) = 4 is not gpus(2)"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(capsys, arguments, message):
    assert main(["sample", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_plan_that_reads_what_nobody_writes_is_refused(monkeypatch):
    settings = pipefusion(2)
    plan = settings.plan
    halved = without_patch(plan, 3, 4)
    monkeypatch.setitem(vars(settings), "plan", replace(plan, ops=(halved.ops[0], plan.ops[1])))
    with pytest.raises(DeadlockError, match=r"device 1 waits for hidden 0\.3, which nobody writes"):
        job_of(settings)


def test_blockwise_attention_is_attention():
    generator = torch.Generator().manual_seed(3)
    queries, keys, values = torch.randn(3, 2, 48, 64, generator=generator)
    blockwise = Blockwise(queries)
    for block in range(0, 48, 12):
        blockwise.attend(keys[:, block : block + 12], values[:, block : block + 12])
    torch.testing.assert_close(blockwise.result(), attend(queries, keys, values))


def test_keys_and_values_know_their_step():
    kept, own = KeysValues(1, 64), tokens_of(slice(4, 8))
    everything = tokens_of(slice(0, ROWS))
    kept.write(everything, torch.zeros(2, 1, 256, 64), 0)
    kept.write(own, torch.ones(2, 1, 64, 64), 1)
    both, steps = kept.read(everything, own)
    assert steps.tolist() == [0] * 64 + [1] * 64 + [0] * 128
    assert both[:, :, 64:128].min() == 1.0
    assert both.sum() == 2 * 64 * 64


def test_the_small_transformer_needs_the_whole_image():
    """Or stale and lost patches would not show."""
    settings = distrifusion(4, 8)
    assert relative(independent_image(settings), one_device_image(settings)) > 0.1
    assert relative(one_device_image(distrifusion(4, 8, guidance="batch")), one_device_image(settings)) > 0.1
