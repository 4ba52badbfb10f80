"""The report and its figure: self-contained, escaped, nothing half-written; values of the figure by value."""

import json
import re

import pytest

from validate.__main__ import main
from validate.published import report as training_report
from validate.published import volumes
from validate.published.accounts import LATENCY, Standing, sampling_accounts, training_accounts
from validate.published.figure import Mark, plot_published, plot_published_info
from validate.published.rows import Prediction, published
from validate.published.sampling_scenes import predictions
from validate.reporting import report
from validate.reporting.measured import read_measured
from validate.reporting.page import Chapter, page
from validate.reporting.report import cells, device_fits

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def training():
    """Accounts of training of which one table is predicted."""
    return training_accounts(volumes.pipeline_volumes().predictions)


@pytest.fixture(scope="module")
def sampling():
    """Accounts of sampling on one and two GPUs."""
    return sampling_accounts(predictions(lambda row: row.num_gpus in (1, 2)))


# The figure.


def test_each_number_is_drawn_once_by_its_base_prediction():
    (row,) = published("VII-B")
    accounts = training_accounts([Prediction(row, 2.0), Prediction(row, 9.0, "another")])
    info = plot_published_info(accounts)
    assert info.training == [Mark("PULSE, sections IV to VII", row.value, 2.0, False)]
    assert info.sampling == []


def test_bounds_are_not_drawn_and_numbers_of_a_fit_are_marked():
    below = published("Fig. 14")[0]
    fitted = published("Table 1", model="sd21")[0]
    seconds = published("Table 5")[0]
    found = [Prediction(below, 0.01), Prediction(fitted, 0.4, "x", "sets rates"), Prediction(seconds, 0.1)]
    info = plot_published_info(training_accounts(found))
    assert [(mark.group, mark.fitted) for mark in info.training] == [("DiffusionPipe, Tables 1 and 2", True)]


def test_latencies_are_drawn_but_for_those_that_predictions_start_from(sampling):
    info = plot_published_info(sampling)
    judged = [one for one in sampling if one.standing is Standing.JUDGED and one.quantity == LATENCY]
    links = [one for one in sampling if one.standing is Standing.FITTED and one.num_gpus == "2"]
    assert judged
    assert links
    drawn = {(mark.published, mark.predicted, mark.fitted) for mark in info.sampling}
    expected = [*((one, False) for one in judged), *((one, True) for one in links)]
    assert drawn == {(one.published, one.predicted, fitted) for one, fitted in expected}


def test_the_figure_is_logarithmic_and_counts_what_was_judged(training, sampling):
    figure = plot_published([*training, *sampling])
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log"]
    judged = [mark for mark in plot_published_info(sampling).sampling if not mark.fitted]
    near = sum(abs(mark.error) <= 0.15 for mark in judged)
    assert f"{near} of {len(judged)} judged within" in figure.axes[1].get_title(loc="left")
    names = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert names[0].startswith("DistriFusion, paper (")
    assert len(plot_published(training).axes) == 1


def test_a_figure_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, capsys):
    for path, message in (("x.txt", "must end in"), (str(tmp_path / "no" / "x.png"), "is no folder")):
        assert main(["published", "--figure", path]) == 2
        assert message in capsys.readouterr().err


def test_the_command_draws_the_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_report, "print_published", lambda: [])
    monkeypatch.setattr(
        "validate.published.print_published", lambda: list(volumes.pipeline_volumes().predictions)
    )
    path = tmp_path / "figure.svg"
    assert main(["published", "--task", "train", "--figure", str(path)]) == 0
    assert path.read_text().startswith("<?xml")


# The page.


@pytest.fixture(scope="module")
def short():
    """The report's chapters that take no time, and the others cut short."""
    patch = pytest.MonkeyPatch()
    patch.setattr(training_report, "SECTIONS", (volumes.reduction_volumes,))
    patch.setattr(training_report.made, "__defaults__", ((volumes.reduction_volumes,),))
    patch.setattr(
        report.sampling_report,
        "every_prediction",
        lambda: predictions(lambda row: row.num_gpus == 2 and row["model"] == "PixArt-alpha"),
    )
    yield
    patch.undo()


