"""The page of a report: what its figures hold, that it loads alone, and how it is written."""

import json
import re
import shutil

import pytest

import sim
from profiles.errors import InputError
from profiles.units import GIB, MILLISECOND
from sim.cli.main import main
from sim.report.page import run_page
from sim.report.plots import interactive
from sim.report.plots.charts import strategy_look
from sim.report.plots.interactive import parallel_figure, sweep_figure, trace_figure

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--use-angle=swiftshader")


@pytest.fixture(scope="module")
def trained():
    return sim.sweep("sd21", gpus=8, batch_size=64, strategy="ddp,zero2,diffusionpipe,1f1b,gpipe", workers=1)


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "diffusionpipe", gpus=8, pipeline_degree=4, micro_batches=8, batch_size=256)


# Figures.


def test_the_points_of_a_sweep_are_plotted_at_their_speed_and_memory(trained):
    figure = sweep_figure([trained], trained.best_point())
    traces = [one for one in figure.data if one.hoverinfo == "text"]
    points = [place for one in traces for place in zip(one.x, one.y, strict=True)]
    results = [point.result for point in trained if point.result is not None]
    assert sorted(points) == sorted((r.peak_memory_bytes / GIB, r.samples_per_s) for r in results)
    (ring,) = (trace for trace in figure.data if trace.name == "recommended")
    assert (ring.x[0], ring.y[0]) == (trained.best.peak_memory_bytes / GIB, trained.best.samples_per_s)
    text = next(trace for trace in figure.data if trace.name == trained.best.strategy).text
    assert any("GiB" in words and "ms" in words for words in text)


def test_a_marker_has_its_own_words_and_each_point_of_several_sweeps_is_there_once():
    asked = {"strategy": "ulysses,hybrid", "guidance": "none", "steps": 4, "workers": 1}
    sweeps = [sim.sweep("pixart", "p4de", gpus, **asked) for gpus in (2, 4)]
    assert sweeps[-1].best_point() is not next(iter(sweeps[-1]))
    figure = sweep_figure(sweeps, sweeps[-1].best_point())
    traces = [one for one in figure.data if one.hoverinfo == "text"]
    for one in traces:
        assert all(words.endswith(f"{x:.1f} GiB") for x, words in zip(one.x, one.text, strict=True))
    simulated = {of.identity for sweep in sweeps for of in sweep if of.result is not None}
    assert sum(len(one.x) for one in traces) == len(simulated)
    assert figure.layout.yaxis.type == "log"
    for one in traces:
        assert all(low < y < high for y, (low, high) in zip(one.y, one.customdata, strict=True))


def test_all_points_stand_once_over_parallel_axes_in_the_colour_of_their_strategy(trained):
    (lines,) = parallel_figure([trained]).data
    axes = {axis.label: axis for axis in lines.dimensions}
    assert list(axes) == [
        "strategy", "micro-batches", "pipeline", "group", "iteration in ms", "memory in GiB", "bubble in %"
    ]  # fmt: skip
    results = [point.result for point in trained if point.result is not None]
    assert sorted(axes["memory in GiB"].values) == sorted(r.peak_memory_bytes / GIB for r in results)
    times_ms = axes["iteration in ms"].values
    assert sorted(times_ms) == pytest.approx(sorted(r.iteration_s / MILLISECOND for r in results))
    names = [axes["strategy"].ticktext[place] for place in axes["strategy"].values]
    assert sorted(names) == sorted(result.strategy for result in results)
    colours = [colour for _, colour in lines.line.colorscale[::2]]
    assert [colours[int(place)] for place in lines.line.color] == [strategy_look(name)[0] for name in names]


def test_the_timeline_is_the_trace(result):
    figure, trace = trace_figure(result.trace), result.trace
    bars = [one for one in figure.data if one.type == "bar"]
    busy_ms = sum(sum(bar.x) for bar in bars if bar.name != "collective")
    spans = [end - start for device in range(trace.plan.num_devices) for start, end in trace.busy(device)]
    assert busy_ms == pytest.approx(sum(spans) / MILLISECOND)
    assert figure.layout.xaxis.range == (0.0, trace.end_s / MILLISECOND)
    for bar in bars:
        for device, start, length, words in zip(bar.y, bar.base, bar.x, bar.hovertext, strict=True):
            assert words.startswith(f"GPU {device}, {bar.name}")
            assert words.endswith(f"from {start:,.2f} ms, takes {length:,.3f} ms")


