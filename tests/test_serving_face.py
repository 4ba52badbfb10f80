"""Serving as users meet it: the command, its verdict, files, pictures and refusals."""

import csv
import json
import pickle
from dataclasses import replace
from itertools import count

import pytest

import sim
from sim.cli.main import main
from sim.report.serving import places, plan_words, serving_blocks, share_words
from sim.serving import answers
from sim.serving.options import ServingOptions

SERVICE = "height,width,frames,steps,gpus,batch,seconds\n" + "".join(
    f"1024,1024,1,28,{gpus},{batch},{batch * 4 / gpus}\n" for gpus in (1, 2) for batch in (1, 2)
)
TRACE = "arrival_s,height,width,frames,steps,latency_s\n0,1024,1024,1,28,4\n1,1024,1024,1,28,8\n9,1024,1024,1,28,5\n"


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name, text in (("service.csv", SERVICE), ("trace.csv", TRACE)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def asked(capsys, words):
    """Exit code, stdout and stderr of a question about the table of service times."""
    code = main(["serve", "--service", "service.csv", *words.split()])
    return code, *capsys.readouterr()


def test_the_verdict_says_plan_slo_latency_use_and_why(capsys):
    code, out, err = asked(capsys, "--gpus 2 --rate 0.2 --slo 9 --price 3.6")
    assert (code, err) == (0, "")
    lines = dict(line[2:-1].split(maxsplit=1) for line in out.splitlines() if line.startswith("│"))
    assert lines["best"].startswith("1 replica of 2 GPUs")
    assert lines["SLO"].startswith("held: ")
    assert lines["use"].startswith("2 GPUs busy ")
    row = json.loads(asked(capsys, "--gpus 2 --rate 0.2 --slo 9 --price 3.6 --json")[1])[0]
    assert f"${row['dollars_per_1000']:,.2f} per 1,000" in lines["use"]
    assert row["dollars_per_1000"] == pytest.approx(row["gpu_s_per_request"])  # a second costs 0.001 dollars
    shares = [int(word.rstrip("%,")) for word in lines["why"].split() if "%" in word]
    assert sum(shares) in (99, 100, 101)


WAN = {"model": "wan2.1-14b", "cluster": "h100-nvlink-8", "resolution": "832x480", "frames": 81, "steps": 50}
FEW = {"model": "flux-dev", "cluster": "h100-nvlink-8", "resolution": 512, "steps": 4}
GATHERED = {"single", "tensor", "ring", "ulysses", "allgather-kv"}  # a faster sync-patch is run by nothing


@pytest.mark.parametrize(
    ("question", "options", "strategies"),
    [
        (WAN, {"runtime": "sglang"}, {"single", "ring", "ulysses"}),  # two predictions one after the other
        (WAN, {"guidance": "parallel"}, {"ulysses", "allgather-kv", "tensor"}),  # which one GPU cannot make
        (FEW, {}, GATHERED),
    ],
)
def test_replicas_are_what_a_runtime_starts(question, options, strategies):
    plans = sim.serve(**question, gpus=8, rate=0.005, slo=300, policy="fcfs", **options)
    assert {of.plan.strategy for of in plans.outcomes} <= strategies
    assert sim.launch(plans.result).text


def test_a_replica_has_room_for_every_class_of_a_mix(files):
    classes = ((0.97, 512), (0.03, 2048))
    text = "".join(f"[[class]]\nshare = {share}\nresolution = {side}\n" for share, side in classes)
    (files / "mix.toml").write_text(text)
    served = {"mix": "mix.toml", "rate": 0.1, "policy": "fcfs", "replicas": "1x2", "duration": 1e4}
    sizes = {"cluster": "h100-nvlink-8", "gpus": 2, "steps": 4}
    found = sim.serve("flux-dev", memory="40GiB", **served, **sizes)
    assert found.best.plan.strategy == "tensor"  # the fastest at 512 pixels has no room for 2048
    assert dict(found.verdict.panel.lines)["classes"].startswith("2048, 4 steps: p50 ")
    assert found.question.site.run_s(2, found.question.kinds[1].shape) < 10
    assert "requests of 2 shapes" in found.title


def test_what_all_requests_hold_together_but_a_class_does_not_says_so(files):
    times = "".join(f"{side},{side},1,28,1,1,{seconds}\n" for side, seconds in ((512, 1), (1024, 4)))
    (files / "service.csv").write_text(f"{SERVICE.splitlines()[0]}\n{times}")
    classes = ((0.95, 512, 100), (0.05, 1024, 4.5))
    each = "[[class]]\nshare = {}\nresolution = {}\nsteps = 28\nslo = {}\n"
    text = "".join(each.format(*of) for of in classes)
    (files / "mix.toml").write_text(text)
    for duration, draws in ((1e5, ""), (1e4, " and other random draws may miss")):
        found = sim.serve(service="service.csv", mix="mix.toml", gpus=1, rate=0.15, duration=duration)
        lines = dict(found.verdict.panel.lines)
        assert lines["SLO"].startswith(f"held, but not by every class{draws}: 99.")
        assert lines["classes"].startswith("1024, 28 steps: ")
    assert [*map(share_words, (0.98951, 0.99, 0.9999, 1e-5))] == ["98.9%", "99.0%", "99.9%", "0.1%"]


def test_the_answer_says_levers_and_what_is_nearly_full():
    found = sim.serve(
        "flux-dev", "h100-nvlink-8", 2, rate=0.1, steps=4, precision="fp8", memory="26GiB", slo=9
    )
    lines = dict(line for line in found.verdict.panel.lines if line[0])
    assert found.title.endswith(", 4 steps, products in fp8, quality not modelled, what if memory 26GiB")
    assert "nearly full" in lines["memory"]
    assert lines["with room"].startswith("1 replica of 2 GPUs, ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--rate 0.2 --duration 75", "requests are too few to tell: 300 without a miss would"),
        ("--rate 0.2 --policy sjf", "no server orders so: it takes a dispatcher of your own before the"),
        ("--rate 0.2 --policy preemptive --duration 300", "no runtime known here does"),
        ("--rate 1 --policy fcfs", "*: the queue grows; over a longer --duration these are more"),
        ("--rate 1 --duration 60", "s of what came in 60.0 s: the queue grows, and with it the latency"),
        ("--rate 0.2", "plans, best first, by p99; those that miss the SLO last"),
        ("--rate 0.2 --slo-share 0.95", ", p95 "),
        ("--rate 0.2 --slo-share 0.5", " held s use per request"),
        ("--requests trace.csv --policy fcfs --replicas 2x1", "p50 4 s for 5 s (-20.0%)"),
        ("--gpus 1 --rate 0.0001", "fcfs = batcher 2"),
    ],
)
def test_the_answer_says_what_it_rests_on(capsys, words, says):
    assert says in " ".join(asked(capsys, f"--gpus 2 --slo 9 {words}")[1].replace("│", " ").split())


