"""The grid: how the GPUs of a sampler are divided among guidance, pipeline, sequence and tensor parallelism."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Final

from profiles.errors import InfeasibleError, would_divide
from profiles.machines.clusters import Cluster
from strategies.plans.placement import Subgroup
from strategies.plans.workloads import HEADS, SEQUENTIAL, SamplingWorkload
from strategies.sampling_scenario import SamplingScenario

PADDED: Final = HEADS[1]
GUIDED: Final = 2
"""Predictions per image with classifier-free guidance: with the prompt and without."""


@dataclass(frozen=True)
class Grid:
    """Degrees of parallelism; those of a team innermost, then pipeline, guidance, and data outermost.

    A team computes one patch together: ``ring`` x ``ulysses`` x ``tensor``, the last innermost. In place of a ring it
    may stand in ``rows`` x ``columns``, each row of which lies together.

    Source: xDiT, its default order of process groups. One guidance group stands for ``alike_groups``, which do the
    same at the same time. So does one node of each team for all of its ``alike_nodes``.
    """

    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    rows: int = 1
    columns: int = 1
    pipeline: int = 1
    guidance: int = 1
    data: int = 1
    alike_groups: int = 1
    alike_nodes: int = 1

    @property
    def degrees(self) -> tuple[int, ...]:
        """Those of a team."""
        return self.ring, self.ulysses, self.tensor, self.rows, self.columns

    @property
    def sequence(self) -> int:
        """Devices among which the tokens of a patch are divided."""
        return self.ring * self.ulysses * self.rows * self.columns

    @property
    def size(self) -> int:
        """Devices of a team."""
        return self.sequence * self.tensor

    @property
    def groups(self) -> int:
        """Guidance groups whose devices are told apart."""
        return self.guidance // self.alike_groups

    @property
    def stands_for(self) -> int:
        """GPUs for which the GPU of each position stands."""
        return self.alike_groups * self.alike_nodes

    @property
    def positions(self) -> int:
        """GPUs of one data-parallel group that are told apart."""
        return self.groups * self.pipeline * self.size // self.alike_nodes

    @property
    def standing_in(self) -> tuple[int, ...]:
        """For each GPU of a data-parallel group the position that stands for it; none where each has its own."""
        if self.stands_for == 1:
            return ()
        groups = [guided % self.groups for guided in range(self.guidance)]
        teams = [self.team(guided, stage) for guided in groups for stage in range(self.pipeline)]
        return tuple(device for devices in teams for device in devices * self.alike_nodes)

    def team(self, guided: int, stage: int) -> tuple[int, ...]:
        """The devices of one stage of one guidance group that are told apart."""
        size = self.size // self.alike_nodes
        start = (guided * self.pipeline + stage) * size
        return tuple(range(start, start + size))

    def teams(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Guidance group, stage and devices of each team."""
        for guided in range(self.groups):
            for stage in range(self.pipeline):
                yield guided, stage, self.team(guided, stage)

    def token_bytes(self, size_bytes: float, samples: float, share: float = 1.0) -> float:
        """Bytes on one device of a tensor whose tokens are divided, and under tensor parallelism nothing else.

        ``size_bytes`` are of one sample with all tokens and heads, ``share`` is that of the tokens that the team holds.
        """
        return size_bytes * samples * share / self.sequence

    def head_bytes(self, size_bytes: float, samples: float, share: float = 1.0) -> float:
        """Bytes on one device of a tensor whose heads are divided as well; arguments as for ``token_bytes``."""
        return size_bytes * samples * share / self.size

    def groups_of(self, kind: str, team: Sequence[int]) -> list[tuple[int, ...]]:
        """The devices of a team that exchange with one another: ``sequence`` of different tokens, or of one degree.

        Those of a ``row`` or ``column`` hold the same heads.
        """
        stride, members = self._strides[kind]
        span, count = stride * members, len(team)
        starts = [(block, i) for block in range(0, count, span) for i in range(min(stride, count))]
        return [tuple(team[block + i : block + span : stride]) for block, i in starts]

    def members(self, kind: str) -> int:
        """GPUs of each group of a kind."""
        return self._strides[kind][1]

    def subgroup(self, kind: str) -> Subgroup | None:
        """The GPUs that the devices of each group of a kind stand for; None where they stand for themselves."""
        stride, members = self._strides[kind]
        count = self.size // self.alike_nodes
        return Subgroup(members, max(1, stride // count)) if stride * members > count else None

    @cached_property
    def _strides(self) -> dict[str, tuple[int, int]]:
        """For each kind of group the distance between two neighbours, and the members."""
        heads = self.ulysses * self.tensor
        return {
            "tensor": (1, self.tensor),
            "ulysses": (self.tensor, self.ulysses),
            "ring": (heads, self.ring),
            "row": (heads, self.columns),
            "column": (heads * self.columns, self.rows),
            "sequence": (self.tensor, self.sequence),
        }

    def folded_on(self, cluster: Cluster) -> "Grid":
        """The grid in which one guidance group, and one node of each team, stands for all that are alike.

        Guidance groups have the same stages and patches, and meet only to gather predictions. Where nothing else that
        one holds delays another, whatever happens in one happens in all: each has nodes of its own, or all are in one
        whose cards share no port. Nor may a group's own exchanges share one: which goes first of two at once would then
        depend on the other group.

        Nodes of a team are alike where each group of it lies in one node, or in several of them in the same places.
        """
        each, pcie = cluster.devices_per_node, cluster.intra_node.kind == "pcie"
        if self.data > 1:
            return self
        apart = self.positions // self.guidance % each == 0 or (self.positions <= each and not pcie)
        groups = self.guidance if apart and self.size <= (1 if pcie else each) else 1
        ends = [
            end
            for stride, members in self._strides.values()
            if members > 1
            for end in (stride, stride * members)
        ]
        # each group lies in one node, or in the same places of several
        alike = not pcie and not any(end % each and each % end for end in (*ends, self.size))
        return replace(self, alike_groups=groups, alike_nodes=max(1, self.size // each) if alike else 1)

    def images(self, scenario: SamplingScenario) -> int:
        """Images that one data-parallel group draws."""
        return scenario.workload.batch_size // self.data

    def predictions(self, scenario: SamplingScenario) -> int:
        """Noise predictions that one guidance group makes in a step: of each image all, or its part."""
        return self.images(scenario) * -(-scenario.workload.predictions // self.guidance)

    def passes(self, scenario: SamplingScenario) -> int:
        """Forward passes of a step, one after the other: all predictions of a group where guidance is sequential."""
        workload = scenario.workload
        return -(-workload.predictions // self.guidance) if workload.guidance == SEQUENTIAL else 1

    def batch(self, scenario: SamplingScenario) -> int:
        """Samples of one pass."""
        return self.predictions(scenario) // self.passes(scenario)


def make_grid(
    scenario: SamplingScenario, *, guidance: int | None = None, data: int | None = 1, **degrees: int
) -> Grid:
    """The grid of some degrees.

    By default guidance is divided as the workload says. Where ``data`` is None, all GPUs left over draw other images.
    The other degrees are fields of ``Grid``.

    Raises:
        InfeasibleError: the degrees do not give the GPUs, or the model or the workload cannot be divided so.
    """
    grid = Grid(guidance=guidance or scenario.guidance_groups, **degrees)
    gpus, product = scenario.workload.num_gpus, grid.positions
    if not product or gpus % product or (data is not None and product * data != gpus):
        named = ("guidance", "ulysses", "ring", "pipeline", "tensor")
        values = {f"{name}_degree": getattr(grid, name) for name in named}
        values |= {"rows": grid.rows, "columns": grid.columns}
        factors = [f"`{name}({value})`" for name, value in values.items() if value != 1]
        words = f"{' * '.join(factors)} = {product}" if len(factors) > 1 else "".join(factors)
        rule = "does not divide" if data is None else "is not"
        raise InfeasibleError(
            f"{words} {rule} `gpus({gpus})`"
            if factors
            else f"runs on one GPU, not on `gpus({gpus})`: leave `gpus` out",
            "the degrees do not give the number of GPUs",
        )
    grid = replace(grid, data=gpus // product)
    check_workload(scenario, grid)
    _check_backbone(scenario, grid)
    return grid


def guidance_degrees(workload: SamplingWorkload) -> tuple[int, ...]:
    """The numbers of groups among which an image's predictions may be divided."""
    if workload.guidance == "parallel":
        return (GUIDED,)
    return (1,) if workload.predictions == 1 else (1, GUIDED)


def check_workload(scenario: SamplingScenario, grid: Grid) -> None:
    """Refuse images or predictions that the groups cannot share."""
    workload = scenario.workload
    allowed = guidance_degrees(workload)
    if grid.guidance not in allowed:
        raise InfeasibleError(
            f"`guidance_degree({grid.guidance})` is not {' or '.join(map(str, allowed))}, and `guidance` is"
            f" {workload.guidance}",
            "guidance cannot be divided so",
        )
    if workload.batch_size % grid.data:
        raise InfeasibleError(
            f"`batch_size({workload.batch_size})` is no multiple of the data-parallel degree"
            f" `gpus({workload.num_gpus})` / {grid.positions} = {grid.data}",
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
    return sorted({one.heads for one in scenario.backbone.exchanges if one.kind == "key_value"})


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
        divided = heads // tensor
        each = ceil(divided / ulysses)
        if (more := each * ulysses - divided) < each:
            return ""
        return f"{heads} heads, {total}: {more} heads of padding, must be fewer than the {each} of a GPU"
    return f"{heads} heads, {total}: {heads} % {product} = {heads % product}; {would_divide(heads)}"


def check_exchanges(scenario: SamplingScenario, kind: str) -> None:
    """Refuse a model that does not say what its patches need of one another."""
    if all(exchange.kind != kind for exchange in scenario.backbone.exchanges):
        hint = "; sim.count makes them where told the image's pixels" * (not scenario.backbone.image_tokens)
        raise InfeasibleError(
            f"{scenario.model.name} has no exchanges.csv with rows of kind {kind} for {scenario.backbone.name}{hint}",
            "the model has no exchanges.csv",
        )
