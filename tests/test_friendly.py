"""A friendly command line: help, examples, files to start from, completion, how much is said, progress."""

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from profiles.architectures.models import model_names
from profiles.machines.clusters import cluster_names, load_cluster
from profiles.machines.devices import device_names, load_device
from profiles.software.stacks import load_stack, stack_names
from sim.api import start_sweep
from sim.cli.completion import SHELLS
from sim.cli.examples import EXAMPLES
from sim.cli.offers import COMMANDS
from sim.cli.progress import best_words, progress
from sim.explore.search import run_sweep
from strategies.registry import all_samplers, all_strategies

ROOT = Path(__file__).parents[1]


pytestmark = pytest.mark.usefixtures("elsewhere")


# Help


def test_the_command_alone_prints_its_help(tell):
    assert tell() == tell("--help")
    assert tell()[0] == 0


@pytest.mark.parametrize("command", list(COMMANDS))
def test_the_help_of_every_command_has_its_examples(tell, command):
    code, out, _ = tell(command, "--help")
    assert code == 0
    for example in EXAMPLES[command]:
        assert f"  {example}\n" in out


def test_every_command_has_examples():
    assert set(EXAMPLES) == {"", *COMMANDS}


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
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    extra = "measure" if program.startswith("sim") else "validate"
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: count needs torch: pip install 'diffusim[{extra}]'\n")


def test_examples_do_what_they_say(tell, elsewhere):
    for example in (line for lines in EXAMPLES.values() for line in lines if line.startswith("sim ")):
        if "--gpus 64" in example:  # asked elsewhere, and takes a while
            continue
        words, _, file = example.removeprefix("sim ").partition(" > ")
        brief = ("--time-limit", 1) if example.startswith("sim synthesize") else ()
        code, out, err = tell(*shlex.split(words), *brief)
        assert (code, bool(out or err)) == (0, True), (example, err)
        if file and "~" not in file:
            (elsewhere / file).write_text(out, encoding="utf-8")


def test_the_help_of_a_strategy_shows_examples_that_it_takes(tell):
    _, out, _ = tell("run", "--strategy", "ddp", "--help")
    assert "  sim run --model sd21 --gpus 16 --strategy ddp --link" in out
    assert "--patches" not in out


@pytest.mark.parametrize("command", ["run", "sweep", "schedule"])
def test_the_help_of_a_strategy_that_does_not_exist_is_refused(tell, command):
    code, out, err = tell(command, "--strategy", "foo", "--help")
    assert (code, out) == (2, "")
    assert err.startswith("sim: error: unknown strategy 'foo'; choose from ")


def test_flags_and_choices_that_were_almost_right_are_told(tell):
    for arguments, words in (
        (
            "run --model sd21 --strategy diffusionpipe --fil full",
            "unknown flag --fil; did you mean --fill?\n",
        ),
        ("run --model sd21 --strategy 1f1b --pipelin-degree 2", "did you mean --pipeline-degree?"),
        (
            "run --model sd21 --strategy ddp --overlap bucket",
            "--overlap is 'bucket', did you mean buckets? must be",
        ),
        ("clusters shw", "action is 'shw', did you mean show? must be one of show"),
        ("run --model sd21 --strategy zero-2 --pach 2", "unknown flag --pach; choose from"),
    ):
        code, _, err = tell(*arguments.split())
        assert code == 2
        assert words in err, arguments


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


def test_the_file_of_a_model_is_shown_with_what_lies_beside_it(tell):
    for name in model_names():
        code, out, err = tell("models", "show", name)
        assert code == 0
        assert tomllib.loads(out)["name"] == name
        assert err.startswith("sim: ")
        assert "layers.csv" in err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("clusters show", "NAME must be given; choose from a100-ib, "),
        ("clusters show p4dee", "unknown cluster 'p4dee'; did you mean p4de? choose from a100-ib, "),
        ("clusters show p4de --json", "--json is of the list; cluster files are TOML"),
        ("clusters p4de", "action is 'p4de', must be one of show"),
        ("strategies show ddp", "unexpected argument 'show'"),
        ("models show sd21 more", "unexpected argument 'more'"),
    ],
)
def test_what_cannot_be_shown_is_refused(tell, arguments, problem):
    code, out, err = tell(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"sim: error: {problem}")


def test_devices_are_listed(tell):
    _, out, _ = tell("devices")
    assert all(name in out for name in device_names())


# Completion


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_flags_and_names(tell, shell):
    code, out, err = tell("completion", shell)
    assert (code, err) == (0, "")
    for word in (
        *COMMANDS,
        "batch-size",
        "pipeline-degree",
        *model_names(),
        *cluster_names(),
        *all_strategies(),
    ):
        assert word in out, word
    for word in (*all_samplers(), *device_names()):
        assert word in out, word


def test_bash_reads_the_script_and_completes(tell, elsewhere):
    (elsewhere / "complete").write_text(tell("completion", "bash")[1], encoding="utf-8")
    script = """
        source ./complete
        function=$(complete -p sim | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        COMP_WORDS=(sim run --cluster h100); COMP_CWORD=3
        $function; echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["h100-ib", "h100-nvlink-8"]


def test_without_its_library_completion_says_what_to_install(tell, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert tell("completion", "zsh")[2] == (
        "sim: error: completion needs shtab: pip install 'diffusim[completion]'\n"
    )


# How much is said


def test_quiet_leaves_nothing_on_stderr_but_errors(tell):
    loud = tell("sweep", "--model", "sd21", "--gpus", 2, "--strategy", "dp", "--json")
    quiet = tell("sweep", "--model", "sd21", "--gpus", 2, "--strategy", "dp", "--json", "-q")
    assert loud[:2] == quiet[:2]
    assert "sim: note: strategy dp is ddp\n" in loud[2]
    assert quiet[2] == ""
    assert tell("run", "--model", "nope", "--strategy", "ddp", "--quiet")[2].startswith(
        "sim: error: unknown model"
    )


def test_verbose_says_what_took_how_long(tell):
    _, _, err = tell("sweep", "--model", "sd21", "--gpus", 2, "--strategy", "ddp", "--json", "-v")
    assert "sim: bounding " in err
    assert " points took " in err
    assert err.splitlines()[-1].startswith("sim: sweep took ")
    assert tell("run", "--model", "sd21", "--strategy", "ddp", "-q", "-v")[0] == 2


# Progress


@pytest.fixture
def swept():
    return start_sweep("sd21", gpus=2, strategy=["ddp"])


def test_progress_is_silent_where_stderr_is_no_terminal(capsys, swept):
    with progress(swept) as report:
        run_sweep(swept, report)
    assert capsys.readouterr().err.strip() == ""


def test_progress_knows_the_best_so_far(swept):
    assert best_words(swept) == ""
    run_sweep(swept)
    assert best_words(swept) == f"best ddp {swept.best.iteration_s * 1e3:,.1f} ms"


def test_on_a_terminal_progress_shows_the_best_and_the_time_left(tmp_path):
    asked = "sweep --model sd21 --gpus 8 --strategy diffusionpipe --json --out rows.csv"
    command = shlex.join([sys.executable, "-m", "sim", *asked.split()])
    done = subprocess.run(
        ["script", "-qec", f"{command} > /dev/null", "/dev/null"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "140"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "bounding" in done.stdout
    assert "best diffusionpipe" in done.stdout
