"""Models: the shipped ones load, and a folder is read by the rules or refused in one line."""

import re

import pytest
from making import model_head, refused

from profiles.architectures.component_files import LAYER_COLUMNS
from profiles.architectures.components import Read, Skip
from profiles.architectures.models import load_model, model_names, read_model
from profiles.errors import InputError

MODEL = f"""{model_head("small", 64, 32)}[[components]]
name = "text"
trainable = false
inputs = []
image_tokens = 0
text_tokens = 77
[[components]]
name = "unet"
trainable = true
inputs = ["text"]
carried_MB = 0.5
self_conditioning = 0.25
[[skips]]
component = "unet"
source = 0
target = 3
[[skips]]
component = "unet"
source = 1
target = 2
"""
LAYERS = f"""\
{",".join(LAYER_COLUMNS)}
text,0,0,embed,10,none,0,1,0,2,3,0.5,0
unet,0,0,in,100,full,1,2,3,4,5,1,2
unet,1,1,down,200,full,1,2,3,4,5,2,2
unet,2,1,up,300,input,1,2,3,4,5,4,2
unet,3,2,out,400,full,1,2,3,4,5,8,2
"""
EXCHANGES = """\
component,index,kind,elements,heads
unet,0,halo,100,0
unet,2,key_value,4096,8
"""
TIMES = """\
component,index,batch_size,forward_ms,backward_ms
text,0,1,1,0
unet,0,2,4,8
unet,0,1,3,6
unet,1,1,1,2
unet,2,1,1,2
unet,3,1,1,2
"""
FILES = {"model.toml": MODEL, "layers.csv": LAYERS, "exchanges.csv": EXCHANGES, "times/ideal.csv": TIMES}


def write(folder, **changed):
    """Write the model folder, with some files changed."""
    (folder / "times").mkdir(exist_ok=True)
    for name, text in {**FILES, **changed}.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.fixture
def read(tmp_path):
    """A function that reads the folder after one replacement in one of its files."""

    def of(name, old, new):
        assert old in FILES[name]
        return read_model(write(tmp_path, **{name: FILES[name].replace(old, new, 1)}))

    return of


