"""Launching says every option of a point: printed, noted above what is printed, or refused."""

import inspect
import shlex
from contextlib import suppress

import pytest

import sim
from profiles.errors import InfeasibleError, InputError
from profiles.software.runtimes import find_runtime
from sim.launching.launch import launch_of


def words(runtime, **asked):
    """What is printed, as a shell would split it."""
    return shlex.split(sim.launch(runtime=runtime, **asked).text.replace("\\\n", " "), comments=True)


def valued(found, flag):
    return found[found.index(flag) + 1]


SAMPLING = [
    *({"guidance": way} for way in ("none", "batch")),
    {"batch_size": 4}, {"stack": "compiled"}, {"precision": "fp8"}, {"all_to_all": "fp8"}, {"cache_steps": 0.5},
    {"encoders": "offloaded"}, {"include": "all", "vae_tile": 256}, {"include": "all", "vae_parallel": 2},
    {"heads": "padded"}, {"offload": "layers:3"},
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


def test_blocks_on_the_host_are_asked_for_where_the_runtime_streams_so_many():
    asked = {"model": "wan2.1-1.3b", "strategy": "single", "cluster": "h100-nvlink-8", "gpus": 1, "steps": 2}
    some, every = (words("sglang", **asked, offload=f"layers:{count}") for count in (10, 30))
    assert valued(some, "--dit-layerwise-offload") == "true"
    assert valued(some, "--dit-layerwise-resident-layers") == "20"
    assert "--dit-layerwise-resident-layers" not in every
    texts = [sim.launch(runtime="diffusers", **asked, offload=f"layers:{count}").text for count in (10, 30)]
    assert texts[0].startswith("# not set below: --offload layers:10\n")
    assert "not set below" not in texts[1]
    assert 'offload_type="block_level", num_blocks_per_group=1, use_stream=True' in texts[1]


def test_diffusers_takes_the_arguments_that_are_printed_for_blocks_on_the_host():
    diffusers = pytest.importorskip("diffusers")
    given = {"offload_type": "block_level", "num_blocks_per_group": 1, "use_stream": True}
    inspect.signature(diffusers.ModelMixin.enable_group_offload).bind(None, "cuda", **given)


def test_fastvideo_reads_the_run_that_is_printed():
    yaml, schema = pytest.importorskip("yaml"), pytest.importorskip("fastvideo.api.schema")
    parser = pytest.importorskip("fastvideo.api.parser")
    asked = ("wan2.1-14b", "ulysses", "h100-nvlink-8", 8)
    text = sim.launch(*asked, runtime="fastvideo", guidance="none", offload="layers:40").text
    found = parser.parse_config(schema.RunConfig, yaml.safe_load(text))
    assert (found.generator.engine.num_gpus, found.generator.engine.parallelism.sp_size) == (8, 8)
    assert found.generator.engine.offload.dit_layerwise and not found.generator.engine.offload.text_encoder
    drawn = found.request.sampling
    assert (drawn.num_frames, drawn.height, drawn.width, drawn.guidance_scale) == (81, 480, 832, 1.0)


def test_fastvideo_trains_on_replicas_of_shards_over_which_contexts_lie():
    asked = {"model": "wan2.1-14b", "strategy": "fsdp", "cluster": "h100-ib", "gpus": 64, "batch_size": 32}
    asked |= {"context_degree": 4, "shard_size": 2, "runtime": "fastvideo-train", "frozen": "cached"}
    found = words(checkpointing="block", **asked)
    given = ("--sp-size", "--hsdp-replicate-dim", "--hsdp-shard-dim", "--train-batch-size", "--num-latent-t")
    assert [valued(found, flag) for flag in given] == ["4", "8", "8", "2", "21"]
    assert valued(found, "--enable-gradient-checkpointing-type") == "full"  # its word for every block
    assert "not set below" not in sim.launch(checkpointing="block", **asked).text
    assert any("--frozen cached" in note for note in sim.launch(**asked).notes)
    with pytest.raises(
        InputError,
        match=r"checkpointing\(selective\) must be block or none, as .* whole blocks again or none",
    ):
        sim.launch(checkpointing="selective", **asked)


TRAINING = [
    *({"checkpointing": kind} for kind in ("block", "selective", "full")),
    *({"memory_recipe": kind} for kind in ("mixed-fp16-gradient", "fp32", "adam8bit")),
    {"trainable": "lora:16"}, {"offload": "optimizer"}, {"ema": "fp32"}, {"stack": "compiled"}, {"batch_size": 512},
    {"frozen": "cached"},
]  # fmt: skip


def test_every_option_of_training_is_printed_noted_or_refused():
    runs = {
        "fsdp": ("accelerate", "fsdp2"),
        "zero3": ("deepspeed",),
        "1f1b": ("diffusion-pipe", "torch-pipelining"),
    }
    for strategy, runtimes in runs.items():
        asked = ("sd3-medium", strategy, "h100-nvlink-8", 2)
        plain, dense = sim.run(*asked), 0
        for change in TRAINING:
            try:
                result = sim.run(*asked, **change)
            except (InputError, InfeasibleError):
                continue  # the point itself does not exist
            dense += 1
            for name in runtimes:
                texts = [launch_of(plain, find_runtime(name)).text]
                with suppress(InputError):
                    texts.append(launch_of(result, find_runtime(name)).text)
                assert len(texts) == len({*texts}), (strategy, name, change)
        assert dense > 6


def test_fsdp_keeps_its_last_block_and_recomputes_what_was_asked():
    asked = {"model": "sd21", "strategy": "fsdp", "gpus": 16, "runtime": "fsdp2"}
    text = sim.launch(**asked, checkpointing="selective").text
    compile(text, "printed", "exec")
    assert "fully_shard(blocks[-1], **settings, reshard_after_forward=False)" in text
    assert "create_selective_checkpoint_contexts, kept" in text
    with pytest.raises(
        InputError,
        match=r"checkpointing\(full\) must be block or selective or none, as .* checkpoint_wrapper",
    ):
        sim.launch(**asked, checkpointing="full")


def test_torchtitan_gets_replicas_and_shards():
    asked = {
        "model": "flux-dev",
        "strategy": "fsdp",
        "gpus": 16,
        "cluster": "h100-ib",
        "runtime": "torchtitan",
    }
    more = {"shard_size": 8, "batch_size": 64, "micro_batches": 2, "checkpointing": "block"}
    found = words(**asked, **more)
    assert found[found.index("-m") + 1] == "torchtitan.train"
    assert valued(found, "--parallelism.data_parallel_replicate_degree") == "2"
    assert valued(found, "--parallelism.data_parallel_shard_degree") == "8"
    assert valued(found, "--training.local_batch_size") == "2"
    assert "--resolution" not in sim.launch(**asked, **more).text
    with pytest.raises(
        InputError, match=r"context_degree\(2\) must be 1, as its FLUX gathers keys and values"
    ):
        words(**asked, **more, context_degree=2)
    with pytest.raises(
        InputError, match=r"checkpointing\(none\) must be block, as .* flux_dev computes every"
    ):
        words(**asked, batch_size=64)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["block", "selective"])
