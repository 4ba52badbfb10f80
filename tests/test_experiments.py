"""Experiments: a whole question in a file, which names itself where a key is wrong."""

import json
import tomllib

import pytest

import sim

pytestmark = pytest.mark.usefixtures("elsewhere")

QUESTION = """\
model = "sd21"
strategy = "diffusionpipe"
gpus = 8
batch-size = 64
pipeline_degree = 4
micro-batches = 8
link = ["intra=150GB/s"]
memory = "60GiB"
ema = true
json = true
"""


def write(folder, text, name="q.toml"):
    (folder / name).write_text(text, encoding="utf-8")
    return name


def test_an_experiment_asks_what_its_flags_ask(tell, elsewhere):
    file = write(elsewhere, QUESTION)
    flags = (
        "--model sd21 --strategy diffusionpipe --gpus 8 --batch-size 64 --pipeline-degree 4 --micro-batches 8"
        " --link intra=150GB/s --memory 60GiB --ema --json"
    )
    asked = tell("run", "--experiment", file)
    assert asked == tell("run", *flags.split())
    assert asked[0] == 0


def test_a_file_that_a_question_is_read_from_is_not_written(tell, elsewhere):
    file = write(elsewhere, QUESTION)
    problem = f"sim: error: --trace is '{file}', which --experiment reads\n"
    assert tell("run", "--experiment", file, "--trace", file) == (2, "", problem)
    assert (elsewhere / file).read_text(encoding="utf-8") == QUESTION


def test_flags_given_beside_an_experiment_go_before(tell, elsewhere):
    file = write(elsewhere, QUESTION)
    _, out, _ = tell("run", "--experiment", file, "--gpus", 16, "--link=intra=2x", "--ema=none")
    result = json.loads(out)
    options = result["options"]
    assert (result["num_gpus"], options["link"], options["ema"]) == (16, "intra=2x", "none")


@pytest.mark.parametrize(
    "asked",
    [
        "run --model sd21 --strategy zero2 --gpus 8 --frozen cached --nodes 2x4 --link inter=0.5x --measured step_s=2",
        "run --model pixart --strategy pipefusion --gpus 4 --layers 7,7,7,7 --include text_encoder",
        "sweep --model sd21 --gpus 4 --strategy ddp,zero2 --micro-batches 2 --objective memory",
        "sweep --model pixart --gpus 2 --steps 4 --strategy ring,ulysses",
    ],
)
def test_a_question_printed_as_an_experiment_gives_the_same_answer(tell, elsewhere, asked):
    code, question, err = tell(*asked.split(), "--print-experiment")
    assert (code, err) == (0, "")
    assert question.startswith(f"# sim {asked.split()[0]} --experiment FILE\n")
    tomllib.loads(question)
    before = tell(*asked.split(), "--json")
    assert tell(asked.split()[0], "--experiment", write(elsewhere, question), "--json")[:2] == before[:2]
    assert tell(asked.split()[0], "--experiment", "q.toml", "--print-experiment")[1] == question


def test_from_python_an_experiment_is_keywords(elsewhere):
    file = write(elsewhere, QUESTION.replace("ema = true\njson = true\n", ""))
    question = sim.load_experiment(file)
    assert question["batch_size"] == 64
    result = sim.run(**question)
    assert result.options["link"] == "intra=150GB/s"
    again = sim.load_experiment(write(elsewhere, json.dumps(result.to_json()), "again.toml"))
    assert sim.run(**again).to_json() == result.to_json()


REFUSED = [
    ("gpu = 8\n", "q.toml: unknown flag --gpu; did you mean --gpus?"),
    ('gpus = "many"\n', "q.toml: --gpus is 'many', must be an integer"),
    ("steps = 4\n", "q.toml: --steps is of sampling, ddp trains"),
    ("patches = 4\n", "q.toml: ddp has no parameter --patches; it has "),
    ("gpus = {a = 1}\n", "q.toml: 'gpus' is {'a': 1}, must be a word, a number or a list of them"),
    ("batch-size = 8\nbatch_size = 8\n", "q.toml: batch_size is given twice"),
    ("batch-size = true\n", "q.toml: --batch-size is 'true', must be an integer"),
    ('experiment = "q.toml"\n', "q.toml: experiment is 'q.toml', must be given on the command line: "),
    *(
        (f'{key} = "kept.csv"\n', f"q.toml: {key} is 'kept.csv', must be given on the command line: ")
        for key in ("dask", "gantt", "out", "plot", "report", "store", "trace")
    ),
    ("gpus = \n", "q.toml: is not valid TOML, must be flags in TOML, or the result of a run in JSON: "),
]


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_what_is_wrong_is_named_with_its_file(tell, elsewhere, text, problem):
    file = write(elsewhere, text)
    code, out, err = tell("run", "--model", "sd21", "--strategy", "ddp", "--experiment", file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"sim: error: {problem}")
    assert [path.name for path in elsewhere.iterdir()] == [file]


def test_what_is_wrong_on_the_command_line_is_not_blamed_on_the_file(tell, elsewhere):
    file = write(elsewhere, QUESTION)
    _, _, err = tell("run", "--experiment", file, "--gpus", 0)
    assert err == "sim: error: --gpus is 0, must be at least 1\n"
    _, _, err = tell("run", "--experiment", file, "--gpuz", 8)
    assert err.startswith("sim: error: unknown flag --gpuz; did you mean --gpus?")
