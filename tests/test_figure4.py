"""Figure 4 of DiffusionPipe through the real command: equal layers, a frozen part, free links.

Source of the 24 bubble ratios: Tian et al., DiffusionPipe (MLSys 2024), Fig. 4: 1F1B with the frozen part
data-parallel before the backbone, not filled. The frozen part takes f times the forward and backward of the backbone.
"""

import json
import subprocess
import sys

import pytest

from sim.cli.main import main

FROZEN_SHARES = {"sd21": 0.4384, "controlnet": 0.8945}

PUBLISHED = {
    ("sd21", 2): (0.410, 0.258, 0.188, 0.148),
    ("sd21", 3): (0.582, 0.410, 0.317, 0.258),
    ("sd21", 4): (0.676, 0.510, 0.410, 0.343),
    ("controlnet", 2): (0.345, 0.209, 0.150, 0.117),
    ("controlnet", 3): (0.514, 0.345, 0.260, 0.209),
    ("controlnet", 4): (0.613, 0.442, 0.345, 0.284),
}
"""Bubble ratios by model and stages, at 1, 2, 3 and 4 micro-batches."""

POINTS = [
    (model, stages, micro_batches, ratio)
    for (model, stages), ratios in PUBLISHED.items()
    for micro_batches, ratio in enumerate(ratios, 1)
]

LAYERS = 12
FORWARD_MS, BACKWARD_MS = 1.0, 2.0
"""Milliseconds per sample and layer of the backbone."""

MODEL = """\
name = "{name}"
title = "Equal layers"
source = "made by a test"
dtype = "float16"
[reference]
height = 512
width = 512
[[components]]
name = "frozen"
trainable = false
inputs = []
[[components]]
name = "backbone"
trainable = true
inputs = ["frozen"]
"""
COLUMNS = (
    "component,index,block,name,parameters,backward,conv_gflop,matmul_gflop,attention_gflop,moved_MB,kernels,"
    "output_MB,saved_MB"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The model folder of each frozen share, by name."""
    return {name: write_model(tmp_path_factory.mktemp(name), name) for name in FROZEN_SHARES}


def write_model(folder, name):
    frozen_ms = FROZEN_SHARES[name] * LAYERS * (FORWARD_MS + BACKWARD_MS)
    layers = ["frozen,0,0,all,1000,none,0,0,0,0,0,0,0"]
    layers += [f"backbone,{i},{i},layer{i},1000,full,0,0,0,0,0,0,0" for i in range(LAYERS)]
    times = [f"frozen,0,{batch},{frozen_ms * batch!r},0" for batch in (1, 2)]
    times += [
        f"backbone,{i},{batch},{FORWARD_MS * batch},{BACKWARD_MS * batch}"
        for i in range(LAYERS)
        for batch in (1, 2)
    ]
    (folder / "times").mkdir()
    (folder / "model.toml").write_text(MODEL.format(name=name))
    (folder / "layers.csv").write_text("\n".join([COLUMNS, *layers]) + "\n")
    (folder / "times" / "ideal.csv").write_text(
        "\n".join(["component,index,batch_size,forward_ms,backward_ms", *times]) + "\n"
    )
    return folder


def command(folder, stages, micro_batches):
    return [
        "run", "--strategy", "1f1b", "--model", str(folder), "--cluster", "ideal", "--gpus", str(stages),
        "--pipeline-degree", str(stages), "--micro-batches", str(micro_batches),
        "--batch-size", str(12 * stages * micro_batches), "--json",
    ]  # fmt: skip


@pytest.mark.parametrize(("model", "stages", "micro_batches", "published"), POINTS)
def test_the_bubble_ratio_is_the_published_one_within_a_tenth_of_a_point(
    folders, capsys, model, stages, micro_batches, published
):
    assert main(command(folders[model], stages, micro_batches)) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bubble_ratio"] == pytest.approx(published, abs=0.001)
    closed_form = (stages - 1) / (micro_batches + stages - 1 + FROZEN_SHARES[model] * micro_batches)
    assert result["bubble_ratio"] == pytest.approx(closed_form, rel=1e-12)
    assert result["provenance"] == "measured"


def test_the_period_is_the_closed_form_of_1f1b_after_the_frozen_part(folders, capsys):
    main(command(folders["sd21"], 4, 3))
    result = json.loads(capsys.readouterr().out)
    samples, per_sample_s = 12 * 4, (FORWARD_MS + BACKWARD_MS) * LAYERS / 4 / 1000
    pipeline_s = (3 + 4 - 1) * samples * per_sample_s
    frozen_s = FROZEN_SHARES["sd21"] * 3 * samples * per_sample_s
    assert result["iteration_s"] == pytest.approx(pipeline_s + frozen_s, rel=1e-12)
    assert result["samples_per_s"] == pytest.approx(144 / (pipeline_s + frozen_s), rel=1e-12)
    assert result["p2p_bytes"] == result["collective_bytes"] == 0
    assert [(s["first_layer"], s["last_layer"]) for s in result["stages"]] == [
        (0, 2),
        (3, 5),
        (6, 8),
        (9, 11),
    ]


def test_a_shell_sees_the_same_numbers(folders, capsys):
    arguments = command(folders["controlnet"], 4, 1)
    done = subprocess.run(
        [sys.executable, "-m", "sim", *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert main(arguments) == 0
    assert done.stdout == capsys.readouterr().out