def test_a_server_is_started_with_all_its_flags_and_what_none_sets_is_said(capsys):
    words = "--model flux-dev --cluster b200-ib --gpus 2 --steps 4 --rate 1 --policy fcfs --replicas 2x1"
    assert main(["serve", *words.split(), "--precision", "nvfp4"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "runs in without --precision nvfp4: sglang, vllm-omni" in out
    assert "slower than said above" in out
    assert "a replica of 1 GPU: sglang serve --model-path black-forest-labs/FLUX.1-dev --num-gpus 1 " in out
    assert "--height" not in out
    assert main(["serve", *words.split(), "--runtime", "vllm-omni"]) == 0
    assert "a replica of 1 GPU: vllm serve black-forest-labs/FLUX.1-dev --omni " in capsys.readouterr().out


@pytest.mark.long
def test_of_several_prices_the_cheapest_is_told_and_why_a_cluster_has_no_plan(files):
    (files / "prices.toml").write_text("h100-nvlink-8 = 20\nl20-pcie-8 = 0.5\n")
    asks = {"rate": 2, "steps": 20, "policy": "fcfs", "price": "prices.toml", "duration": 300}
    found = sim.serve("pixart", "h100-nvlink-8,l20-pcie-8", "1-16", slo=4, **asks)
    label, words = found.verdict.panel.lines[0]
    assert (label, found.best.plan.cluster) == ("cheapest", "l20-pcie-8")
    assert words.endswith(f"fewer than {found.fewest_bound} of l20-pcie-8 cannot keep up, whatever the plan")
    assert found.fewest_bound == found.question.fewest_bound(2) > 2
    assert not any("no plan holds" in str(block) for block in serving_blocks(found))
    for slo, band in ((1.2, ""), (1.5, " (16 to more by the error of the step times)")):
        none = serving_blocks(sim.serve("pixart", "h100-nvlink-8,l20-pcie-8", "1-16", slo=slo, **asks))
        assert f"not possible: l20-pcie-8: no plan holds the SLO on up to 16 GPUs{band}" in none


def test_of_several_clusters_a_note_is_said_once(capsys, files):
    for name, steps in (("says", "steps = 9\n"), ("unsaid", "")):
        (files / f"{name}.toml").write_text(f"[[class]]\nshare = 1\n{steps}")
    words = "--model PixArt-alpha/PixArt-XL-2-1024-MS --cluster h100-nvlink-8,l20-pcie-8,h100-nvlink-8"
    assert (
        main(["serve", *words.split(), "--gpus", "1", "--rate", "0.1", "--slo", "9", "--duration", "300"])
        == 0
    )
    out, err = capsys.readouterr()
    assert err.count("is pixart") == 1
    assert "of h100-nvlink-8, l20-pcie-8, stack" in out.replace("│\n│          ", "")
    asks = ["serve", "--model", "uvit-h", *words.split()[2:], "--gpus", "1", "--rate", "1", "--slo", "9"]
    assert main(asks) == 0
    assert "--steps is 20, which is assumed: the file of uvit-h names none" in capsys.readouterr().err
    for more, assumed in ((("--steps", "30"), 0), (("--mix", "says.toml"), 0), (("--mix", "unsaid.toml"), 1)):
        assert main([*asks, *more]) == 0
        assert capsys.readouterr().err.count("assumed") == assumed


def test_files_are_written_before_the_answer_whose_reader_may_leave(capsys, files, monkeypatch):
    monkeypatch.setattr("sim.cli.commands.print_answer", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asked(capsys, "--gpus 2 --rate 0.2 --slo 9 --out requests.csv")
    assert (files / "requests.csv").stat().st_size


def test_a_load_above_capacity_is_a_warning_with_the_rate_that_holds(capsys):
    code, out, err = asked(capsys, "--gpus 2 --rate 1 --slo 9 --policy fcfs --json")
    assert code == 0
    best, limit = json.loads(out)[0], json.loads(out)[0]["limit_per_s"]
    assert err.startswith("sim: warning: 1/s is more than the 0.5/s that the best plan completes: its queue")
    assert "grows by 30 a minute" in err
    assert f"up to {limit:.3g}/s holds the SLO" in err
    assert best["attainment"] < 0.99
    below = json.loads(asked(capsys, f"--gpus 2 --rate {limit} --slo 9 --policy fcfs --json")[1])[0]
    assert below["attainment"] >= 0.99


def test_the_fewest_gpus_stand_beside_their_bound(capsys):
    out = asked(capsys, "--gpus 1-16 --rate 1 --slo 9 --policy fcfs")[1]
    (row, *_) = json.loads(asked(capsys, "--gpus 1-16 --rate 1 --slo 9 --policy fcfs --json")[1])
    assert row["gpus_bound"] == 4 <= row["plan"]["gpus"]
    assert f"{row['plan']['gpus']} GPUs; fewer than 4 cannot keep up, whatever the plan" in out
    fewer = asked(capsys, f"--gpus {row['plan']['gpus'] - 1} --rate 1 --slo 9 --policy fcfs --json")[1]
    assert all(one["attainment"] < 0.99 for one in json.loads(fewer))


def test_a_curve_has_ten_rates_of_each_plan_and_is_drawn(capsys, files):
    words = "--gpus 2 --rate 0.1-0.4 --slo 9 --policy fcfs --plot curve.png --report r.html --json"
    code, out, _ = asked(capsys, words)
    rates = [row["rate_per_s"] for row in json.loads(out) if row["plan"]["replicas"] == "2x1"]
    assert code == 0
    assert rates == pytest.approx([0.1 + 0.3 / 9 * step for step in range(10)])
    assert ServingOptions(rate="6-24/min").rates == ServingOptions(rate="360-1440/h").rates == (0.1, 0.4)
    assert (files / "curve.png").stat().st_size > 10_000
    page = (files / "r.html").read_text("utf-8")
    assert page.count("data:image/svg+xml") == 4
    assert "http://" not in page.split("base64,")[0]


def test_files_hold_the_requests_and_what_the_gpus_ran(capsys, files):
    words = "--gpus 2 --requests trace.csv --policy fcfs --replicas 2x1 --out r.csv --trace t.json"
    code, _, err = asked(capsys, words)
    assert code == 0
    assert "wrote r.csv" in err
    with (files / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["arrival_s", "start_s", "end_s", "shape", "slo", "held"]
    assert [(float(row["start_s"]), float(row["end_s"])) for row in rows] == [(0, 4), (1, 5), (9, 13)]
    events = json.loads((files / "t.json").read_text())["traceEvents"]
    assert sum(event["dur"] for event in events if event["ph"] == "X") == 12e6


def test_a_serving_shows_itself_in_notebooks():
    serving = sim.serve(service="service.csv", gpus=2, rate=0.2, slo=9)
    assert pickle.loads(pickle.dumps(serving)).to_json() == serving.to_json()
    assert str(serving.verdict).startswith("╭")
    assert "<table" in serving._repr_html_()
    degrees = {"ring_degree": 2, "pipeline_degree": 1, "receive": "before"}  # of no pipeline
    assert plan_words(replace(serving.best.plan, parameters=degrees)).endswith(", ring-degree 2")
    assert len(serving.requests()) == len(serving.best.log.jobs)
    none = sim.serve(service="service.csv", gpus=1, rate=3, duration=3, policy="fcfs")  # is done in 3 s
    for figure in (serving.plot(), none.plot(), sim.plots.plot_fleet(serving), sim.plots.plot_queue(serving)):
        assert figure.axes
    with pytest.raises(sim.InputError, match="a span of rates"):
        sim.plots.plot_rates(serving)


def test_each_replica_is_given_its_gpus_and_a_port_of_its_node():
    servers, alone = dict.fromkeys((2, 1), "vllm serve"), "CUDA_VISIBLE_DEVICES=2 vllm serve ... --port 8001"
    first, second = (f"CUDA_VISIBLE_DEVICES={k},{k + 1} vllm serve ... --port 800{k // 2}" for k in (0, 2))
    assert places((2, 1), 4, servers) == [f"on 1 node: {first}; {alone}"]
    assert places((2, 2), 3, servers) == [f"on each of 2 nodes: {first}"]
    assert places((2,) * 5, 4, servers) == [f"on each of 2 nodes: {first}; {second}", f"on 1 node: {first}"]


def test_the_help_fits_two_screens(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["serve", "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 100


def test_an_experiment_asks_the_same(capsys, files):
    (files / "q.toml").write_text('service = "service.csv"\ngpus = 2\nrate = 0.2\nslo = 9\n')
    assert main(["serve", "--experiment", "q.toml", "--json"]) == 0
    assert capsys.readouterr().out == asked(capsys, "--gpus 2 --rate 0.2 --slo 9 --json")[1]


@pytest.mark.parametrize("gpus", ["2", "1-4"])
def test_plans_that_are_known_are_printed_when_interrupted(capsys, monkeypatch, gpus):
    outcome, outcomes = answers._outcome, count()

    def find_three(*case):
        if next(outcomes) == 3:
            raise KeyboardInterrupt
        return outcome(*case)

    monkeypatch.setattr(answers, "_outcome", find_three)
    code, out, err = asked(capsys, f"--gpus {gpus} --rate 0.2 --slo 9")
    assert code == 130
    assert "plans, best first" in out
    assert "interrupted: the answer is of the 3 plans run so far" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--rate 0", "--rate is '0', must be a number above 0"),
        ("--rate 1-", "--rate is '1-', must be a number above 0"),
        ("--rate 9/day", "--rate is '9/day', must be a second, or such as 20/h or 5/min"),
        ("--rate 1 --slo 0", "--slo is '0', must be a number above 0"),
        ("--rate 1-2 --slo 9 --capacity", "--rate is '1-2', but --capacity looks for one rate"),
        ("--rate 1 --slo 0.1", "--slo is 0.1 s, but a request of 1024, 28 steps takes 2 s alone on the fast"),
        ("--rate 1 --duration 0.01", "--duration is too short: no request is counted"),
        ("--rate 1 --duration 0.01 --policy tetriserve", "--duration is too short: no request is counted"),
        ("--rate 1 --gpus 0", "--gpus is '0', must be from 1 to 4096"),
        ("--rate 1 --gpus 4-1", "--gpus is '4-1', must be from 1 to 4096, or a span such as 1-64"),
        ("--rate 1 --policy rssp --dispatch round-robin", "--dispatch is round-robin, but an elastic"),
        ("--rate 1 --gpus 3 --pools encoder=1,denoiser=1,decoder=1", "--pools needs seconds of each stage"),
        ("--rate 1 --gpus 8 --pools encoder=1,denoiser=2,decoder=1", "--gpus is 8, but --pools takes 4"),
        ("--requests trace.csv --duration 9", "--duration is given, but --requests says when they arrive"),
        ("--rate 1 --policy best", "unknown policy 'best'; choose from "),
        ("--rate 1 --max-batch 8 --policy sjf", "--max-batch is 8, but --policy sjf forms no batches"),
        ("--rate 1 --batch-wait 2 --policy sjf", "--batch-wait is 2, but --policy sjf forms no batches"),
        ("--rate 1 --max-batch 3 --gpus 1", "service.csv: has no row of height 1024"),
        ("--rate 1 --gpus 1 --replicas 1x2", "--gpus is 1, but 1x2 takes 2"),
        ("--rate 1 --replicas 5000x1", "--gpus is 5000, must be from 1 to 4096"),
        ("--rate 1 --policy rssp --replicas 2x1", "--replicas is '2x1', but --policy rssp divides the"),
        ("--rate 1 --price none.toml", "--price is 'none.toml', but the times of --service are of no"),
        ("--rate 1 --out r.txt", "--out is 'r.txt', must end in .csv\n"),
        ("--gpus 1-4 --slo 9 --arrivals closed:3", "--rate must be one number to find the fewest GPUs; a"),
        ("--rate 9 --gpus 1-4 --slo 9", "no plan holds the SLO on up to 4 GPUs; fewer than 36 cannot"),
        ("--requests unsorted.csv", "unsorted.csv:3: arrival_s is '0', must not be before the 1 above it"),
        ("--rate 1 --mix half.toml", "half.toml: share: those of all [[class]] add up to 0.5, must be 1"),
        ("--rate 1 --mix typo.toml", "typo.toml: unknown key class[0].res; known here: frames, guidance, r"),
        ("--rate 1 --price l20=2", "--price is 'l20=2', must be a number above 0, or a .toml file of prices"),
        ("--rate 1 --model sd21", "--model is given, but --service holds the times already"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, files, words, says):
    (files / "unsorted.csv").write_text("arrival_s,height,width,frames,steps\n1,64,64,1,1\n0,64,64,1,1\n")
    for name, more in (("half", ""), ("typo", "res = 512")):
        (files / f"{name}.toml").write_text(f"[[class]]\nshare = 0.5\n{more}\n")
    code, out, err = asked(capsys, words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"sim: error: {says}")


def test_a_class_may_name_the_size_of_a_video_and_an_slo_that_no_class_takes_is_told(capsys, files):
    (files / "each.toml").write_text('[[class]]\nshare = 1\nslo = 999\nresolution = "480p"\n')
    words = "--model wan2.1-1.3b --gpus 1 --rate 0.001 --slo 3 --mix each.toml --policy fcfs --duration 9000"
    assert main(["serve", *words.split()]) == 0
    out, err = capsys.readouterr()
    assert "832x480 pixels" in out and "--slo is given, but every class has an slo of its own" in err


@pytest.mark.parametrize(("file", "where"), [("sizes.csv", "sizes.csv:3"), ("sizes.toml", "sizes.toml")])
def test_a_size_that_the_model_cannot_have_is_refused_with_its_file_and_line(capsys, files, file, where):
    (files / "sizes.csv").write_text("arrival_s,height,width,frames,steps\n0,64,64,1,1\n1,1023,64,1,1\n")
    (files / "sizes.toml").write_text('[[class]]\nshare = 1\nresolution = "64x1023"\n')
    words = ["--requests", file] if file.endswith("csv") else ["--mix", file, "--rate", "1"]
    assert main(["serve", "--model", "pixart", "--gpus", "1", *words]) == 2
    assert capsys.readouterr().err.startswith(f"sim: error: {where}: resolution is 64x1023, but height(1023)")