@pytest.fixture(scope="module")
def written(short, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rows = [{"schedule": "gpipe <b>", "measured_s": 1.23456789, "predicted_s": 1.2}]
    (folder / "runs.json").write_text(json.dumps({"mode": "replay", "runs": rows}))
    (folder / "links.toml").write_text('name = "made"\n[intra_node]\nlatency_us = 3.5\n')
    (folder / "times.csv").write_text("component,index,forward_ms\nunet,0,1.5\n")
    files = [f"--{kind}={folder / name}" for kind, name in (("runs", "runs.json"), ("links", "links.toml"))]
    path = folder / "report.html"
    assert main(["report", "--output", str(path), *files, "--times", str(folder / "times.csv")]) == 0
    return path


def test_the_report_holds_every_chapter(written):
    text = written.read_text(encoding="utf-8")
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert headings == [
        "Closed forms",
        "Predicted against published",
        "Published: training",
        "Published: sampling",
        "Device fits",
        "Measured times",
        "Measured links",
        "Executed schedules",
        "How this was made",
    ]
    for title in ("By source and method: ", "Not judged: ", "By source: "):
        assert f"<h3>{title}" in text
    assert "1.23457" in text
    assert "intra_node" in text
    assert "forward_ms" in text


def test_the_report_is_one_file_that_loads_nothing(written):
    text = re.sub(r"base64,[^\"]*", "", written.read_text(encoding="utf-8"))
    assert 'src="data:image/svg+xml;' in text
    assert "http" not in text
    assert "<script" not in text
    assert [path.name for path in written.parent.iterdir() if path.name.startswith(".")] == []


def test_texts_are_escaped(written):
    text = written.read_text(encoding="utf-8")
    assert "gpipe &lt;b&gt;" in text
    assert "gpipe <b>" not in text
    assert "<i>" not in page("<i>", [Chapter("<i>", "<i>")])


def test_every_device_that_was_fitted_is_reported_with_its_residuals():
    chapter = device_fits()
    (fit,) = (section for section in chapter.sections if section.title == "a100-80gb-sxm")
    assert list(fit.header)[:3] == ["source", "model", "pixels"]
    assert len(fit.rows) == 17
    assert "condition number" in fit.remark
    assert not any("[" in cell for row in fit.rows for cell in row)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "[]", "holds nothing to show"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.toml", "a = ", "is not valid TOML"),
        ("a.csv", 'a,b\n"1', "is not valid CSV"),
        ("a.txt", "a", "must end in .json, .csv, .toml"),
    ],
)
def test_a_bad_file_of_measurements_is_one_line_and_nothing_is_written(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_text(text)
    output = tmp_path / "report.html"
    assert main(["report", "--output", str(output), "--runs", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    for path in (tmp_path / "report.txt", tmp_path / "no" / "report.html", tmp_path):
        assert main(["report", "--output", str(path)]) == 2
        assert "--output is" in capsys.readouterr().err


def test_rows_with_other_keys_share_a_table_and_deeper_ones_have_their_own(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text(
        json.dumps({"host": "x", "runs": [{"a": 1}, {"a": 2.5, "b": [1, 2]}], "deep": {"c": {"d": None}}})
    )
    tables = {section.title: section for section in read_measured(path)}
    assert list(tables) == ["runs.json", "runs.json, runs", "runs.json, deep, c"]
    assert tables["runs.json, runs"].rows == [["1", ""], ["2.5", "[1, 2]"]]


def test_cells_of_the_terminal_lose_their_markup():
    from rich.table import Table  # noqa: PLC0415  only here

    table = Table("a", "b")
    table.add_row("[bold]x[/bold]", "1")
    assert cells(table) == (["a", "b"], [["x", "1"]])
