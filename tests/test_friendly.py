"""A friendly command line: help, examples, files to start from, completion, how much is said, progress."""

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from making import brief

from profiles.architectures.models import model_names
from profiles.machines.clusters import cluster_names, load_cluster
from profiles.machines.devices import device_names, load_device
from profiles.software.stacks import load_stack, stack_names
from sim.cli.main import COMMANDS
from strategies.registry import strategies_of

pytestmark = pytest.mark.usefixtures("elsewhere")

ROOT = Path(__file__).parents[1]


# Help


def test_the_help_of_every_command_has_its_examples(tell):
    assert tell() == tell("--help")
    for command in [*COMMANDS][1:]:
        code, out, _ = tell(command, "--help")
        assert code == 0
        for example in COMMANDS[command]["examples"]:
            assert f"  {example}\n" in out


@pytest.mark.parametrize("program", ["sim.cli.main", "validate.__main__"])
def test_without_torch_measuring_has_its_help_and_says_what_it_needs(program):
    words = ["count", "--model", "sd21"]
    code = f"""
import sys
sys.modules |= dict.fromkeys(("torch", "diffusers", "transformers", "scipy"))
from {program} import main
head = ["measure"] * {program.startswith("sim")}
assert all(main([*head, name, "--help"]) == 0 for name in ("count", "profile", "links", "calibrate"))
sys.exit(main([*head, *{words}]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    extra = "measure" if program.startswith("sim") else "validate"
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: count needs torch: pip install 'diffusim[{extra}]'\n")


@pytest.mark.long
def test_examples_do_what_they_say(tell, elsewhere):
    """But those with many GPUs, and those that a page shows, which run as its commands."""
    pages = [ROOT / "README.md", *(ROOT / "docs/pages").glob("**/*.md")]
    shown = {line for page in pages for line in page.read_text(encoding="utf-8").splitlines()}
    for example in (line for of in COMMANDS.values() for line in of["examples"] if line.startswith("sim ")):
        if example in shown or "64" in example:
            continue
        words, _, file = example.partition(" > ")
        code, out, err = tell(*shlex.split(brief(words))[1:])
        assert (code, bool(out or err)) == (0, True), (example, err)
        if file and "~" not in file:
            (elsewhere / file).write_text(out, encoding="utf-8")


# Files to start from


@pytest.mark.parametrize(
    ("command", "names", "load"),
    [
        ("clusters", cluster_names(), load_cluster),
        ("devices", device_names(), load_device),
        ("stacks", stack_names(), load_stack),
    ],
)
def test_the_file_of_a_thing_is_shown_and_reads_as_the_same(tell, elsewhere, command, names, load):
    for name in names:
        code, out, err = tell(command, "show", name)
        assert (code, err) == (0, "")
        if command != "devices":
            (elsewhere / "mine.toml").write_text(out, encoding="utf-8")
            assert load("mine.toml") == load(name)
        assert tomllib.loads(out)["name"] == name


def test_show_may_be_left_out_and_strategies_show_their_parameters(tell):
    assert tell("devices", "l20")[1] == tell("devices", "show", "l20-48gb")[1]
    _, out, _ = tell("strategies", "show", "fsdp2")
    assert out.startswith("fsdp: ") and "--shard-size" in out
    assert tell("help") == tell("--help")
    assert tell("help", "run")[:2] == tell("run", "--help")[:2]
    assert tell("version")[1] == tell("--version")[1]


# Completion


def test_completion_knows_commands_flags_and_names(tell):
    words = [*[*COMMANDS][1:], "batch-size", "pipeline-degree", *model_names(), *cluster_names()]
    for shell in ("bash", "zsh", "fish"):
        code, out, err = tell("completion", shell)
        assert (code, err) == (0, "")
        for word in (*words, *device_names(), *strategies_of("train"), *strategies_of("sample")):
            assert word in out, word


def test_quiet_leaves_nothing_on_stderr_but_errors(tell):
    loud = tell("sweep", "--model", "sd21", "--gpus", 2, "--strategy", "dp", "--json")
    quiet = tell("sweep", "--model", "sd21", "--gpus", 2, "--strategy", "dp", "--json", "-q")
    assert loud[:2] == quiet[:2]
    assert "sim: note: strategy dp is ddp\n" in loud[2]
    assert quiet[2] == ""
    refused = tell("run", "--model", "nope", "--strategy", "ddp", "--quiet")
    assert refused[2].startswith("sim: error: unknown model")
