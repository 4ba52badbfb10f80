"""The command line for sampling: a strategy implies its task, results give themselves again, refusals are one line."""

import json
import shlex
from dataclasses import asdict

import pytest

from sim.cli.main import main
from strategies.registry import all_samplers, make_sampler

pytestmark = pytest.mark.usefixtures("elsewhere")

SAMPLERS = list(all_samplers())

RESULT_KEYS = [
    "task", "model", "cluster", "stack", "num_gpus", "strategy", "parameters", "batch_size", "resolution", "steps",
    "guidance", "options", "latency_s", "step_s", "latency_s_low", "latency_s_high",
    "samples_per_s", "gpu_s_per_sample", "bubble_ratio",
    "exposed_communication_s", "collective_s", "p2p_bytes", "collective_bytes", "peak_memory_bytes",
    "reserved_bytes_low", "reserved_bytes", "reserved_bytes_high", "fits_memory",
    "provenance", "compute_factor", "stages", "seamless", "inputs",
]  # fmt: skip
OPTION_KEYS = ["include", "decode_chunks", "text"]
STAGE_KEYS = ["devices", "first_layer", "last_layer", "forward_s", "backward_s", "parameters"]

MACHINE = ("--model", "pixart", "--cluster", "a100-nvlink-8")
RUN = ("run", *MACHINE, "--gpus", 4, "--steps", 4)
SWEEP = ("sweep", *MACHINE, "--gpus", 4, "--steps", 4)
POINTS = {"hybrid": ("--ulysses-degree", 2, "--pipeline-degree", 2), "single": ("--gpus", 1)}
"""Flags of samplers whose defaults are not of four GPUs."""


@pytest.fixture
def sim(tell):
    """A function that runs a command and returns its exit code, stdout and stderr."""
    return tell


def text_of(value):
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def flags(values):
    """The flags that give parameters or options back."""
    return [word for key, value in values.items() for word in (f"--{key.replace('_', '-')}", text_of(value))]


def again(result):
    """The command that a result says it came from."""
    shared = {
        key: result[key]
        for key in ("model", "cluster", "stack", "batch_size", "resolution", "steps", "guidance")
    }
    shared |= {"gpus": result["num_gpus"], "strategy": result["strategy"]}
    return ["run", *flags({**shared, **result["parameters"], **result["options"]})]


# Results


@pytest.mark.parametrize("name", ["single", "ring", "hybrid", "pipefusion"])
def test_a_result_has_the_public_keys_and_gives_itself_again(ask, name):
    result = ask(*RUN, "--strategy", name, *POINTS.get(name, ()))
    assert list(result) == RESULT_KEYS
    assert list(result["options"]) == OPTION_KEYS
    assert all(list(stage) == STAGE_KEYS for stage in result["stages"])
    assert (result["task"], result["strategy"], result["fits_memory"]) == ("sample", name, True)
    assert result["parameters"].keys() == asdict(make_sampler(name, {})).keys()
    assert ask(*again(result)) == result


def test_every_option_and_every_parameter_is_given_back(ask):
    asked = {
        "resolution": "1280x1920", "steps": 5, "guidance": "parallel", "batch_size": 2,
        "include": "text_encoder,vae_decoder", "decode_chunks": 3,
    }  # fmt: skip
    point = {
        "pipeline_degree": 2, "patches": 5, "warmup_steps": 0, "receive": "after", "layers": [20, 8],
    }  # fmt: skip
    result = ask(*RUN, "--strategy", "pipefusion", *flags(asked), *flags(point))
    assert result["parameters"] == point
    assert {**result, **result["options"]}.items() >= asked.items()
    assert ask(*again(result)) == result


# Files


def test_each_phase_has_its_own_files_and_the_steady_steps_the_name_itself(sim, elsewhere):
    included = ("--include", "text_encoder,vae_decoder")
    code, _, err = sim(*RUN, "--strategy", "distrifusion", *included, "--trace", "t.json", "--json")
    names = ["t-encode.json", "t-warm-up.json", "t.json", "t-decode.json"]
    assert (code, err) == (0, "".join(f"sim: wrote {name}\n" for name in names))
    steady = json.loads((elsewhere / "t.json").read_text())["traceEvents"]
    steps = {event["args"]["step"] for event in steady if event.get("cat") == "forward"}
    assert steps == {3}


# Sweeps


def test_a_sampling_option_makes_it_a_sweep_over_samplers(sim, ask, elsewhere):
    written = elsewhere / "rows.csv"
    code, out, err = sim(*SWEEP, "--resolution", 2048, "--json", "--out", written)
    rows = json.loads(out)
    assert code == 0
    assert err.startswith(f"sim: wrote {len(rows)} rows to {written}")
    assert {row["task"] for row in rows} == {"sample"}
    assert {row["strategy"] for row in rows} == set(SAMPLERS)


