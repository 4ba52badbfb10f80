"""Refusals: each is one line that a terminal prints as it is, and none takes long."""

from itertools import product

import pytest
from making import model_head, refused

from profiles.architectures.component_files import LAYER_COLUMNS, TIME_COLUMNS
from profiles.files import MAX_BYTES, read_text
from sim.cli.main import main
from sim.inputs.limits import MAX_SWEPT_LAYERS

COMPONENT = '[[components]]\nname = "{}"\ntrainable = {}\nimage_tokens = 64\n'


def write(folder, name, *, work=1, times=None, layers=4, skips=0, parts=(("encoder", False), ("unet", True))):
    """Write a model folder of small equal layers; skips lead from the first half of the backbone to its second."""
    folder.mkdir()
    text = model_head(name) + "".join(COMPONENT.format(part, str(on).lower()) for part, on in parts)
    for source, target in [*product(range(layers // 2), range(layers // 2, layers))][:skips]:
        text += f'[[skips]]\ncomponent = "unet"\nsource = {source}\ntarget = {target}\n'
    (folder / "model.toml").write_text(text, encoding="utf-8")
    rows = [
        f"{part},{i},{i},layer {i},100,{'full' if trained else 'none'},0,{work},0,{work},{work},1,1"
        for part, trained in parts
        for i in range(layers)
    ]
    (folder / "layers.csv").write_text("\n".join([",".join(LAYER_COLUMNS), *rows, ""]), encoding="utf-8")
    if times is not None:
        rows = [f"{part},{i},1,{times},{times}" for part, _ in parts for i in range(layers)]
        (folder / "times").mkdir()
        (folder / "times" / "a100-80gb-sxm.csv").write_text("\n".join([",".join(TIME_COLUMNS), *rows, ""]))
    return folder


# What takes no time


@pytest.mark.parametrize(
    "command", ["run --strategy ddp", "run --strategy 1f1b", "sweep", "sweep --task sample"]
)
@pytest.mark.parametrize("times", [None, 0])
def test_a_model_that_takes_no_time_is_refused(tmp_path, monkeypatch, capsys, command, times):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "m", "idle", work=0, times=times)
    assert main([*command.split(), "--model", str(folder), "--gpus", "2", "-q"]) == 2
    files = {
        None: "layers.csv: the work (conv_gflop to kernels) is 0",
        0: "times/a100-80gb-sxm.csv: forward_ms and b",
    }
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"sim: error: model idle: {files[times]}")
    assert err.endswith("0 in all layers of unet, must be above 0 in one of a trainable component\n")


# What a terminal prints

EVIL = "\x1b[31mred\x07\x9b"


@pytest.mark.parametrize(
    "asked",
    [
        ["run", "--model", EVIL, "--strategy", "ddp"],
        ["run", "--model", "sd21", "--strategy", EVIL],
        ["run", "--model", "sd21", "--strategy", "ddp", "--cluster", EVIL + ".toml"],
        ["run", "--model", "sd21", "--strategy", "ddp", "--" + EVIL],
        [EVIL],
        ["run", "--model", "x" * 200_000, "--strategy", "ddp"],
    ],
)
def test_refusals_of_flags_are_printed_escaped_and_short(capsys, asked):
    assert main(asked) == 2
    err = capsys.readouterr().err
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert len(err) < 2100


# What would take long


def test_files_have_a_limit(tmp_path):
    big = tmp_path / "big.csv"
    with big.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with refused(f"big.csv: has {MAX_BYTES + 1} bytes, must have at most {MAX_BYTES}$"):
        read_text(big)


@pytest.mark.parametrize(
    ("skips", "command", "words"),
    [
        (0, "sweep", f"unet has 520 layers, must have at most {MAX_SWEPT_LAYERS} where"),
        (4000, "run --strategy pulse", "has 520 layers, must have at most 512 where its"),
    ],
)
def test_large_models_are_refused_where_they_would_take_long(tell, elsewhere, skips, command, words):
    write(elsewhere / "large", "large", layers=520, skips=skips)
    code, out, err = tell(*command.split(), "--model", "large", "--gpus", 8)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
