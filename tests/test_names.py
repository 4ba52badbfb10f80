"""Names: what things are called besides, and what was meant by a name that nothing has."""

import re
import tomllib

import pytest

import sim
from profiles.architectures.models import load_model, model_names
from profiles.errors import DiffusimNote, InputError, counted, near, near_or_all, one_line, shown
from profiles.machines.clusters import cluster_names, load_cluster
from profiles.machines.devices import device_names
from profiles.names import ALIASES, aliases, known_name, unknown_name
from profiles.software.stacks import load_stack, stack_names
from sim.cli.main import main
from strategies.registry import all_samplers, all_strategies, strategy_named

NAMES = {
    "model": model_names(),
    "cluster": cluster_names(),
    "device": device_names(),
    "stack": stack_names(),
    "strategy": [*all_strategies(), *all_samplers()],
}


def test_every_other_name_stands_for_something_there_is():
    table = tomllib.loads(ALIASES.read_text(encoding="utf-8"))
    assert set(table) == set(NAMES)
    for kind, names in NAMES.items():
        for other, name in aliases(kind).items():
            assert name in names, (kind, other)
            assert other == other.casefold()


@pytest.mark.parametrize(
    ("kind", "other", "name"),
    [
        ("model", "flux", "flux-dev"), ("model", "sd2", "sd21"), ("model", "SD2.1", "sd21"), ("model", "SDXL", "sdxl"),
        ("cluster", "h100", "h100-ib"), ("cluster", "P4DE", "p4de"), ("device", "H200", "h200-141gb-sxm"),
        ("stack", "torch.compile", "compiled"), ("strategy", "hsdp", "fsdp"), ("strategy", "1F1B", "1f1b"),
    ],
)  # fmt: skip
def test_another_name_is_told_when_it_is_used(kind, other, name):
    if kind == "strategy" and other in NAMES[kind]:
        pytest.skip(f"{other} is a strategy")
    with pytest.warns(DiffusimNote, match=f"^{kind} {other} is {name}$"):
        assert known_name(kind, other, NAMES[kind]) == name


def test_a_name_goes_before_another_name_of_something_else():
    assert known_name("strategy", "fsdp", ["fsdp", "zero3"]) == "fsdp"
    assert known_name("cluster", "gb200", ["h100-ib"]) is None


def test_a_file_or_a_folder_goes_before_another_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flux").mkdir()
    with pytest.raises(InputError, match="flux: is not a model folder"):
        load_model("flux")
    (tmp_path / "zero-3").mkdir()
    assert strategy_named("zero-3", silent=True) == "zero3"


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("model", "sdxll", "sdxl"),
        ("model", "fluxx", "flux-dev"),
        ("cluster", "p4dd", "p4d"),
        ("stack", "egaer", "eager"),
        ("strategy", "gpip", "gpipe"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_what_was_meant(kind, name, meant):
    error = unknown_name(kind, name, NAMES[kind])
    assert str(error).startswith(f"unknown {kind} '{name}'; did you mean {meant}")
    assert str(error).endswith(", ".join(NAMES[kind]))


def test_nothing_is_guessed_where_nothing_is_near():
    assert near("zzz", ["ddp", "gpipe"]) == ""
    assert "did you mean" not in str(unknown_name("model", "zzz", NAMES["model"]))


@pytest.mark.parametrize("load", [load_model, load_cluster, load_stack])
def test_loaders_take_other_names_too(load):
    name = {load_model: "flux", load_cluster: "h100", load_stack: "torch"}[load]
    with pytest.warns(DiffusimNote):
        assert load(name).name in {"flux-dev", "h100-ib", "eager"}


def test_results_are_called_by_the_names(capsys):
    with pytest.warns(DiffusimNote):
        result = sim.run("sd2", "dp", "h100", gpus=2, stack="torch")
    assert (result.model, result.strategy, result.cluster, result.stack) == (
        "sd21",
        "ddp",
        "h100-ib",
        "eager",
    )
    with pytest.warns(DiffusimNote):
        swept = sim.sweep("sd2", gpus=2, strategy=["dp", "zero-2"])
    assert {point.name for point in swept} == {"ddp", "zero2"}
    assert (
        main(["run", "--model", "sd2", "--gpus", "2", "--strategy", "zero-2", "--overlap", "none", "--json"])
        == 0
    )
    out, err = capsys.readouterr()
    assert '"strategy": "zero2"' in out
    assert err == "sim: note: model sd2 is sd21\nsim: note: strategy zero-2 is zero2\n"


def test_values_are_shown_escaped_and_short():
    assert shown("a\x1b[31m\n\u202e") == r"'a\x1b[31m\n\u202e'"
    assert shown(8) == "8"
    long = shown("x" * 1000)
    assert (len(long), long[:3], long[-3:]) == (85, "'xx", "xx'")
    assert shown(10**5000) == "an integer of more digits than are read"
    assert one_line("a\n\x07b") == r"a \x07b"
    assert len(one_line("y" * 5000)) < 2010


@pytest.mark.parametrize("slip", ["--gpu", "--glpus", "--modle"])
def test_a_slip_of_the_finger_gets_the_name_that_was_meant_alone(slip):
    assert re.fullmatch(r"did you mean --\w+\?", near_or_all(slip, ["--gpus", "--model", "--trace"]))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("--stage", "did you mean --trace? choose from --gpus, --model, --trace"),
        ("--colour", "choose from --gpus, --model, --trace"),
    ],
)
def test_a_name_that_is_little_like_any_gets_all_to_choose_from(name, told):
    assert near_or_all(name, ["--gpus", "--model", "--trace"]) == told


def test_one_thing_is_no_things():
    assert [counted(number, "GPU") for number in (0, 1, 8)] == ["0 GPUs", "1 GPU", "8 GPUs"]
    assert counted(2, "copy", "copies") == "2 copies"


def test_every_printed_number_of_one_thing_is_singular(tmp_path, monkeypatch, capsys):
    """What commands print of one GPU, one step, one row, one frame and one device."""
    monkeypatch.chdir(tmp_path)
    for command in (
        "run --model pixart --strategy single --steps 1",
        "run --model wan2.1-1.3b --strategy single --steps 1 --frames 1",
        "sweep --model pixart --gpus 1 --steps 1 -v --strategy single",
        "sweep --model sd21 --gpus 1,2 --strategy ddp --micro-batches 1 --report r.html",
    ):
        assert main(command.split()) == 0
        said = "".join(capsys.readouterr())
        assert not re.search(
            r"(?<![\d.,x-])1 (GPUs|images|videos|steps|rows|points|frames|copies|nodes)\b", said
        ), said
    sweep = sim.sweep("sd21", gpus=[1], strategy="ddp", micro_batches=1, workers=1)
    assert repr(sweep).startswith("<Scaling over 1 GPU")
    assert repr(sim.schedule("1f1b", pipeline_degree=1, micro_batches=1)).endswith(": 1 device>")
    assert ": 1 point, best" in repr(sweep.chosen)


def test_of_names_as_like_a_mistyped_one_that_which_begins_alike_is_meant():
    for names in (["sd21", "sdxl"], ["sdxl", "sd21"]):
        assert near("sd2l", names) == "did you mean sd21? "
        assert near("sdx1", names) == "did you mean sdxl? "
