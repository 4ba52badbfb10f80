"""Chrome traces: the schema that viewers need, and that they say what the trace says."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from sim.outcomes.parts import replay
from sim.replay.chrome_trace import write_chrome_trace
from sim.replay.memory import peak_memory_bytes
from strategies.registry import make as make_strategy


@pytest.fixture(scope="module")
def trace(make):
    """A filled pipeline with frozen layers, messages, collectives and optimizer steps; times that do not round."""
    encoder = make.component("encoder", [0.003, 0.004, 0.005], trainable=False, output_bytes=3e5)
    backbone = make.component(
        "backbone", [0.01 / 3] * 8, inputs=["encoder"], output_bytes=1e6, saved_bytes=4e6, parameters=1000
    )
    cluster = make.cluster(
        make.link(bandwidth=1e9, latency_s=7e-6), memory_bytes_per_s=1e8, slowdown=1.5, call_s=1e-5
    )
    scenario = make.scenario(make.model(encoder, backbone), cluster, 8, 64)
    parameters = {"pipeline_degree": 4, "micro_batches": 4, "group_size": 4}
    return replay(make_strategy("diffusionpipe", parameters), scenario)


@pytest.fixture(scope="module")
def events(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    write_chrome_trace(trace, path)
    return json.loads(path.read_text())["traceEvents"]


def of_phase(events, *phases):
    return [event for event in events if event["ph"] in phases]


def by_track(events):
    tracks = defaultdict(list)
    for event in of_phase(events, "X"):
        tracks[event["pid"], event["tid"]].append(event)
    return tracks


def nanoseconds(microseconds):
    return round(microseconds * 1e3)


def test_events_of_one_thread_never_overlap(events):
    for track in by_track(events).values():
        for before, after in pairwise(sorted(track, key=lambda event: event["ts"])):
            assert nanoseconds(before["ts"]) + nanoseconds(before["dur"]) <= nanoseconds(after["ts"])


def test_compute_events_are_the_ops_of_each_device(trace, events):
    tracks = by_track(events)
    for device, row in enumerate(trace.plan.order):
        own = tracks[device + 1, 1]
        assert [event["name"] for event in own] == [str(action) for action in row]
        assert [one["ts"] for one in own] == pytest.approx([1e6 * s for s in trace.starts[device]], abs=1e-3)
        ends = [event["ts"] + event["dur"] for event in own]
        assert ends == pytest.approx([1e6 * end for end in trace.ends[device]], abs=2e-3)
    assert {event["cat"] for event in of_phase(events, "X")} == {
        "forward", "backward", "frozen", "optimizer", "collective", "bubble",
    }  # fmt: skip


def test_each_arrow_leads_from_the_op_that_wrote_a_message_to_one_that_starts_after_it_arrived(trace, events):
    starts = {event["id"]: event for event in of_phase(events, "s")}
    ends = {event["id"]: event for event in of_phase(events, "f")}
    assert starts
    assert starts.keys() == ends.keys()
    assert len(of_phase(events, "s", "f")) == len(starts) + len(ends)
    tracks = by_track(events)
    for slot, start in starts.items():
        transfer = trace.wiring.transfers[slot]
        assert (start["pid"], ends[slot]["pid"]) == (transfer.source + 1, transfer.target + 1)
        assert start["args"]["bytes"] == ends[slot]["args"]["bytes"] == transfer.size_bytes
        assert nanoseconds(ends[slot]["ts"]) >= round(1e9 * trace.arrived[slot]) - 1
        for end in (start, ends[slot]):
            assert any(event["ts"] == end["ts"] for event in tracks[end["pid"], end["tid"]])


def test_the_memory_counter_reaches_the_peak_of_each_device(trace, events):
    peaks = defaultdict(float)
    for event in of_phase(events, "C"):
        peaks[event["pid"] - 1] = max(peaks[event["pid"] - 1], event["args"]["bytes"])
    assert [peaks[device] for device in range(4)] == peak_memory_bytes(trace).tolist()
