"""Mutated inputs: command lines and the files that they read, with something wrong, drawn from a seed."""

import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from shutil import copytree
from tempfile import TemporaryDirectory

from mutations import mutated_words, spoil, spoil_json, spoil_store

from profiles.architectures.models import MODELS
from profiles.machines.clusters import CLUSTERS
from profiles.machines.devices import DEVICES
from profiles.software.stacks import STACKS
from sim.cli.main import main

SMALL = """\
name = "small"
title = "Small"
source = "made by a test"
dtype = "float16"
[reference]
height = 512
width = 512
multiple = 64
[[components]]
name = "text"
trainable = false
image_tokens = 0
text_tokens = 77
[[components]]
name = "unet"
trainable = true
inputs = ["text"]
image_tokens = 4096
carried_MB = 0.5
self_conditioning = 0.5
[[skips]]
component = "unet"
source = 0
target = 3
[[reads]]
component = "unet"
input = "text"
layer = 1
MB = 0.1
"""
LAYERS = """\
component,index,block,name,parameters,backward,conv_gflop,matmul_gflop,attention_gflop,moved_MB,kernels,output_MB,saved_MB
text,0,0,embed,1000000,none,0,1,0.1,2,3,0.5,0
text,1,1,last,1000000,none,0,1,0.1,2,3,0.5,0
unet,0,0,in,1000000,full,10,5,1,20,8,2,8
unet,1,1,down,2000000,full,10,5,1,20,8,2,8
unet,2,1,up,2000000,full,10,5,1,20,8,2,8
unet,3,2,out,1000000,full,10,5,1,20,8,2,8
"""
EXCHANGES = """\
component,index,kind,elements,heads
unet,0,halo,4096,0
unet,1,key_value,8192,8
unet,1,reduce,4096,0
unet,3,statistics,32,0
"""
TIMES = """\
component,index,batch_size,forward_ms,backward_ms
text,0,1,1,0
text,1,1,1,0
unet,0,1,2,4
unet,0,4,7,14
unet,1,1,2,4
unet,1,4,7,14
unet,2,1,2,4
unet,2,4,7,14
unet,3,1,2,4
unet,3,4,7,14
"""
EXPERIMENT = """\
model = "small"
cluster = "p4de"
gpus = 8
batch-size = 32
strategy = "1f1b"
pipeline-degree = 2
micro-batches = 4
checkpointing = "full"
link = ["inter=2x"]
memory = "60GiB"
json = true
"""
RUN = """\
model = "small"
gpus = 8
strategy = "ddp"
batch_size = 32
step_s = 0.02
"""
LOG_HEAD = ("# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 4(factor)", "# Using devices")
LOG_COLUMNS = (
    "#", "#       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong",
    "#        (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)",
)  # fmt: skip
SWEEP = [
    "sweep",
    "--model",
    "small",
    "--gpus",
    "2",
    "--strategy",
    "ddp,zero2,1f1b",
    "--batch-size",
    "8",
    "--json",
]
COUNTS = "sweep --model small --gpus 2,4 --strategy zero2,zero3 --batch-size 8 --runtime deepspeed --json"
RESULT = (
    "run --model small --gpus 2 --strategy zero2 --micro-batches 2 --batch-size 8 --checkpointing full --json"
)
COMMANDS = (
    "run --model small --gpus 8 --strategy 1f1b --pipeline-degree 2 --micro-batches 4 --batch-size 32 --json",
    "run --model small --gpus 4 --strategy zero2 --micro-batches 2 --checkpointing full --memory-recipe fp32 --ema",
    "run --model small --gpus 4 --strategy diffusionpipe --fill partial --resolution 256x512 --frozen online",
    "run --model small --gpus 4 --strategy pulse --pipeline-degree 2 --link inter=2x --memory 10GiB --nodes 2x4",
    "run --model pixart --gpus 2 --strategy ring --steps 4 --guidance none --resolution 512 --include text_encoder",
    "run --model pixart --gpus 4 --strategy pipefusion --patches 4 --warmup-steps 1 --steps 6 --device l40-48gb",
    "run --model small --strategy ddp --gpus 2 --measured step_s=0.05 --stack compiled --cluster h100-ib",
    "run --model small --strategy ddp --self-conditioning 0.5 --placement data-inner --print-experiment",
    "run --experiment q.toml --gpus 4 -q",
    "schedule --strategy interleaved --pipeline-degree 2 --micro-batches 4 --chunks 2 --format torch",
    "schedule --strategy ulysses --model pixart --gpus 2 --steps 2",
    "synthesize --pipeline-degree 2 --micro-batches 2 --waves 1 --forward 1 --backward 2 --lag 0.1 --time-limit 1",
    "clusters show p4de",
    "devices --json",
    "models show sd21",
    "strategies",
    "sweep --model small --gpus 2 --strategy ddp --json --out rows.csv",
    "sweep --model small --gpus 2 --strategy single,ring --steps 2 --objective memory --out rows.csv",
    "tune --model small --gpus 2 --p2p blocking --json",
    "run --model pixart --gpus 4 --strategy fsdp --trainable lora:8 --checkpointing selective --json",
    "run --model pixart --gpus 1 --strategy ddp --offload layers:2 --trainable lora:8 --batch-size 4",
    "run --model pixart --gpus 4 --strategy fsdp --shard-size 2 --context-degree 2 --batch-size 4 --json",
    "run --model small --gpus 2 --strategy zero3 --memory-recipe adam8bit --checkpointing block --ema fp32 --json",
    "run --model pixart --gpus 4 --strategy attention2d --rows 2 --columns 2 --precision fp8 --cluster h100-ib",
    "run --model pixart --gpus 2 --strategy ulysses --heads padded --all-to-all fp8 --cache-steps 0.3 --steps 4 --json",
    "run --model flux-dev --gpus 4 --strategy usp --text replicated --text-tokens 7 --encoders offloaded --include all",
    "run --model ltx-video --gpus 2 --strategy ulysses --frames 17 --steps 2 --include vae_decoder",
    "run --model pixart --gpus 2 --strategy ring --steps 2 --include vae_decoder --vae-parallel 2",
    "run --model flux-dev --gpus 1 --strategy single --include vae_decoder --decode-chunks 2 --cache-steps fbcache",
    "launch --model flux-dev --gpus 4 --strategy ulysses --keys-values freed --runtime xdit",
    "launch --model wan2.1-14b --gpus 8 --strategy fsdp --runtime fsdp2 --checkpointing block",
    "sweep --model small --gpus 1-4 --runtime accelerate --json --out rows.csv",
    "sweep --model small --gpus 2,4,4 --strategy ddp,1f1b --objective memory --runtime torch-pipelining --out rows.csv",
    "sweep --model pixart --gpus 1-4 --strategy ring,tensor --steps 2 --runtime xdit-scripts --json --out rows.csv",
    "run --model small --strategy zero2 --gpus 4 --batch-size 32 --measured-run r.json --measured step_s=0.02 --json",
    "compare s.db rows.csv --json",
    "compare counts.csv counts.json",
    "merge out.db s.db",
)
"""Command lines that are right.

``small`` is a model folder, ``q.toml`` an experiment, ``s.db`` a store and ``rows.csv`` the rows of a sweep.
"""


