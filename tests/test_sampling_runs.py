"""Plans of samplers, carried out by real processes: their images, their bytes, and how old what they saw was.

Runs of as many ranks share their processes; each test looks at one of them.
"""

import os
import re
import socket
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from profiles.errors import DeadlockError
from sim.replay.engine import simulate
from validate.__main__ import main
from validate.sampling_runs import launch
from validate.sampling_runs.comparison import SAME, Comparison, relative
from validate.sampling_runs.faults import without_patch
from validate.sampling_runs.keys_values import WHOLE, KeysValues
from validate.sampling_runs.reference import displaced_image, independent_image, one_device_image
from validate.sampling_runs.script import Open, Post, Receive, Send, Start, Wait, script
from validate.sampling_runs.settings import LOST_PATCH, ROWS, WRONG_SIZE, WRONG_VERSION, Settings
from validate.sampling_runs.transformer import Blockwise, attend

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


EXACT = {
    "ulysses": lambda ranks: Settings("ulysses", ranks, 3, guidance="batch"),
    "ring": lambda ranks: Settings("ring", ranks, 3),
    "usp": lambda ranks: usp(ranks // 2, 2),
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
ALL = EXACT | DISPLACED | FAULTY


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def compared(request):
    """The comparison of every run, by its name."""
    settings = [make(request.param) for make in ALL.values()]
    outcomes = launch.run_all(settings)
    return {name: Comparison(*pair) for name, *pair in zip(ALL, settings, outcomes, strict=True)}


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
    seen = [seen for outcome in compared["pipefusion"].outcomes for seen in outcome.seen]
    displaced = [one for one in seen if one.step >= 1]
    assert len(displaced) == 4 * 4 * 8  # steps, patches, layers
    for one in displaced:
        slots = [one.ages[4 * patch : 4 * patch + 4] for patch in range(4)]
        assert slots == [(0,) * 4 if patch <= one.patch else (1,) * 4 for patch in range(4)]
    assert {one.ages for one in seen if one.step < 1} == {(0,) * ROWS}


def test_patches_that_gather_see_only_themselves_fresh(compared):
    ranks = compared["distrifusion"].settings.ranks
    size = ROWS // ranks
    for rank, outcome in enumerate(compared["distrifusion"].outcomes):
        found = {seen.ages for seen in outcome.seen if seen.step >= 1}
        assert found == {tuple(0 if row // size == rank else 1 for row in range(ROWS))}


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
    first = right.outcomes[0]
    more, less = (
        replace(first.sent[n], planned_bytes=first.sent[n].planned_bytes + d) for n, d in ((1, 8), (2, -8))
    )
    sent = [first.sent[0], more, less, *first.sent[3:]]
    run = Comparison(right.settings, [replace(first, sent=sent), *right.outcomes[1:]])
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
    assert error.startswith("validate: error: sample: ")
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


def started_as_by_torchrun(arguments, ranks):
    """Start ranks, with nobody to watch them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | common | {"PYTHONPATH": str(ROOT), "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip


def ended(processes):
    """Return (code, output, errors) of each, and how long the others took once the last one had ended."""
    try:
        last = processes[-1].communicate(timeout=60)
        start = time.monotonic()
        others = [process.communicate(timeout=40) for process in processes[:-1]]
        took = time.monotonic() - start
    finally:
        for process in processes:
            process.kill()
            process.wait()
    results = zip(processes, [*others, last], strict=True)
    return [(process.returncode, *printed) for process, printed in results], took


def test_a_rank_of_torchruns_that_is_killed_is_named_in_one_line_by_each_of_the_others():
    arguments = (
        "-m validate sample --strategy pipefusion --ranks 3 --patches 3 --warmup-steps 1 --plant killed-rank"
    )
    processes = started_as_by_torchrun(arguments.split(), 3)
    results, took = ended(processes)
    assert results[2] == (-9, "", "")
    assert took < 30
    lost = f"rank 2 (process {processes[2].pid})"
    for rank in (0, 1):
        assert results[rank] == (2, "", f"validate: error: sample: {lost} died; rank {rank} stopped\n")


def test_torchrun_leaves_the_ranks_time_to_say_which_one_died():
    """It terminates the others at once."""
    command = (
        "-m torch.distributed.run --standalone --nproc-per-node 2 -m validate sample --plant killed-rank"
    )
    result = subprocess.run(
        [sys.executable, *command.split(), "--strategy", "distrifusion"], cwd=ROOT, capture_output=True, text=True,
        timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    lines = [line for line in result.stderr.splitlines() if line.startswith(("validate:", "[rank"))]
    assert len(lines) == 1, result.stderr
    assert re.fullmatch(r"validate: error: sample: rank 1 \(process \d+\) died; rank 0 stopped", lines[0])
    assert result.stdout == ""


def test_the_number_of_torchruns_processes_must_be_that_of_the_ranks(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["sample", "--strategy", "ring", "--ranks", "2"]) == 2
    assert "--ranks is 2, but torchrun started 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--strategy ring --ranks 1", "--ranks is 1, must be at least 2"),
        ("--strategy ring --ranks 3", r"rows(16) are no multiple of ranks(3)"),
        ("--strategy tensor --ranks 16", "heads(8) of transformer is no multiple of tensor_degree(16)"),
        ("--strategy distrifusion --warmup-steps 0", "--warmup-steps is 0, must be at least 1"),
        ("--strategy pipefusion --warmup-steps 9", "warmup_steps(9) exceeds steps(8)"),
        ("--strategy pipefusion --patches 17", "patches(17) exceeds rows(16)"),
        ("--strategy ulysses --patches 2", "ulysses has no parameter --patches"),
        ("--strategy ring --plant wrong-version", "needs a sampler that keeps keys and values"),
        ("--strategy ring --plant lost-patch", "needs pipefusion with at least 2 patches"),
        ("--strategy usp", "ulysses_degree(2) * ring_degree(2) = 4 are not gpus(2)"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(capsys, arguments, message):
    assert main(["sample", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_gpu_for_each_rank_must_be_there(capsys):
    if torch.cuda.device_count() >= 2:
        assert main(["sample", "--strategy", "ring", "--device", "cuda"]) == 0
        return
    assert main(["sample", "--strategy", "ring", "--device", "cuda"]) == 2
    assert "--device is cuda, but torch sees" in capsys.readouterr().err


def test_a_script_that_reads_what_nobody_writes_is_refused():
    settings = pipefusion(2)
    plan = settings.plan
    halved = without_patch(plan, 3, 4)
    one_sided = type(plan)(
        **{**{f: getattr(plan, f) for f in plan.__slots__}, "ops": (halved.ops[0], plan.ops[1])}
    )
    with pytest.raises(DeadlockError, match=r"device 1 waits for hidden 0\.3, which nobody writes"):
        script(one_sided, 1)


def test_a_collective_starts_after_the_results_of_those_before_it_that_the_next_op_reads():
    """Around a ring the second round passes on what the first has brought."""
    events = [e for e in script(Settings("ring", 4, 1).plan, 0) if isinstance(e, Start | Wait)]
    first = [(type(event), event.number) for event in events[:6]]
    assert first == [(Start, 0), (Wait, 0), (Start, 1), (Wait, 1), (Start, 2), (Wait, 2)]


def carried_out(scripts, members):
    """Whether all ranks come to their ends where the first call on a pair of ranks blocks until both have made one.

    So does NCCL when it connects two ranks; and a first collective call blocks until all ranks have made it.
    """
    everyone, at, called, sent = set(range(len(scripts))), [0] * len(scripts), defaultdict(set), set()
    started = defaultdict(set)

    def connected(rank, way, ends):
        called[way].add(rank)
        return ends <= called[way]

    def done(rank, event):
        match event:
            case Open(direction):
                return connected(rank, ("open", direction), everyone) and connected(rank, direction, set())
            case Send(transfer) | Post(transfer):
                ends = {transfer.source, transfer.target}
                if not connected(rank, (transfer.source, transfer.target), ends):
                    return False
                sent.update({transfer.tensor} if isinstance(event, Send) else ())
            case Receive(transfer):
                return transfer.tensor in sent
            case Start(number):
                if not connected(rank, None, everyone):
                    return False
                started[number].add(rank)
            case Wait(number):
                return started[number] >= members[number]
        return True

    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(scripts):
            while at[rank] < len(events) and done(rank, events[at[rank]]):
                at[rank] += 1
                moved = True
    return all(index == len(events) for index, events in zip(at, scripts, strict=True))


def scripts_of(settings):
    plan = settings.plan
    return [script(plan, rank) for rank in range(settings.ranks)], [set(c.devices) for c in plan.collectives]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", EXACT | DISPLACED)
def test_no_first_message_of_two_ranks_waits_for_one_that_waits_for_it(name, ranks):
    settings = ALL[name](ranks)
    scripts, members = scripts_of(settings)
    assert carried_out(scripts, members)
    unopened = [[event for event in events if not isinstance(event, Open)] for events in scripts]
    # where receives come first, rank 0 asks the last one for latents, which asks the one before it for hidden states
    waits = settings.strategy == "pipefusion" and "late" not in name
    assert carried_out(unopened, members) is not waits


def test_both_ends_of_a_direction_go_through_its_messages_in_the_same_order():
    """NCCL knows no tags."""
    for name in DISPLACED:
        sent, posted = defaultdict(list), defaultdict(list)
        for events in scripts_of(ALL[name](4))[0]:
            for event in events:
                if isinstance(event, Send | Post):
                    transfer = event.transfer
                    to = sent if isinstance(event, Send) else posted
                    to[transfer.source, transfer.target].append(transfer.tensor)
        assert sent == posted


def test_references_are_drawn_on_the_device_of_the_run():
    """A GPU's float32 is not the processor's to 1e-5; ``meta`` stands for another device, which computes nothing."""
    for draw in (one_device_image, displaced_image, independent_image):
        assert draw(pipefusion(2, 2)).device.type == "cpu"
        assert draw(replace(pipefusion(2, 2), device="meta")).device.type == "meta"


def test_blockwise_attention_is_attention():
    generator = torch.Generator().manual_seed(3)
    queries, keys, values = torch.randn(3, 2, 48, 64, generator=generator)
    blockwise = Blockwise(queries)
    for block in range(0, 48, 12):
        blockwise.attend(keys[:, block : block + 12], values[:, block : block + 12])
    torch.testing.assert_close(blockwise.result(), attend(queries, keys, values))


def test_keys_and_values_know_their_step():
    kept = KeysValues(1, torch.zeros(1))
    kept.write(WHOLE, torch.zeros(2, 1, 256, 64), 0)
    kept.write(slice(4, 8), torch.ones(2, 1, 64, 64), 1)
    both, steps = kept.read(slice(4, 8))
    assert steps == [0] * 4 + [1] * 4 + [0] * 8
    assert both[:, :, 64:128].min() == 1.0
    assert both.sum() == 2 * 64 * 64


def test_the_small_transformer_needs_the_whole_image():
    """Or stale and lost patches would not show."""
    settings = distrifusion(4, 8)
    assert relative(independent_image(settings), one_device_image(settings)) > 0.1
    assert relative(one_device_image(distrifusion(4, 8, guidance="batch")), one_device_image(settings)) > 0.1


def test_a_killed_rank_stops_the_others_and_is_named(capsys):
    start = time.monotonic()
    assert main(["sample", "--strategy", "distrifusion", "--steps", "6", "--plant", "killed-rank"]) == 2
    assert time.monotonic() - start < 30
    error = capsys.readouterr().err
    assert error == "validate: error: sample: rank 1 was killed by SIGKILL; the others were stopped\n"
