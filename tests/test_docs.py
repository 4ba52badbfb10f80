"""What the documents show is tested: their commands run, their Python runs, their strategies are the tested ones."""

import re
import shlex
from pathlib import Path

import pytest

from profiles.errors import InputError
from sim.cli.main import main
from validate.__main__ import main as check
from validate.__main__ import make_parser

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/pages/**/*.md"))]
}
TUTORIAL = "docs/pages/tutorials/write_a_strategy.md"


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page].read_text(encoding="utf-8"), re.DOTALL)


def commands(page):
    """The commands of a page, as they would be typed."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line]


def words_and_target(command):
    """The words after ``sim``, and the file that the output goes to, if any."""
    words = shlex.split(command)
    if ">" in words:
        return words[1 : words.index(">")], words[-1]
    return words[1:], None


ASKING = [page for page in PAGES if any(command.startswith("sim ") for command in commands(page))]
MEASURING = re.compile(r"(-m validate|sim measure) ")
"""What measures needs GPUs, or files of the reader's; ``python -m validate`` knows the commands of ``sim measure``."""
CHECKING = [command for page in PAGES for command in commands(page) if MEASURING.search(command)]
IN_WORDS = sorted(
    {
        command
        for path in PAGES.values()
        for command in re.findall(r"`(python -m validate [^`]+)`", path.read_text(encoding="utf-8"))
    }
)
CHEAP = ("closed-forms", "sample --")
"""Beginnings of checks that take seconds; others need GPUs, files of the reader's, or minutes."""


def test_readme_and_tutorials_hold_commands():
    assert len(ASKING) > 5
    assert len(CHECKING) > 3


@pytest.mark.slow
@pytest.mark.parametrize("page", ASKING)
def test_every_command_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """In order, in one folder: what a command writes, the next may read."""
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    for own in ("mine", "sd21-here"):
        (tmp_path / own).symlink_to(ROOT / "profiles/models/sd21")
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        if not command.startswith("sim ") or MEASURING.search(command):
            continue
        words, target = words_and_target(command)
        code = main(words)
        said = capsys.readouterr()
        assert code == 0, f"{command}\n{said.err}"
        assert said.out
        if target:
            Path(target).write_text(said.out, encoding="utf-8")


def test_every_check_of_the_documents_is_a_command_of_validate():
    parser = make_parser()
    for command in (*CHECKING, *IN_WORDS):
        words = shlex.split(MEASURING.split(command)[-1])
        try:
            parser.parse_args(words)
        except InputError as error:  # named in words alone, as a flag may be that must be given
            assert command in IN_WORDS and len(words) < 3, error
            assert re.search(r"must be given$|is required$", str(error)), error


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in IN_WORDS if one.split(" validate ")[1].startswith(CHEAP)])
def test_a_check_that_takes_seconds_holds(command, capsys):
    assert check(shlex.split(command.split("-m validate ")[1])) == 0
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != TUTORIAL and blocks(page, "python")])
def test_the_python_of_a_page_runs(page):
    for block in blocks(page, "python"):
        if "count(module" not in block:  # the reader's own module
            exec(compile(block, page, "exec"), {})


@pytest.mark.parametrize("name", ["toy_pipeline.py", "toy_sampler.py"])
def test_the_strategies_of_the_document_are_those_that_are_installed_and_tested(name):
    assert (ROOT / "tests/data" / name).read_text(encoding="utf-8") in blocks(TUTORIAL, "python")


def test_no_word_of_the_glossary_is_explained_twice():
    glossary = PAGES["docs/pages/reference/words.md"].read_text(encoding="utf-8")
    words = re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)
    words = [word for word in words if word not in ("word", "---")]
    assert len(words) == len(set(words)) > 40


def test_every_link_and_picture_of_a_page_exists():
    for page, path in PAGES.items():
        assert "@@" not in path.read_text(encoding="utf-8"), f"{page}: a number is still to be filled in"
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert target.startswith("http") or (path.parent / target).exists(), f"{page}: {target}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    build = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config").load_config(
        str(ROOT / "docs/mkdocs.yml"), site_dir=str(tmp_path), strict=True
    )
    build.build(config)
    assert (tmp_path / "tutorials/train/index.html").exists()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert (tmp_path / "notebooks" / notebook.stem / "index.html").exists()