@dataclass(frozen=True)
class Case:
    """A mutated input.

    Attributes:
        words: the command line.
        file: in which something is wrong; none where it is the command line.
        program: ``sim`` or ``validate``.
        answer: what it prints unless it is refused, where that is known.
    """

    words: list[str]
    file: str = ""
    program: str = "sim"
    answer: str | None = None


def write_inputs(folder: Path) -> None:
    """Write what command lines name."""
    _write_small(folder / "small")
    (folder / "q.toml").write_text(EXPERIMENT, encoding="utf-8")
    for name, content in answers().items():
        (folder / name).write_bytes(content)


def _write_small(folder: Path) -> None:
    (folder / "times").mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("model.toml", SMALL), ("layers.csv", LAYERS), ("exchanges.csv", EXCHANGES),
        ("times/a100-80gb-sxm.csv", TIMES), ("times/ideal.csv", TIMES),
    ):  # fmt: skip
        (folder / name).write_text(text, encoding="utf-8")


@cache
def answers() -> dict[str, bytes]:
    """What a sweep over the small model writes and prints, and a run; by the name of the file."""
    with TemporaryDirectory() as name, chdir(name):
        folder = Path()
        _write_small(folder / "small")
        _print_to(folder / "rows.json", [*SWEEP, "--out", "rows.csv", "--store", "s.db"])
        _print_to(folder / "counts.json", [*COUNTS.split(), "--out", "counts.csv"])
        _print_to(folder / "r.json", RESULT.split())
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _print_to(path: Path, words: list[str]) -> None:
    with path.open("w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(StringIO()):
        assert main(words) == 0


def draw(seed: str, folder: Path, kind: str = "") -> Case:
    """A case of a seed, of a kind or of all but configurations, which torch counts.

    Its files lie in the folder, beside those of ``write_inputs``.
    """
    random = Random(seed)
    if kind:
        return (KINDS | SLOW_KINDS)[kind](random, folder)
    kind = random.choice((*KINDS, "command", "command"))
    if kind == "command":
        return Case(mutated_words(random, random.choice(COMMANDS).split()))
    return KINDS[kind](random, folder)


def _model(random: Random, folder: Path) -> Case:
    own = copytree(folder / "small", folder / "m")
    name = random.choice(("model.toml", "layers.csv", "exchanges.csv", "times/a100-80gb-sxm.csv"))
    spoil(random, own / name)
    training = "ddp --gpus 2", "1f1b --gpus 4", "diffusionpipe --gpus 4", "pulse --gpus 2"
    asked = random.choice((*training, "distrifusion --gpus 2 --steps 4", "single --steps 2"))
    cluster = random.choice((["--cluster", "p4de"], ["--cluster", "h100-ib"]))
    return Case(["run", "--model", "m", "--strategy", *asked.split(), *cluster, "--json"], f"m/{name}")


SHIPPED_MODELS = (("uvit-h", "zero2"), ("pixart", "ring --steps 2"), ("pixart", "pipefusion --steps 4"))
"""Model folders, and what is asked of them."""


def _shipped_model(random: Random, folder: Path) -> Case:
    model, asked = random.choice(SHIPPED_MODELS)
    own = copytree(MODELS / model, folder / "m")
    name = random.choice(sorted(path.name for path in own.iterdir() if path.is_file()))
    spoil(random, own / name)
    return Case(["run", "--model", "m", "--strategy", *asked.split(), "--gpus", "2", "--json"], f"m/{name}")


def _anchors(random: Random, folder: Path) -> Case:
    own = copytree(MODELS / "pixart", folder / "m")
    spoil(random, own / "anchors.csv")
    return Case(["run", "--model", "m", "--strategy", "single", "--steps", "2", "--json"], "m/anchors.csv")


def _cluster(random: Random, folder: Path) -> Case:
    source = random.choice(("p4de", "l40-pcie-8", "h100-nvlink-8", "ideal"))
    spoil(random, folder / "c.toml", (CLUSTERS / f"{source}.toml").read_text(encoding="utf-8"))
    strategy = random.choice(("zero2", "1f1b", "sync-patch --steps 2", "distrifusion --steps 4")).split()
    return Case(
        ["run", "--model", "small", "--cluster", "c.toml", "--strategy", *strategy, "--gpus", "2", "--json"],
        "c.toml",
    )


def _device(random: Random, folder: Path) -> Case:
    source = random.choice(("a100-80gb-sxm", "ascend910a-32gb", "l40-48gb"))
    spoil(random, folder / "d.toml", (DEVICES / f"{source}.toml").read_text(encoding="utf-8"))
    model = random.choice(("small", "uvit-h"))
    return Case(
        ["run", "--model", model, "--device", "d.toml", "--strategy", "ddp", "--gpus", "2", "--json"],
        "d.toml",
    )


def _stack(random: Random, folder: Path) -> Case:
    source = random.choice(("eager", "eager-2023", "compiled"))
    spoil(random, folder / "s.toml", (STACKS / f"{source}.toml").read_text(encoding="utf-8"))
    return Case(
        ["run", "--model", "uvit-h", "--stack", "s.toml", "--strategy", "ddp", "--gpus", "2", "--json"],
        "s.toml",
    )


def _experiment(random: Random, folder: Path) -> Case:
    spoil(random, folder / "e.toml", EXPERIMENT)
    return Case([random.choice(("run", "run", "sweep")), "--experiment", "e.toml", "-q"], "e.toml")


def _measured_run(random: Random, folder: Path) -> Case:
    spoil(random, folder / "r.toml", RUN)
    asked = [
        "run",
        "--model",
        "small",
        "--strategy",
        "ddp",
        "--gpus",
        "4",
        "--measured-run",
        "r.toml",
        "--json",
    ]
    return Case(asked, "r.toml")


def _store(random: Random, folder: Path) -> Case:
    path = folder / "damaged.db"
    path.write_bytes(answers()["s.db"])
    honest = spoil_store(random, path)
    command = random.randrange(4)
    if command == 0:
        return Case(["compare", *random.sample(["damaged.db", "s.db"], 2), "--json"], "damaged.db")
    if command == 1:
        return Case(["merge", "out.db", *random.sample(["damaged.db", "s.db"], 2)], "damaged.db")
    answer = answers()["rows.json"].decode() if honest else None
    return Case([*SWEEP, "--out", "o.csv", "--store", "damaged.db"], "damaged.db", answer=answer)


def _rows(random: Random, folder: Path) -> Case:
    name = random.choice(("rows.csv", "rows.json", "counts.csv", "counts.json", "r.json"))
    text, path = answers()[name].decode(), folder / f"damaged{Path(name).suffix}"
    (spoil if path.suffix == ".csv" else spoil_json)(random, path, text)
    return Case(["compare", *random.sample([path.name, name], 2), "--json"], path.name)


def _result(random: Random, folder: Path) -> Case:
    spoil_json(random, folder / "damaged.json", answers()["r.json"].decode())
    asked = random.choice(
        (
            "launch --result damaged.json --runtime deepspeed",
            "run --experiment damaged.json --json -q",
            "run --experiment damaged.json --gpus 4 --json",
            "run --model small --strategy ddp --gpus 2 --measured-run damaged.json --measured step_s=0.1 --json",
        )
    )
    return Case(asked.split(), "damaged.json")


def _times(random: Random, folder: Path) -> Case:
    """Times of layers that a device is calibrated by."""
    name = random.choice(("times/a100-80gb-sxm.csv", "layers.csv"))
    copytree(folder / "small", folder / "m")
    spoil(random, folder / "m" / name)
    asked = "calibrate --model m --times m/times/a100-80gb-sxm.csv --device a100-80gb-sxm --output o.toml"
    return Case(asked.split(), f"m/{name}", "validate")


def _log(random: Random, folder: Path) -> Case:
    """Logs of link times."""
    names = []
    for test, factor in (("all_reduce", 1.0), ("sendrecv", 1.0)):
        names.append(f"{test}_perf.log")
        (folder / names[-1]).write_text(log_text(factor), encoding="utf-8")
    name = random.choice(names)
    spoil(random, folder / name)
    asked = ["links", "--nccl-tests", *names, "--device", "a100-80gb-sxm", "--output", "o.toml"]
    return Case(asked, name, "validate")


def log_text(factor: float) -> str:
    """A log of nccl-tests of two GPUs, whose bus bandwidth is ``factor`` times the algorithm's."""
    ranks = [f"#  Rank  {i} Group  0 Pid  90{i} on  node0 device  {i} [0x1b] NVIDIA A100" for i in range(2)]
    lines = []
    for power in range(10, 27, 2):
        time_us = 20 + 2**power / 2e5
        rate = 2**power / time_us / 1e3
        numbers = f"{time_us:9.2f} {rate:7.2f} {factor * rate:7.2f}      0"
        lines.append(f"{2**power:12} {2**power // 4:12}     float     sum      -1 {numbers} {numbers}")
    return "\n".join([*LOG_HEAD, *ranks, *LOG_COLUMNS, *lines, "# Avg bus bandwidth    : 42.1", ""])


def _config(random: Random, folder: Path) -> Case:
    """A configuration of somebody's transformer, or of its text encoder."""
    names = ["dit.json", "clip.json"]
    for name, config in zip(names, (DIT, CLIP), strict=True):
        (folder / name).write_text(json.dumps(config), encoding="utf-8")
    name = random.choice(names)
    spoil_json(random, folder / name, (folder / name).read_text(encoding="utf-8"))
    return Case(["count", "--config", *names, "--output", "counted"], name, "validate")


DIT = {
    "_class_name": "PixArtTransformer2DModel", "num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 16,
    "cross_attention_dim": 64, "caption_channels": 64, "in_channels": 4, "out_channels": 8, "sample_size": 32,
    "patch_size": 2, "norm_type": "ada_norm_single", "norm_eps": 1e-06, "use_additional_conditions": False,
}  # fmt: skip
CLIP = {
    "architectures": ["CLIPTextModel"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": 77, "vocab_size": 100, "torch_dtype": "float16",
}  # fmt: skip

KINDS = {
    "model": _model,
    "another model": _model,
    "shipped model": _shipped_model,
    "anchors": _anchors,
    "cluster": _cluster,
    "device": _device,
    "stack": _stack,
    "experiment": _experiment,
    "measured run": _measured_run,
    "store": _store,
    "rows": _rows,
    "result": _result,
    "times": _times,
    "log": _log,
}
"""Kinds of inputs by their names; ``command``, of which there are twice as many cases, comes beside them."""
SLOW_KINDS = {"config": _config}
"""Kinds of which a case takes a second."""
