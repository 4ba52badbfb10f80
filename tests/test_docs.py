"""What the documents show is tested: their commands run, outputs are real, and strategies are the tested ones."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from making import brief

from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import load_device
from sim.cli.main import main
from validate.__main__ import make_parser

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/pages/**/*.md"))]
}
TUTORIAL = "docs/pages/tutorials/write_a_strategy.md"
HEAVY = ("index", "how_many_gpus", "serve", "train", "video", "bring_your_own", "long_sweeps")
"""Pages whose sweeps take longest; what they show is much like what README.md does."""
MEASURING = re.compile(r"(-m validate|sim measure) ")
"""Commands of `python -m validate`, whose parser also knows those of `sim measure`."""
RUN_ELSEWHERE = {
    "python -m pip install .",  # by CI
    "python -m pip install -e '.[test]' && python -m pytest",
    "python -m pytest tests/test_conformance.py -k pairs",  # by the conformance suite, which finds the toys
    "sim run --strategy pairs --help",
    "sim sweep --model sd21 --gpus 8 --strategy pairs,1f1b",
    "pip install 'diffusim[dask]'",  # by the tests of workers, with a local cluster
    "dask scheduler &",
    "dask worker tcp://HOST:8786 --nworkers 8 --nthreads 1",
    "sim sweep --model sd21 --gpus 512 --exhaustive --dask tcp://HOST:8786 --store sd21.sqlite",
}
WRITING = re.compile(r" > | --(out|store|report|gantt|trace|plot) ")
"""Commands that leave a file, which a later one may read."""
TYPED = re.compile(r"(sim|python|pip|torchrun|mpiexec|srun|dask|mkdocs) ")
"""Beginnings of commands."""


def text_of(page):
    return PAGES[page].read_text(encoding="utf-8")


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)


def commands(page):
    """The commands of a page, as they would be typed."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line]


def typed(text):
    """The lines of all fenced blocks of a text that are commands, whatever their language."""
    fences = re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = [
        (language, line.partition("  #")[0].strip())
        for language, body in fences
        for line in body.splitlines()
    ]
    return [line for language, line in lines if line and (language == "sh" or TYPED.match(line))]


