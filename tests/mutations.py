"""Mutations: inputs of every kind with something wrong, drawn from a seed."""

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from shutil import copytree

from profiles.architectures.models import MODELS
from profiles.machines.clusters import CLUSTERS
from profiles.machines.devices import DEVICES
from profiles.software.stacks import STACKS

VALUES = (
    "", "0", "-1", "1", "2", "3.5", "-0.0", "1e308", "1e-308", "1e999", "1e18", "1e19", "nan", "inf", "-inf", "1_000",
    "0x10", "9" * 400, "true", "false", "none", "[]", "{}", "[[]]", "''", '""', '"x"', "x", "sd21", "ddp", "ideal",
    "..", "/", "/dev/null", "\x1b[31m", '"\\u001b[31m"',
    "\x00", "\u202e", "\ud7ff", "é", "=1+2", "-", "--", "a,b", ",", "\n",
    "\r\n", "\t", " ", '"', "'", "x" * 300, "y" * 20_000, "1979-05-27", "12:00:00", "1x1", "0x0", "64x64", "99999x9",
    "inter=2x", "=", "40GiB", "step_s=1", "1,2,3", "1,,2", "%s", "{0}", "$HOME", "`id`", "\\", "#", "[reference]",
    "[[components]]", "4", "8", "16", "0.5", "1e-9", "1000000",
)  # fmt: skip
"""What stands in the place of values, words and lines."""

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
unet,2,1,2,4
unet,3,1,2,4
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
COMMANDS = (
    "run --model small --gpus 8 --strategy 1f1b --pipeline-degree 2 --micro-batches 4 --batch-size 32 --json",
    "run --model small --gpus 4 --strategy zero2 --micro-batches 2 --checkpointing full --memory-recipe fp32 --ema",
    "run --model small --gpus 4 --strategy diffusionpipe --fill partial --resolution 256x512 --frozen online",
    "run --model small --gpus 4 --strategy pulse --pipeline-degree 2 --link inter=2x --memory 10GiB --nodes 2x4",
    "run --model small --gpus 2 --strategy ring --steps 4 --guidance none --resolution 512 --include text --json",
    "run --model small --gpus 4 --strategy pipefusion --patches 4 --warmup-steps 1 --steps 6 --device l40-48gb",
    "run --model small --strategy ddp --gpus 2 --measured step_s=0.05 --stack compiled --cluster h100-ib",
    "run --model small --strategy ddp --self-conditioning 0.5 --placement data-inner --print-experiment",
    "run --experiment q.toml --gpus 4 -q",
    "schedule --strategy interleaved --pipeline-degree 2 --micro-batches 4 --chunks 2 --format torch",
    "schedule --strategy ulysses --model small --gpus 2 --steps 2",
    "synthesize --pipeline-degree 2 --micro-batches 2 --waves 1 --forward 1 --backward 2 --lag 0.1 --time-limit 1",
    "clusters show p4de",
    "devices --json",
    "models show sd21",
    "strategies",
    "sweep --model small --gpus 2 --strategy ddp --json --out rows.csv",
    "sweep --model small --gpus 2 --strategy single,ring --steps 2 --objective memory --out rows.csv",
    "tune --model small --gpus 2 --p2p blocking --json",
)
"""Command lines that are right; ``small`` is a model folder and ``q.toml`` an experiment where they run."""


@dataclass(frozen=True)
class Case:
    """A mutated input: a command line, and the file in which something is wrong; none where it is the command line."""

    words: list[str]
    file: str = ""


def write_inputs(folder: Path) -> None:
    """Write what command lines name."""
    small = folder / "small"
    (small / "times").mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("model.toml", SMALL), ("layers.csv", LAYERS), ("exchanges.csv", EXCHANGES), ("times/a100-80gb-sxm.csv", TIMES)
    ):  # fmt: skip
        (small / name).write_text(text, encoding="utf-8")
    (folder / "q.toml").write_text(EXPERIMENT, encoding="utf-8")


def draw(seed: str, folder: Path) -> Case:
    """A case of a seed; its files lie in the folder, beside those of ``write_inputs``."""
    random = Random(seed)
    kind = random.choice((*KINDS, "command", "command"))
    if kind == "command":
        return Case(mutated_words(random, random.choice(COMMANDS).split()))
    return KINDS[kind](random, folder)


def mutated_words(random: Random, words: list[str]) -> list[str]:
    """A command line with a word or two dropped, doubled, moved, misspelt or replaced."""
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(words))
        action = random.randrange(6)
        if action == 0:
            del words[at]
        elif action == 1:
            words.insert(at, words[at])
        elif action == 2:
            words.insert(random.randrange(len(words)), words.pop(at))
        elif action == 3:
            words[at] = mutated_line(random, words[at])
        else:
            words[at] = random.choice(VALUES)
        words = words or [random.choice(VALUES)]
    return words


def mutated_line(random: Random, line: str) -> str:
    """A line with a character dropped, doubled or replaced, or cut off."""
    at = random.randrange(len(line) + 1)
    return random.choice(
        (
            line[:at] + line[at + 1 :],
            line[:at] + random.choice(VALUES) + line[at:],
            line[:at],
            line[:at] + line[max(0, at - 1) :],
        )
    )


