"""The command line: results on stdout, one line on stderr for whatever the user can mend, nothing lost."""

import csv
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict

import pytest
from making import model_head

from sim.inputs.limits import MAX_LISTED, MAX_ORDERED, MAX_SIMULATED, MAX_SWEPT_GPUS, MAX_SWEPT_SAMPLES
from strategies.registry import make, strategies_of

pytestmark = pytest.mark.usefixtures("elsewhere")

ASKED_KEYS = [
    "task", "model", "cluster", "stack", "num_gpus", "strategy", "parameters", "batch_size", "resolution",
]  # fmt: skip
SHARED_KEYS = [
    "exposed_communication_s", "collective_s", "p2p_bytes", "collective_bytes", "peak_memory_bytes",
    "reserved_bytes_low", "reserved_bytes", "reserved_bytes_high", "fits_memory", "provenance", "compute_factor",
    "stages",
]  # fmt: skip
RESULT_KEYS = {
    "train": [
        *ASKED_KEYS, "frozen", "options", "iteration_s", "first_iteration_s", "iteration_s_low", "iteration_s_high",
        "samples_per_s", "bubble_ratio", *SHARED_KEYS, "inputs",
    ],
    "sample": [
        *ASKED_KEYS, "steps", "guidance", "options", "latency_s", "step_s", "latency_s_low", "latency_s_high",
        "samples_per_s", "gpu_s_per_sample", "bubble_ratio", *SHARED_KEYS, "seamless", "inputs",
    ],
}  # fmt: skip
STAGE_KEYS = ["devices", "first_layer", "last_layer", "forward_s", "backward_s", "parameters"]
OPTION_KEYS = {
    "train": [
        "self_conditioning", "self_conditioning_draw", "checkpointing", "memory_recipe", "placement", "ema",
        "resolution", "frozen",
    ],
    "sample": ["include", "decode_chunks", "text"],
}  # fmt: skip

RUN = ["run", "--model", "sd21", "--gpus", "8", "--batch-size", "64"]
SWEEP = ["sweep", "--model", "sd21", "--gpus", "4", "--batch-size", "16"]
DRAWN = ("--model", "pixart", "--cluster", "a100-nvlink-8", "--gpus", 4, "--steps", 4)
POINTS = {"hybrid": ("--ulysses-degree", 2, "--pipeline-degree", 2), "single": ("--gpus", 1)}
"""Flags of samplers whose defaults are not of four GPUs."""

FROZEN_ONLY = f"""{model_head("frozen")}[[components]]
name = "encoder"
trainable = false
"""


