"""Real runs: every strategy with kernels that sleep, and real layers with their gradients.

Order and links are tested however busy the machine is: where what it let an op start late counts as part of the op,
engine and executor agree to rounding.
"""

import json
from dataclasses import replace

import pytest

from profiles.architectures.models import load_model
from profiles.errors import InputError
from strategies.plans.actions import StageAction
from strategies.registry import strategies_of
from validate.__main__ import main
from validate.running.rank import compare, run_jobs
from validate.running.training.plans import error_of, prepare

pytestmark = pytest.mark.slow

DATA_PARALLEL = ("ddp", "fsdp", "zero2", "zero3")
REPLAYED = ("gpipe", "1f1b", "wave", "diffusionpipe")
LINK_S = 0.002
ROUNDING = 1e-9


def small_model(make):
    """Two frozen components one after the other; a backbone with skips, two layers of which are locked."""
    text = make.component("text", [0.3, 0.5], trainable=False, output_bytes=1e3)
    image = make.component("image", [0.3, 0.5, 0.2], trainable=False, output_bytes=1e3, inputs=["text"])
    unet = make.component(
        "unet", [0.8, 1.2, 1.0, 0.9, 1.1, 1.3, 0.7, 1.0, 1.0, 0.9, 1.2, 1.0], inputs=["text", "image"],
        output_bytes=1e3, saved_bytes=1e3, parameters=10**6, skips=[(i, 11 - i) for i in range(6)], locked=(0, 5),
    )  # fmt: skip
    return make.model(image, text, unet)


def cascade(make):
    """Two backbones that one frozen component feeds."""
    encoder = make.component("encoder", [0.4, 0.3], trainable=False, output_bytes=1e3)
    large, small = (
        make.component(
            name, [1.0] * layers, inputs=["encoder"], output_bytes=1e3, saved_bytes=1e3, parameters=10**6
        )
        for name, layers in (("large", 6), ("small", 4))
    )
    return make.model(encoder, large, small)


def job_of(model, strategy, degree, *, samples=2, **parameters):
    """A job with four micro-batches on as many ranks as positions."""
    parallel = strategy in DATA_PARALLEL
    sizes = {"micro_batches": 4} | ({} if parallel else {"pipeline_degree": degree})
    options = {name: parameters.pop(name) for name in ("extra_forward", "sleeping") if name in parameters}
    return prepare(
        model, strategy, sizes | parameters, num_gpus=degree, link_s=LINK_S,
        batch_size=samples * 4 * (degree if parallel else 1), **options,
    )  # fmt: skip


def run(jobs):
    return {name: (jobs[name], of) for name, of in zip(jobs, run_jobs([*jobs.values()]), strict=True)}


def mismatch(job, outcome):
    return max(pair.mismatch for pair in compare(job, outcome))


def test_sleeping_kernels_run_in_the_order_of_the_simulation(make):
    """Every pipeline on four ranks, whose cores may be two."""
    model, names = small_model(make), [name for name in strategies_of("train") if name not in DATA_PARALLEL]
    jobs = {name: replace(job_of(model, name, 4, samples=4, sleeping=True), warm_up=0) for name in names}
    assert {name for name, ran in run(jobs).items() if mismatch(*ran) >= ROUNDING} == set()


# Real layers on two ranks

