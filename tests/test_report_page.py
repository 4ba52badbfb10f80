"""The report, and the figure of published numbers."""

import pytest

from validate.published import pulse
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
