"""Plans of samplers, carried out by real processes: their images, their bytes, and how old what they saw was.

Runs of as many ranks share their processes; each test looks at one of them.
"""

from dataclasses import replace

import pytest

import strategies.patching.layer_runs
import strategies.patching.patch_pipeline
from validate.__main__ import main
from validate.running.rank import compare, run_jobs
from validate.running.sampling.comparison import ImageComparison, job_of
from validate.running.sampling.settings import Settings

pytestmark = pytest.mark.slow


def sample(strategy, steps, guidance="none", **parameters):
    """A run on four ranks."""
    return Settings(strategy, 4, steps, tuple(parameters.items()), guidance)


def hybrid(steps, guidance="none", **parameters):
    return sample("hybrid", steps, guidance, warmup_steps=1, **parameters)


EXACT = {
    "ulysses": sample("ulysses", 3, "batch"),
    "ring": sample("ring", 3),
    "usp": sample("usp", 3, ulysses_degree=2, ring_degree=2),
    "attention2d": sample("attention2d", 3, "batch", rows=2, columns=2, ulysses_degree=1),
    "allgather-kv": sample("allgather-kv", 3, "batch"),
    "tensor": sample("tensor", 3, "batch"),
    "sync-patch": sample("sync-patch", 3),
    "pipefusion, all steps synchronous": sample("pipefusion", 3, patches=4, warmup_steps=3),
    "distrifusion, all steps synchronous": sample("distrifusion", 3, warmup_steps=3),
}
DISPLACED = {
    "pipefusion": sample("pipefusion", 5, patches=4, warmup_steps=1),
    "pipefusion, two warm-up steps": sample("pipefusion", 5, patches=4, warmup_steps=2),
    "pipefusion, four warm-up steps": sample("pipefusion", 5, patches=4, warmup_steps=4),
    "uneven patches, with guidance": sample("pipefusion", 5, "batch", patches=7, warmup_steps=1),
    "uneven stages": sample("pipefusion", 5, patches=4, warmup_steps=1, layers=(1, 7, 0, 0)),
    "receives late": sample("pipefusion", 5, patches=4, warmup_steps=1, receive="after"),
    "distrifusion": sample("distrifusion", 5, warmup_steps=1),
    "distrifusion, two warm-up steps": sample("distrifusion", 5, warmup_steps=2),
    "distrifusion, four warm-up steps": sample("distrifusion", 5, warmup_steps=4),
    "distrifusion in bundles of 3": sample("distrifusion", 5, warmup_steps=1, gather_layers=3),
}
HYBRIDS = {
    "guidance, ulysses": hybrid(3, "batch", guidance_degree=2, ulysses_degree=2),
    "ring, tensor": hybrid(3, ring_degree=2, tensor_degree=2),
    "ulysses, tensor": hybrid(3, "batch", ulysses_degree=2, tensor_degree=2),
    "guidance, pipeline": hybrid(4, "batch", guidance_degree=2, pipeline_degree=2, patches=4),
    "pipeline, ulysses": hybrid(4, "batch", pipeline_degree=2, ulysses_degree=2, patches=4),
    "pipeline, ring": hybrid(5, pipeline_degree=2, ring_degree=2, patches=4),
    "pipeline, tensor": hybrid(4, pipeline_degree=2, tensor_degree=2, patches=3, layers=(3, 5)),
    "rows, ulysses": sample("attention2d", 3, "batch", rows=2, columns=1, ulysses_degree=2),
    "columns, ulysses": sample("attention2d", 3, "batch", rows=1, columns=2, ulysses_degree=2),
}
"""Products of two degrees."""


@pytest.fixture(scope="module")
def ran():
    """Jobs, their outcomes, and how the images and bytes compare, by name."""
    settings = EXACT | DISPLACED | HYBRIDS
    jobs = [job_of(of) for of in settings.values()]
    return {
        name: (job, outcome, ImageComparison(job.task, outcome.results))
        for name, job, outcome in zip(settings, jobs, run_jobs(jobs), strict=True)
    }