GRADIENTS = {
    **{name: (name, {}) for name in REPLAYED},
    "spp": ("spp", {}),
    "interleaved": ("interleaved", {"chunks": 3}),
    "zero-bubble": ("zero-bubble", {}),
    "bidirectional": ("bidirectional", {}),
    "pulse": ("pulse", {}),
    "local skips": ("wave", {"skip_route": "local"}),
    "two waves": ("wave", {"waves": 2}),
    "data parallel": ("ddp", {}),
    "divided gradients": ("zero2", {}),
    "divided gradients, kept whole for three micro-batches": ("zero2", {"scatter_every": 3}),
    "divided weights": ("zero3", {}),
}
CONDITIONED = {
    "self-conditioning": ("diffusionpipe", {}),
    "self-conditioning in waves": ("wave", {}),
    "self-conditioning, divided weights": ("zero3", {}),
}
REPLICATED = {
    "two pipelines": ("bidirectional", {}),
    "two devices per position": ("wave", {"group_size": 4}),
    "two devices per position, filled": ("diffusionpipe", {"group_size": 4}),
}
"""Plans for two positions on four ranks."""
CASCADED = {"cascade": ("diffusionpipe", {}), "cascade, frozen work first": ("bidirectional", {})}
DAMAGED = {"lost": None, "doubled": 2}


def without(plan, number, instead):
    """A plan that loses a micro-batch, or runs another one in its place."""

    def damaged(op):
        if not isinstance(op.action, StageAction) or op.action.micro_batch != number:
            return op
        return None if instead is None else op._replace(action=op.action._replace(micro_batch=instead))

    return replace(plan, ops=tuple(tuple(op for op in map(damaged, row) if op) for row in plan.ops))


@pytest.fixture(scope="module")
def trained(make):
    """Jobs on two ranks that are run for their gradients, and what came of them."""
    jobs = {
        name: job_of(model, strategy, 2, extra_forward=extra, **parameters)
        for names, model, extra in (
            (GRADIENTS, small_model(make), False),
            (CONDITIONED, small_model(make), True),
            (CASCADED, cascade(make), False),
        )
        for name, (strategy, parameters) in names.items()
    }
    jobs["sd21"] = job_of(load_model("sd21"), "diffusionpipe", 2, samples=1)
    right = jobs["1f1b"]
    return run(jobs | {name: replace(right, plan=without(right.plan, 3, of)) for name, of in DAMAGED.items()})


def test_gradients_are_those_of_a_single_process_and_tell_a_lost_or_doubled_micro_batch(trained):
    errors = {name: error_of(*ran) for name, ran in trained.items()}
    assert {name for name, error in errors.items() if error >= 1e-6} == set(DAMAGED)
    assert min(errors[name] for name in DAMAGED) > 1e-3
    plan = trained["diffusionpipe"][0].plan
    assert plan.cross_iteration and any(layer.bubble is not None for layer in plan.filling.layers)


def test_replicas_find_the_same_gradients_together(make):
    """Four ranks for two positions."""
    model, jobs = small_model(make), {}
    for name, (strategy, parameters) in REPLICATED.items():
        sizes = {"pipeline_degree": 2, "micro_batches": 4}
        jobs[name] = prepare(model, strategy, sizes | parameters, num_gpus=4, batch_size=24, link_s=LINK_S)
    for name, (job, outcome) in run(jobs).items():
        assert job.plan.placement.num_positions == 2
        assert error_of(job, outcome) < 1e-6, name


# Order on two ranks


def test_real_layers_run_in_the_order_of_the_simulation(trained):
    assert max(mismatch(*trained[name]) for name in REPLAYED) < ROUNDING


# What goes wrong


def test_several_backbones_side_by_side_are_refused(make):
    with pytest.raises(InputError, match="no plan in common"):
        job_of(cascade(make), "ddp", 2, backbones="parallel")


# The command


def test_the_command_prints_a_run_as_json(capsys):
    wanted = (
        "run --schedule 1f1b --mode sleep --model uvit-h --pipeline-degree 2 --micro-batches 2 --iterations 2"
    )
    assert main([*wanted.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ranks"] == 2
    assert printed["mismatch"] < ROUNDING
    assert printed["gradient_error"] is None


def test_bad_input_is_one_line(capsys):
    flags = ("--iterations 1", "--link-ms -1", "--gpus 3", "--model nobody", "--mode torch")
    for flag in flags:
        assert main(["run", "--schedule", "1f1b", *flag.split()]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("validate: error: ")
