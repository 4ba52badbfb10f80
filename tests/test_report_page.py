"""The report and its figure: self-contained, nothing half-written; values of the figure by value."""

import re

import pytest

from validate.__main__ import main
from validate.published import pulse, report
from validate.published.figure import plot_published, plot_published_info
from validate.published.ledger import Ledger, all_training
from validate.published.records import Standing
from validate.published.report import sampling_ledger
from validate.published.runs import runs
from validate.report import CHAPTERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained():
    """The ledger of training of which one table is predicted."""
    return Ledger(tuple(base for base, *_ in all_training(pulse.volumes())))


@pytest.fixture(scope="module")
def drawn():
    """The ledger of sampling on one and two GPUs with one model."""
    return sampling_ledger(runs(lambda row: row.num_gpus in (1, 2) and row["model"] == "PixArt-alpha"))


# The figure.


def test_the_figure_is_logarithmic_and_counts_what_was_judged(trained, drawn):
    figure = plot_published(trained + drawn)
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log"]
    judged = [one for one in plot_published_info(drawn)["sample"] if one.standing is Standing.INDEPENDENT]
    near = sum(abs(one.error) <= 0.15 for one in judged)
    assert f"{near} of {len(judged)} independent within" in figure.axes[1].get_title(loc="left")
    names = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert names[0].startswith("xDiT, the paper's charts (")
    assert len(plot_published(trained).axes) == 1


# The page.


@pytest.fixture(scope="module")
def short():
    """The report's chapters that take no time, and the others cut short."""
    patch = pytest.MonkeyPatch()
    patch.setattr(report, "EXPERIMENTS", (pulse.volumes,))
    few = runs(lambda row: row.num_gpus == 2 and row["model"] == "PixArt-alpha")
    patch.setattr(report, "all_runs", lambda: few)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def written(short, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.md"
    assert main(["report", "--output", str(path)]) == 0
    return path


def test_the_report_holds_every_chapter(written):
    text = written.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(CHAPTERS)
    for title in ("Not independent: ", "By source: "):
        assert f"\n### {title}" in text


def test_the_report_is_one_file_that_loads_nothing(written):
    text, pictures = re.subn(
        r"\(data:image/svg\+xml;base64,[\w+/=]*\)", "", written.read_text(encoding="utf-8")
    )
    assert pictures == 1
    assert "http" not in text
    assert [path.name for path in written.parent.iterdir()] == ["report.md"]
