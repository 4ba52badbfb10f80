"""Limits: what would take longer than anybody waits is refused before any work, in one line with the limit."""

import pytest

from profiles.architectures.component_files import LAYER_COLUMNS
from sim.cli.main import main
from sim.inputs.limits import (
    MAX_LISTED,
    MAX_ORDERED,
    MAX_SIMULATED,
    MAX_SWEPT_GPUS,
    MAX_SWEPT_LAYERS,
    MAX_SWEPT_SAMPLES,
)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        (
            "run --model sd21 --strategy 1f1b --micro-batches 65536 --gpus 8 --batch-size 524288",
            MAX_SIMULATED,
        ),
        ("schedule --strategy 1f1b --pipeline-degree 65536 --micro-batches 65536", MAX_ORDERED),
        ("schedule --strategy wave --pipeline-degree 65536 --micro-batches 2", MAX_LISTED),
        (
            "run --model sd21 --strategy ddp --micro-batches 65536 --gpus 1 --batch-size 65536",
            MAX_SIMULATED,
        ),
        ("sweep --model sd21 --gpus 8 --batch-size 720720", MAX_SWEPT_SAMPLES),
        ("synthesize --pipeline-degree 1024 --micro-batches 64", 2**17),
        ("sweep --model sd21 --gpus 1048576 --nodes 131072", MAX_SWEPT_GPUS),
    ],
)
def test_what_would_take_long_is_refused_with_the_limit(capsys, asked, limit):
    assert main(asked.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"at most {limit}" in err


def write_model(folder, backbones=1, layers=2, skips=0):
    """A model folder of equal layers; skips lead from the first half of the first backbone to its second."""
    folder.mkdir()
    names = [f"b{number}" for number in range(backbones)]
    tables = [f'[[components]]\nname = "{name}"\ntrainable = true\nimage_tokens = 64\n' for name in names]
    ends = [(source, target) for source in range(layers // 2) for target in range(layers // 2, layers)][
        :skips
    ]
    tables += [f'[[skips]]\ncomponent = "b0"\nsource = {a}\ntarget = {b}\n' for a, b in ends]
    head = 'name = "large"\ntitle = "Large"\nsource = "made by a test"\ndtype = "float16"\n'
    (folder / "model.toml").write_text(f"{head}[reference]\nheight = 64\nwidth = 64\n{''.join(tables)}")
    rows = [f"{name},{i},{i},layer {i},1000,full,1,1,1,1,1,1,1" for name in names for i in range(layers)]
    (folder / "layers.csv").write_text("\n".join([",".join(LAYER_COLUMNS), *rows, ""]))


@pytest.mark.parametrize(
    ("sizes", "command", "words"),
    [
        ({"layers": 1000}, "sweep", f"b0 has 1000 layers, must have at most {MAX_SWEPT_LAYERS} where"),
        (
            {"layers": 1000, "skips": 4000},
            "run --strategy pulse",
            "has 1000 layers, must have at most 512 where its",
        ),
    ],
)
def test_large_models_are_refused_where_they_would_take_long(tell, elsewhere, sizes, command, words):
    write_model(elsewhere / "large", **sizes)
    code, out, err = tell(*command.split(), "--model", "large", "--gpus", 8)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_gpus_that_no_point_can_use_are_refused_with_those_that_one_can(tell):
    code, out, err = tell("sweep", "--model", "sd21", "--gpus", 20)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--gpus is 20, must be a multiple of the 8 of a node, such as 16 or 24: " in err
