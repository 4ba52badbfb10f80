"""Runtimes: their rules refuse what they cannot run, and what is printed to start a point is what they accept."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from itertools import product
from math import prod
from pathlib import Path
from string import Template

import pytest
from making import given_to, refused

import sim
from profiles.architectures.models import model_names
from profiles.errors import InfeasibleError, InputError, unmarked
from profiles.software.runtimes import RUNTIMES, Case, all_runtimes, find_runtime, runs_in
from sim.explore.legality import case_of, runtimes_of, starters
from sim.launching.launch import launch_of
from sim.report.results import NO_RUNTIME_TODAY, command_of, panel_of, speed_words
from strategies.registry import class_of

FLUX = {"model": "flux-dev", "cluster": "h100-nvlink-8"}
USP = {"strategy": "usp", "gpus": 8, "ulysses_degree": 4, "ring_degree": 2, "keys_values": "freed"}


# Profiles


@pytest.mark.parametrize("name", all_runtimes())
def test_a_runtime_speaks_of_strategies_and_parameters_that_there_are(name):
    runtime = find_runtime(name)
    for strategy, rule in runtime.rules.items():
        own = {item.name for item in fields(class_of(strategy, runtime.task))}
        others = {other for other in rule.values.values() if isinstance(other, str)}
        assert {*rule.values, *rule.least, *others} <= own | {"data_degree", "checkpointing", "heads"}
        assert all(value in item.metadata["choices"] for item in fields(class_of(strategy)) if item.metadata["choices"]
                   for value in rule.values.get(item.name, ()))  # fmt: skip
    assert {*(runtime.models or ()), *runtime.alone} <= {*model_names()}
    paths = [RUNTIMES / f"{template}.template" for template in runtime.files.values()]
    texts = [runtime.command, *runtime.flags.values(), *runtime.notes, *(path.read_text() for path in paths)]
    assert runtime.command and "run.sh" not in runtime.files
    assert all(Template(text).is_valid() for text in texts)


def test_without_a_strategy_the_best_of_a_sweep_is_launched():
    asked = {"model": "pixart", "cluster": "a100-nvlink-8", "gpus": 2, "steps": 4}
    start, best = sim.launch(**asked), sim.sweep(**asked, workers=1).best
    assert (start.text, start.files) == (sim.launch(best).text, sim.launch(best).files)
    assert start.remarks[0] == f"the best of a sweep: {command_of(best)}"


# Rules


@pytest.mark.parametrize(
    ("runtime", "case", "reason"),
    [
        ("xdit", Case("flux-dev", "tensor"), "of strategies it has single, .*, not tensor"),
        ("xdit", Case("sd21", "ulysses"), "of models it has flux-dev, .*, not sd21"),
        ("xdit", Case("qwen-image", "pipefusion", {"pipeline_degree": 2}), r"pipeline_degree\(2\) must be 1 for qwen"),
        ("xdit", Case("flux-dev", "ulysses", {}, 8, 2), "of predictions on two groups of GPUs it has those of"),
        ("distrifusion", Case("sdxl", "distrifusion", {}, 6), r"gpus\(6\) must be a power of two"),
        ("distrifusion", Case("sdxl", "distrifusion", {"warmup_steps": 0}, 4), r"warmup_steps\(0\) must be at least 1"),
        ("sglang", Case("flux-dev", "usp", {"keys_values": "kept"}), r"keys_values\(kept\) must be freed"),
        ("sglang", Case("flux-dev", "hybrid", {"data_degree": 2}), r"data_degree\(2\) must be 1, as sp_degree"),
        ("vllm-omni", Case("ltx-2", "ring", {}, 2), "it divides the tokens of ltx-2 by Ulysses alone"),
        ("vllm-omni", Case("ltx-2", "usp", {"ring_degree": 2}, 4), "by Ulysses alone"),
        ("diffusers", Case("pixart", "ulysses", {}, 2), r"gpus\(2\) must be 1 for pixart"),
        ("diffusers", Case("sdxl", "hybrid", {"data_degree": 2}, 8), "of strategies it has single, .*, not hybrid"),
    ],
)  # fmt: skip
def test_what_a_runtime_cannot_run_is_refused_with_its_rule(runtime, case, reason):
    refusal = find_runtime(runtime).refusal(case)
    assert refusal.startswith(f"{runtime} ({find_runtime(runtime).version}) does not run it: ")
    assert re.search(reason, unmarked(refusal)), refusal


@pytest.mark.parametrize(("model", "network"), [("sd21", "unet"), ("mochi", "transformer")])
def test_diffusers_draws_on_one_gpu_what_it_does_not_divide(model, network):
    launch = sim.launch(model, "single", "h100-nvlink-8", 1, steps=20, stack="inductor")
    assert launch.runtime == "diffusers"
    assert f"pipeline.{network}.compile()" in launch.text


def test_a_sweep_keeps_to_a_runtime_and_sets_what_it_alone_allows():
    sweep = sim.sweep(**FLUX, gpus=4, steps=4, runtime="xdit", workers=1)
    simulated = [row for row in sweep.rows() if row["status"] == "simulated"]
    assert {row["strategy"] for row in simulated} >= {"ulysses", "ring", "usp", "pipefusion", "single"}
    assert all("xdit" in row["runs_in"] for row in simulated)
    piped = [row["parameters"] for row in simulated if row["strategy"] == "pipefusion"]
    assert piped and all((of["patches"], of["warmup_steps"]) == (of["pipeline_degree"], 1) for of in piped)
    assert len(sweep.points) == len({(p.name, p.num_gpus, p.strategy) for p in sweep.points})
    (refused,) = (point for point in sweep.points if point.name == "tensor")
    assert (refused.status, refused.kind) == ("infeasible", "not in xdit")
    assert "xdit" in sweep.verdict.runs_in


@pytest.mark.parametrize("offload", ["none", "optimizer"])
def test_what_a_sweep_says_to_run_is_written_and_fits(offload):
    asked = {"batch_size": 32, "memory": "18.6GiB", "offload": offload, "strategy": "ddp,fsdp"}
    sweep = sim.sweep("sd21", "p4de", 4, workers=1, **asked)
    simulated = [point for point in sweep if point.status == "simulated"]
    assert {point.checkpointing for point in simulated} > {None} or offload == "optimizer"
    for point in simulated:
        result = sweep.result_of(point)
        assert starters(point, sweep.scenario) == runtimes_of(result)
        assert all(launch_of(result, find_runtime(name)).files for name in runtimes_of(result))


def test_what_a_sweep_recomputes_by_itself_keeps_to_the_runtime_that_is_asked_for():
    asked = {
        "gpus": 4,
        "batch_size": 4,
        "frozen": "cached",
        "memory": "40GiB",
        "strategy": "fsdp",
        "workers": 1,
    }
    asked |= {"model": "wan2.1-1.3b", "cluster": "h100-nvlink-8"}
    assert sim.sweep(**asked).rows()[0]["relief"] == "selective"
    kept = sim.sweep(**asked, runtime="fastvideo-train")
    assert {point.checkpointing for point in kept if point.status == "simulated"} == {"block"}
    with refused("runtime is fastvideo-train, which trains all weights and does not set trainable"):
        sim.sweep(**asked, trainable="lora:16", runtime="fastvideo-train")


# What is printed


def words(runtime, **asked):
    """What is printed, as a shell would split it."""
    return shlex.split(sim.launch(runtime=runtime, **asked).text.replace("\\\n", " "), comments=True)


def printed_flags(runtime, **asked):
    """The words behind each flag of a command line, and behind its head."""
    own, flag = {"": []}, ""
    for word in words(runtime, **asked):
        flag = word if word.startswith("--") else flag
        own.setdefault(flag, [])
        own[flag] += [] if word == flag else [word]
    return {flag: " ".join(values) for flag, values in own.items()}


WAN = {"model": "wan2.1-1.3b", "strategy": "single", "cluster": "h100-nvlink-8", "gpus": 1, "steps": 2}


def test_what_starts_first_sets_what_the_time_is_of_and_what_the_point_needs_to_fit(tell):
    result = sim.run(**WAN, precision="fp8")
    assert runtimes_of(result) == ("sglang", "vllm-omni", "diffusers", "fastvideo")
    assert "--quantization fp8" in sim.launch(result).text
    assert command_of(result, "launch", "sglang").endswith("--precision fp8 --runtime sglang")
    assert "NOT APPLIED, slower than predicted: --precision" in sim.launch(result, runtime="diffusers").text
    tight = sim.run(**WAN, include="all", encoders="offloaded", memory="18GiB")
    assert runtimes_of(tight) == ("sglang", "diffusers", "fastvideo")
    assert runtimes_of(sim.run(**WAN, include="all", offload="model", memory="18GiB")) == ("diffusers",)
    assert "--text-encoder-cpu-offload true" in sim.launch(tight).text.replace("'", "")
    said = tell("launch", "--model", "sd21", "--strategy", "ddp", "--gpus", 2, "--batch-size", 1024)[2]
    assert re.match("sim: warning: ddp does not fit: .*; --micro-batches 16, ", said.splitlines()[-1])
    full = sim.launch("flux-dev", "fsdp", "h100-ib", 16, micro_batches=2).remarks[-1]
    assert re.match("warning: fsdp may not fit, .* GiB reserved; with room: `checkpointing` block", full)


def test_a_script_ends_with_the_command_of_what_it_ran_and_says_what_to_expect_of_that(tell):
    asked = {"model": "sd21", "strategy": "fsdp", "gpus": 8, "runtime": "fsdp2"}
    launch = sim.launch(**asked, stack="fused", ema="fp32", measured={"step_s": 1.0})
    command = ast.literal_eval(re.search(r"steps\((.*)\):", launch.files["train.py"])[1])
    ran = sim.run(**asked, frozen="cached", self_conditioning=0.0)
    assert json.loads(tell(*shlex.split(command)[1:], "--json")[1]) == json.loads(json.dumps(ran.to_json()))
    assert launch.files["run.sh"].startswith(f"# expected: {speed_words(ran)}; ")


IB = {"model": "flux-dev", "cluster": "h100-ib", "gpus": 16}
TITAN = {"strategy": "fsdp", "shard_size": 8, "batch_size": 64, "micro_batches": 2, "checkpointing": "block"}
LAYERED = {"pipeline_degree": 2, "patches": 8, "layers": (13, 15), "receive": "after", "guidance": "parallel"}
PIPED = {"strategy": "pipefusion", "warmup_steps": 1, "receive": "after"}
RESIDENT = "--dit-layerwise-resident-layers"
CONTEXTS = {"model": "wan2.1-14b", "strategy": "fsdp", "cluster": "h100-ib", "gpus": 64, "batch_size": 32}
CONTEXTS |= {"context_degree": 4, "shard_size": 2, "frozen": "cached", "checkpointing": "block"}


@pytest.mark.parametrize(
    ("runtime", "asked", "flags"),
    [
        ("xdit", {**FLUX, **USP, "steps": 28}, {
            "": "xdit", "--model": "FLUX.1-dev", "--ulysses_degree": "4", "--ring_degree": "2", "--height": "1024",
            "--num_inference_steps": "28", "--pipefusion_parallel_degree": None, "--nnodes": None,
            "--prompt": "a photo of an astronaut",
        }),
        ("xdit", IB | PIPED, {"--pipefusion_parallel_degree": "16", "--nnodes": "2", "--nproc_per_node": "8"}),
        ("xdit-scripts", {"model": "pixart", "strategy": "pipefusion", "gpus": 4} | LAYERED, {
            "": "torchrun", "--nproc-per-node": "4 examples/pixartalpha_example.py", "--use_cfg_parallel": "",
            "--num_pipeline_patch": "8", "--attn_layer_num_for_pp": "13 15", "--no_use_resolution_binning": "",
        }),
        ("sglang", {**FLUX, **USP}, {
            "--num-gpus": "8", "--sp-degree": "8", "--ulysses-degree": "4", "--ring-degree": "2",
            "--dit-layerwise-offload": None, "--image-path": None, "--kv-gather-degree": None,
        }),
        ("sglang", {**FLUX, "strategy": "allgather-kv", "gpus": 4}, {"--kv-gather-degree": "4", "--sp-degree": "4"}),
        ("sglang", WAN | {"model": "wan2.2-i2v-a14b"}, {"--image-path": "input.png"}),
        ("sglang", WAN | {"offload": "layers:10"}, {"--dit-layerwise-offload": "true", RESIDENT: "20"}),
        ("sglang", WAN | {"offload": "layers:30"}, {"--dit-layerwise-offload": "true", RESIDENT: None}),
        ("vllm-omni", {**FLUX, "strategy": "tensor", "gpus": 4}, {
            "": "vllm serve black-forest-labs/FLUX.1-dev", "--omni": "", "--tensor-parallel-size": "4",
            "--allgather-degree": None,
        }),
        ("vllm-omni", {**FLUX, "strategy": "allgather-kv", "gpus": 4}, {"--allgather-degree": "4"}),
        ("torchtitan", IB | TITAN, {
            "--nnodes": "2", "--parallelism.data_parallel_replicate_degree": "2",
            "--parallelism.data_parallel_shard_degree": "8", "--training.local_batch_size": "2",
            "--dataloader.img_size": "1024",
        }),
        ("torchtitan", IB | TITAN | {"model": "flux-schnell"}, {"--config": "flux_schnell"}),
        ("fastvideo-train", CONTEXTS, {
            "--sp-size": "4", "--hsdp-replicate-dim": "8", "--hsdp-shard-dim": "8", "--train-batch-size": "2",
            "--num-latent-t": "21", "--enable-gradient-checkpointing-type": "full", "--data-path": "$DATA_PATH",
        }),
    ],
)  # fmt: skip
def test_a_command_line_has_the_flags_of_its_point(runtime, asked, flags):
    printed = printed_flags(runtime, **asked)
    assert {flag: printed.get(flag) for flag in flags} == flags


def distri_config(text):
    return {name: ast.literal_eval(value) for name, value in given_to("DistriConfig", text).items()}


def test_distrifusion_is_told_one_synchronous_step_less():
    asked = {"model": "sdxl", "strategy": "distrifusion", "gpus": 4, "steps": 8, "warmup_steps": 3}
    assert distri_config(sim.launch(**asked, guidance="parallel", runtime="distrifusion").text) == {
        "height": 1024, "width": 1024, "do_classifier_free_guidance": True, "split_batch": True, "parallelism": "patch",
        "warmup_steps": 2, "comm_checkpoint": 60,
    }  # fmt: skip


def test_pipefusion_s_first_release_is_told_what_its_configuration_takes():
    asked = {"model": "pixart", "strategy": "pipefusion", "gpus": 8, "steps": 20, "runtime": "xfuser-0.1"}
    launch = sim.launch(**asked, patches=8, warmup_steps=2, guidance="parallel", resolution=2048)
    given = distri_config(launch.text)
    assert given == {
        "height": 2048, "width": 2048, "do_classifier_free_guidance": True, "split_batch": True, "pp_num_patch": 8,
        "parallelism": "pipefusion", "warmup_steps": 1, "scheduler": "dpm-solver", "use_resolution_binning": False,
    }  # fmt: skip
    assert launch.notes[-2:] == (
        "pip install xfuser==0.1 brings it", "start it by torchrun --nproc-per-node 8 sample.py",
    )  # fmt: skip
    assert "not set below" not in launch.text
    assert (
        "NOT APPLIED, slower than predicted: --stack compiled" in sim.launch(**asked, stack="compiled").text
    )
    compiled, inductor, eager = (
        sim.launch("sd21", "ddp", gpus=8, stack=of).files["train.py"]
        for of in ("compiled", "inductor", "eager")
    )
    assert 'model.compile(mode="reduce-overhead")' in compiled and "lr=1e-5, fused=True)" in compiled
    assert "model.compile()" in inductor and "compile" not in eager and "fused" not in inductor + eager
    third = asked | {"model": "sd3-medium", "gpus": 2}
    assert 'scheduler="FM-ED"' in sim.launch(**third, guidance="batch").text
    with pytest.raises(InputError, match="of predictions on two groups of GPUs it has those of hunyuan"):
        sim.launch(**(third | {"gpus": 4}), guidance="parallel")


def test_fsdp2_shards_over_the_mesh_of_its_point():
    text = sim.launch("sd21", "fsdp", gpus=16, shard_size=8, reshard="false", runtime="fsdp2").text
    assert '(2, 8), mesh_dim_names=("replicate", "shard"))' in text and "forward=True" not in text
    assert '(16,), mesh_dim_names=("shard",)' in sim.launch("sd21", "fsdp", gpus=16, runtime="fsdp2").text
    text = sim.launch(**FLUX, **USP, runtime="diffusers").text
    assert "enable_parallelism(config=ContextParallelConfig(ulysses_degree=4, ring_degree=2))" in text


# The command


@pytest.mark.usefixtures("elsewhere")
def test_a_result_starts_the_point_that_its_flags_do(tell, elsewhere):
    asked = ("--model", "sd21", "--strategy", "zero2", "--gpus", 8)
    (elsewhere / "r.json").write_text(tell("run", *asked, "--json")[1])
    code, out, err = tell("launch", "--result", "r.json")
    assert (code, out, err) == tell("launch", *asked)
    assert err.startswith("sim: deepspeed: for deepspeed 0.19.8\n")
    unchecked = sim.launch(**FLUX, **USP, runtime="xdit").notes[0]
    assert unchecked.startswith("for xfuser 0.7.0, where its flags were read; no test starts it")
    assert json.loads(out)["zero_optimization"]["stage"] == 2
    code, out, err = tell("launch", *asked, "--runtime", "xdit")
    assert (code, out) == (2, "")
    assert err == "sim: error: --runtime is xdit, which is of sampling, but this is of training\n"


def test_a_point_that_one_other_parameter_would_start_says_so():
    asked = {"gpus": 8, "pipeline_degree": 4, "micro_batches": 8, "optimizer": "sharded"}
    with refused("no runtime is known that starts this 1f1b: with optimizer replicated torch-"):
        sim.launch("sd21", "1f1b", **asked)
    assert sim.launch("sd21", "1f1b", **(asked | {"optimizer": "replicated"})).runtime == "torch-pipelining"
    row = sim.run("sd21", "1f1b", **asked)
    assert ("runs in", NO_RUNTIME_TODAY) in panel_of(row).lines


def test_a_script_is_of_latents_where_their_channels_are_as_many_as_of_pixels():
    script = sim.launch("uvit-1b", "fsdp", gpus=2).files["train.py"]
    assert "height=256, width=256, latent_scale=8)" in script


def test_a_sweep_is_launched_as_its_best():
    swept = sim.sweep("sd21", gpus=[4, 8], strategy="ddp,gpipe", workers=1)
    assert sim.launch(swept) == sim.launch(swept.best)


def test_what_starts_several_nodes_says_what_each_must_know(tmp_path):
    alone = {"capture_output": True, "text": True, "env": {"MASTER_ADDR": "10.0.0.1"}}
    for strategy, said in (("ddp", "NODE_RANK: run it on every node"), ("zero3", "HOSTFILE: give the file")):
        sim.launch("sd21", strategy, gpus=16).write(tmp_path / strategy)
        ran = subprocess.run(["bash", tmp_path / strategy / "run.sh"], check=False, **alone)
        assert ran.returncode and said in ran.stderr


ANY = ["gpipe", "1f1b", "zero-bubble", "wave"]


@pytest.mark.parametrize(
    ("strategy", "degree", "micro_batches"),
    [
        *product([*ANY, "interleaved"], [4], [8]),
        ("interleaved", 8, 32),
        *product(ANY, [4], [13]),  # interleaved takes whole rounds of micro-batches
    ],
)
def test_the_order_that_is_launched_is_that_of_the_schedule_in_lines_to_read(strategy, degree, micro_batches):
    shape = {"pipeline_degree": degree, "micro_batches": micro_batches}
    asked = {"gpus": degree, "batch_size": degree * micro_batches, "self_conditioning": 0.0, **shape}
    code = sim.launch("sd21", strategy, runtime="torch-pipelining", **asked).text
    rows = code[code.index("ORDER = ") : code.index("# first and last")]
    assert max(map(len, rows.splitlines())) <= 120
    here = {}
    exec(rows, here)
    assert [",".join(row) for row in here["ORDER"]] == sim.schedule(
        strategy, **shape, format="torch"
    ).text.splitlines()


RECORDED = """
import os, time
replica, node = (os.environ[name] for name in ("REPLICA", "NODE_RANK"))
print(os.environ["CUDA_VISIBLE_DEVICES"], replica, flush=True)
if replica == "17":
    exit(1)
