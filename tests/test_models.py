"""Models: the shipped ones load, and a folder is read by the rules or refused in one line."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles.architectures.models import LAYER_COLUMNS, Read, Skip, load_model, model_names, read_model
from profiles.errors import InputError

MODEL = """\
name = "small"
title = "Small"
source = "made by a test"
dtype = "float16"
[reference]
height = 64
width = 32
[[components]]
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
FILES = {
    "model.toml": MODEL,
    "layers.csv": LAYERS,
    "exchanges.csv": EXCHANGES,
    "times/ideal.csv": TIMES,
}


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


def test_measured_times_are_sorted_by_layer_and_batch(tmp_path):
    ((device, times),) = read_model(write(tmp_path)).components[1].times
    assert device == "ideal"
    assert [(t.layer, t.batch_size) for t in times[:2]] == [(0, 1), (0, 2)]
    assert times[0].forward_s == pytest.approx(0.003)
    assert times[1].backward_s == pytest.approx(0.008)


def test_optional_keys_and_files_may_be_left_out(tmp_path):
    write(tmp_path, **{"model.toml": MODEL.replace("image_tokens = 0\ntext_tokens = 77\n", "")})
    (tmp_path / "exchanges.csv").unlink()
    (tmp_path / "times" / "ideal.csv").unlink()
    text = read_model(tmp_path).components[0]
    assert (text.image_tokens, text.text_tokens, text.carried_bytes, text.self_conditioning) == (1, 0, 0, 0)
    assert (text.exchanges, text.times) == ((), ())


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
    assert [component.tasks for component in model.components] == [
        ("train",),
        ("train", "sample"),
        ("sample",),
    ]
    for task, names in (("train", ["text", "unet"]), ("sample", ["unet", "decoder"])):
        assert [component.name for component in model.for_task(task).components] == names
    assert model.for_task("train").components == model.components[:2]


def test_inputs_that_a_task_lacks_fall_away(tmp_path):
    sampled = with_decoder(tmp_path).for_task("sample")
    assert [component.inputs for component in sampled.components] == [(), ("unet",)]
    assert (sampled.backbones, sampled.frozen, sampled.order) == ((0,), (1,), (0, 1))


def test_guidance_is_batched_unless_the_file_says_none(tmp_path):
    assert read_model(write(tmp_path)).guidance == "batch"
    distilled = MODEL.replace('dtype = "float16"', 'dtype = "float16"\nguidance = "none"')
    assert read_model(write(tmp_path, **{"model.toml": distilled})).guidance == "none"


def test_a_cut_carries_the_hidden_state_and_every_live_skip(tmp_path):
    unet = read_model(write(tmp_path)).components[1]
    assert [list(unet.live_skips(cut)) for cut in range(3)] == [
        [Skip(0, 3)],
        [Skip(0, 3), Skip(1, 2)],
        [Skip(0, 3)],
    ]
    assert [unet.cut_bytes(cut) for cut in range(3)] == [1e6 + 1e6, 2e6 + 1e6 + 2e6, 4e6 + 1e6]


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
    ("old", "new", "problem"),
    [
        ('"unet"', '"vae"', "reads[0].component is 'vae', must be one of text, unet"),
        ('"unet"', '"text"', "reads.component is 'text', must be a trainable component"),
        ('"text"', '"vae"', "reads[0].input is 'vae', must be one of text, unet"),
        ('"text"', '"unet"', "reads.input is 'unet', must be a frozen input of unet: text"),
        ("layer = 3", "layer = 4", "reads.layer is 4, must be a layer of unet, which has 0 to 3"),
        ("layer = 3", "layer = -1", "reads[0].layer is -1, must not be negative"),
        ("layer = 3", "layer = 1", "reads[1].layer is 1, stands twice with input 'text'"),
        ("layer = 3\n", "", "reads[0].layer is missing"),
        ("MB = 0.25", "MB = -1", "reads[0].MB is -1, must not be negative"),
        ("MB = 0.25", 'MB = "1"', "reads[0].MB is '1', must be a number"),
        ("MB = 0.25", "KB = 250", "reads[0].MB is missing"),
        ("MB = 0.25", "MB = 1\nKB = 1", "unknown key reads[0].KB; known here: MB, component, input, layer"),
    ],
)
def test_a_read_that_breaks_a_rule_is_refused_by_place_and_value(tmp_path, old, new, problem):
    assert old in READS
    with pytest.raises(InputError) as error:
        read_model(write(tmp_path, **{"model.toml": MODEL + READS.replace(old, new, 1)}))
    assert problem in str(error.value)


def test_a_frozen_component_that_is_no_input_cannot_be_read(tmp_path):
    text = MODEL.replace('inputs = ["text"]', "inputs = []") + READS
    with pytest.raises(
        InputError, match=r"reads.input is 'text', must be a frozen input of unet: it has none$"
    ):
        read_model(write(tmp_path, **{"model.toml": text}))


