"""Mutated inputs of every kind: an answer, or a refusal in one line; no traceback, no hang, nothing raw, no nonsense.

150 cases are tried; ``DIFFUSIM_FUZZ=10000 python -m pytest tests/test_fuzz.py`` tries so many, and
``DIFFUSIM_FUZZ_SEED`` others.
"""

import json
import os
import re
import signal
import sqlite3
import warnings
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import fields
from io import StringIO
from pathlib import Path
from random import Random
from shutil import copytree, rmtree

import numpy as np
import pandas as pd
import pytest
from making import model_head

import sim
from profiles.architectures.models import MODELS
from profiles.errors import DiffusimError, DiffusimWarning, InputError
from profiles.machines.clusters import CLUSTERS
from profiles.machines.devices import DEVICES
from profiles.software.stacks import STACKS
from sim.cli.console import guarded
from sim.cli.main import _main
from sim.inputs.scenarios import OPTION_NAMES
from sim.serving.options import ServingOptions
from strategies.registry import strategies_of
from validate.__main__ import _main as _validate

CASES = int(os.environ.get("DIFFUSIM_FUZZ", "150"))
SEED = os.environ.get("DIFFUSIM_FUZZ_SEED", "diffusim")
GROUPS = 10
LONGEST_S = 60
"""CPU seconds after which a case hangs, however busy the machine is; on an idle one none takes one."""
LONGEST = 2100
WORDS = (
    "", "0", "-1", "1", "2", "3.5", "1e308", "1e999", "1e19", "nan", "-inf", "1_000", "0x10", "9" * 5000, "true",
    "none", "[]", "{}", '"x"', "x", "sd21", "ddp", "ideal", "..", "/", "/dev/null", "\x1b[31m", "\x00", "\u202e",
    "-", "--", "a,b", ",", "\n", "\t", "'", "y" * 20_000, "1979-05-27", "0x0", "64x64", "inter=2x", "=", "40GiB",
    "step_s=1", "1,2,3", "%s", "{0}", "`id`", "\\", "#", "[reference]", "[[components]]", "8", "0.5", "1e-9",
)  # fmt: skip
"""What stands in the place of values, words and lines."""
FACTORS = (0, 1e-12, 1e-3, 0.5, 0.999, 1.001, 2, 10, 1e6, 1e15, -1)

