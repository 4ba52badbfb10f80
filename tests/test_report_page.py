"""The report, and the figure of published numbers."""

import pytest

from validate.__main__ import main
from validate.published import pulse, report
from validate.published.figure import plot_published, plot_published_info
from validate.published.ledger import Ledger, all_training
from validate.published.records import Standing
from validate.published.report import sampling_ledger
from validate.published.runs import runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained():
    """The ledger of training of which one table is predicted."""
    return Ledger(tuple(all_training(pulse.volumes())))


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


def test_the_report_is_one_file_that_holds_every_kind_of_table(tmp_path, monkeypatch):
    """What takes time is cut short."""
    few = runs(lambda row: row.num_gpus == 2 and row["model"] == "PixArt-alpha")
    monkeypatch.setattr(report, "EXPERIMENTS", (pulse.volumes,))
    monkeypatch.setattr(report, "all_runs", lambda: few)
    assert main(["report", "--output", str(tmp_path / "report.md")]) == 0
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for title in (
        "Closed forms: ",
        "gpipe: seconds: ",
        "Not independent: ",
        "By source: ",
        "Every published number: ",
    ):
        assert f"\n### {title}" in text
    assert "| torch |" in text and "http" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
