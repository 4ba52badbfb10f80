"""Names: what things are called besides, and what was meant by a name that nothing has."""

import re
import tomllib

import pytest

from profiles.architectures.models import load_model, model_names
from profiles.errors import DiffusimNote, InputError, near_or_all
from profiles.machines.clusters import cluster_names
from profiles.machines.devices import device_names
from profiles.names import ALIASES, aliases, known_name, unknown_name
from profiles.software.stacks import stack_names
from sim.serving.inputs import TRAFFIC
from strategies.registry import policies, strategies_of, strategy_named

NAMES = {
    "model": model_names(),
    "cluster": cluster_names(),
    "device": device_names(),
    "stack": stack_names(),
    "strategy": [*strategies_of("train"), *strategies_of("sample")],
    "mix": [path.stem for path in TRAFFIC.glob("*.toml")],
    "policy": [*policies()],
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
        ("model", "flux", "flux-dev"), ("model", "SD2.1", "sd21"), ("model", "Flux_1 Dev", "flux-dev"),
        ("model", "Qwen/Qwen-Image-Edit-2511", "qwen-image-edit-2511"),
        ("model", "stabilityai/stable-diffusion-3-medium-diffusers", "sd3-medium"),
        ("model", "Efficient-Large-Model/Sana_1600M_1024px_diffusers", "sana-1.6b"),
        ("cluster", "h100", "h100-ib"),
        ("stack", "torch.compile", "compiled"), ("strategy", "1F1B", "1f1b"),
    ],
)  # fmt: skip
def test_another_name_is_told_when_it_is_used(kind, other, name):
    with pytest.warns(DiffusimNote, match=f"^{kind} {other} is {name}$"):
        assert known_name(kind, other, NAMES[kind]) == name


def test_a_file_or_a_folder_goes_before_another_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flux").mkdir()
    with pytest.raises(InputError, match="no such file"):
        load_model("flux")
    (tmp_path / "zero-3").mkdir()
    assert strategy_named("zero-3", silent=True) == "zero3"


def test_an_unknown_name_of_the_hub_is_told_how_to_count_it_in_one_line():
    said = str(unknown_name("model", "owner/new-model", model_names()))
    assert said.startswith("model 'owner/new-model' is no path, and none that is shipped")
    assert "sim measure count --config config.json --output FOLDER" in said
    assert "\n" not in said


def test_a_name_that_several_begin_with_asks_which():
    wans = ", ".join(name for name in model_names() if name.startswith("wan"))
    several = f"model 'wan' stands for several: {wans}; choose one"
    assert str(unknown_name("model", "wan", model_names())) == several
    assert known_name("model", "wan", model_names()) is None


@pytest.mark.parametrize("slip", ["--gpu", "--modle"])
def test_a_slip_of_the_finger_gets_the_name_that_was_meant_alone(slip):
    assert re.fullmatch(r"did you mean --\w+\?", near_or_all(slip, ["--gpus", "--model", "--trace"]))