def shell(*arguments, **options):
    """Start the command as a shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def flags(values):
    """The flags that give parameters or options back."""
    texts = {key: ",".join(map(str, of)) if isinstance(of, list) else str(of) for key, of in values.items()}
    return [word for key, text in texts.items() for word in (f"--{key.replace('_', '-')}", text)]


def again(result):
    """The command that a result says it came from."""
    keys = ("model", "cluster", "stack", "strategy", "batch_size", "resolution", "steps", "guidance")
    shared = {key: result[key] for key in keys if key in result} | {"gpus": result["num_gpus"]}
    return ["run", *flags({**shared, **result["parameters"], **result["options"]})]


def write_model(folder, model, layers):
    folder.mkdir()
    (folder / "model.toml").write_text(model)
    (folder / "layers.csv").write_text(layers)
    return folder


# What there is


def test_the_help_of_a_strategy_shows_only_what_applies(tell):
    for name in (*strategies_of("train"), *strategies_of("sample")):
        code, text, _ = tell("run", "--strategy", name, "--help")
        assert code == 0
        assert all(f"--{key.replace('_', '-')} " in text for key in asdict(make(name, {})))
        for flag in ("--memory-recipe", "--self-conditioning", "of all GPUs together"):
            assert (flag in text) == (name in strategies_of("train"))
        assert "--resolution PIXELS" in text


# Results


@pytest.mark.parametrize("name", ["ddp", "fsdp", "pulse", "diffusionpipe", "single", "hybrid", "pipefusion"])
def test_a_result_has_the_public_keys_and_gives_itself_again(ask, name):
    task = "train" if name in strategies_of("train") else "sample"
    given = RUN if task == "train" else ("run", *DRAWN, *POINTS.get(name, ()))
    result = ask(*given, "--strategy", name)
    assert list(result) == RESULT_KEYS[task]
    assert list(result["options"]) == OPTION_KEYS[task]
    assert all(list(stage) == STAGE_KEYS for stage in result["stages"])
    assert (result["task"], result["strategy"], result["fits_memory"]) == (task, name, True)
    assert result["parameters"].keys() == asdict(make(name, {})).keys()
    assert ask(*again(result)) == result


def test_every_option_is_given_back(ask):
    options = {
        "self_conditioning": 0.1, "self_conditioning_draw": "rank", "checkpointing": "full",
        "memory_recipe": "fp32", "placement": "data-inner", "ema": "fp32", "resolution": "256x384",
        "frozen": "cached", "trainable": "lora:4", "offload": "optimizer", "nodes": "2x4",
        "link": "inter=2x,intra=150GB/s", "device": "h200-141gb-sxm", "memory": "40GiB",
    }  # fmt: skip
    result = ask(*RUN, "--strategy", "1f1b", *flags(options))
    assert result["options"] == options
    assert ask(*again(result)) == result


def test_a_point_that_does_not_fit_warns_by_how_much(tell):
    asked = (*RUN[:-1], 8 * 512, "--strategy", "ddp")
    code, out, err = tell(*asked, "--json")
    assert code == 0
    result = json.loads(out)
    box = tell(*asked)[1]
    assert "does not fit" in box.splitlines()[1] and "start it" not in box
    assert result["fits_memory"] is False
    allocated, gib = (result[key] / 2**30 for key in ("peak_memory_bytes", "reserved_bytes"))
    assert err.startswith(
        f"sim: warning: ddp does not fit: needs {gib:.1f} GiB reserved ({allocated:.1f} allocated), the device has"
        f" 79.2 GiB: {gib - 79.15:.1f} GiB too much; --micro-batches 16, --batch-size "
    )


def test_a_trace_and_a_picture_are_written_beside_the_result(tell, elsewhere):
    code, out, err = tell(
        *RUN, "--strategy", "spp", "--self-conditioning", 0, "--trace", "t.json", "--gantt", "g.svg", "--json"
    )
    assert code == 0
    assert json.loads(out)["strategy"] == "spp"
    assert err == "sim: wrote t.json\nsim: wrote g.svg\n"
    assert json.loads((elsewhere / "t.json").read_text())["traceEvents"]


# Sweeps


def test_a_sweep_prints_one_list_and_writes_the_same_rows(tell, elsewhere):
    code, out, err = tell(*SWEEP, "--json", "--out", "rows.csv")
    assert code == 0
    rows = json.loads(out)
    assert err.startswith(f"sim: wrote {len(rows)} rows to rows.csv")
    assert int(re.search(r"of (\d+) points have the result of another", err)[1]) > len(rows)
    with (elsewhere / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        for key in ("status", "strategy", "iteration_s", "samples_per_s", "bound_s", "reason"):
            assert line.get(key, "") == str(row.get(key, ""))


def test_a_question_that_names_no_task_is_told_to_be_of_training(tell):
    note = "this plans training; for inference add --steps 20"
    plain = ("sweep", "--model", "sd21", "--gpus", 1, "--batch-size", 4)
    assert note in _flat(tell(*plain)[1])
    for said in (("--task", "train"), ("--frozen", "cached"), ("--strategy", "ddp"), ("--micro-batches", 2)):
        assert note not in _flat(tell(*plain, *said)[1])
    assert "--include all adds encoders and VAE" in _flat(tell(*plain, "--steps", 2)[1])
    assert "3 samples do not divide among 2 GPUs, as 4 do" in _flat(
        tell("sweep", "--model", "sd21", "--gpus", 2, "--batch-size", 3)[1]
    )
    *_, said, error = tell(*plain, "--memory", "1GiB")[2].splitlines()  # nothing fits: beside the refusal
    assert said == f"sim: note: {note}"
    assert error.endswith("GiB too much); no change of one flag or of two was found with which anything fits")


def _flat(text):
    """A panel as one line."""
    return " ".join(text.replace("│", " ").split())


def test_a_sweep_marks_and_draws_its_pareto_front(tell, elsewhere):
    flags = ("--strategy", "1f1b,ddp", "--objective", "pareto", "--plot", "front.svg")
    code, out, err = tell(*SWEEP, *flags)
    assert code == 0
    assert "* no point beats it in both speed and memory" in out
    assert re.search(r"^ *1 \* best +ddp ", out, re.MULTILINE)
    assert "sim: wrote front.svg" in err
    assert (elsewhere / "front.svg").read_text(encoding="utf-8").startswith("<?xml")


# Sampling


def test_every_option_and_every_parameter_is_given_back(ask):
    asked = {
        "resolution": "1280x1920", "steps": 5, "guidance": "parallel", "batch_size": 2,
        "include": "text_encoder,vae_decoder", "decode_chunks": 3,
    }  # fmt: skip
    point = {
        "pipeline_degree": 2, "patches": 5, "warmup_steps": 0, "receive": "after", "layers": [20, 8],
    }  # fmt: skip
    result = ask("run", *DRAWN, "--strategy", "pipefusion", *flags(asked), *flags(point))
    assert result["parameters"] == point
    assert {**result, **result["options"]}.items() >= asked.items()
    assert ask(*again(result)) == result


def test_each_phase_has_its_own_files_and_the_steady_steps_the_name_itself(tell, elsewhere):
    included = ("--include", "text_encoder,vae_decoder")
    code, _, err = tell("run", *DRAWN, "--strategy", "distrifusion", *included, "--trace", "t.json", "--json")
    names = ["t-encode.json", "t-warm-up.json", "t.json", "t-decode.json"]
    assert (code, err) == (0, "".join(f"sim: wrote {name}\n" for name in names))
    steady = json.loads((elsewhere / "t.json").read_text())["traceEvents"]
    steps = {event["args"]["step"] for event in steady if event.get("cat") == "forward"}
    assert steps == {3}


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        (("--steps", 4, "--resolution", 2048), "sample"),
        (("--task", "sample"), "sample"),
        (("--strategy", "ring,usp"), "sample"),
        (("--patches", 4), "sample"),
        (("--micro-batches", 8, "--batch-size", 8, "--strategy", "1f1b"), "train"),
    ],
)
def test_the_task_of_a_sweep_is_that_of_its_flags(ask, arguments, task):
    rows = ask("sweep", "--model", "pixart", "--gpus", 2, *arguments)
    assert {row["task"] for row in rows} == {task}
    assert "--strategy" in arguments or {row["strategy"] for row in rows} == {*strategies_of("sample")}


def test_the_winner_says_how_to_have_it_again_and_leaves_its_trace(tell, ask, elsewhere):
    code, out, err = tell("sweep", *DRAWN, "--strategy", "pipefusion,single", "--trace", "best.json")
    assert code == 0
    assert "sim: wrote best.json\n" in err
    (line,) = [line for line in out.splitlines() if line.startswith("again: sim ")]
    best = ask("sweep", *DRAWN, "--strategy", "pipefusion,single")[0]
    repeated = ask(*shlex.split(line.removeprefix("again: sim ")))
    assert (repeated["strategy"], repeated["latency_s"]) == ("pipefusion", best["latency_s"])
    trace = json.loads((elsewhere / "best.json").read_text())
    ends = [event["ts"] + event["dur"] for event in trace["traceEvents"] if event.get("cat") == "forward"]
    assert max(ends) == pytest.approx(best["latency_s"] * 1e6)


# Refusals

STRATEGIES = ", ".join(sorted([*strategies_of("train"), *strategies_of("sample")]))

PIXART = "run --model pixart --cluster a100-nvlink-8"
DDP = "run --model sd21 --strategy ddp"
FLUX = "run --model flux-dev --cluster p5 --gpus 4"
LAUNCH = "launch --cluster h100-ib --gpus 16"
TITAN = f"{LAUNCH} --model flux-dev --strategy fsdp --shard-size 8 --batch-size 64 --runtime torchtitan"
REFUSED = [
    # commands and flags
    ("--frob", "--frob must come after the COMMAND"),
    ("swep", "COMMAND is 'swep', did you mean sweep? must be one of models, "),
    ("run", "arguments are required: --model, --strategy"),
    ("sweep --frobnicate", "error: unknown flag --frobnicate; sim sweep --help shows those there are\n"),
    ("run --model sd21 --strategy ddp --gpu 8", "unknown flag --gpu; did you mean --gpus?\n"),
    ("run --model sd21 --strategy ddp --json=yes", "--json: ignored explicit argument 'yes'"),
    # names
    ("run --model nope --strategy ddp", "unknown model 'nope'; choose from "),
    ("run --model sd21 --strategy nope", f"unknown strategy 'nope'; choose from {STRATEGIES}"),
    # choices
    ("run --model sd21 --strategy ddp --overlap all", "--overlap is 'all', must be one of buckets, none"),
    # what is trained
    ("run --model sd21 --strategy ddp --resolution 500", "width(500) is no multiple of 64, as both sides of sd21 are"),
    ("run --model pixart --strategy single --frozen cached", "--frozen is of training, single draws images"),
    ("run --model sd21 --strategy 1f1b --fill partial", "1f1b has no parameter --fill; it has --pipeline-degree, "),
    # numbers
    ("run --model sd21 --strategy ddp --gpus 1000000000", "--gpus is 1000000000, but cluster p4de has at most "),
    ("run --model sd21 --strategy fsdp --gpus 8 --shard-size 3", "error: --shard-size 3 does not divide --gpus 8"),
    ("run --model sd21 --strategy ddp --self-conditioning nan", "--self-conditioning is nan, must be between 0 and 1"),
    # points that do not exist
    (
        "run --model sd21 --strategy 1f1b --gpus 32 --pipeline-degree 32 --partition blocks",
        "--pipeline-degree 32 exceeds the 25 blocks of the backbone",
    ),
    # files
    ("run --model broken --strategy ddp", "broken/layers.csv:1: column component is missing"),
    ("run --model sd21 --cluster a-file --strategy ddp", "a-file: byte 0 is not UTF-8, must be a text file"),
    ("run --model sd21 --strategy ddp --gantt g.bmp", "--gantt is 'g.bmp', must end in .png, .svg, .pdf"),
    ("sweep --model sd21 --gpus 2 --strategy ddp --out rows.txt", "--out is 'rows.txt', must end in .csv, .parquet"),
    ("run --model sd21 --strategy diffusionpipe --fil full", "unknown flag --fil; did you mean --fill?\n"),
    ("run --model sd21 --strategy ddp --overlap bucket", "--overlap is 'bucket', did you mean buckets? must be"),
    ("clusters show", "NAME must be given; choose from a10"),
    ("clusters show p4dee", "unknown cluster 'p4dee'; did you mean p4de? choose from a10"),
    ("sweep --model sd21 --gpus 20", "is 20, must be a multiple of the 8 of a node, such as 16, 24 or --nodes 4x5"),
    ("run --model pixart --strategy single --steps 2 --include vae", "did you mean vae_encoder or vae_decoder?"),
    ("run --model sd21 --strategy ddp --frozen cached:vae_encoder,vae_encoder", "each once, such as cached:"),
    ("run --model pixart --strategy pipefusion --gpus 32 --cluster a100-ib --steps 2", "32 exceeds the 28 layers of"),
    # what would take long
    ("run --model sd21 --strategy 1f1b --micro-batches 65536 --gpus 8 --batch-size 524288", f"most {MAX_SIMULATED}"),
    ("schedule --strategy 1f1b --pipeline-degree 65536 --micro-batches 65536", f"at most {MAX_ORDERED}"),
    ("schedule --strategy wave --pipeline-degree 65536 --micro-batches 2", f"at most {MAX_LISTED}"),
    ("sweep --model sd21 --gpus 8 --batch-size 720720", f"at most {MAX_SWEPT_SAMPLES}"),
    ("synthesize --pipeline-degree 1024 --micro-batches 64", f"at most {2**17}"),
    ("sweep --model sd21 --gpus 1048576 --nodes 131072", f"at most {MAX_SWEPT_GPUS}"),
    # measured numbers
    ("run --model sd21 --strategy ddp --measured foo", "--measured is 'foo', must be NAME=NUMBER"),
    ("run --model sd21 --strategy ddp --measured latency_s=3", "ddp is measured by step_s, iteration_s, samples_per_s"),
    ("run --model sd21 --strategy ddp --measured-run {", "is not valid JSON"),
    # adapters
    ("run --model sd21 --strategy ddp --trainable lora:0", "--trainable is 'lora:0', must be all"),
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
    # values
    (f"{PIXART} --strategy ring --resolution 1024x1000", "--resolution is 1024x1000, but height(1000) is no multiple"),
    (f"{PIXART} --strategy ring --include text_encoder,nope", "--include names 'nope', the frozen components of"),
    # points that do not exist
    (f"{PIXART} --strategy pipefusion --layers 7,7", "--layers 7,7 are 2 stages of 14 layers, not --pipeline-degree 8"),
    (f"{PIXART} --strategy ulysses --gpus 3", "16 heads, ulysses 3: 16 % 3 = 1; 2, 4, 8 and 16 divide 16"),
    ("run --model cdm-lsun --strategy single", "needs one backbone, the model has 2 (unet_64, unet_128)"),
    (f"{PIXART} --strategy hybrid --gpus 8 --guidance none --guidance-degree 2", "--guidance-degree 2 is not 1, "),
    # schedules
    ("schedule --model pixart --strategy pipefusion --format torch", "--format is 'torch', which has no word for"),
    # resolutions
    ("run --model uvit-h --strategy ddp --resolution 512", "width(512) is above 256, the largest side of uvit-h"),
    ("run --model pixart --strategy single --resolution 720p", "--resolution is 720p, but pixart draws images, must"),
    ("run --model pixart --strategy single --resolution 65536", "4,096 times the pixels of the 1024 of pixart, must"),
    # what-ifs
    (f"{DDP} --link 2x", "--link is '2x', must be NAME=CHANGE, such as inter=2x or intra=150GB/s"),
    (f"{DDP} --link up=2x", "--link names 'up', must be one of intra, inter"),
    (f"{DDP} --link inter=1e9GB/s", "at most 1e+06 of either"),
    (f"{DDP} --nodes 2x16", "--nodes is 2x16, but a node of p4de has 8 devices"),
    (f"{DDP} --device h201", "unknown device 'h201'; did you mean h20"),
    (f"{DDP} --memory 1KiB", "such as 40GiB, in MiB, GiB, TiB, MB, GB, TB, at most 1e+06 GiB"),
    (f"{DDP} --cluster a100-nvlink-8 --link inter=2x", "but cluster a100-nvlink-8 has no inter_node link"),
    (f"{DDP} --cluster a100-nvlink-8 --nodes 2", "no inter_node link, as a100-ib or p4de has"),
    (f"{DDP} --cluster ideal --link intra=150GB/s", "but the intra links are ideal: free at any bandwidth"),
    (f"{PIXART} --strategy ulysses --gpus 4 --vae-parallel 4", "without --include vae_decoder, or --include all"),
    (f"{PIXART} --strategy ulysses --encoders offloaded --include vae_decoder", "without --include text_encoder, "),
    # what a sampler does not heed
    (f"{FLUX} --strategy ring --heads padded", "--heads is padded, but ring does not divide attention heads on 4 GPUs"),
    (f"{FLUX} --strategy ring --all-to-all fp8", "--all-to-all is fp8, but ring has no all-to-all on 4 GPUs"),
    (f"{FLUX} --strategy ring --steps 4 --cache-steps 0.23", "--cache-steps is 0.23, which skips none of 4 steps"),
    (f"{FLUX} --strategy ring --cache-steps 1", "--cache-steps is 1.0, must be a share of the steps"),
    (f"{PIXART} --strategy single --cache-steps teacache", "--cache-steps is teacache, whose share was published of"),
    # what is frozen or offloaded
    (f"{DDP} --frozen cached:vae", "--frozen names 'vae', those of sd21 that can be loaded are text_encoder, vae_"),
    (f"{DDP} --frozen loaded", "--frozen is 'loaded', must be online, cached or cached:NAMES"),
    (f"{DDP} --offload layers:0", "--offload is 'layers:0', must be none, optimizer or layers:N"),
    (f"{DDP} --checkpointing block:26", "is block:26, must be of at most the 25 blocks of a backbone of "),
    (f"{DDP} --offload layers:3", "--offload is layers:3, which needs frozen weights: --trainable lora:RANK"),
    (f"{DDP} --offload optimizer --memory-recipe adafactor", "nothing steps adafactor on a host"),
    # frames
    ("run --strategy single --model wan2.1-1.3b --frames 80", "80, must be 1 more than a multiple of 4, such as 5"),
    ("sweep --gpus 8 --model sd21 --frames 9", "--frames is 9, but sd21 draws images, which have one"),
    ("sweep --gpus 8 --model wan2.1-1.3b --frames 65537", "--frames is 65537, must be at most 65536"),
    # runtimes
    (f"{FLUX} --strategy pipefusion --patches 16 --runtime xdit", "patches(16) must be pipeline_degree(4), as "),
    (f"{FLUX} --strategy pipefusion --runtime xdiz", "unknown runtime 'xdiz'; did you mean xdit? choose from accele"),
    ("sweep --model pixart --gpus 2 --steps 2 --runtime xdit,sglang", "--runtime is 'xdit,sglang', must be one name: "),
    ("sweep --model pixart --gpus 2 --steps 2 --runtime deepspeed", "--runtime is deepspeed, which is of training, "),
    ("sweep --model pixart --gpus 2 --steps 2 --runtime sglang", "--runtime is sglang, but of models it has flux-dev"),
    (
        f"{LAUNCH} --model flux-dev --strategy pipefusion --warmup-steps 1 --patches 16 --runtime xdit",
        "receive(before) must be after, as ",
    ),
    (f"{TITAN} --context-degree 2 --checkpointing block", "context_degree(2) must be 1, as its FLUX gathers keys"),
    (f"{TITAN} --checkpointing none", "checkpointing(none) must be block, as "),
    (
        f"{LAUNCH} --model wan2.1-14b --strategy fsdp --frozen cached --checkpointing selective"
        " --runtime fastvideo-train",
        "must be block or none, as ",
    ),
    (
        f"{LAUNCH} --model sd21 --strategy fsdp --checkpointing full --runtime fsdp2",
        "checkpointing(full) must be block or selective or none, as ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "problem"), REFUSED, ids=[arguments for arguments, _ in REFUSED])
def test_what_the_user_can_mend_is_one_line(tell, elsewhere, arguments, problem):
    (elsewhere / "a-file").write_bytes(b"\xff\xfe")
    write_model(elsewhere / "broken", FROZEN_ONLY, "")
    before = sorted(elsewhere.iterdir())
    code, out, err = tell(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("sim: error: ")
    assert problem in err
    assert (err.count("\n"), err[-1]) == (1, "\n")
    assert sorted(elsewhere.iterdir()) == before


# Pipes and interrupts


@pytest.mark.parametrize(
    "arguments", [["strategies", "--json"], ["strategies"], ["--help"], [*RUN, "--strategy", "spp"]]
)
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(arguments):
    process = shell(*arguments)
    process.stdout.close()  # as `head -1` does, at the latest when the command writes
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def interrupted_after(num_answers, store):
    """Run a long sweep, interrupt it as Ctrl-C does, the command and its workers, and return what it said."""
    asked = ("--model", "sd21", "--gpus", 16, "--exhaustive", "--out", "rows.csv", "--store", store)
    process = shell("sweep", *asked, start_new_session=True)
    while process.poll() is None and num_kept(store) < num_answers:
        time.sleep(0.05)
    assert process.poll() is None, "the sweep was over before it could be interrupted"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    with pytest.raises(ProcessLookupError):  # no worker is left
        os.killpg(process.pid, 0)
    return process.returncode, out, err


def num_kept(store):
    """The points that were replayed so far, as a store knows them."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM answers WHERE kind = 'replay'").fetchone()[0]
    except sqlite3.OperationalError:  # it was not made yet
        return 0


@pytest.mark.long
def test_an_interrupted_sweep_leaves_its_finished_rows(elsewhere):
    reached = elsewhere / "rows-incomplete.csv"
    code, out, err = interrupted_after(4, elsewhere / "kept.sqlite")
    assert (code, out) == (130, "")
    wrote, may, stored, interrupted = err.splitlines()
    known = r"sim: wrote what is known of (\d+) points so far to rows-incomplete\.csv: (.*)"
    told = re.fullmatch(known, wrote)
    counts = [int(number) for number in re.findall(r"\d+", told[2])]
    assert sum(counts) == int(told[1])  # simulated, bounded, infeasible, and not looked at: not all is known
    assert "simulated" in told[2]
    assert may == "sim: any point that was not simulated may still be the best"
    assert not (elsewhere / "rows.csv").exists()
    assert stored.startswith("sim: "), stored
    assert interrupted == "sim: interrupted"

    with reached.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert all(line["bound_s"] != "inf" for line in lines)
    finished = [line for line in lines if line["status"] == "simulated"]
    assert finished
    assert len(finished) < len(lines)
