"""The page of a report in a real browser: it loads alone, filters, fits a phone, and stays fluid with many points."""

import copy
import json
import re
import shutil
import time

import numpy as np
import pytest
from matplotlib.colors import to_hex

import sim
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.units import GIB, MILLISECOND
from sim.plots import plot_timeline
from sim.report.html import replayed
from sim.report.html.contents import DIGITS, sweep_contents, write_run_report, write_sweep_report
from sim.report.html.document import check_plotly, document, embedded, write_document
from sim.report.html.replayed import memory_of, timeline_of
from sim.report.numbers import band
from sim.report.views import Scaling

MANY = 20_000
SIZE = 8e6
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium and chromedriver is installed"
)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-sync", "--no-first-run", "--hide-scrollbars",
    "--metrics-recording-only", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--window-size=1200,1400",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    return sim.sweep("sd21", gpus=8, batch_size=64, strategy="ddp,zero2,diffusionpipe,1f1b,gpipe", workers=1)


@pytest.fixture(scope="module")
def drawn():
    return sim.sweep("pixart", "a100-nvlink-8", 4, resolution=1024, steps=8, workers=1)


@pytest.fixture(scope="module")
def scaling():
    return sim.sweep("sd21", gpus=[2, 4, 8], strategy="ddp,zero2", workers=1)


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "diffusionpipe", gpus=8, pipeline_degree=4, micro_batches=8, batch_size=256)


@pytest.fixture(scope="module")
def values(trained):
    return sweep_contents([trained], "sim sweep --model sd21 --gpus 8")


def many(values, count=MANY):
    """The values of a sweep with its simulated points so many times, each a little different."""
    found, generator = copy.deepcopy(values), np.random.default_rng(7)
    columns = found["points"]["columns"]
    simulated = [i for i, flag in enumerate(columns["simulated"]) if flag]
    rows = [simulated[i % len(simulated)] for i in range(count)]
    for key, column in columns.items():
        columns[key] = [column[i] for i in rows]
    for key in ("time", "speed", "memory"):
        columns[key] = [float(f"{value * generator.uniform(0.7, 1.3):.{DIGITS}g}") for value in columns[key]]
    found["points"] |= {"best": 0, "ties": [], "front": [0], "whiskers": list(range(50))}
    return found


# The values.


def test_a_report_holds_the_points_of_the_sweep(trained, values):
    points = values["points"]
    known = [point for point in trained.ranked() if point.reason is None]
    assert len(points["columns"]["time"]) == len(known)
    for i, point in enumerate(known):
        assert points["strategies"][points["columns"]["strategy"][i]]["name"] == point.name
        assert points["columns"]["simulated"][i] == (point.result is not None)
        if point.result is not None:
            assert points["columns"]["time"][i] == pytest.approx(point.result.iteration_s, rel=1e-4)
            assert points["columns"]["memory"][i] == pytest.approx(
                point.result.peak_memory_bytes / GIB, rel=1e-4
            )
            assert points["columns"]["low"][i] <= points["columns"]["time"][i] <= points["columns"]["high"][i]
    assert known[points["best"]] is trained.best_point()
    assert [known[i] for i in points["ties"]] == trained.ties()
    front = [known[i].result for i in points["front"]]
    speeds = [one.samples_per_s for one in front]
    assert speeds == sorted(speeds)
    assert [list(line) for line in values["lines"][:-1]] == [list(line) for line in trained.verdict.lines]


def test_the_timeline_is_the_trace(result):
    found, trace = timeline_of(result.trace), result.trace
    busy_ms = sum(sum(kind["took"]) for kind in found["kinds"] if kind["name"] != "collective")
    spans = [end - start for device in range(trace.plan.num_devices) for start, end in trace.busy(device)]
    assert busy_ms == pytest.approx(sum(spans) / MILLISECOND, rel=1e-5)
    assert found["devices"] == 4
    assert found["end_ms"] == trace.end_s / MILLISECOND
    assert not found["merged"]