SMALL = f"""{model_head("small", 512)}multiple = 64
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
EXCHANGES = "component,index,kind,elements,heads\nunet,0,halo,4096,0\nunet,1,key_value,8192,8\nunet,3,statistics,32,0\n"
TIMES = "component,index,batch_size,forward_ms,backward_ms\n" + "".join(
    f"{name},{index},{batch},{batch + 1},{2 * batch * (name == 'unet')}\n"
    for name, layers in (("text", 2), ("unet", 4)) for index in range(layers) for batch in (1, 4)
)  # fmt: skip
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
SERVICE = "height,width,frames,steps,gpus,batch,seconds\n" + "".join(
    f"512,512,1,4,{gpus},{batch},{1 + batch / gpus}\n" for gpus in (1, 2) for batch in (1, 2)
)
TRACE = "arrival_s,height,width,frames,steps,deadline_s,latency_s\n0,512,512,1,4,5,2\n1,512,512,1,4,6,2\n"
MIX = "[[class]]\nshare = 0.5\nresolution = 512\nsteps = 4\nslo = 5\n" * 2
RUN = 'model = "small"\ngpus = 8\nstrategy = "ddp"\nbatch_size = 32\nstep_s = 0.02\n'
SWEEP = "sweep --model small --gpus 2 --strategy ddp,zero2,1f1b --batch-size 8 --json"
RESULT = (
    "run --model small --gpus 2 --strategy zero2 --micro-batches 2 --batch-size 8 --checkpointing full --json"
)
COMMANDS = (
    "run --model small --gpus 8 --strategy 1f1b --pipeline-degree 2 --micro-batches 4 --batch-size 32 --json",
    "run --model small --gpus 4 --strategy diffusionpipe --fill partial --resolution 256x512 --frozen online",
    "run --model small --gpus 4 --strategy pulse --pipeline-degree 2 --link inter=2x --memory 10GiB --nodes 2x4",
    "run --model pixart --gpus 4 --strategy pipefusion --patches 4 --warmup-steps 1 --steps 6 --device l40-48gb",
    "run --model small --strategy ddp --gpus 2 --measured step_s=0.05 --stack compiled --cluster h100-ib",
    "run --model small --strategy ddp --self-conditioning 0.5 --placement data-inner --print-experiment",
    "run --experiment q.toml --gpus 4 -q",
    "schedule --strategy interleaved --pipeline-degree 2 --micro-batches 4 --chunks 2 --format torch",
    "synthesize --pipeline-degree 2 --micro-batches 2 --waves 1 --forward 1 --backward 2 --lag 0.1 --time-limit 1",
    "clusters show p4de",
    "sweep --model small --gpus 2 --strategy ddp --json --out rows.csv",
    "run --model pixart --gpus 4 --strategy fsdp --shard-size 2 --context-degree 2 --trainable lora:8 --json",
    "run --model pixart --gpus 2 --strategy ulysses --heads padded --all-to-all fp8 --cache-steps 0.3 --steps 4 --json",
    "run --model ltx-video --gpus 2 --strategy ulysses --frames 17 --steps 2 --include vae_decoder",
    "launch --model flux-dev --gpus 4 --strategy ulysses --keys-values freed --runtime xdit",
    "sweep --model small --gpus 1-4 --runtime accelerate --json --out rows.csv",
    "run --model small --strategy zero2 --gpus 4 --batch-size 32 --measured-run r.json --measured step_s=0.02 --json",
    "compare s.db rows.csv --json",
    "merge out.db s.db",
    "serve --service v.csv --gpus 2 --rate 0.2-0.4 --slo 9 --policy fcfs --duration 99 --price 2.5 --json --out w.csv",
    "serve --service v.csv --gpus 1-4 --rate 0.5 --slo 9x --arrivals gamma:2 --replicas 2x1,1x2 --duration 99 --json",
    "serve --service v.csv --gpus 2 --arrivals closed:3 --policy batcher --max-batch 2 --duration 99 --json",
)
"""Command lines that are right."""
KINDS = {
    "m/model.toml": "run --model m --strategy 1f1b --gpus 4 --json",
    "m/layers.csv": "run --model m --strategy diffusionpipe --gpus 4 --json",
    "m/exchanges.csv": "run --model m --strategy distrifusion --gpus 2 --steps 4 --json",
    "m/times/a100-80gb-sxm.csv": "run --model m --strategy pulse --gpus 2 --json",
    "pixart/model.toml": "run --model ./pixart --strategy pipefusion --steps 4 --gpus 2 --json",
    "pixart/anchors.csv": "run --model ./pixart --strategy single --steps 2 --json",
    "c.toml": "run --model small --cluster c.toml --strategy zero2 --gpus 2 --json",
    "d.toml": "run --model small --device d.toml --strategy ddp --gpus 2 --json",
    "e.toml": "run --experiment e.toml -q",
    "r.toml": "run --model small --strategy ddp --gpus 4 --measured-run r.toml --json",
    "r.json": "launch --result r.json --runtime deepspeed",
    "rows.csv": "compare rows.csv rows.json --json",
    "rows.json": "compare rows.csv rows.json --json",
    "s.db": f"{SWEEP} --store s.db",
    "v.csv": "serve --service v.csv --gpus 2 --rate 0.3 --slo 9 --duration 99 --json",
    "t.csv": "serve --service v.csv --gpus 2 --requests t.csv --policy fcfs --json",
    "x.toml": "serve --service v.csv --gpus 2 --mix x.toml --rate 0.2 --slo 9 --policy fcfs --duration 99 --json",
    "stack.toml": "run --model uvit-h --stack stack.toml --strategy ddp --gpus 2 --json",
    "t/times/a100-80gb-sxm.csv": "validate calibrate --model t --times t/times/a100-80gb-sxm.csv --output o.toml"
    " --device a100-80gb-sxm",
}
"""Files, and a command line that reads each."""
ELSEWHERE = ("has no rates of its own, and ", "are required: ", "must be given",
    " does not run it: ", ", but of models it has ",
    "no runtime is known that starts this ", "has no row of ", " has no measured products in ")  # fmt: skip
"""Words of refusals by files that are right, and ask for what cannot be."""


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A folder with every file that a command line names, as it should be."""
    folder = tmp_path_factory.mktemp("right")
    for name in ("small", "m", "t"):
        (folder / name / "times").mkdir(parents=True)
        for file, text in (("model.toml", SMALL), ("layers.csv", LAYERS), ("exchanges.csv", EXCHANGES),
                           ("times/a100-80gb-sxm.csv", TIMES), ("times/ideal.csv", TIMES)):  # fmt: skip
            (folder / name / file).write_text(text, encoding="utf-8")
    copytree(MODELS / "pixart", folder / "pixart")
    for name, text in (
        ("q.toml", EXPERIMENT), ("e.toml", EXPERIMENT), ("r.toml", RUN),
        ("c.toml", (CLUSTERS / "p4de.toml").read_text("utf-8")),
        ("v.csv", SERVICE), ("t.csv", TRACE), ("x.toml", MIX),
        ("d.toml", (DEVICES / "a100-80gb-sxm.toml").read_text("utf-8")),
        ("stack.toml", (STACKS / "eager.toml").read_text("utf-8")),
    ):  # fmt: skip
        (folder / name).write_text(text, encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    for name, words in (("rows.json", f"{SWEEP} --out rows.csv --store s.db"), ("r.json", RESULT)):
        with Path(name).open("w") as file, redirect_stdout(file), redirect_stderr(StringIO()):
            assert _main(words.split()) == 0
    os.chdir(before)
    return folder


@pytest.fixture
def folder(right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def renew(right, folder):
    for path in folder.iterdir():
        rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    copytree(right, folder, dirs_exist_ok=True)


def spoilt_line(random, line):
    """A line with a number multiplied, a value replaced, or a character dropped, doubled or replaced."""
    numbers = list(re.finditer(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w.-])", line))
    action = random.randrange(8)
    if numbers and action < 5:
        match = random.choice(numbers)
        number = random.choice((float(match[0]) * random.choice(FACTORS), float(match[0]) + 1))
        whole = number == int(number) and random.randrange(8)
        return line[: match.start()] + str(int(number) if whole else number) + line[match.end() :]
    if action == 5:
        parts = re.split(r"([=,\[\]{}:\s]+)", line)
        parts[2 * random.randrange(len(parts) // 2 + 1)] = random.choice(WORDS)
        return "".join(parts)
    at = random.randrange(len(line) + 1)
    return random.choice(
        (line[:at] + line[at + 1 :], line[:at] + random.choice(WORDS) + line[at:], line[:at])
    )


def spoilt(random, items, change):
    """Lines or words of which one or two are dropped, doubled, moved, changed or replaced."""
    items = list(items)
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(items))
        action = random.randrange(8)
        if action == 0 and len(items) > 1:
            del items[at]
        elif action == 1:
            items.insert(at, items[at])
        elif action == 2:
            items.insert(random.randrange(len(items)), items.pop(at))
        elif action == 3:
            items[at] = random.choice(WORDS)
        else:
            items[at] = change(random, items[at])
    return items


def spoil(random, path):
    """Let something be wrong in a file."""
    if path.suffix == ".db" and random.randrange(2):
        table = random.choice(("questions", "answers"))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection, suppress(sqlite3.Error):
            (column,) = random.choice(
                connection.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchall()
            )
            connection.execute(random.choice((f"DROP TABLE {table}", f"DELETE FROM {table}", "PRAGMA user_version = 0",
                f"ALTER TABLE {table} RENAME TO other", f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
                f"UPDATE {table} SET {column} = {random.choice(('rowid', 'NULL', 'zeroblob(3)', '-1'))}")))  # fmt: skip
    elif path.suffix == ".db" or random.randrange(50) == 0:
        data = bytearray(path.read_bytes())
        for _ in range(random.choice((1, 8, 64))):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data[: random.choice((len(data), random.randrange(len(data))))])
    else:
        text = path.read_text("utf-8")
        lines = spoilt(
            random, text.splitlines() if len(text.splitlines()) > 1 else re.split("(?<=,)", text), spoilt_line
        )
        path.write_bytes(("\n" if "\n" in text else "").join([*lines, ""]).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_mutated_input_is_answered_or_refused_in_one_line(right, folder, capsys, group):
    for number in range(group, CASES, GROUPS):
        random = Random(f"{SEED} {number}")
        renew(right, folder)
        file, words = random.choice([*KINDS.items(), *[("", line) for line in COMMANDS]])
        program, *words = words.split() if words.startswith("validate") else ["sim", *words.split()]
        if file:
            spoil(random, folder / file)
        else:
            words = spoilt(random, words, spoilt_line)
        check(program, words, file, capsys, f"case {SEED} {number}: {' '.join(words)[:300]!r} ({file})")


def check(program, words, file, capsys, case):
    signal.signal(signal.SIGPROF, lambda *_: pytest.fail(f"hangs: {case}"))
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    refused = []

    def noting(words):
        try:
            return {"sim": _main, "validate": _validate}[program](words)
        except DiffusimError as error:
            refused.append(error)
            raise

    try:
        code = guarded(program, noting, words)
    except Exception as error:
        raise AssertionError(f"traceback: {case}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    out, err = capsys.readouterr()
    assert code in (0, 2), case
    assert all(line.isprintable() for line in err.splitlines()), (case, err)
    if code == 0:
        if "--json" in words and out.startswith(("{", "[")):
            check_numbers(json.loads(out, parse_constant=pytest.fail), case)
        return
    *_, line = err.splitlines()
    assert out == "" or "no point of the sweep is feasible" in line, (case, out[:200])
    assert line.startswith(f"{program}: error: "), (case, err)
    assert err.count(": error: ") == 1, (case, err)
    assert len(line) < LONGEST, (case, line)
    if file and any(isinstance(error, InputError) for error in refused):
        named = file in line or file.partition("/")[0] in line
        assert named or any(words in line for words in ELSEWHERE), (case, line)


def check_numbers(value, case, key=""):
    """No time, size or ratio of a result is negative or missing, but changes."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else ((key, item) for item in value):
            check_numbers(item, case, name)
    elif isinstance(value, float) and key != "change":
        assert 0 <= value < float("inf"), (case, key, value)
        assert key != "bubble_ratio" or value <= 1, case


def test_what_is_spoilt_is_answered_before_so_that_nothing_hides_behind_a_refusal(right, folder, capsys):
    for line in [*KINDS.values(), *COMMANDS]:
        renew(right, folder)
        program, *words = line.split() if line.startswith("validate") else ["sim", *line.split()]
        code = guarded(program, {"sim": _main, "validate": _validate}[program], words)
        assert code == 0, (line, capsys.readouterr().err)


# Calls from Python

HUGE = 10**5000
"""A number of more digits than Python prints."""
VALUES = (
    None, True, 0, -1, 2, 1.5, float("nan"), float("inf"), 2**70, HUGE, (HUGE,), "", "x", "2", "none", "auto", "\0",
    "\x1b[31m", "y" * 5000, (256, 512), [], [1, 2], {}, {"a": 1}, {1, 2}, b"\xff", object(), int, range(3), len, 1j,
    Path("small"), iter([1]), np.int64(2), np.float64(0.5), "h100-ib", "r.toml", np.array([1, 2]), np.array(["none"]),
    np.array(2), pd.DataFrame({"a": [1]}), pd.NA,
)  # fmt: skip
"""What stands in the place of an argument."""
OTHERS = (
    "cluster", "stack", "gpus", "task", "objective", "top", "exhaustive", "workers", "store", "report", "executor",
    "strategy", "model", "measured", "measured_run", "runtime", "format", "batchsize", "piepline_degree",
)  # fmt: skip
"""Arguments that are neither options nor parameters; the last two are mistyped."""
SERVED = [item.name for item in fields(ServingOptions)]


@pytest.mark.parametrize("group", range(4))
def test_a_mutated_call_is_answered_or_refused_in_one_line(right, folder, group):
    renew(right, folder)
    answered = 0
    for number in range(group, CASES // 2, 4):
        random = Random(f"{SEED} {number}")
        verb, given = drawn(random)
        case = f"case {SEED} {number}: {verb} {sorted(given)}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DiffusimWarning)
                answer = getattr(sim, verb)(**given)
                for show in (str, repr, lambda one: getattr(one, "_repr_html_", str)()):
                    show(answer)
                if hasattr(answer, "to_json"):
                    json.dumps(answer.to_json(), allow_nan=False)
            answered += 1
        except DiffusimError as error:
            assert str(error).isprintable(), (case, str(error))
            assert len(str(error)) < LONGEST, (case, str(error))
        except Exception as error:
            raise AssertionError(f"traceback: {case}") from error
    assert answered > CASES / 80


def drawn(random):
    """A function of ``sim`` and arguments, some of which are wrong."""
    verb = random.choice(("run", "run", "launch", "schedule", "sweep", "calibrate", "serve"))
    if verb == "serve":
        given = {"service": "v.csv", "gpus": 2, "rate": 0.2, "slo": 9, "duration": 99, "policy": "fcfs"}
        return verb, given | {of: random.choice(VALUES) for of in random.sample(SERVED, random.randrange(3))}
    task = random.choice(("train", "sample"))
    name, cls = random.choice(list(strategies_of(task).items()))
    given = {"strategy": random.choice((name, cls)), "gpus": random.choice((2, 4, 8))}
    given |= {"model": "small", "batch_size": 32} if task == "train" else {"model": "pixart", "steps": 2}
    given |= {
        item.name: random.choice(item.metadata.get("choices") or (1, 2, 4, 0.5, (1, 1), "x"))
        for item in fields(cls)
        if random.randrange(8) == 0
    }
    if verb == "calibrate":
        given["measured"] = random.choice(
            ({"step_s": 0.1}, {"latency_s": 2.0}, "images_per_s=3", {"step_s": 0})
        )
    if verb == "sweep":
        given |= {"workers": 1, "gpus": random.choice((2, [2, 4], range(2, 5, 2), [2, "x"], [[2]]))}
    for _ in range(random.choice((0, 0, 1, 2))):
        given[random.choice((*OPTION_NAMES, *OTHERS))] = random.choice(VALUES)
    return verb, given
