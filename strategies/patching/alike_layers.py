"""Alike layers: a step of which only the first of many alike layers are written, where the others repeat them.

The devices of one stage exchange around each layer, so that a step of many layers on many devices is long to replay;
whether its layers really repeat one another is seen from what is written of them.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from strategies.patching.builder import SamplingBuilder
from strategies.patching.layer_runs import RunWork, run_layers
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.plans.actions import PatchAction
from strategies.strategy import Phase

LARGE: Final = 1024
"""Layers times devices up to which a step is replayed whole."""
KEPT: Final = 4
"""Layers that are written of more alike ones: the first may follow others, and two have to repeat the one before."""


class KeptLayers(NamedTuple):
    """Where the kept layers of a stretch stand in a plan, for one team.

    Attributes:
        devices: of the team.
        ops: where the kept layers begin in the ops of each device, and where the last ends.
        collectives: of the last layer but one.
    """

    devices: tuple[int, ...]
    ops: tuple[int, ...]
    collectives: range


class Stretch(NamedTuple):
    """Alike layers that follow one another: how many are left out, and where the others are."""

    omitted: int
    windows: tuple[KeptLayers, ...]


class Shortened(NamedTuple):
    """A run whose plan is of a step without most of its alike layers; all that lies on its devices counts those too."""

    phase: Phase
    stretches: tuple[Stretch, ...]


def shortened(pipeline: PatchPipeline) -> Shortened | None:
    """A run of shortened steps; None where it is not large, has several stages, or no layers are alike."""
    grid, layers, size = pipeline.grid, pipeline.boundaries[-1], pipeline.grid.team(0, 0).size
    if grid.pipeline > 1 or size == 1 or layers * size * grid.groups <= LARGE:
        return None
    works, step = pipeline.works(0, None), pipeline.num_steps - 1
    alike = [(first, end) for first, end in _alike(works) if end - first > KEPT]
    if not alike:
        return None
    left_out = {layer for first, end in alike for layer in range(first + KEPT, end)}
    kept = [layer for layer in range(len(works)) if layer not in left_out]
    builder = SamplingBuilder(pipeline.placement, pipeline.scenario.calls)
    marks: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for _, stage, team in grid.teams():
        own = marks[team.devices] = []
        for layer in kept:
            own.append(_mark(builder, team.devices))
            run_layers(builder, team, works[layer], PatchAction(stage, 0, step))
        own.append(_mark(builder, team.devices))
    pipeline.end_step(builder, None, pipeline.gathers(None))
    stretches = [
        Stretch(end - first - KEPT, tuple(_windows(marks, kept.index(first)))) for first, end in alike
    ]
    plan = builder.build(pipeline.stages(), pipeline.resident([step]))
    phase = Phase("steady", plan, pipeline.num_steps, standing_in=grid.standing_in)
    return Shortened(phase, tuple(stretches))


def _alike(works: Sequence[RunWork]) -> Iterator[tuple[int, int]]:
    """First layers, and those after the last, of stretches of layers whose work does not differ."""
    first = 0
    for layer in range(1, len(works) + 1):
        if layer == len(works) or works[layer][1:] != works[first][1:]:
            yield first, layer
            first = layer


def _mark(builder: SamplingBuilder, devices: Sequence[int]) -> tuple[int, int]:
    """The ops of each of some devices, and the collectives, so far."""
    return builder.last(devices[0]) + 1, builder.num_collectives


def _windows(marks: dict[tuple[int, ...], list[tuple[int, int]]], first: int) -> Iterator[KeptLayers]:
    """The windows of a stretch that begins with a kept layer, team by team."""
    for devices, own in marks.items():
        ops, collectives = zip(*own[first : first + KEPT + 1], strict=True)
        yield KeptLayers(devices, ops, range(*collectives[KEPT - 2 : KEPT]))
