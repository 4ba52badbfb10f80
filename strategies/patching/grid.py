"""The grid: how the GPUs of a sampler are divided among guidance, pipeline, sequence and tensor parallelism."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Final

from profiles.errors import InfeasibleError, would_divide
from strategies.plans.placement import Placement
from strategies.plans.workloads import HEADS
from strategies.sampling_scenario import SamplingScenario

PADDED: Final = HEADS[1]
GUIDED: Final = 2
"""Predictions per image with classifier-free guidance: with the prompt and without."""


@dataclass(frozen=True, slots=True)
class Team:
    """Devices that compute one patch together: ``ring`` x ``ulysses`` x ``tensor``, the last innermost.

    In place of a ring they may stand in ``rows`` x ``columns``, each row of which lies together. Where one node stands
    for all of a team, its devices alone are named, and of groups those in it.
    """

    devices: tuple[int, ...]
    ring: int
    ulysses: int
    tensor: int
    rows: int = 1
    columns: int = 1

    @property
    def degrees(self) -> tuple[int, ...]:
        """Its degrees, whichever its devices are."""
        return self.ring, self.ulysses, self.tensor, self.rows, self.columns

    @property
    def sequence(self) -> int:
        """Devices among which the tokens of a patch are divided."""
        return self.ring * self.ulysses * self.rows * self.columns

    @property
    def size(self) -> int:
        """Its devices, named or not."""
        return self.sequence * self.tensor

    def token_bytes(self, size_bytes: float, samples: float, share: float = 1.0) -> float:
        """Bytes on one device of a tensor whose tokens are divided, and under tensor parallelism nothing else.

        Args:
            size_bytes: of one sample, with all tokens and heads.
            samples: of one pass.
            share: share of the tokens that the team holds.
        """
        return size_bytes * samples * share / self.sequence

    def head_bytes(self, size_bytes: float, samples: float, share: float = 1.0) -> float:
        """Bytes on one device of a tensor whose heads are divided as well; arguments as for ``token_bytes``."""
        return size_bytes * samples * share / self.size

    def tensor_groups(self) -> list[tuple[int, ...]]:
        """The devices that hold parts of the same matrices."""
        return [self.devices[i : i + self.tensor] for i in range(0, len(self.devices), self.tensor)]

    def ulysses_groups(self) -> list[tuple[int, ...]]:
        """The devices that exchange tokens for heads."""
        inner, span = self.tensor, self.ulysses * self.tensor
        starts = [r + t for r in range(0, len(self.devices), span) for t in range(inner)]
        return [self.devices[start : start + span : inner] for start in starts]

    def ring_groups(self) -> list[tuple[int, ...]]:
        """The devices that pass keys and values around."""
        inner = self.ulysses * self.tensor
        return [self.devices[start::inner] for start in range(inner)]

    def row_groups(self) -> list[tuple[int, ...]]:
        """The devices of each row that hold the same heads."""
        inner = self.ulysses * self.tensor
        span = self.columns * inner
        starts = [r + i for r in range(0, len(self.devices), span) for i in range(inner)]
        return [self.devices[start : start + span - start % inner : inner] for start in starts]

    def column_groups(self) -> list[tuple[int, ...]]:
        """The devices of each column that hold the same heads."""
        span = self.columns * self.ulysses * self.tensor
        return [self.devices[start::span] for start in range(span)]

    def sequence_groups(self) -> list[tuple[int, ...]]:
        """The devices that hold different tokens of the same patch."""
        return [self.devices[start :: self.tensor] for start in range(self.tensor)]


@dataclass(frozen=True)
class Grid:
    """Degrees of parallelism; tensor innermost, then Ulysses, ring, pipeline, guidance, and data outermost.

    ``rows`` and ``columns`` are of devices, in place of a ring. Source: xDiT, its default order of process groups.
    Where it is ``folded``, one guidance group stands for all, which do the same at the same time. So does one node of
    each team for all of its ``alike_nodes``.
    """

    data: int = 1
    guidance: int = 1
    pipeline: int = 1
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    rows: int = 1
    columns: int = 1
    folded: bool = False
    alike_nodes: int = 1

    @property
    def groups(self) -> int:
        """Guidance groups whose devices are told apart."""
        return 1 if self.folded else self.guidance

    @property
    def stands_for(self) -> int:
        """GPUs that do what the GPU of each position does."""
        return self.guidance // self.groups * self.alike_nodes

    @property
    def positions(self) -> int:
        """GPUs of one data-parallel group that are told apart."""
        return prod((self.groups, self.pipeline, self.sequence, self.tensor)) // self.alike_nodes

    @property
    def standing_in(self) -> tuple[int, ...]:
        """For each GPU of a data-parallel group the position that stands for it; none where each has its own."""
        if self.stands_for == 1:
            return ()
        groups = [guided % self.groups for guided in range(self.guidance)]
        teams = [self.team(guided, stage).devices for guided in groups for stage in range(self.pipeline)]
        return tuple(device for devices in teams for device in devices * self.alike_nodes)

    @property
    def sequence(self) -> int:
        """Devices among which the tokens of a patch are divided."""
        return self.ring * self.ulysses * self.rows * self.columns

    def team(self, guided: int, stage: int) -> Team:
        """The devices of one stage of one guidance group."""
        return self._teams[guided * self.pipeline + stage]

    @cached_property
    def _teams(self) -> tuple[Team, ...]:
        size = self.sequence * self.tensor // self.alike_nodes
        parts = self.ring, self.ulysses, self.tensor, self.rows, self.columns
        return tuple(
            Team(tuple(range(start, start + size)), *parts) for start in range(0, self.positions, size)
        )

    def teams(self) -> Iterator[tuple[int, int, Team]]:
        """Guidance group, stage and team."""
        for guided in range(self.groups):
            for stage in range(self.pipeline):
                yield guided, stage, self.team(guided, stage)

    def placement(self, scenario: SamplingScenario) -> Placement:
        """The placement of the positions."""
        return Placement(scenario.streams, scenario.workload.num_gpus, self.positions, self.positions)

    def images(self, scenario: SamplingScenario) -> int:
        """Images that one data-parallel group draws."""
        return scenario.workload.batch_size // self.data

    def batch(self, scenario: SamplingScenario) -> int:
        """Samples of one pass: images of a data-parallel group, twice where it does both predictions."""
        return self.images(scenario) * scenario.workload.predictions // self.guidance


def make_grid(
    scenario: SamplingScenario,
    *,
    guidance: int | None = None,
    pipeline: int = 1,
    ring: int = 1,
    ulysses: int = 1,
    tensor: int = 1,
    rows: int = 1,
    columns: int = 1,
    data: int | None = 1,
) -> Grid:
    """The grid of some degrees.

    Args:
        scenario: model, cluster and workload.
        guidance: groups, one per noise prediction; by default as the workload divides them.
        pipeline: stages.
        ring: devices around which keys and values pass.
        ulysses: devices that exchange tokens for heads.
        tensor: devices that hold parts of the same matrices.
        rows: rows of devices, in place of a ring.
        columns: devices in each of them.
        data: groups that draw different images; None takes all GPUs left over for them.

    Raises:
        InfeasibleError: the degrees do not give the GPUs, or the model or the workload cannot be divided so.
    """
    guidance = guidance or scenario.guidance_groups
    inner = {
        "guidance_degree": guidance,
        "ulysses_degree": ulysses,
        "ring_degree": ring,
        "pipeline_degree": pipeline,
        "tensor_degree": tensor,
        "rows": rows,
        "columns": columns,
    }
    gpus, product = scenario.workload.num_gpus, prod(inner.values())
    if not product or gpus % product or (data is not None and product * data != gpus):
        factors = [f"{name}({value})" for name, value in inner.items() if value != 1]
        said = f"{' * '.join(factors)} = {product}" if len(factors) > 1 else "".join(factors)
        rule = "does not divide" if data is None else "is not"
        raise InfeasibleError(
            f"{said} {rule} gpus({gpus})"
            if factors
            else f"runs on one GPU, not on gpus({gpus}): leave --gpus out",
            "the degrees do not give the number of GPUs",
        )
    grid = Grid(gpus // product, guidance, pipeline, ring, ulysses, tensor, rows, columns)
    check_workload(scenario, grid)
    _check_backbone(scenario, grid)
    return grid


def check_workload(scenario: SamplingScenario, grid: Grid) -> None:
    """Refuse images or predictions that the groups cannot share.

    Raises:
        InfeasibleError: they cannot.
    """
    workload = scenario.workload
    if grid.guidance > 1 and (grid.guidance != GUIDED or workload.predictions == 1):
        raise InfeasibleError(
            f"guidance_degree({grid.guidance}) is not 1"
            + (f", and --guidance is {workload.guidance}" if workload.predictions == 1 else f" or {GUIDED}"),
            "guidance cannot be divided so",
        )
    if workload.guidance == "parallel" and grid.guidance != GUIDED:
        raise InfeasibleError(
            f"guidance_degree({grid.guidance}) is not {GUIDED}, and --guidance is parallel",
            "guidance cannot be divided so",
        )
    if workload.batch_size % grid.data:
        raise InfeasibleError(
            f"batch_size({workload.batch_size}) is no multiple of the data-parallel degree"
            f" gpus({workload.num_gpus}) / {grid.positions} = {grid.data}",
            "GPUs left over have no image to draw",
        )


def _check_backbone(scenario: SamplingScenario, grid: Grid) -> None:
    """Refuse degrees that the attention cannot be divided by."""
    backbone = scenario.backbone
    halos = sum(exchange.kind == "halo" for exchange in backbone.exchanges)
    alone = (grid.ulysses, 1), (1, grid.tensor)  # of a U-Net, which no sequence divides
    for degrees in alone if halos else [(grid.ulysses, grid.tensor)]:
        for count in _heads(scenario):
            if problem := _heads_problem(scenario, count, *degrees):
                raise InfeasibleError(problem, "the degree does not divide the heads")
    for name, degree in (("sequence parallelism", grid.sequence), ("a pipeline of patches", grid.pipeline)):
        if degree > 1 and halos:
            raise InfeasibleError(
                f"{name} needs a transformer, {backbone.name} has {halos} convolutions that see neighbouring rows",
                "needs a transformer",
            )
    if grid.sequence > 1 or grid.pipeline > 1:
        check_exchanges(scenario, "key_value")
    if grid.tensor > 1:
        check_exchanges(scenario, "reduce")


def _heads(scenario: SamplingScenario) -> list[int]:
    """The numbers of heads that the backbone's self-attentions have."""
    return sorted(
        {exchange.heads for exchange in scenario.backbone.exchanges if exchange.kind == "key_value"}
    )


