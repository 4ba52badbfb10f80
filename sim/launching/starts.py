"""Starts: points that a runtime is to run, and what starts them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from string import Template
from typing import Any, Final, NamedTuple

from profiles.software.runtimes import RUNTIMES, Runtime
from sim.outcomes.results import Result

PROMPT: Final = "a photo of an astronaut"
TEMPLATES: Final = RUNTIMES
"""Folder of the texts with gaps that start points, beside the rules of their runtimes."""


class Degrees(NamedTuple):
    """How the GPUs of a sampler are divided."""

    guidance: int
    pipeline: int
    ring: int
    ulysses: int
    tensor: int
    data: int


@dataclass(frozen=True, slots=True, repr=False)
class Launch:
    """What starts a point.

    Attributes:
        runtime: the name of what runs it.
        text: flags, a configuration or code.
        notes: what else there is to know, a line each.
        remarks: what its simulation said of the point, a line each.
    """

    runtime: str
    text: str
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Launch in {self.runtime}: {len(self.text.splitlines())} lines>"


@dataclass(frozen=True, slots=True)
class Start:
    """A point that a runtime is to run.

    Attributes:
        runtime: which runs it.
        strategy: with its parameters.
        result: of its simulation.
    """

    runtime: Runtime
    strategy: Any
    result: Result

    @property
    def scenario(self) -> Any:  # noqa: ANN401  of either task
        """What was asked."""
        assert self.result.source is not None
        return self.result.source.scenario

    @property
    def model(self) -> str:
        """The model as the runtime calls it."""
        assert self.runtime.models is not None
        return self.runtime.models[self.scenario.model.name]

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.result.num_gpus

    @property
    def nodes(self) -> int:
        """Nodes that they are on."""
        each: int = self.scenario.cluster.devices_per_node
        return ceil(self.gpus / each)

    @property
    def per_node(self) -> int:
        """GPUs of a node."""
        return self.gpus // self.nodes

    @property
    def frames(self) -> int | None:
        """Frames of a video; None of an image."""
        count: int | None = self.scenario.frames.get("frames")
        return count

    @property
    def staying(self) -> int | None:
        """Blocks of a sampler's backbone that stay on the GPU where others are offloaded; None where none is."""
        count = self.scenario.workload.swapped
        return len({layer.block for layer in self.scenario.backbone.layers}) - count if count else None

    @property
    def compiled(self) -> bool:
        """Whether the stack is compiled."""
        return bool(self.scenario.stack.name == "compiled")

    @property
    def degrees(self) -> Degrees:
        """How the GPUs of a sampler are divided."""
        grid = self.strategy.layout(self.scenario).grid
        return Degrees(grid.guidance, grid.pipeline, grid.ring, grid.ulysses, grid.tensor, grid.data)

    @property
    def torchrun(self) -> str:
        """What starts a script on every GPU."""
        if self.nodes == 1:
            return f"torchrun --nproc-per-node {self.gpus}"
        where = "--node-rank $NODE_RANK --master-addr $MASTER_ADDR"
        return f"torchrun --nnodes {self.nodes} --nproc-per-node {self.per_node} {where}"

    @property
    def each(self) -> int:
        """Samples of one micro-batch, on each GPU, or on the GPUs that share them."""
        batch, count = self.scenario.workload.batch_size, self.strategy.micro_batches
        return int(batch * self.sharing // (self.gpus * count))

    @property
    def sharing(self) -> int:
        """GPUs that share the samples of a micro-batch."""
        return prod(getattr(self.strategy, f"{axis}_degree", 1) for axis in ("pipeline", "context", "tensor"))


Written = tuple[str, ...]
"""A text, then notes."""


def command(head: Sequence[str], flags: Mapping[str, object]) -> str:
    """A command line, a flag on each line; True stands for a flag without a value, None and False for none."""
    words = [
        flag if value is True else f"{flag} {_quoted(value)}"
        for flag, value in flags.items()
        if value is not None and value is not False
    ]
    return " \\\n    ".join([" ".join(head), *words]) + "\n"


def _quoted(value: object) -> str:
    """A value as a shell reads it; variables stay variables."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value) if str(value).startswith("$") else shlex.quote(str(value))


def over_one(value: int) -> int | None:
    """A degree, or None where it divides nothing."""
    return value if value > 1 else None


def filled(name: str, **values: object) -> str:
    """Return the text of a template whose gaps are filled with values."""
    return Template((TEMPLATES / f"{name}.template").read_text(encoding="utf-8")).substitute(values)


def sampled(start: Start, **values: object) -> str:
    """Return the text that starts a sampler: the template of its runtime with what is drawn, and other values."""
    workload = start.scenario.workload
    shape = {"height": workload.height, "width": workload.width, "steps": workload.steps}
    return filled(start.runtime.name, model=start.model, prompt=PROMPT, **shape, **values)