def smaller(text):
    """The same in brief, on 8 GPUs in place of many, 2 nodes where their link counts, and as many samples on each."""
    text = brief(text.replace("8-64", "8-16"))
    text = re.sub(r"(sim\.sweep\((?!.*strategy)[^)]*?)gpus=", r"\1strategy='ddp,zero2', gpus=", text)
    many, few = re.search(r"gpus[ =](64|128)\b", text), 16 if "inter" in text else 8
    if many is None:
        return text
    text = re.sub(r"(gpus[ =])(?:64|128)\b", rf"\g<1>{few}", text).replace("gpus=[8, 16]", "gpus=[2, 4]")
    times = int(many[1]) // few
    return re.sub(r"(?<=--batch-size )\d+", lambda size: str(max(1, int(size[0]) // times)), text)


RUN = {command for page in PAGES for command in commands(page) if command.startswith("sim ")}
CHECKS = sorted(
    {command for page in PAGES for command in commands(page) if MEASURING.search(command)}
    | {
        command
        for page in PAGES
        for command in re.findall(r"`((?:python -m validate|sim measure) [^`]+)`", text_of(page))
    }
)


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_goes_without_a_test(page):
    assert set(typed(text_of(page))) <= RUN | RUN_ELSEWHERE | set(CHECKS)


def first_seen():
    """The commands of each page that no page before it has; the test of outputs runs those that are shown."""
    seen = set(re.findall(r"<!-- output[^:]*: ([^>]+?) -->", "".join(map(text_of, PAGES))))
    pages = {}
    for page in PAGES:
        lines = [one for one in commands(page) if one.startswith("sim ") and not MEASURING.search(one)]
        pages[page] = [one for one in lines if one not in seen | RUN_ELSEWHERE or WRITING.search(one)]
        seen |= set(lines)
    return {page: lines for page, lines in pages.items() if lines}


def listed(pages):
    """Pages as parameters of a test; that of some takes too long for ``.ci/run``."""
    return [pytest.param(page, marks=pytest.mark.long if Path(page).stem in HEAVY else ()) for page in pages]


@pytest.mark.slow
@pytest.mark.parametrize("page", listed(first_seen()))
def test_every_command_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """In order, in one folder: what a command writes, the next may read."""
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    for folder in ("mine", "sd21-here"):
        (tmp_path / folder).symlink_to(ROOT / "profiles/models/sd21")
    (tmp_path / "transformer").mkdir()
    configs = json.loads((ROOT / "profiles/measuring/counting/configs.json").read_text(encoding="utf-8"))
    (tmp_path / "transformer/config.json").write_text(json.dumps(configs["tiny_pixart"]))
    monkeypatch.chdir(tmp_path)
    for command in first_seen()[page]:
        words, _, target = command.partition(" > ")
        code = main(shlex.split(smaller(words))[1:])
        printed = capsys.readouterr()
        assert code == 0, f"{command}\n{printed.err}"
        assert printed.out
        if target:
            Path(target).write_text(printed.out, encoding="utf-8")


@pytest.fixture(scope="module")
def with_outputs():
    """The function of `python docs/generate.py outputs`, which runs a command of several pages once."""
    return runpy.run_path(str(ROOT / "docs/generate.py"))["with_outputs"]


@pytest.mark.slow
@pytest.mark.parametrize("page", listed(page for page in PAGES if "<!-- output" in text_of(page)))
def test_what_a_page_shows_is_what_its_commands_print(with_outputs, page):
    assert with_outputs(text_of(page)) == text_of(page)


def test_every_check_of_the_documents_is_a_command():
    parser = make_parser()
    assert len(CHECKS) > 8
    for command in CHECKS:
        words = shlex.split(MEASURING.split(command)[-1])
        try:
            parser.parse_args(words)
        except InputError as error:  # a command named without the flags that it needs
            assert len(words) < 3, error
            assert re.search("are required|is required$", str(error)), error


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", listed(page for page in PAGES if page != TUTORIAL and blocks(page, "python"))
)
def test_the_python_of_a_page_runs(page):
    for block in blocks(page, "python"):
        if "count(module" not in block:  # the reader's own module
            exec(compile(smaller(block), page, "exec"), {})


def test_the_page_of_winners_says_what_a_sweep_answers():
    """One cell of many: all of them take an hour."""
    question = ("sample", "pixart", "l20-pcie-8", 8)
    answers = json.loads((ROOT / "docs/pages/winners.json").read_text(encoding="utf-8"))
    known = {tuple(asked): answer for asked, answer in answers}
    shown = known[question]
    again = runpy.run_path(str(ROOT / "docs/winners.py"))["winner"](question)[1]
    assert again == shown | {"band": pytest.approx(shown["band"], rel=0.01)}  # bands follow the ledger


@pytest.mark.long
def test_a_script_that_the_tutorial_makes_of_a_strategy_runs(tmp_path):
    """A file, as a notebook is run from top to bottom."""
    strategy, _, sweep = blocks(TUTORIAL, "python")
    (tmp_path / "own.py").write_text(strategy + sweep + "print(sweep.best_of('pairs'))", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, tmp_path / "own.py"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "runner-up  pairs, P" in done.stdout
    assert "<Result sd21 by pairs, training on 8 GPUs of p4de, stack eager, batch " in done.stdout


@pytest.mark.parametrize("name", ["toy_pipeline.py", "toy_sampler.py"])
def test_the_strategies_of_the_tutorial_are_those_that_the_suite_tests(name):
    assert (ROOT / "tests/data" / name).read_text(encoding="utf-8") in blocks(TUTORIAL, "python")


def test_the_diff_of_a_strategy_is_the_one_that_the_suite_tests():
    code = (ROOT / "tests/data/toy_pipeline.py").read_text(encoding="utf-8")
    assert "".join(f"+{line}\n" for line in code.splitlines()) in text_of("docs/pages/contributing.md")


def test_the_device_and_the_cluster_that_a_page_shows_are_read(tmp_path):
    _, device, cluster, *_ = blocks("docs/pages/reference/files.md", "toml")
    (tmp_path / "device.toml").write_text(device, encoding="utf-8")
    (tmp_path / "cluster.toml").write_text(cluster, encoding="utf-8")
    assert load_device(str(tmp_path / "device.toml")).name == "my-gpu"
    assert load_cluster(str(tmp_path / "cluster.toml")).name == "mine"


def test_a_word_is_explained_once():
    words = re.findall(r"^\| ([^|]+) \|", text_of("docs/pages/reference/words.md"), re.MULTILINE)[1:]
    assert len(words) == len(set(words)) < 50


def test_every_link_and_picture_of_a_page_exists():
    for page, path in PAGES.items():
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text_of(page)):
            assert target.startswith("http") or (path.parent / target).exists(), f"{page}: {target}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path, monkeypatch):
    """With every other position of the playground's sliders."""
    build = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config").load_config(
        str(ROOT / "docs/mkdocs.yml"), site_dir=str(tmp_path), strict=True
    )
    (hooks,) = config.hooks.values()
    axes = {name: (title, values[::2], 0) for name, (title, values, _) in hooks.AXES.items()}
    monkeypatch.setattr(hooks, "AXES", axes)
    build.build(config)
    assert (tmp_path / "tutorials/train/index.html").exists()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert (tmp_path / "notebooks" / notebook.stem / "index.html").exists()
