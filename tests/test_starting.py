"""Files that ``sim launch`` writes start: two ranks on gloo train, or sample, with a tiny network."""

import json
import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from making import given_to

import sim
from profiles.errors import InputError

ROOT = Path(__file__).parents[1]
TINY = json.loads((ROOT / "profiles/measuring/counting/configs.json").read_text())["tiny_pixart"]
SMALL = {"model": "pixart", "gpus": 2, "batch_size": 8, "micro_batches": 2, "resolution": 64}
INTERLEAVED = {"strategy": "interleaved", "pipeline_degree": 2, "gpus": 4}
LONG = pytest.mark.long
PATHS = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
PATHS |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
PIPED = {"env": os.environ | PATHS | {"HF_HUB_OFFLINE": "1"}, "stdout": subprocess.PIPE, "text": True}
MEAN = """
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime as Runtime
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.testing import assert_close
def found(weights):
    return [of.grad.clone() for of in weights if of.grad is not None]
def stepped(schedule, *given, step=Runtime.step, **named):
    step(schedule, *given, **named)
    own[:] = [one for stage in schedule._stages for one in found(stage.submod.parameters())]
own, Runtime.step = [], stepped
register_optimizer_step_pre_hook(lambda one, *_: assert_close(found(one.param_groups[0]["params"]), own))
"""
"""Replicas have the same samples, so that the mean of their gradients is that of each."""
CONFIGURED = """
import os
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import DistributedType, PartialState
from accelerate.utils.launch import prepare_multi_gpu_env
given, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file=config.yaml", "train.py"]))
os.environ |= prepare_multi_gpu_env(given) | {**os.environ, "ACCELERATE_TORCH_DEVICE": "cpu"}
PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
"""
"""Accelerate shards on GPUs alone, unless it takes CPUs for them."""
BEFORE = {"torch-pipelining": MEAN, "accelerate": CONFIGURED}
BEFORE |= {
    "deepspeed": """
import deepspeed.ops, torch
torch.compile = lambda of=None, **_: of or (lambda one: one)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
"""
}
"""DeepSpeed's own collectives of CPUs would take a minute to compile, and to load what compiles Muon three seconds."""


