"""Limits: what would take longer than anybody waits is refused before any work, in one line with the limit."""

import pytest

from profiles.architectures.component_files import LAYER_COLUMNS
from sim.inputs.limits import MAX_SWEPT_LAYERS


def write_model(folder, backbones=1, layers=2, skips=0):
    """A model folder of equal layers; skips lead from the first half of the first backbone to its second."""
    folder.mkdir()
    names = [f"b{number}" for number in range(backbones)]
    tables = [f'[[components]]\nname = "{name}"\ntrainable = true\nimage_tokens = 64\n' for name in names]
    ends = [(a, b) for a in range(layers // 2) for b in range(layers // 2, layers)][:skips]
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
