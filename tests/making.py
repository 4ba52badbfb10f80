"""Links and clusters made in code, a device as a file, and what is refused."""

import ast
import re
from contextlib import contextmanager

import pytest

from profiles.errors import InfeasibleError, InputError
from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.fabrics import OPERATIONS, Collectives
from profiles.machines.laws import Rates
from sim.explore.points import find_points
from sim.explore.search import run_sweep
from sim.explore.sweep import TOP
from sim.outcomes.runs import run_point
from sim.report.views import Sweep

FREE = Link("ideal", float("inf"), 0.0, 0.0)
DEVICE = """\
name = "my-gpu"
source = "a data sheet"
memory_GiB = 24

[rates]
conv_TFLOP_per_s = 100
matmul_TFLOP_per_s = 150
attention_TFLOP_per_s = 120
memory_GB_per_s = 800
kernel_us = 5

[rates.sources]
conv_TFLOP_per_s = "fitted"
matmul_TFLOP_per_s = "fitted"
attention_TFLOP_per_s = "fitted"
memory_GB_per_s = "fitted"
kernel_us = "fitted"
"""
"""A device file."""


def make_link(kind="nvswitch", bandwidth=float("inf"), latency_s=0.0, call_s=0.0, **pcie):
    """A link; without a bandwidth its messages hold no port."""
    return Link(kind, bandwidth, latency_s, call_s, **pcie)


def make_cluster(
    intra=FREE, inter=None, devices_per_node=64, max_nodes=None, slowdown=1.0, call_s=0.0, efficiency=1.0,
    memory_bytes=None, memory_bytes_per_s=None,
):  # fmt: skip
    """A cluster of devices named ideal; optimizer steps take time only where a memory rate is given."""
    rates = None
    if memory_bytes_per_s is not None:
        rates = Rates(1e12, 1e12, 1e12, memory_bytes_per_s, 0.0)
    return Cluster(
        name="made",
        source="made by a test",
        device=Device("ideal", "made by a test", memory_bytes, rates),
        devices_per_node=devices_per_node,
        max_nodes=max_nodes or (64 if inter else 1),
        overlap_slowdown=slowdown,
        intra_node=intra,
        inter_node=inter,
        collectives=Collectives(
            call_s, tuple((operation, ((1.0, efficiency),)) for operation in OPERATIONS), ((1.0, 1.0),)
        ),
    )


def model_head(name, height=64, width=None):
    """The first lines of a model file."""
    words = f'name = "{name}"\ntitle = "{name.title()}"\nsource = "made by a test"\ndtype = "float16"\n'
    return f"{words}[reference]\nheight = {height}\nwidth = {width or height}\n"


@contextmanager
def refused(match, kind=InputError):
    """What is refused, in one line that matches."""
    with pytest.raises(kind, match=match) as error:
        yield
    assert "\n" not in str(error.value)


def swept(scenario, objective=None, names=None, fixed=None, workers=1, top=TOP):
    """A sweep over the points of a scenario, by what its task is ranked by unless told otherwise."""
    objective = objective or ("latency" if scenario.task == "sample" else "throughput")
    sweep = Sweep(scenario, objective, (*find_points(scenario, names, fixed),), top)
    return run_sweep(sweep, workers=workers)


def simulated(sweep):
    """The points that were simulated, best first."""
    return [point for point in sweep.ranked() if point.status == "simulated"]


def simulate_everything(scenario):
    """Every point of every strategy, simulated without any bound."""
    points = [point for point in find_points(scenario) if point.strategy is not None]
    for point in points:
        try:
            point.result = run_point(point.strategy, scenario.on(point.num_gpus))
        except InfeasibleError as error:
            point.reason = str(error)
        else:
            point.reason = point.result.missing_memory
    return points


def brief(command):
    """A command that asks about two strategies, about 99 seconds of requests, or for one second, unless it says."""
    if command.startswith("sim sweep") and not re.search("--strategy|--experiment", command):
        return f"{command} --strategy {'single,ulysses' if '--steps' in command else 'ddp,zero2'}"
    times = {"sim serve": " --duration 99", "sim synthesize": " --time-limit 1"}
    return command + times.get(" ".join(command.split()[:2]), "")


def given_to(name, text):
    """The arguments of the only call of a name in some code."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    (made,) = (node for node in calls if getattr(node.func, "id", "") == name)
    return {item.arg: item.value for item in made.keywords}