def test_patches_have_the_colours_of_pictures_and_their_names():
    asked = {"resolution": 1024, "steps": 3, "warmup_steps": 1}
    traces = [
        sim.run("pixart", name, "a100-pcie-4", 4, **parameters, **asked).trace
        for name, parameters in (("pipefusion", {"patches": 8}), ("distrifusion", {}))
    ]
    found = []
    for trace in traces:
        drawn = {patch.get_label(): to_hex(patch.get_facecolor()) for patch in legend_of(trace)}
        kinds = {kind["name"]: kind["colour"] for kind in timeline_of(trace)["kinds"]}
        assert {name: colour.lower() for name, colour in kinds.items()}.items() <= drawn.items()
        found.append(kinds)
    assert found[0]["patch 3"] == found[1]["patch 3"]
    assert {"whole image", "patch 7"} <= found[0].keys()


def legend_of(trace):
    """The entries of the legend of a picture."""
    return plot_timeline(trace).legends[0].get_patches()


def test_neighbours_of_a_kind_become_one_bar_where_there_are_too_many(result, monkeypatch):
    whole = timeline_of(result.trace)
    monkeypatch.setattr(replayed, "MOST_BARS", 20)
    found = timeline_of(result.trace)
    count = {
        name: sum(len(kind["took"]) for kind in one["kinds"]) for name, one in (("a", whole), ("b", found))
    }
    assert found["merged"]
    assert count["b"] < count["a"]
    busy = [sum(sum(kind["took"]) for kind in one["kinds"]) for one in (whole, found)]
    assert busy[0] <= busy[1] * 1.001


def test_the_memory_of_all_kinds_adds_up_to_the_peak(result, monkeypatch):
    for limit in (replayed.MOST_TIMES, 50):
        monkeypatch.setattr(replayed, "MOST_TIMES", limit)
        found = memory_of(result.trace)
        total = np.sum([kind["sizes"] for kind in found["kinds"]], axis=0)
        assert max(total) == pytest.approx(result.peak_memory_bytes / GIB, rel=1e-4)
        assert found["peaks"][found["device"]] == max(found["peaks"])
        assert found["times"] == sorted(found["times"])
    assert {"weights", "optimizer", "saved activations"} <= {kind["name"] for kind in found["kinds"]}


def test_a_report_over_several_numbers_of_gpus_shows_the_scaling(scaling):
    assert isinstance(scaling, Scaling)
    found = sweep_contents(scaling.sweeps)["scaling"]
    assert found["gpus"] == [2, 4, 8]
    assert found["efficiency"][0] == 100
    assert found["speed"] == [sweep.best.samples_per_s for sweep in scaling]
    assert found["knee"] == scaling.knee.gpus
    assert all(
        low <= speed <= high
        for low, speed, high in zip(*(found[k] for k in ("low", "speed", "high")), strict=True)
    )


# The file.


def test_texts_of_files_are_never_taken_for_markup(trained):
    title = '</script><script>window.hit=1</script><img src=x onerror="window.hit=1"> {{PLOTLY}} & <b>'
    values = sweep_contents([trained]) | {
        "title": title,
        "lines": [["best", title]],
        "provenance": [["model", title]],
    }
    text = document(values)
    assert text.count("</script>") == 3
    assert "<img src=x" not in text
    assert json.loads(embedded(values)) == json.loads(json.dumps(values))
    assert not re.search(r"[<>&]", embedded(values))


def test_a_report_is_small_even_with_twenty_thousand_points(values):
    assert len(document(many(values)).encode()) < SIZE


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path, values):
    folder = tmp_path / "r.html"
    folder.mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_document(folder, values)


def test_reports_are_written_from_python(tmp_path, trained, scaling, result):
    for number, answer in enumerate((trained, scaling, result)):
        path = tmp_path / f"{number}.html"
        answer.write_report(path)
        assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_without_plotly_it_is_told_how_to_have_it(monkeypatch, tmp_path, result):
    monkeypatch.setattr("sim.report.html.document.PLOTLY", "no_such_module")
    with pytest.raises(InputError, match=r"^a report needs plotly: pip install 'diffusim\[report\]'$"):
        result.write_report(tmp_path / "r.html")
    with pytest.raises(InputError, match=r"^--report needs plotly: "):
        check_plotly("--report")