PRODUCTS = {
    "hidden_bytes": ("guidance, pipeline", strategies.patching.patch_pipeline.PatchPipeline),
    "gathers": ("pipeline, ulysses", strategies.patching.patch_pipeline.PatchPipeline),
    "latents_bytes": ("pipeline, tensor", strategies.patching.patch_pipeline.PatchPipeline),
    "exchanged": ("pipeline, tensor", strategies.patching.layer_runs),
}


def doubled(value):
    """The same, with twice the bytes."""
    match value:
        case float():
            return 2 * value
        case list():
            return [(group, 2 * size, *rest) for group, size, *rest in value]
        case dict():
            return {key: doubled(part) for key, part in value.items()}
    return value._replace(summed_bytes=2 * value.summed_bytes)


def test_a_byte_product_that_is_wrong_turns_a_run_red(ran):
    """What was sent stays as it was; the plan that it is held against, and the simulator, say something else."""
    for product, (name, where) in PRODUCTS.items():
        right = getattr(where, product)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, product, lambda *of, right=right: doubled(right(*of)))
            failures = ImageComparison(replace(HYBRIDS[name]), ran[name][1].results).failures()
        assert failures, product
        assert any("the simulator says" in line for line in failures)


def test_runs_draw_and_send_in_the_order_of_the_plan_what_they_must(ran):
    """Synchronous steps draw one device's image, displaced ones what the same stale patches draw in one process."""
    for name, (job, outcome, comparison) in ran.items():
        assert max(pair.mismatch for pair in compare(job, outcome)) < 1e-9, name
        assert comparison.failures() == [], name
        assert comparison.displaced_error <= 1e-5, name
        if name in EXACT:
            assert comparison.settings.exact and comparison.error <= 1e-5, name
        if name in DISPLACED:
            assert 1e-3 < comparison.error < comparison.allowed, name


def test_stale_patches_and_wrong_bytes_show(ran):
    compared = {name: comparison for name, (_, _, comparison) in ran.items()}
    for name in ("pipefusion", "distrifusion"):
        more = ("", ", two warm-up steps", ", four warm-up steps")
        one, two, four = (compared[name + words].error for words in more)
        assert four < two < one < compared[name].allowed
        stale = ImageComparison(compared[name].settings, compared[name + more[1]].parts).failures()
        assert "the image differs from that of the same patches in one process" in stale[0]
    right = compared["ulysses"]
    first, *others = right.parts
    sent = [first.sent[0]._replace(size_bytes=2 * first.sent[0].size_bytes), *first.sent[1:]]
    failures = ImageComparison(right.settings, [first._replace(sent=sent), *others]).failures()
    assert failures[0].startswith("the ranks sent")
    assert "rank 0 sent" in failures[1] and "the plan says" in failures[1]
    to_one = 256 // 4 * 4 * (8 * 2 * 64 + 16)  # keys and values of 8 layers, and a prediction of 4 channels
    assert [sent for sent, _ in compared["distrifusion"].step_bytes] == [4 * 3 * to_one] * 5


def test_the_command_prints_errors_and_bytes(capsys):
    assert main(["sample", "--strategy", "ring", "--steps", "2"]) == 0
    assert capsys.readouterr().out.strip().endswith("all checks hold")


def test_what_cannot_run_is_refused_in_one_line(capsys):
    for arguments, message in (
        ("--strategy ring --ranks 1", "--ranks is 1, must be at least 2"),
        ("--strategy ring --ranks 3", "rows(16) are no multiple of ranks(3)"),
        ("--strategy distrifusion --warmup-steps 0", "--warmup-steps is 0, must be at least 1"),
        ("--strategy pipefusion --patches 17", "--patches 17 exceeds rows(16)"),
        ("--strategy usp", "--ulysses-degree 2 * --ring-degree 2 = 4 is not --gpus 2"),
    ):
        assert main(["sample", *arguments.split()]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