def test_frozen_components_come_in_the_order_of_their_inputs(tmp_path):
    later = MODEL.replace("inputs = []", 'inputs = ["late"]', 1).replace(
        "[[skips]]", '[[components]]\nname = "late"\ntrainable = false\n[[skips]]', 1
    )
    rows = LAYERS + "late,0,0,embed,10,none,0,1,0,2,3,0.5,0\n"
    times = TIMES + "late,0,1,1,0\n"
    model = read_model(write(tmp_path, **{"model.toml": later, "layers.csv": rows, "times/ideal.csv": times}))
    assert [model.components[i].name for i in model.frozen] == ["late", "text"]


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        # model.toml
        ("model.toml", "[reference]", "[reference", "model.toml: is not valid TOML: "),
        ("model.toml", 'name = "small"\n', "", "model.toml: name is missing"),
        ("model.toml", 'name = "small"', 'name = ""', "name is '', must not be empty"),
        ("model.toml", '"float16"', '"float8"', "dtype is 'float8', must be one of float16, bfloat16"),
        ("model.toml", "height = 64", 'height = "64px"', "reference.height is '64px', must be an integer"),
        ("model.toml", "width = 32", "width = 32\ndepth = 1", "unknown key reference.depth; known here: "),
        ("model.toml", "trainable = false", "trainable = 0", "components[0].trainable is 0, must be true or"),
        ("model.toml", 'name = "text"', 'name = "text"\ntasks = []', "components[0].tasks is [], must name some"),
        ("model.toml", 'name = "text"', 'name = "text"\ntasks = ["run"]', "tasks is ['run'], must name some of"),
        ("model.toml", 'name = "unet"', 'name = "unet"\ntasks = ["sample"]', "components[1].tasks is ['sample']"),
        ("model.toml", 'title = "Small"', 'title = "Small"\nguidance = "x"', "guidance is 'x', must be one of"),
        ("model.toml", "trainable = false\n", "", "components[0].trainable is missing"),
        ("model.toml", 'name = "unet"', 'name = "text"', "components[1].name is 'text', must not be the name"),
        ("model.toml", 'name = "unet"', 'name = "vae"', "skips[0].component is 'unet', must be one of"),
        ("model.toml", "carried_MB = 0.5", "carried_MB = -0.5", "components[1].carried_MB is -0.5, must not"),
        ("model.toml", "carried_MB = 0.5", "carried = 0.5", "components[1].carried; did you mean carried_MB? known"),
        ("model.toml", "_conditioning = 0.25", "_conditioning = 1.5", "self_conditioning is 1.5, must be at m"),
        ("model.toml", 'inputs = ["text"]', 'inputs = "text"', "inputs is 'text', must be a list of strings"),
        ("model.toml", 'inputs = ["text"]', 'inputs = ["vae"]', "inputs is 'vae', names no component; choose"),
        ("model.toml", 'inputs = ["text"]', 'inputs = ["text", "text"]', "inputs is 'text', stands twice"),
        ("model.toml", 'inputs = ["text"]', 'inputs = ["unet"]', "inputs form the cycle unet -> unet"),
        ("model.toml", "inputs = []", 'inputs = ["unet"]', "components.inputs form the cycle "),
        ("model.toml", "target = 3", "target = 4", "skips.target is 4, must be a layer of unet, which has 0 to"),
        ("model.toml", "target = 3", "target = 0", "skips[0].target is 0, must come after its source 0"),
        ("model.toml", "target = 3", "target = -1", "skips[0].target is -1, must not be negative"),
        ("model.toml", "source = 1\ntarget = 2", "source = 0\ntarget = 3", "skips[1].source is 0, stands twice"),
        # layers.csv
        ("layers.csv", ",saved_MB", "", "layers.csv:1: column saved_MB is missing"),
        ("layers.csv", "component,index", "index,component", "layers.csv:1: columns are index, component"),
        ("layers.csv", "3,0.5,0\n", "3,0.5\n", "layers.csv:2: the row has 12 cells, must have 13"),
        ("layers.csv", "2,3,0.5,0", "2,3,-0.5,0", "layers.csv:2: output_MB is -0.5, must not be negative"),
        ("layers.csv", "2,3,0.5,0", "2,3.5,0.5,0", "layers.csv:2: kernels is '3.5', must be an integer"),
        ("layers.csv", "text,0,0", "vae,0,0", "layers.csv:2: component is 'vae', must be one of text, unet"),
        ("layers.csv", "embed", "", "layers.csv:2: name is '', must not be empty"),
        ("layers.csv", "unet,1,1", "unet,0,1", "layers.csv:4: index is '0', must be 1: each component counts"),
        ("layers.csv", "unet,1,1", "unet,1,9", "layers.csv:5: block is '1', must not fall below the block"),
        ("layers.csv", "in,100,full", "in,100,half", "backward is 'half', must be one of full, input, none"),
        ("layers.csv", "embed,10,none", "embed,10,full", "backward is 'full', must not be full in a frozen"),
        ("layers.csv", "text,0,0,embed,10,none,0,1,0,2,3,0.5,0\n", "", "is 'text', has no row in layers.csv"),
        # exchanges.csv
        ("exchanges.csv", "halo", "hello", "exchanges.csv:2: kind is 'hello', must be one of key_value, halo"),
        ("exchanges.csv", "unet,2", "unet,9", "exchanges.csv:3: index is '9', must be below 4, the layers of"),
        ("exchanges.csv", "unet,0", "unet,3", "exchanges.csv:3: index is '2', must not fall below 3: a componen"),
        ("exchanges.csv", "key_value,4096,8", "key_value,4096,0", "exchanges.csv:3: heads is 0, must be at least 1"),
        ("exchanges.csv", ",heads", ",hats", "exchanges.csv:1: column heads is missing"),
        # times/ideal.csv
        ("times/ideal.csv", "text,0,1,1,0", "text,0,1,-1,0", "ideal.csv:2: forward_ms is -1, must not be neg"),
        ("times/ideal.csv", "text,0,1,1,0", "text,0,0,1,0", "ideal.csv:2: batch_size is 0, must be at least 1"),
        ("times/ideal.csv", "text,0,1,1,0", "text,5,1,1,0", "index is '5', must be below 1, the layers of text"),
        ("times/ideal.csv", "unet,0,2", "unet,0,1", "ideal.csv:4: batch_size is '1', stands twice for layer 0"),
        ("times/ideal.csv", "unet,3,1,1,2\n", "", "ideal.csv: layer 3 (out) of unet has no row"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_refused_by_file_place_and_value(read, name, old, new, problem):
    with pytest.raises(InputError) as error:
        read(name, old, new)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_trainable_component_needs_a_layer_that_trains(tmp_path):
    with pytest.raises(InputError, match=r"backward is 'input', must be full in at least one layer"):
        read_model(write(tmp_path, **{"layers.csv": LAYERS.replace("full", "input")}))


def test_a_model_without_components_is_refused(tmp_path):
    head = MODEL[: MODEL.index("[[components]]")]
    with pytest.raises(InputError, match=r"components is empty, must name at least one$"):
        read_model(write(tmp_path, **{"model.toml": head}))


def test_a_file_in_the_place_of_the_times_folder_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "times" / "ideal.csv").unlink()
    (tmp_path / "times").rmdir()
    (tmp_path / "times").write_text(TIMES)
    with pytest.raises(InputError, match=r"times: is not a folder; it holds one <device>.csv per device$"):
        read_model(tmp_path)