# The page.


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver  # noqa: PLC0415  only where there is a browser
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def opened(browser, path, *, width=1200, scheme="light"):
    """The page in the browser once all is drawn, and what was asked of the network."""
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    still = {"name": "prefers-reduced-motion", "value": "reduce"}  # or a pointer misses what scrolls away
    colors = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [still, colors]})
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.as_uri())
    wait(browser, "return document.body.dataset.ready === '1'")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def wait(browser, script, seconds=60):
    end = time.monotonic() + seconds
    while not browser.execute_script(script):
        assert time.monotonic() < end, script
        time.sleep(0.05)


def errors(browser):
    return [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory, trained, drawn, scaling, result):
    folder = tmp_path_factory.mktemp("pages")
    write_sweep_report([trained], folder / "trained.html", "sim sweep --model sd21 --gpus 8")
    write_sweep_report([drawn], folder / "drawn.html")
    write_sweep_report(scaling.sweeps, folder / "scaling.html")
    write_run_report(result, folder / "run.html")
    return folder


@NEEDS_BROWSER
@pytest.mark.slow
@pytest.mark.parametrize("name", ["trained", "drawn", "scaling", "run"])
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_a_page_loads_alone_without_an_error_at_any_width(browser, pages, name, width, scheme):
    asked = opened(browser, pages / f"{name}.html", width=width, scheme=scheme)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.execute_script("return document.documentElement.dataset.theme") == scheme
    sections = {"trained": 6, "drawn": 6, "scaling": 7, "run": 4}[name]
    assert (
        browser.execute_script("return document.querySelectorAll('section:not([hidden])').length") == sections
    )


def test_a_page_marks_what_is_not_recommended_as_pictures_do(drawn):
    points = sweep_contents([drawn])["points"]
    pale = {one["name"] for one in points["strategies"] if one["pale"]}
    assert pale == {point.name for point in drawn if point.result is not None and not point.recommended}
    assert pale
    figure = drawn.plot()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {one["label"] for one in points["strategies"] if one["name"] in pale} <= set(legend)
    assert {points["legend"][key] for key in ("band", "gpus", "recommended")} <= set(legend)
    alphas = {one.get_alpha() for one in figure.axes[0].collections if len(one.get_offsets()) > 0}
    assert points["legend"]["faded"] in alphas


def test_times_in_a_page_round_as_those_in_text(trained, drawn):
    for sweep, decimals, each in ((trained, 1, 1e3), (drawn, 3, 1)):
        points = [point for point in sweep.ranked() if point.status == "simulated"]
        shown = sweep_contents([sweep])["points"]["columns"]["time"]
        assert len(points) > 10
        for point, seconds in zip(points, shown, strict=False):
            words = f"{point.result.expected.duration_s * each:,.{decimals}f}"
            assert f"{seconds * each:,.{decimals}f}" == words


@NEEDS_BROWSER
@pytest.mark.slow
@pytest.mark.parametrize("name", ["trained", "drawn"])
def test_the_table_of_a_page_shows_times_as_text_does(browser, pages, request, name):
    opened(browser, pages / f"{name}.html")
    shown = browser.execute_script(
        "return [timed(POINTS.best), byId('rows').tBodies[0].textContent, words(POINTS.best)]"
    )
    best = request.getfixturevalue(name).best
    words = f"{best.latency_s:,.3f}" if name == "drawn" else f"{best.iteration_s * 1e3:,.1f}"
    assert shown[0] == words
    assert words in shown[1]
    between = band(best, "s" if name == "drawn" else "ms")
    assert f"{words}{between}" in shown[1]
    assert f"({between})" in shown[2]