@pytest.fixture(scope="module")
def ranks():
    """A function from a folder, a script, ranks, what runs before it and its arguments to what they print."""
    command = [sys.executable, ROOT / "tests/data/ranks.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, **PIPED) as server:

        def run(*line):
            print(json.dumps([*map(str, line)]), file=server.stdin, flush=True)
            failed, printed = server.stdout.readline(), (line[0] / "printed").read_text()
            assert failed == "0\n", printed[-3000:]
            return printed

        yield run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "point"),
    [
        ("fsdp2", {"strategy": "fsdp", "checkpointing": "selective"}),
        ("accelerate", {"strategy": "fsdp", "checkpointing": "block"}),
        ("deepspeed", {"strategy": "zero3", "checkpointing": "block"}),
        ("torch-pipelining", INTERLEAVED),
        pytest.param(
            "accelerate", {"strategy": "ddp", "checkpointing": "block", "bucket_MB": 50}, marks=LONG
        ),
        pytest.param("accelerate", {"strategy": "fsdp", "gpus": 4, "shard_size": 2}, marks=LONG),
        pytest.param("deepspeed", {"strategy": "zero2", "checkpointing": "block"}, marks=LONG),
        pytest.param("torch-pipelining", INTERLEAVED | {"trainable": "lora:4"}, marks=LONG),
    ],
)
def test_a_written_script_trains_the_network_of_its_configuration(tmp_path, ranks, runtime, point):
    point = SMALL | point
    launch = sim.launch(**point, runtime=runtime)
    launch.write(tmp_path)
    assert json.loads(launch.files["config.json"])["num_layers"] == 28
    fixed = {"num_layers": 28, "attention_head_dim": 8, "cross_attention_dim": 32}  # by its stages
    few = fixed if runtime == "torch-pipelining" else {"num_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(TINY | few))
    if point["strategy"] == "ddp":
        assert "(bucket_cap_mb=50)" in launch.files["train.py"]
        printed = subprocess.run(["bash", "run.sh"], cwd=tmp_path, check=True, **PIPED).stdout
    else:
        command, _, arguments = launch.files["run.sh"].partition("train.py")
        assert command.endswith(f"torchrun --nproc-per-node {point['gpus']} ") or runtime in BEFORE
        printed = ranks(tmp_path, "train.py", point["gpus"], BEFORE.get(runtime, ""), *arguments.split())
    first, *rest, last = map(float, re.findall(r"loss ([\d.]+)", printed))
    assert len(rest) == 3 and printed.count("--measured step_s=") == 1  # on the first rank alone
    assert 0.5 < last < first < 4


TINY_FLUX = """
import os
import torch
from diffusers import AutoencoderKL, DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from diffusers import FluxPipeline, FluxTransformer2DModel
from tokenizers import Tokenizer, models
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast, T5Config, T5EncoderModel

torch.manual_seed(0)
torch.accelerator.device_count = lambda: 1  # diffusers numbers the devices of ranks by it
words = Tokenizer(models.WordLevel({"pad": 0, "a": 1, "else": 2}, unk_token="else"))
words = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad", unk_token="else", model_max_length=77)
sizes = {"attention_head_dim": 16, "axes_dims_rope": (4, 4, 8), "joint_attention_dim": 32, "pooled_projection_dim": 32}
transformer = FluxTransformer2DModel(
    in_channels=4, num_layers=1, num_single_layers=1, num_attention_heads=2, guidance_embeds=True, **sizes
)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
clip = CLIPTextModel(CLIPTextConfig(vocab_size=3, bos_token_id=1, eos_token_id=2, pad_token_id=0, **sizes))
t5 = T5EncoderModel(T5Config(vocab_size=3, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4))
sizes = {"latent_channels": 1, "block_out_channels": (4,), "norm_num_groups": 1, "mid_block_add_attention": False}
vae = AutoencoderKL(shift_factor=0.0, **sizes)
made = FluxPipeline(FlowMatchEulerDiscreteScheduler(), vae, clip, words, t5, words, transformer)
DiffusionPipeline.from_pretrained = lambda name, torch_dtype: made.to(torch_dtype)
postprocess = made.image_processor.postprocess
drawn = lambda image: os.write(1, f"drawn {image.sum()}\\n".encode())  # at once: ranks share the file
made.image_processor.postprocess = lambda image, **words: drawn(image) and postprocess(image, **words)
torch.seed()
"""
"""Stands for weights, which are not to be had here."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "offloading", [{"encoders": "offloaded"}, {"offload": "model"}, {"offload": "sequential"}]
)
def test_a_written_script_samples_with_diffusers(tmp_path, ranks, offloading):
    asked = {"model": "flux-dev", "cluster": "h100-nvlink-8", "gpus": 2, "steps": 2, "resolution": 128}
    asked |= {"include": "all", "keys_values": "freed", **offloading}
    sim.launch(**asked, strategy="ulysses", runtime="diffusers").write(tmp_path)
    drawn = [line for line in ranks(tmp_path, "sample.py", 2, TINY_FLUX).splitlines() if "drawn" in line]
    assert len(drawn) == 2 and len({*drawn}) == 1
    assert (tmp_path / "image.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_script_of_replicas_draws_another_image_in_each(tmp_path, ranks):
    asked = {"model": "flux-dev", "cluster": "h100-nvlink-8", "gpus": 2, "steps": 2, "resolution": 128}
    sim.launch(**asked, strategy="hybrid", batch_size=2, runtime="diffusers").write(tmp_path)
    for replica in range(2):
        ranks(tmp_path, "sample.py", 1, f"{TINY_FLUX}\nos.environ['REPLICA'] = '{replica}'")
    one, other = ((tmp_path / f"image{replica}.png").read_bytes() for replica in range(2))
    assert one.startswith(b"\x89PNG") and one != other


PIPELINES = {
    "qwen-image": "QwenImagePipeline", "wan2.2-ti2v-5b": "WanPipeline", "wan2.2-i2v-a14b": "WanImageToVideoPipeline",
    "qwen-image-edit": "QwenImageEditPipeline", "qwen-image-edit-2511": "QwenImageEditPlusPipeline",
    "flux-kontext": "FluxKontextPipeline", "cosmos-predict2-2b": "Cosmos2VideoToWorldPipeline",
    "cosmos-predict2.5-2b": "Cosmos2_5_PredictBasePipeline", "cosmos3-nano": "Cosmos3OmniPipeline",
    "ltx-2": "LTX2Pipeline", "ideogram-4": "Ideogram4Pipeline", "qwen-image-2.1": "QwenImage21Pipeline",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model", PIPELINES)
def test_the_call_of_a_written_script_is_one_that_its_pipeline_takes(model):
    script = sim.launch(model, "single", "h200-ib", 1, steps=2, runtime="diffusers").text
    takes = signature(getattr(pytest.importorskip("diffusers"), PIPELINES[model]).__call__)
    given = takes.bind(None, **given_to("pipeline", script)).arguments
    assert ("image" in given) == any(of in model for of in ("edit", "-i2v", "kontext", "predict2-"))
    twice = (
        "qwen" in model and model != "qwen-image-2.1"
    )  # without a negative prompt it would make one prediction
    assert ("negative_prompt" in given) == twice


# What is written


def test_nothing_is_written_over(tmp_path, tell):
    asked = ("launch", "--model", "sd21", "--strategy", "zero2", "--gpus", 16, "--out", tmp_path / "a")
    code, out, err = tell(*asked)
    names = ["ds.json", "train.py", "run.sh", ".deepspeed_env", "config.json"]
    assert (code, out) == (0, "".join(f"{tmp_path / 'a' / name}\n" for name in names))
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(names)
    (tmp_path / "a" / "ds.json").unlink()
    code, out, err = tell(*asked)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"sim: error: .*train.py: is there already, must be a new file\n", err
    )  # and nothing else
    assert not (tmp_path / "a" / "ds.json").exists()


def test_a_point_that_fits_only_by_what_a_runtime_does_not_set_is_refused():
    fitting = sim.run("sd21", "ddp", gpus=2, batch_size=8, offload="optimizer", memory="16GiB")
    assert fitting.fits_memory
    said = r"^offload is optimizer, but accelerate does not set it, and without it ddp"
    with pytest.raises(InputError, match=said):
        sim.launch(fitting)