def mutated(random: Random, text: str) -> str:
    """A text with a value replaced, a line lost, doubled, moved or spoilt, a name changed, or its end cut off."""
    for _ in range(random.choice((1, 1, 1, 2))):
        lines = text.splitlines()
        at = random.randrange(len(lines))
        action = random.randrange(16)
        if action == 0:
            del lines[at]
        elif action == 1:
            lines.insert(at, lines[at])
        elif action == 2:
            lines.insert(random.randrange(len(lines)), lines.pop(at))
        elif action == 3:
            lines[at] = mutated_line(random, lines[at])
        elif action == 4:
            lines.insert(at, random.choice(VALUES))
        elif action == 5:
            return text[: random.randrange(len(text))]
        elif action == 6:
            lines[at] = _with_value(random, lines[at])
        else:
            at = random.choice([number for number, line in enumerate(lines) if NUMBER.search(line)] or [at])
            lines[at] = _with_number(random, lines[at])
        text = "\n".join([*lines, ""]) or "\n"
    return text


NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w.-])")
FACTORS = (0, 1e-12, 1e-6, 1e-3, 0.5, 0.999, 1.001, 2, 3, 10, 1e3, 1e6, 1e9, 1e15, -1)


def _with_number(random: Random, line: str) -> str:
    """A line with one of its numbers multiplied, or moved by one."""
    found = list(NUMBER.finditer(line))
    if not found:
        return line
    match = random.choice(found)
    value = float(match[0])
    other = value + random.choice((-1, 1)) if random.randrange(3) == 0 else value * random.choice(FACTORS)
    words = str(int(other)) if other == int(other) and random.randrange(8) else repr(other)
    return line[: match.start()] + words + line[match.end() :]


def _with_value(random: Random, line: str) -> str:
    """A line with one of its values, cells or keys replaced."""
    parts = re.split(r"([=,\[\]{}\s]+)", line)
    at = random.choice([number for number, part in enumerate(parts) if number % 2 == 0])
    parts[at] = random.choice(VALUES)
    return "".join(parts)


def _model(random: Random, folder: Path) -> Case:
    own = copytree(folder / "small", folder / "m")
    name = random.choice(("model.toml", "layers.csv", "exchanges.csv", "times/a100-80gb-sxm.csv"))
    _spoil(random, own / name)
    training = "ddp --gpus 2", "1f1b --gpus 4", "diffusionpipe --gpus 4", "pulse --gpus 2"
    asked = random.choice((*training, "ring --gpus 2 --steps 2", "single --steps 2"))
    cluster = random.choice((["--cluster", "p4de"], ["--cluster", "h100-ib"]))
    return Case(["run", "--model", "m", "--strategy", *asked.split(), *cluster, "--json"], f"m/{name}")


def _shipped_model(random: Random, folder: Path) -> Case:
    own = copytree(MODELS / "uvit-h", folder / "m")
    name = random.choice(sorted(path.name for path in own.iterdir()))
    _spoil(random, own / name)
    return Case(["run", "--model", "m", "--strategy", "zero2", "--gpus", "2", "--json"], f"m/{name}")


def _anchors(random: Random, folder: Path) -> Case:
    own = copytree(MODELS / "pixart", folder / "m")
    _spoil(random, own / "anchors.csv")
    return Case(["run", "--model", "m", "--strategy", "single", "--steps", "2", "--json"], "m/anchors.csv")


def _cluster(random: Random, folder: Path) -> Case:
    source = random.choice(("p4de", "l40-pcie-8", "h100-nvlink-8", "ideal"))
    _spoil(random, folder / "c.toml", (CLUSTERS / f"{source}.toml").read_text(encoding="utf-8"))
    strategy = random.choice(("zero2", "1f1b", "ulysses --steps 2", "tensor --steps 4")).split()
    return Case(
        ["run", "--model", "small", "--cluster", "c.toml", "--strategy", *strategy, "--gpus", "2", "--json"],
        "c.toml",
    )


def _device(random: Random, folder: Path) -> Case:
    source = random.choice(("a100-80gb-sxm", "ascend910a-32gb", "l40-48gb"))
    _spoil(random, folder / "d.toml", (DEVICES / f"{source}.toml").read_text(encoding="utf-8"))
    model = random.choice(("small", "uvit-h"))
    return Case(
        ["run", "--model", model, "--device", "d.toml", "--strategy", "ddp", "--gpus", "2", "--json"],
        "d.toml",
    )


def _stack(random: Random, folder: Path) -> Case:
    source = random.choice(("eager", "eager-2023", "compiled"))
    _spoil(random, folder / "s.toml", (STACKS / f"{source}.toml").read_text(encoding="utf-8"))
    return Case(
        ["run", "--model", "uvit-h", "--stack", "s.toml", "--strategy", "ddp", "--gpus", "2", "--json"],
        "s.toml",
    )


def _experiment(random: Random, folder: Path) -> Case:
    _spoil(random, folder / "e.toml", EXPERIMENT)
    return Case([random.choice(("run", "run", "sweep")), "--experiment", "e.toml", "-q"], "e.toml")


def _measured_run(random: Random, folder: Path) -> Case:
    _spoil(random, folder / "r.toml", RUN)
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


def _spoil(random: Random, path: Path, text: str | None = None) -> None:
    """Write a mutated text, now and then as bytes that are none."""
    spoilt = mutated(random, path.read_text(encoding="utf-8") if text is None else text).encode(
        "utf-8", "surrogatepass"
    )
    if random.randrange(50) == 0:
        at = random.randrange(len(spoilt) + 1)
        spoilt = spoilt[:at] + bytes([random.randrange(128, 256)]) + spoilt[at:]
    path.write_bytes(spoilt)


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
}