@NEEDS_BROWSER
@pytest.mark.slow
def test_the_front_marks_bands_sizes_and_what_is_not_recommended(browser, pages, drawn):
    opened(browser, pages / "drawn.html")
    traces = browser.execute_script("""
        return byId('front').data.map((t) => [t.name, t.marker || {}])
            .map(([name, {opacity, size}]) => ({name, opacity, size}));
    """)
    by_name = {trace["name"]: trace for trace in traces if trace["name"]}
    points = sweep_contents([drawn])["points"]
    for one in points["strategies"]:
        if one["label"] in by_name:
            assert by_name[one["label"]]["opacity"] == (points["legend"]["faded"] if one["pale"] else 1)
    assert {points["legend"][key] for key in ("band", "gpus", "recommended")} <= set(by_name)
    sizes = {size for one in traces if isinstance(one["size"], list) for size in one["size"]}
    assert len(sizes) == len({point.result.num_gpus for point in drawn if point.result is not None})
    ends = browser.execute_script(
        "return [byId('front').layout.xaxis.range, byId('front').layout.yaxis.range]"
    )
    memory = [
        point.result.peak_memory_bytes / GIB for point in drawn if point.result and point.reason is None
    ]
    assert ends[0][0] < min(memory) < max(memory) < ends[0][1]


@NEEDS_BROWSER
@pytest.mark.slow
@pytest.mark.parametrize("name", ["trained", "drawn"])
def test_on_a_phone_every_entry_of_the_legend_is_seen(browser, pages, name):
    opened(browser, pages / f"{name}.html", width=360)
    cut = browser.execute_script("""
        const bars = [...document.querySelectorAll('.plot .legend .scrollbar')];
        return bars.filter((one) => one.getBBox().height > 0).length;
    """)
    assert cut == 0


@NEEDS_BROWSER
@pytest.mark.slow
def test_a_brush_filters_the_front_and_the_table(browser, pages, values):
    from selenium.webdriver import ActionChains  # noqa: PLC0415  only where there is a browser

    opened(browser, pages / "trained.html")
    whole = int(browser.execute_script("return document.body.dataset.left"))
    beyond = browser.execute_script("""
        return byId("parallel").data[0].dimensions.filter((d) => (d.tickvals ?? []).some(
            (at) => at < Math.min(...d.values) || at > Math.max(...d.values))).map((d) => d.label)""")
    assert beyond == []
    assert whole == sum(values["points"]["columns"]["simulated"])
    number = values["points"]["shown"].index("memory")
    axis = browser.find_elements("css selector", "#parallel .axis-brush .background")[number]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", axis)
    box = axis.rect
    chain = ActionChains(browser).move_to_element_with_offset(axis, 0, int(0.25 * box["height"]))
    chain.click_and_hold().move_by_offset(0, int(0.2 * box["height"])).release().perform()
    wait(browser, f"return Number(document.body.dataset.left) < {whole}")
    low, high = browser.execute_script("return Filters.ranges.memory[0]")
    columns = values["points"]["columns"]
    left = [i for i, m in enumerate(columns["memory"]) if columns["simulated"][i] and low <= m <= high]
    assert int(browser.execute_script("return document.body.dataset.left")) == len(left)
    drawn = browser.execute_script("""
        const shown = byId('front').data.filter((t) => t.customdata && t.visible !== 'legendonly');
        return shown.flatMap((t) => [...t.customdata]);
    """)
    assert sorted(drawn) == left
    assert browser.execute_script("return byId('memory-from').value !== ''")
    browser.execute_script("byId('reset').click()")
    wait(browser, f"return Number(document.body.dataset.left) === {whole}")


