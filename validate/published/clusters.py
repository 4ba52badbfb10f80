"""Published throughput of training runs on real clusters beside the simulator's, each under the stack of the run.

``clusters.csv`` says how each run is simulated. What its source leaves open is assumed: MosaicML's A100s have 40 GB, as
in its first benchmark, whose encoders run under autocast (the later code encodes in half precision).
NVIDIA's code packs queries, keys and values for FlashAttention, and since 2024 may call Transformer Engine's attention
instead (NeMo 1.23.0 and 2.0.0, attention.py), which MLPerf 4.1 is assumed to do; channels-last brings apex's group
norm, in half precision. NeMo's ControlNet is taken to encode images in float32: its code of 2024 does so under
autocast, with which three of the four rows would come out a fifth to a third too fast. A run "in view" was known while
stacks were described; those that "set the rates" give the share of the laws that all kernels but attention reach on all
stacks: the geometric mean of what ``shared_rate`` finds. Attention's share is set by one-GPU latencies that are mostly
attention (``anchors``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Self

from profiles.architectures.models import Model, load_model
from profiles.files import Row, read_rows
from profiles.machines.clusters import cluster_names, load_cluster
from profiles.machines.devices import load_device
from profiles.software.stacks import FLAGS, Shares, Stack, load_stack
from sim import api

RUNS: Final = Path(__file__).parent / "clusters.csv"
COLUMNS: Final = (
    "name", "source", "model", "cluster", "device", "gpus", "strategy", "micro_batches", "batch", "resolution",
    "frozen", "ema", "stack", "changes", "role", "samples_per_s",
)  # fmt: skip
SETS: Final = "sets the rates"
ROLES: Final = (SETS, "in view", "independent")
BUT: Final = " but "
"""Stands between ``cached`` and the component that is not."""
NEWEST: Final = "newest-attention"
HALVINGS: Final = 20
"""Steps of the search for a share."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A published training run and how it is asked.

    Attributes:
        name: who ran what.
        source: where it is published.
        asked: arguments of ``sim.run`` except cluster and stack.
        cluster: name of the cluster.
        device: name of the device in it, where it is another.
        stack: of the software, with the changes that the run made to it.
        role: one of ``ROLES``.
        samples_per_s: published throughput.
        online: the frozen component that runs although the outputs of the others are cached; empty if none does.
    """

    name: str
    source: str
    asked: dict[str, str | int]
    cluster: str
    device: str
    stack: Stack
    role: str
    samples_per_s: float
    online: str = ""

    @classmethod
    def of(cls, row: Row) -> Self:
        """The run of a row."""
        numbers = {"gpus": "gpus", "micro_batches": "micro_batches", "batch_size": "batch"}
        texts = ("model", "strategy", "frozen", "ema")
        asked: dict[str, str | int] = {key: row.integer(column, 1) for key, column in numbers.items()}
        asked |= {key: row.text(key) for key in texts} | {"resolution": row.integer("resolution", 1)}
        asked["frozen"], _, online = row.text("frozen").partition(BUT)
        device, changes = row.cells(("device", "changes"))
        where = row.text("cluster"), device, changed_stack(row.text("stack"), changes)
        found = row.choice("role", ROLES), row.number("samples_per_s"), online
        return cls(row.text("name"), row.text("source"), asked, *where, *found)

    @property
    def device_name(self) -> str:
        """The device in the cluster; for a cluster that is not shipped, the cluster's name."""
        there = self.cluster in cluster_names()
        return self.device or (load_cluster(self.cluster).device.name if there else self.cluster)

    def predicted(self, stack: Stack | None = None, **other: str | int) -> float | None:
        """Simulated samples per second, under another stack or arguments if given; None if no such cluster ships."""
        if self.cluster not in cluster_names():
            return None
        cluster = load_cluster(self.cluster)
        if self.device:
            name = f"{self.cluster} of {self.device}"
            cluster = replace(cluster, name=name, device=load_device(self.device))
        asked = self.asked | other | {"model": self._model()}
        result = api.run(cluster=cluster, stack=stack or self.stack, **asked)  # type: ignore[arg-type]
        return result.samples_per_s

    def _model(self) -> Model:
        model = load_model(str(self.asked["model"]))
        runs = [replace(one, cacheable=one.cacheable and one.name != self.online) for one in model.components]
        return replace(model, components=tuple(runs))


def changed_stack(name: str, changes: str) -> Stack:
    """A shipped stack with some of its fields changed, such as ``norms=half channels_last=true``.

    ``newest-attention``: attention reaches the same share of its law on every device.
    """
    stack, kept = load_stack(name), changes.split()
    values: dict[str, str | bool] = {}
    for change in kept:
        key, _, value = change.partition("=")
        values[key] = value == "true" if key in FLAGS else value
    if values.pop(NEWEST, None) is not None:
        reached = stack.rates.attention
        stack = _rated(stack, lambda rates: replace(rates, attention=reached))
    return replace(stack, name=" ".join([name, *kept]), **values)  # type: ignore[arg-type]


def _rated(stack: Stack, change: Callable[[Shares], Shares]) -> Stack:
    """A stack whose rates are changed on every device."""
    on = tuple((device, change(rates)) for device, rates in stack.device_rates)
    return replace(stack, rates=change(stack.rates), device_rates=on)


@cache
def read_runs() -> tuple[ClusterRun, ...]:
    """The published runs in the order of their file."""
    return tuple(map(ClusterRun.of, read_rows(RUNS, COLUMNS)))


def shared_rate(run: ClusterRun) -> float:
    """Share of the laws, the same for all kernels but attention, at which a run takes as long as published."""

    def at(share: float) -> Stack:
        return _rated(run.stack, lambda of: replace(of, matmul=share, conv=share, memory=share))

    low, high = 0.1, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        predicted = run.predicted(at(middle))
        low, high = (middle, high) if (predicted or 0.0) < run.samples_per_s else (low, middle)
    return (low + high) / 2