def test_many_bars_are_joined_without_losing_work(result, monkeypatch):
    whole = trace_figure(result.trace)
    monkeypatch.setattr(interactive, "MOST_BARS", 20)
    joined = trace_figure(result.trace)
    bars = [[one for one in figure.data if one.type == "bar"] for figure in (whole, joined)]
    count, busy = ([sum(map(of, one)) for one in bars] for of in (lambda b: len(b.x), lambda b: sum(b.x)))
    assert count[1] < count[0]
    assert busy[0] <= busy[1] * 1.001


# The file.


def test_texts_of_files_are_never_taken_for_markup(result):
    bad = '</script><script>window.hit=1</script><img src=x onerror="window.hit=1">'
    text = run_page(result, bad)
    assert "<img src=x" not in text
    assert "window.hit=1</script>" not in text


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path, result):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(InputError):
        result.write_report(tmp_path / "missing" / "r.html")
    with pytest.raises(InputError, match=r"^path is .*, must end in \.html$"):
        result.write_report(tmp_path / "page.pdf")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_a_sweep_of_the_command_line_writes_its_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["sweep", "--model", "sd21", "--gpus", "2-4", "--strategy", "ddp", "--report", "r.html"]
    assert main(asked) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "sim sweep --model sd21 --gpus 2-4 --strategy ddp --report r.html" in text
    out, err = capsys.readouterr()
    assert "sim: wrote r.html" in err
    took, low, high = re.search(r"speed +([\d,.]+ ms) an iteration \((\S+) to (\S+)\)", out).groups()
    assert f'<p class="number">{took} <small>an iteration</small></p>' in text
    assert f"({low} to {high})" in text
    assert f"<code>{re.search('start it: (.*)', out)[1]}</code>" in text.partition('<table class="lines">')[0]


def test_the_page_of_several_clusters_shows_the_points_of_each(tmp_path, capsys):
    asked = "--model pixart --cluster a100-nvlink-8,l20-pcie-8 --gpus 1 --steps 2"
    assert main(["sweep", *asked.split(), "--report", str(tmp_path / "r.html")]) == 0
    heads = re.findall("<h2>(.*?)</h2>", (tmp_path / "r.html").read_text(encoding="utf-8"))
    assert heads[0] == "Clusters" and {"Best points", "Best points on l20-pcie-8"} < {*heads}


HOVERED = """
const [done] = arguments, plot = document.querySelector("#figure-0");
setTimeout(() => done([plot.querySelector(".hoverlayer").textContent, plot.layout.shapes.length]), 1000);
"""


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver is installed")
@pytest.mark.slow
def test_pages_load_alone_in_a_browser_and_draw_all_figures(tmp_path, trained, result):
    from selenium import webdriver  # noqa: PLC0415  only where there is a browser
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415
    from selenium.webdriver.common.action_chains import ActionChains  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        for number, (answer, figures) in enumerate(((trained, 3), (result, 1))):
            answer.write_report(tmp_path / f"{number}.html")
            driver.get((tmp_path / f"{number}.html").as_uri())
            assert driver.execute_script("return document.querySelectorAll('.main-svg').length") >= figures
            assert driver.execute_script("return document.querySelectorAll('.figure img').length") == 1
            assert [line for line in driver.get_log("browser") if line["level"] == "SEVERE"] == []
            commands = driver.find_elements("css selector", "pre code")
            assert len(driver.find_elements("css selector", "pre button")) == len(commands) >= 1
            driver.execute_script("for (const of of document.querySelectorAll('pre button')) of.click()")
            if marks := driver.find_elements("css selector", "#figure-0 .scatterlayer .points path"):
                ActionChains(driver).move_to_element(marks[0]).perform()
                words = driver.execute_async_script(HOVERED)
                assert "GiB" in words[0] and words[1] > 0
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
            driver.refresh()
            assert driver.execute_script("return document.documentElement.scrollWidth") == phone["width"]
            driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    finally:
        driver.quit()
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not re.match("file:|data:|blob:|chrome", url)] == []
