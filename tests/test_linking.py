"""Links are measured between real processes, or read from logs, and come out as the cluster they were made of."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profiles.errors import InputError
from profiles.machines.clusters import Link, load_cluster, read_cluster
from profiles.machines.collectives import Group, bus_volume
from profiles.machines.fabrics import FULL, GATHERS, Between, Collectives
from profiles.measuring.fitting.collective_laws import PING_PONG, MeasuredCurve, errors_of, predict
from profiles.measuring.linking.report import (
    PCIE,
    cluster_text,
    fit_links,
    judged_line,
    write_cluster,
)
from profiles.measuring.linking.samples import Measurement, merged, read_log, read_logs
from profiles.measuring.linking.times import sizes_up_to
from sim.cli.main import main as sim
from validate.__main__ import main

pytestmark = pytest.mark.slow

DEVICE = "a100-80gb-sxm"
SIZES = np.array(sizes_up_to(2**26), float)
RING = ((2.0, 0.9), (4.0, 0.85), (8.0, 0.8))
CURVES = {
    "all_reduce": RING,
    "all_gather": ((2.0, 0.85), (4.0, 0.8), (8.0, 0.75)),
    "reduce_scatter": RING,
    "all_to_all": ((2.0, 0.9), (4.0, 0.8), (8.0, 0.7)),
    "send_recv": RING,
}


def flat(value):
    return tuple((operation, ((1.0, value),)) for operation in CURVES)


INSIDE = Collectives(0.0, tuple(CURVES.items()), FULL, flat(1.0), flat(38e-6), step_s=3e-6)
BETWEEN = Between(
    flat(0.8),
    ((2.0, 0.85),),
    tuple((operation, curve) for operation, curve in flat(2.0) if operation not in GATHERS),
    (*flat(38e-6)[:3], ("all_to_all", ((1.0, 80e-6),)), flat(38e-6)[4]),
    15e-6,
    5.0,
    tuple((operation, ((1.0, 11e-6),)) for operation in GATHERS),
)
KNOWN = replace(
    load_cluster("p4de"),
    max_nodes=4,
    overlap_slowdown=1.4,
    intra_node=Link("nvswitch", 250e9, 3e-6, 12e-6),
    inter_node=Link("nic", 40e9, 15e-6, 25e-6),
    collectives=replace(INSIDE, between=BETWEEN),
)
OPERATIONS = [*CURVES]


def made(cluster, operation, group):
    return MeasuredCurve(
        operation, group, SIZES, predict(cluster, MeasuredCurve(operation, group, SIZES, SIZES))
    )


def measured(cluster=KNOWN, operations=(PING_PONG, *OPERATIONS), nodes=(1, 2, 4), noise=0.0, outliers=0.0):
    """What a machine with these links would show, a little and sometimes much disturbed."""
    random = np.random.default_rng(7)
    curves = []
    for operation in operations:
        inside = [Group(size, 1) for size in ((2,) if operation == PING_PONG else (2, 4, 8))]
        across = [Group(2 if operation == PING_PONG else 8 * n, n) for n in nodes if n > 1]
        if operation == PING_PONG:
            across = across[:1]
        for group in inside + across:
            curves.append(made(cluster, operation, group))
            curves[-1].seconds[:] *= 1 + noise * random.standard_normal(len(SIZES))
            curves[-1].seconds[random.random(len(SIZES)) < outliers] *= 5
    return Measurement(8, max(nodes), "made by a test", tuple(curves), (1.3, 1.4, 1.9))


def assert_like(cluster, known, tolerance):
    """Links are the same; so are shares of ports, which priors draw at, a tenth more or less."""
    for link, right in ((cluster.intra_node, known.intra_node), (cluster.inter_node, known.inter_node)):
        if right is None:
            assert link is None
            continue
        assert link.bandwidth_bytes_per_s == pytest.approx(right.bandwidth_bytes_per_s, rel=tolerance)
        assert link.latency_s + link.call_s == pytest.approx(right.latency_s + right.call_s, rel=tolerance)
    laws = [(cluster.collectives, known.collectives)]
    laws += [(cluster.collectives.between, known.collectives.between)] if known.collectives.between else []
    for law, right in laws:
        assert law.step_s == pytest.approx(right.step_s, rel=0.1)
        for (operation, curve), (_, points) in zip(law.efficiency, right.efficiency, strict=True):
            assert [at for at, _ in curve] == [at for at, _ in points]
            assert [at for _, at in curve] == pytest.approx([of for _, of in points], rel=0.1), operation


def test_times_made_of_known_links_give_them_back():
    fit = fit_links(measured(), "known", DEVICE)
    assert_like(fit.cluster, KNOWN, 1e-3)
    assert fit.cluster.overlap_slowdown == 1.4
    assert errors_of(fit.cluster, measured().judges()).worst < 0.03
    assert not fit.notes


def test_rounds_that_were_held_back_judge_the_fit_and_do_not_enter_it(capsys):
    slower = tuple(curve._replace(seconds=2 * curve.seconds) for curve in measured().curves)
    measurement = replace(measured(), held_back=slower)
    fit = fit_links(measurement, "known", DEVICE)
    assert_like(fit.cluster, KNOWN, 1e-3)
    assert errors_of(fit.cluster, measurement.judges()).relative == pytest.approx(-0.5, abs=0.02)
    line = judged_line(measurement, fit.cluster)
    assert line.startswith("held back") and "median error 50.0 %, worst 5" in line
    line = judged_line(measured(), fit.cluster)
    assert line.startswith("nothing was held back: median error 0.")


# Pairs

BOX = replace(
    KNOWN,
    max_nodes=1,
    inter_node=None,
    intra_node=Link("pcie", 24e9, 3e-6, 12e-6, 8, 24e9, 24e9),
    collectives=replace(
        INSIDE, efficiency=tuple((of, ((2.0, 0.9), (4.0, 0.4), (8.0, 0.2))) for of in CURVES)
    ),
)
"""Eight cards whose ports are all that a message sees; what they share is in the efficiencies of groups."""


def with_pairs(cluster):
    """What a node with these links shows, the messages of every pair of neighbours among it."""
    pairs = 6 * (made(cluster, PING_PONG, Group(2, 1)),)
    return Measurement(8, 1, "made by a test", merged(pairs + measured(cluster, nodes=(1,)).curves))


def test_a_box_of_pcie_cards_gives_back_its_ports_and_what_groups_reach(tmp_path):
    fit = fit_links(with_pairs(BOX), "box", DEVICE, PCIE)
    assert_like(fit.cluster, BOX, 1e-3)
    link = write_cluster(tmp_path / "box.toml", cluster_text(fit, slowdown_measured=False)).intra_node
    assert (link.kind, link.switch_size) == (PCIE, 8)
    assert link.switch_bandwidth_bytes_per_s == link.host_bandwidth_bytes_per_s == pytest.approx(24e9, 1e-3)
    assert errors_of(fit.cluster, with_pairs(BOX).judges()).worst < 0.03


def test_noise_and_outliers_hardly_matter():
    fit = fit_links(measured(noise=0.02, outliers=0.08), "noisy", DEVICE)
    errors = errors_of(fit.cluster, measured().judges())
    assert errors.median < 0.02 and errors.worst < 0.2


def test_the_file_reads_back_as_what_was_fitted_and_simulates(tmp_path, capsys):
    path = tmp_path / "known.toml"
    fit = fit_links(measured(), "known", DEVICE)
    assert write_cluster(path, cluster_text(fit, slowdown_measured=True)) == read_cluster(path)
    assert_like(read_cluster(path), KNOWN, 1e-3)
    assert sim(["run", "--model", "sd21", "--cluster", str(path), "--strategy", "ddp", "--gpus", "16"]) == 0
    assert "known" in capsys.readouterr().out


HEADER = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 42.1\n#\n"


def log_text(operation, ranks=8, nodes=1):
    names = [
        f"#  Rank {rank:2} Group  0 Pid  {9000 + rank} on "
        f"     node{rank * nodes // ranks} device  {rank} [0x1b] NVIDIA A100"
        for rank in range(ranks)
    ]
    lines = []
    times_us = 1e6 * made(KNOWN, operation, Group(ranks, nodes)).seconds
    for size, time_us in zip(SIZES.astype(int), times_us, strict=True):
        rate = size / time_us / 1e3
        numbers = f"{time_us:9.2f} {rate:7.2f} {rate * bus_volume(operation, ranks):7.2f}      0"
        lines.append(f"{size:12} {size // 4:12}     float     sum      -1 {numbers} {numbers}")
    lines.insert(1, "node0:9000:9050 [0] NCCL INFO Channel 00/0 : 0[1b000] -> 1[43000] via P2P/IPC")
    return HEADER.format(ranks="\n".join(names)) + "\n".join(lines) + "\n" + FOOTER


TESTS = {name: name for name in ("all_reduce", "all_gather")}
TESTS |= {"all_to_all": "alltoall", "send_recv": "sendrecv"}


def write_logs(folder):
    paths = []
    for operation, test in TESTS.items():
        for ranks, nodes in ((2, 1), (4, 1), (8, 1), (2, 2), (16, 2), (32, 4)):
            if ranks != 2 or nodes == 1 or operation == "send_recv":
                paths.append(folder / f"{test}_perf-{ranks}-{nodes}.log")
                paths[-1].write_text(log_text(operation, ranks, nodes), encoding="utf-8")
    return paths


def test_logs_of_nccl_tests_give_the_links_they_were_made_of(tmp_path, capsys):
    output = tmp_path / "logs.toml"
    logs = [str(path) for path in write_logs(tmp_path)]
    options = ["links", "--nccl-tests", *logs, "--device", DEVICE, "--output"]
    assert main([*options, logs[-1]]) == 2
    assert "is one of the logs" in capsys.readouterr().err
    assert main([*options, str(output)]) == 0
    assert "reduce_scatter: not measured; as all_gather" in " ".join(capsys.readouterr().out.split())
    cluster = read_cluster(output)
    assert (cluster.devices_per_node, cluster.max_nodes, cluster.overlap_slowdown) == (8, 4, 1.0)
    curves = [curve for curve in read_logs([Path(log) for log in logs]).curves if curve.group.size > 2]
    assert errors_of(cluster, curves).median < 0.02


LOG = log_text("all_reduce")
BROKEN = {
    "cut in a row": (
        LOG[: LOG.index("1048576") + 60] + "\n" + FOOTER,
        r":22: has 6 columns, the header has 13",
    ),
    "foreign": ("step 1: loss 0.3\nstep 2: loss 0.2\n", r"all_reduce_perf.log: is no log of nccl-tests"),
    "of another test": (log_text("all_gather"), r":18: busbw is .* but all_reduce of 8 gives 1.75 \* "),
    "with wrong results": (LOG.replace("      0 ", "      3 ", 1), r":16: #wrong is 3"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_log_is_refused_in_one_line_that_names_file_and_line(fault, tmp_path, capsys):
    text, complaint = BROKEN[fault]
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        read_log(path)
    output = tmp_path / "never.toml"
    assert main(["links", "--nccl-tests", str(path), "--device", DEVICE, "--output", str(output)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not output.exists()