def divides_heads(scenario: SamplingScenario, ulysses: int) -> bool:
    """Whether so many devices can exchange tokens for heads."""
    return not any(_heads_problem(scenario, count, ulysses, 1) for count in _heads(scenario))


def _heads_problem(scenario: SamplingScenario, heads: int, ulysses: int, tensor: int) -> str:
    """Why some degrees cannot divide some heads, in words; empty where they can.

    The devices of a U-Net under tensor parallelism may hold one head less than others (DistriFusion's baseline). Padded
    heads are attended to for nothing, on one device of a Ulysses group (diffusers, ``ulysses_anything``): they must be
    fewer than those that a device has.
    """
    degrees = {"ulysses": ulysses, "tensor": tensor}
    named = " * ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    product = ulysses * tensor
    total = f"{named} = {product}" if min(ulysses, tensor) > 1 else named
    if any(exchange.kind == "halo" for exchange in scenario.backbone.exchanges) and ulysses == 1:
        return f"{heads} heads, {total}: more GPUs than heads" if product > heads else ""
    if not heads % product:
        return ""
    if scenario.workload.heads == PADDED and not heads % tensor:
        own = heads // tensor
        each = ceil(own / ulysses)
        if (more := each * ulysses - own) < each:
            return ""
        return f"{heads} heads, {total}: {more} heads of padding, must be fewer than the {each} of a GPU"
    return f"{heads} heads, {total}: {heads} % {product} = {heads % product}; {would_divide(heads)}"


def check_exchanges(scenario: SamplingScenario, kind: str) -> None:
    """Refuse a model that does not say what its patches need of one another.

    Raises:
        InfeasibleError: there is no such row for its backbone.
    """
    if all(exchange.kind != kind for exchange in scenario.backbone.exchanges):
        raise InfeasibleError(
            f"{scenario.model.name} has no exchanges.csv with rows of kind {kind} for {scenario.backbone.name}",
            "the model has no exchanges.csv",
        )