def test_torch_wraps_the_blocks_that_are_recomputed(checkpointing):
    torch = pytest.importorskip("torch")
    text = sim.launch("sd21", "fsdp", gpus=2, runtime="fsdp2", checkpointing=checkpointing).text
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    made = {"torch": torch, "model": model, "blocks": [*model][1:]}
    exec(text[text.index("from torch.distributed.algorithms") : text.index("for block in blocks")], made)
    assert [type(block).__name__ for block in model] == ["Linear", "CheckpointWrapper", "CheckpointWrapper"]
    assert made["blocks"] == [*model][1:]
    model(torch.ones(2, 4)).sum().backward()
    assert all(of.grad is not None for of in model.parameters())


@pytest.mark.parametrize(
    ("gpus", "said"), [(8, "--nproc-per-node 8 "), (16, "--nnodes 2 --nproc-per-node 8 ")]
)
def test_every_node_starts_a_process_for_each_of_its_gpus(gpus, said):
    trained = sim.launch("sd21", "fsdp", gpus=gpus, runtime="fsdp2")
    drawn = sim.launch(
        "wan2.1-14b",
        "usp",
        gpus=gpus,
        runtime="xdit",
        guidance="none",
        ulysses_degree=8,
        ring_degree=gpus // 8,
    )
    assert f"start it by torchrun {said}" in trained.notes[-1]
    assert ("--nproc_per_node 8 " in " ".join(drawn.text.split())) == (gpus == 16)