def test_a_model_needs_its_two_files(tmp_path):
    with pytest.raises(InputError, match=r"is not a model folder: it has no model\.toml$"):
        load_model(str(tmp_path))
    write(tmp_path)
    (tmp_path / "layers.csv").unlink()
    with pytest.raises(InputError, match=r"layers\.csv: no such file$"):
        load_model(str(tmp_path))


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        InputError, match=r"unknown model 'nope'; choose from .*sd21.* or pass a model folder$"
    ):
        load_model("nope")
    with pytest.raises(InputError, match=r"file: is not a folder; a model is a folder with model.toml and"):
        load_model(str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file name too long$"):
        load_model("a" * 300)


# Any damage

DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.integers(0, 8),
        st.one_of(
            st.binary(max_size=6),
            st.sampled_from(
                [b"-", b"nan", b"inf", b"1e999", b"9" * 20, b"9" * 5000, b"\n", b",", b'"', b"[", b"]", b"=",
                 b"\xff", b"\0", b"\r", b"full", b"none", b"[[skips]]\n", b"1979-05-27", b"\xe2\x80\xa8", b"{" * 2000]
            ),
        ),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip
"""Where, how many bytes are cut out there, and what is put in."""


@pytest.mark.parametrize("name", FILES)
def test_however_a_file_is_damaged_it_is_read_or_refused(tmp_path_factory, name):
    folder = write(tmp_path_factory.mktemp("damaged"))
    whole = FILES[name].encode()

    @settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(DAMAGE)
    def check(damage):
        data = whole
        for place, length, inserted in damage:
            start = place % (len(data) + 1)
            data = data[:start] + inserted + data[start + length :]
        (folder / name).write_bytes(data)
        try:
            read_model(folder)
        except InputError as error:
            assert str(folder) in str(error)

    check()