@pytest.mark.parametrize("name", model_names())
def test_every_shipped_model_loads_under_its_name(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert len(model.backbones) >= 1
    assert sorted(model.order) == list(range(len(model.components)))


def test_a_folder_is_read_into_seconds_and_bytes(tmp_path):
    model = load_model(str(write(tmp_path)))
    text, unet = model.components
    assert (model.name, model.height, model.width) == ("small", 64, 32)
    assert (text.trainable, text.image_tokens, text.text_tokens) == (False, 0, 77)
    assert (unet.inputs, unet.carried_bytes, unet.self_conditioning) == (("text",), 5e5, 0.25)
    assert [layer.name for layer in unet.layers] == ["in", "down", "up", "out"]
    assert [layer.block for layer in unet.layers] == [0, 1, 1, 2]
    assert unet.layers[1].attention_flop == 3e9
    assert unet.layers[1].moved_bytes == 4e6
    assert unet.parameters == 1000
    assert unet.skips == (Skip(0, 3), Skip(1, 2))
    assert [exchange.kind for exchange in unet.exchanges] == ["halo", "key_value"]
    assert (model.backbones, model.frozen, model.inputs_of(1)) == ((1,), (0,), (0,))


TASKS = """\
[[components]]
name = "decoder"
trainable = false
inputs = ["unet"]
tasks = ["sample"]
"""
SAMPLED = "decoder,0,0,all,10,none,0,1,0,2,3,0.5,0\n"


def with_decoder(folder):
    """Write the folder with a text encoder for training alone and a decoder for sampling alone; read it."""
    model = MODEL.replace('name = "text"', 'name = "text"\ntasks = ["train"]') + TASKS
    times = TIMES + "decoder,0,1,1,0\n"
    files = {"model.toml": model, "layers.csv": LAYERS + SAMPLED, "times/ideal.csv": times}
    return read_model(write(folder, **files))


def test_a_model_for_a_task_lacks_the_components_of_the_other(tmp_path):
    model = with_decoder(tmp_path)
    assert [of.tasks for of in model.components] == [("train",), ("train", "sample"), ("sample",)]
    for task, names in (("train", ["text", "unet"]), ("sample", ["unet", "decoder"])):
        assert [component.name for component in model.for_task(task).components] == names
    assert model.for_task("train").components == model.components[:2]


def test_a_cut_carries_the_hidden_state_and_every_live_skip(tmp_path):
    unet = read_model(write(tmp_path)).components[1]
    assert [list(unet.live_skips(cut)) for cut in range(3)] == [
        [Skip(0, 3)],
        [Skip(0, 3), Skip(1, 2)],
        [Skip(0, 3)],
    ]
    assert [unet.cut_bytes[cut] for cut in range(3)] == [1e6 + 1e6, 2e6 + 1e6 + 2e6, 4e6 + 1e6]


READS = """\
[[reads]]
component = "unet"
input = "text"
layer = 3
MB = 0.25
[[reads]]
component = "unet"
input = "text"
layer = 1
MB = 0.5
"""


def test_an_input_is_read_whole_by_the_first_layer_or_by_the_layers_that_are_named(tmp_path):
    model = read_model(write(tmp_path))
    assert model.components[1].reads == ()
    assert model.reads_of(1, 0) == ((0, 0.5e6),)
    model = read_model(write(tmp_path, **{"model.toml": MODEL + READS}))
    assert model.components[1].reads == (Read("text", 1, 0.5e6), Read("text", 3, 0.25e6))
    assert model.reads_of(1, 0) == ((1, 0.5e6), (3, 0.25e6))


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        # model.toml
        ("model.toml", "[reference]", "[reference", "model.toml: is not valid TOML: "),
        ("model.toml", 'name = "unet"', 'name = "text"', "model.toml: components names text twice"),
        ("model.toml", "carried_MB = 0.5", "carried = 0.5", "components[1].carried; did you mean carried_MB? known"),
        ("model.toml", 'inputs = ["text"]', 'inputs = ["vae"]', "inputs of unet is 'vae', must be one of"),
        ("model.toml", 'inputs = ["text"]', 'inputs = ["unet"]', "its components form the cycle unet -> unet"),
        ("model.toml", "target = 3", "target = 0", "skip: target is 0, must come after its source 0"),
        ("model.toml", "height = 64", "height = 64\nmultiple = 48", "reference.height is 64, must be a multiple of 48"),
        ("model.toml", "height = 64", "height = 64\nlargest = 32", "reference.height is 64, must be at most 32"),
        ("model.toml", "[reference]", "[training]\n[reference]", "model.toml: training.source is missing"),
        # layers.csv
        ("layers.csv", "2,3,0.5,0", "2,3,-0.5,0", "layers.csv:2: output_MB is -0.5, must not be negative"),
        ("layers.csv", "unet,1,1", "unet,0,1", "layers.csv:4: index is '0', must be 1: each component counts"),
        ("layers.csv", "embed,10,none", "embed,10,full", "text: trainable is False, but a layer's backward is full"),
        ("layers.csv", "text,0,0,embed,10,none,0,1,0,2,3,0.5,0\n", "", "is 'text', has no row in layers.csv"),
        ("layers.csv", "unet,0,0", "net,0,0", "layers.csv:3: component is 'net', must be one of text, unet"),
        # exchanges.csv
        ("exchanges.csv", "unet,2", "unet,9", "exchanges.csv:3: index is '9', must be below 4, the layers of"),
        # times/ideal.csv
        ("times/ideal.csv", "unet,3,1,1,2\n", "", "unet: times of ideal must be of each of its 4 layers"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_refused_by_file_place_and_value(read, name, old, new, problem):
    with refused(re.escape(problem)):
        read(name, old, new)


def test_a_file_in_place_of_the_folder_of_times_is_refused(tmp_path):
    folder = write(tmp_path)
    (folder / "times" / "ideal.csv").unlink()
    (folder / "times").rmdir()
    (folder / "times").touch()
    with pytest.raises(InputError, match=r"times: is not a folder; it holds one <device>.csv per device$"):
        read_model(folder)


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with refused(r"unknown model 'nope'; choose from .*sd21.* or pass a model folder or a config.json$"):
        load_model("nope")
    with pytest.raises(InputError, match=r"file: is not a folder; a model is a folder with model.toml and"):
        load_model(str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file name too long$"):
        load_model("a" * 300)