time.sleep(60 * (node == "2"))
print(end="late")
"""


def test_replicas_are_a_process_of_one_gpu_each_in_what_starts_one(tmp_path):
    asked = {"strategy": "hybrid", "cluster": "h100-ib", "gpus": 16, "batch_size": 32, "steps": 2}
    models = {"sdxl": 2, "wan2.1-1.3b": 4, "flux-dev": 5, "pixart": 2}
    for model, count in models.items():
        result = sim.run(model, **asked)
        alone = sim.run(model, "single", "h100-ib", 1, batch_size=2, steps=2)
        assert {*runtimes_of(result)} == {*runtimes_of(alone)} and len(runtimes_of(result)) == count
        for name in {*runtimes_of(result)} - {"xdit", "xdit-scripts"}:  # which have a flag of their own
            files = sim.launch(result, runtime=name).files
            assert "REPLICA" in files["sample.py" if "sample.py" in files else "run.sh"]
    assert "--data_parallel_degree 16" in sim.launch("flux-dev", **asked, runtime="xdit").text
    assert ("", "16 replicas, 2 images each") in panel_of(result).lines
    sim.launch("sdxl", **asked, runtime="diffusers").write(tmp_path)
    assert "num_images_per_prompt=2," in (tmp_path / "sample.py").read_text()
    (tmp_path / "sample.py").write_text(RECORDED)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for node, code in (("1", 0), ("2", 1), (None, 1)):
        env = {"PATH": path, **({} if node is None else {"NODE_RANK": node})}
        start = ["bash", tmp_path / "run.sh"]
        ran = subprocess.run(start, check=False, capture_output=True, text=True, env=env)
        lines = [] if node is None else [f"{gpu} {8 * int(node) + gpu}" for gpu in range(8)]
        assert bool(ran.returncode) == code == ("late" not in ran.stdout)  # one that fails ends the others
        assert code or sorted(ran.stdout.replace("late", "").splitlines()) == lines
    assert node or "run it on every node" in ran.stderr


# Options


SAMPLING = [
    *({"guidance": way} for way in ("none", "batch")),
    {"batch_size": 4}, {"stack": "compiled"}, {"precision": "fp8"}, {"all_to_all": "fp8"}, {"cache_steps": 0.5},
    {"encoders": "offloaded"}, {"include": "all", "vae_tile": 256}, {"include": "all", "vae_parallel": 2},
    {"heads": "padded"}, {"offload": "layers:3"}, {"offload": "model"}, {"offload": "sequential"},
]  # fmt: skip


def test_every_option_of_sampling_is_printed_noted_or_refused():
    runs = {
        "sdxl": ("distrifusion",),
        "pixart": ("xdit-scripts",),
        "wan2.1-14b": ("diffusers", "fastvideo", "sglang", "vllm-omni", "xdit"),
    }
    for model, runtimes in runs.items():
        plain = sim.run(model, "single", "h100-nvlink-8", 1, steps=2)
        for change in SAMPLING:
            if change.items() <= {"guidance": plain.source.scenario.workload.guidance}.items():
                continue
            try:
                divided = model.startswith("wan") and change.keys() & {"heads", "all_to_all"}
                point = ("ulysses", "h100-nvlink-8", 4) if divided else ("single", "h100-nvlink-8", 1)
                result = sim.run(model, *point, steps=2, **change)
            except (InputError, InfeasibleError):
                continue  # the point itself does not exist
            before = sim.run(model, *point, steps=2) if divided else plain
            for name in runtimes:
                texts = [launch_of(of, find_runtime(name)).text for of in (before, result)]
                assert texts[0] != texts[1], (model, name, change)


def test_the_degrees_that_servers_take_multiply_to_the_gpus_and_divide_the_heads():
    there = sim.run("wan2.1-14b", "single", "p5", 1).source.scenario  # 40 heads, two predictions
    legal = set()
    every = [*product((1, 2), (1, 2, 4), (1, 2, 3, 4, 8), (1, 2))]
    for degrees in every:
        names = "guidance_degree", "tensor_degree", "ulysses_degree", "ring_degree"
        sampler = class_of("hybrid")(**dict(zip(names, degrees, strict=True)), pipeline_degree=1)
        with suppress(InfeasibleError):
            ways = "parallel" if degrees[0] == 2 else "sequential"
            scenario = there.with_options(num_gpus=prod(degrees), guidance=ways)
            sampler.bound(scenario)
            assert {"sglang", "vllm-omni"} <= {*runs_in("sample", case_of(sampler, scenario))}
            legal.add(degrees)
    assert legal == {of for of in every if 40 // of[1] % of[2] == 0}


def test_heads_are_padded_by_the_runtime_that_can():
    point = {"model": "wan2.1-14b", "strategy": "ulysses", "cluster": "h100-nvlink-8", "heads": "padded"}
    assert "sglang" in runtimes_of(sim.run(**point, gpus=4))  # which divides 40
    assert runtimes_of(sim.run(**point, gpus=3)) == ("diffusers",)
    assert "ulysses_degree=3, ring_degree=1, ulysses_anything=True" in sim.launch(**point, gpus=3).text
    with pytest.raises(InputError, match=r"heads\(padded\) must be divided"):
        sim.launch(**point, gpus=3, runtime="sglang")


def test_fastvideo_reads_the_run_that_is_printed():
    yaml, schema = pytest.importorskip("yaml"), pytest.importorskip("fastvideo.api.schema")
    parser = pytest.importorskip("fastvideo.api.parser")
    asked = ("wan2.1-14b", "ulysses", "h100-nvlink-8", 8)
    text = sim.launch(*asked, runtime="fastvideo", guidance="none", offload="layers:40").text
    config = parser.parse_config(schema.RunConfig, yaml.safe_load(text))
    assert (config.generator.engine.num_gpus, config.generator.engine.parallelism.sp_size) == (8, 8)
    assert config.generator.engine.offload.dit_layerwise and not config.generator.engine.offload.text_encoder
    drawn = config.request.sampling
    assert (drawn.num_frames, drawn.height, drawn.width, drawn.guidance_scale) == (81, 480, 832, 1.0)


TRAINING = [
    *({"checkpointing": kind} for kind in ("block", "block:8", "selective", "full")),
    *({"memory_recipe": kind} for kind in ("mixed-fp16-gradient", "fp32", "adam8bit")),
    {"trainable": "lora:16"}, {"offload": "optimizer"}, {"ema": "fp32"}, {"stack": "compiled"}, {"batch_size": 16},
    {"frozen": "cached"}, {"precision": "fp8"},
]  # fmt: skip


@pytest.mark.long
def test_every_option_of_training_is_printed_noted_or_refused():
    runs = {
        "fsdp": ("accelerate", "fsdp2"),
        "zero3": ("deepspeed",),
        "1f1b": ("diffusion-pipe", "torch-pipelining"),
    }
    for strategy, runtimes in runs.items():
        asked = ("sd3-medium", strategy, "h100-nvlink-8", 2)
        plain, dense = sim.run(*asked, batch_size=8), 0
        before = {name: (*launch_of(plain, find_runtime(name)).files.values(),) for name in runtimes}
        for change in TRAINING:
            try:
                result = sim.run(*asked, **{"batch_size": 8} | change)
            except (InputError, InfeasibleError):
                continue  # the point itself does not exist
            dense += 1
            for name in runtimes:
                with suppress(InputError):
                    after = (*launch_of(result, find_runtime(name)).files.values(),)
                    assert after != before[name], (strategy, name, change)
        assert dense > 6


def test_a_runtime_says_how_it_makes_two_predictions_and_a_flag_wins():
    asked = {"model": "wan2.1-1.3b", "cluster": "h100-ib", "strategy": "ulysses", "gpus": 2, "steps": 1}
    given = sim.run(**asked, runtime="sglang", guidance="batch")
    assert given.guidance == sim.run(**asked).guidance == "batch"
    assert sim.run(**asked, runtime="sglang").guidance == "sequential"
    assert "guidance" not in sim.launch(**asked, runtime="sglang").text
    assert "# not set below: --guidance batch\n" in sim.launch(given, runtime="sglang").text