@NEEDS_BROWSER
@pytest.mark.slow
def test_the_keyboard_alone_filters_sorts_marks_zooms_and_changes_the_theme(browser, pages, values):
    from selenium.webdriver import Keys  # noqa: PLC0415  only where there is a browser

    opened(browser, pages / "trained.html")

    def press(selector, *keys):
        element = browser.find_element("css selector", selector)
        browser.execute_script("arguments[0].focus()", element)
        element.send_keys(*keys)

    columns, names = values["points"]["columns"], [one["name"] for one in values["points"]["strategies"]]
    press("#strategy-0", Keys.SPACE)
    without = sum(s != 0 for s, done in zip(columns["strategy"], columns["simulated"], strict=True) if done)
    assert int(browser.execute_script("return document.body.dataset.left")) == without
    rows = [
        cell.text.split(" ")[0]
        for cell in browser.find_elements("css selector", "#rows tbody td.words:nth-child(2)")
    ]
    assert rows
    assert names[0] not in rows
    press("#reset", Keys.ENTER)
    press("th[data-key=memory] button", Keys.ENTER)
    cells = browser.find_elements("css selector", "#rows tbody tr")
    index = browser.execute_script(
        "return [...document.querySelectorAll('#rows th')].findIndex(h => h.dataset.key === 'memory')"
    )
    memory = [float(row.find_elements("css selector", "td")[index].text) for row in cells]
    assert memory == sorted(memory)
    press("#rows tbody tr:nth-child(3) button", Keys.ENTER)
    assert browser.execute_script("return byId('front').data.some((trace) => trace.name === 'marked')")
    press("[data-zoom=in]", Keys.ENTER)
    wait(browser, "return byId('memory').layout.xaxis.range[0] > 0")
    spans = browser.execute_script("return ['timeline', 'memory'].map((id) => byId(id).layout.xaxis.range)")
    assert spans[0] == spans[1]
    press("[data-zoom=all]", Keys.ENTER)
    wait(browser, "return byId('memory').layout.xaxis.range[0] === 0")
    press("#theme", Keys.ENTER)
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert errors(browser) == []


@NEEDS_BROWSER
@pytest.mark.slow
def test_a_hostile_name_does_nothing(browser, trained, tmp_path):
    bad = '<img src=x onerror="window.hit=1">'
    values = sweep_contents([trained]) | {"title": bad, "lines": [["best", bad]], "provenance": [[bad, bad]]}
    values["points"]["strategies"][0]["name"] = bad
    values["points"]["columns"]["how"] = [bad] * len(values["points"]["columns"]["how"])
    write_document(tmp_path / "bad.html", values)
    opened(browser, tmp_path / "bad.html")
    assert errors(browser) == []
    assert browser.execute_script("return window.hit") is None
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0


@NEEDS_BROWSER
@pytest.mark.timed
def test_twenty_thousand_points_stay_fluid(browser, values, tmp_path):
    write_document(tmp_path / "many.html", many(values))
    start = time.monotonic()
    opened(browser, tmp_path / "many.html")
    assert time.monotonic() - start < 20
    took = browser.execute_async_script("""
        const done = arguments[arguments.length - 1], start = performance.now();
        Filters.ranges = {memory: [[20, 30]]};
        Filters.changed(false); // what a brush asks for; the axes follow it by themselves
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
    """)
    assert 0 < int(browser.execute_script("return document.body.dataset.left")) < MANY
    assert took < 1000
    assert errors(browser) == []


def test_a_sweep_of_the_command_line_writes_its_report(tmp_path, monkeypatch, capsys):
    from sim.cli.main import main  # noqa: PLC0415  beside the only test that needs it

    monkeypatch.chdir(tmp_path)
    asked = ["sweep", "--model", "sd21", "--gpus", "2-4", "--strategy", "ddp", "--report", "r.html"]
    assert main(asked) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "sim sweep --model sd21 --gpus 2-4 --strategy ddp --report r.html" in text
    assert "sim: wrote r.html" in capsys.readouterr().err
    assert main([*asked[:-1], "r.txt"]) == 2
    assert "--report is 'r.txt', must end in .html" in capsys.readouterr().err
    assert load_cluster("p4de").name in text


@pytest.mark.parametrize("name", ["page.pdf", "page"])
def test_a_report_that_is_no_page_is_refused_in_python_too(name, tmp_path):
    result = sim.run("sd21", "ddp", gpus=2)
    with pytest.raises(sim.InputError, match=r"^path is .*, must end in \.html$"):
        result.write_report(tmp_path / name)
    assert not (tmp_path / name).exists()