@pytest.mark.parametrize(
    ("arguments", "tasks"),
    [
        (("--task", "sample"), {"sample"}),
        (("--strategy", "ring,usp"), {"sample"}),
        (("--patches", 4), {"sample"}),
        (("--strategy", "ddp"), {"train"}),
        (("--task", "train", "--strategy", "ddp"), {"train"}),
        (("--micro-batches", 8, "--batch-size", 8, "--strategy", "1f1b"), {"train"}),
    ],
)
def test_the_task_of_a_sweep_is_that_of_its_flags(ask, arguments, tasks):
    rows = ask("sweep", "--model", "pixart", "--gpus", 2, *arguments)
    assert {row["task"] for row in rows} == tasks


def test_the_winner_says_how_to_have_it_again_and_leaves_its_trace(sim, ask, elsewhere):
    code, out, err = sim(*SWEEP, "--strategy", "pipefusion,single", "--trace", "best.json")
    assert code == 0
    assert "sim: wrote best.json\n" in err
    (line,) = [line for line in out.splitlines() if line.startswith("again: sim ")]
    best = ask(*SWEEP, "--strategy", "pipefusion,single")[0]
    repeated = ask(*shlex.split(line.removeprefix("again: sim ")))
    assert (repeated["strategy"], repeated["latency_s"]) == ("pipefusion", best["latency_s"])
    trace = json.loads((elsewhere / "best.json").read_text())
    ends = [event["ts"] + event["dur"] for event in trace["traceEvents"] if event.get("cat") == "forward"]
    assert max(ends) == pytest.approx(best["latency_s"] * 1e6)


# What there is


@pytest.mark.parametrize("name", ["ring", "pipefusion"])
def test_the_help_of_a_sampler_shows_only_what_applies(capsys, name):
    assert main(["run", "--strategy", name, "--help"]) == 0
    text = capsys.readouterr().out
    for parameter in asdict(make_sampler(name, {})):
        assert f"--{parameter.replace('_', '-')} " in text
    assert "--resolution PIXELS" in text
    for flag in ("--memory-recipe", "--self-conditioning", "--micro-batches", "32 per GPU"):
        assert flag not in text


# Refusals

PIXART = "run --model pixart --cluster a100-nvlink-8"

REFUSED = [
    # the other task's flags
    (f"{PIXART} --strategy ring --memory-recipe pulse", "--memory-recipe is of training, ring draws images"),
    (f"{PIXART} --strategy ddp --steps 20", "--steps is of sampling, ddp trains"),
    ("sweep --model pixart --strategy ddp,ring", "--strategy names ddp, which trains, and ring, which draws images"),
    ("sweep --model pixart --strategy ddp --task sample", "--task is sample, but ddp trains"),
    (
        "sweep --model pixart --objective cost",
        "--objective is 'cost', must be one of throughput, latency, memory, pareto in a sweep of training; "
        "cost is of sampling: --steps or --task sample",
    ),
    # another strategy's parameters
    (f"{PIXART} --strategy ring --patches 4", "ring has no parameter --patches; it has --keys-values"),
    # values
    (f"{PIXART} --strategy ring --resolution abc", "--resolution is 'abc', must be pixels such as 1024, or width and "),
    (
        f"{PIXART} --strategy ring --resolution 1024x1000",
        "--resolution is 1024x1000, but height(1000) is no multiple of 16, the pixels along a token of transformer",
    ),
    (
        f"{PIXART} --strategy ring --include text_encoder,nope",
        "--include names 'nope', the frozen components of pixart are text_encoder, vae_decoder",
    ),
    # points that do not exist
    (
        f"{PIXART} --strategy pipefusion --layers 7,7",
        "--layers 7,7 are 2 stages of 14 layers, not --pipeline-degree 8 of 28",
    ),
    (f"{PIXART} --strategy ulysses --gpus 3", "16 heads, ulysses 3: 16 % 3 = 1; 2, 4, 8 and 16 divide 16"),
    ("run --model cdm-lsun --strategy single", "needs one backbone, the model has 2 (unet_64, unet_128)"),
    (f"{PIXART} --strategy hybrid --gpus 8 --guidance none --guidance-degree 2", "--guidance-degree 2 is not 1, "),
    # schedules
    (
        "schedule --model pixart --strategy pipefusion --format torch",
        "--format is 'torch', which has no word for patches, and pipefusion draws images",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "problem"), REFUSED, ids=[arguments for arguments, _ in REFUSED])
def test_what_the_user_can_mend_is_one_line(sim, elsewhere, arguments, problem):
    code, out, err = sim(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"sim: error: {problem}")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert not list(elsewhere.iterdir())
