"""Pipelines: from stages and an order of forwards and backwards to a whole training plan.

Every training strategy gives a cut of the backbone and an order; what crosses a cut, what is saved, reduced and
stepped, and where frozen outputs go is the same for all and is written here once.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InfeasibleError
from strategies.actions import BACKWARD, EXTRA_FORWARD, FORWARD, OPTIMIZER, StageAction
from strategies.footprint import resident_buffers, saved_bytes, trained_parameters
from strategies.frozen import Draft, FrozenWork, PlacedOp, all_at_once
from strategies.placement import Placement
from strategies.plan import Collective, Filling, Plan, Stage, Tensor
from strategies.scenario import Scenario

FloatArray = NDArray[np.float64]
Rows = Sequence[Sequence[StageAction]]

BUCKET_BYTES: Final = 25 * 2**20
"""Gradients are reduced in buckets of at least this size. Source: PyTorch DDP, default ``bucket_cap_mb``."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The integers of a pipeline.

    Attributes:
        degree: positions of one pipeline.
        micro_batches: pieces into which a group's batch is cut.
        group_size: GPUs of one pipeline group.
    """

    degree: int
    micro_batches: int
    group_size: int

    @property
    def replicas(self) -> int:
        """GPUs on which each position of a group is replicated."""
        return self.group_size // self.degree

    def placement(self, scenario: Scenario) -> Placement:
        """Return where the positions lie.

        Raises:
            InfeasibleError: group, nodes and GPUs do not divide one another.
        """
        workload = scenario.workload
        data_inner = workload.placement == "data-inner"
        return scenario.remember(
            ("placement", self.group_size, self.degree),
            lambda: Placement(scenario.cluster, workload.num_gpus, self.group_size, self.degree, data_inner),
        )

    def group_batch(self, scenario: Scenario) -> int:
        """Return the samples of one group in one iteration.

        Raises:
            InfeasibleError: it is not whole.
        """
        batch, gpus = scenario.workload.batch_size, scenario.workload.num_gpus
        if batch * self.group_size % gpus:
            raise InfeasibleError(
                f"batch_size({batch}) * group_size({self.group_size}) / gpus({gpus})"
                f" = {batch * self.group_size / gpus:g} is not whole",
                "the batch does not divide",
            )
        return batch * self.group_size // gpus

    def local_batch(self, scenario: Scenario) -> int:
        """Return the samples of one micro-batch on one device.

        Raises:
            InfeasibleError: it is not whole.
        """
        batch, gpus = scenario.workload.batch_size, scenario.workload.num_gpus
        devices = gpus * self.micro_batches
        if batch * self.degree % devices:
            raise InfeasibleError(
                f"batch_size({batch}) * pipeline_degree({self.degree}) / (gpus({gpus}) *"
                f" micro_batches({self.micro_batches})) = {batch * self.degree / devices:g} is not whole",
                "the batch does not divide",
            )
        return batch * self.degree // devices


@dataclass(frozen=True, slots=True)
class Cut:
    """The backbone cut into stages: ``boundaries[s]`` is the first layer of stage s, the last entry the end."""

    component: int
    boundaries: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        """Stages of the backbone."""
        return len(self.boundaries) - 1


def layer_times(scenario: Scenario, component: int, batch: int) -> tuple[FloatArray, FloatArray]:
    """Return forward and backward seconds of each layer at a local batch, recomputation included in the latter."""
    costs = scenario.costs.components[component]
    forward_s, backward_s = costs.forward_s(batch), costs.backward_s(batch)
    if scenario.workload.checkpointing == "full":
        backward_s = backward_s + forward_s
    return forward_s, backward_s


def make_stages(scenario: Scenario, cut: Cut, batch: int, positions: Sequence[int]) -> tuple[Stage, ...]:
    """Return the stages of a cut; ``positions[s]`` holds stage s."""
    forward_s, backward_s = layer_times(scenario, cut.component, batch)
    layers = scenario.model.components[cut.component].layers
    return tuple(
        Stage(
            cut.component, first, end - 1, position,
            float(forward_s[first:end].sum()), float(backward_s[first:end].sum()),
            sum(layer.parameters for layer in layers[first:end]),
        )
        for (first, end), position in zip(pairwise(cut.boundaries), positions, strict=True)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a pipeline is carried out, beyond its order.

    Attributes:
        buckets: gradients are reduced in buckets during the last backward, instead of after it.
        blocking: devices wait for their messages between ops.
        cross_iteration: the frozen work of the next iteration is done, instead of the iteration's own before it.
    """

    buckets: bool = False
    blocking: bool = False
    cross_iteration: bool = False


class PipelineBuilder:
    """Writes the plan of one backbone's pipeline; position p holds stage p, and ``rows[p]`` its order."""

    def __init__(self, scenario: Scenario, shape: Shape, cut: Cut, rows: Rows, recipe: Recipe) -> None:
        self.scenario, self.shape, self.cut, self.recipe = scenario, shape, cut, recipe
        self.placement = shape.placement(scenario)
        self.group_batch = shape.group_batch(scenario)
        self.batch = shape.local_batch(scenario)
        self.component = scenario.model.components[cut.component]
        self.stages = make_stages(scenario, cut, self.batch, range(cut.num_stages))
        self.tensors: list[Tensor] = []
        self.collectives: list[Collective] = []
        self.given: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []
        self.rows: list[list[Draft]] = [[] for _ in range(shape.degree)]
        self._hidden = [self._hidden_bytes(stage) for stage in range(cut.num_stages - 1)]
        self._gradient = [0.0] + [self._gradient_bytes(stage) for stage in range(1, cut.num_stages)]
        self._saved = [saved_bytes(scenario, stage, self.batch) for stage in self.stages]
        self._known: dict[tuple[str, int, int], int] = {}
        self._order = [self._with_extra_forwards(row) for row in rows]

    def _with_extra_forwards(self, row: Sequence[StageAction]) -> list[StageAction]:
        if not self.scenario.workload.extra_forward:
            return list(row)
        forwards = sorted({action for action in row if action.kind == FORWARD})
        return [StageAction(a.stage, EXTRA_FORWARD, a.micro_batch) for a in forwards] + list(row)

    def build(self, filling: Filling | None = None) -> Plan:
        """Return the plan.

        Args:
            filling: frozen work and where it goes; None: all of it, before the pipeline or, cross-iteration,
                after it.
        """
        shape = self.shape
        if filling is None:
            filling = Filling(all_at_once(self.scenario, self.group_batch, shape.degree, shape.replicas))
        frozen = FrozenWork(self.scenario, self.group_batch, shape.replicas, self.tensors)
        for layer in filling.layers:
            frozen.place(layer)
        inputs = self._inputs_of_micro_batches(frozen)
        for position, row in enumerate(self._order):
            self.rows[position] = [self._draft(action, inputs) for action in row]
        for stage in range(len(self.stages)):
            self._reduce_and_step(stage)
        self._insert(frozen, filling)
        return self._finish(filling)

    def _tensor(self, role: str, stage: int, index: int, size_bytes: float) -> int:
        key = (role, stage, index)
        if key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append(Tensor(role, stage, index, size_bytes))
        return self._known[key]

    def _inputs_of_micro_batches(self, frozen: FrozenWork) -> list[list[int]]:
        """Return for each micro-batch the tensors of frozen outputs that the first stage reads."""
        sources = [
            i for i in self.scenario.model.inputs_of(self.cut.component) if i in self.scenario.model.frozen
        ]
        count, size = self.shape.micro_batches, self.group_batch // self.shape.micro_batches
        inputs: list[list[int]] = [[] for _ in range(count)]
        for source in sources:
            output = self.scenario.model.components[source].layers[-1].output_bytes * self.batch
            for number in range(count):
                if not self.recipe.cross_iteration:
                    inputs[number] += frozen.output(source, number * size, (number + 1) * size)
                elif output:
                    tensor = self._tensor(f"input {source}", 0, number, output)
                    inputs[number].append(tensor)
                    self.given.append((tensor, 0))
            if self.recipe.cross_iteration:
                self.kept += [(tensor, 0) for tensor in frozen.output(source, 0, self.group_batch)]
        return inputs

    def _draft(self, action: StageAction, inputs: list[list[int]]) -> Draft:
        if action.kind == BACKWARD:
            return self._backward(action)
        return self._forward(action, inputs[action.micro_batch] if action.stage == 0 else [])

    def _forward(self, action: StageAction, inputs: list[int]) -> Draft:
        """Write a forward, or the extra one, which saves nothing and whose output is fed back to the first stage."""
        stage, _, index = action
        extra = action.kind == EXTRA_FORWARD
        role = "extra hidden" if extra else "hidden"
        draft = Draft(action, self.stages[stage].forward_s, reads=list(inputs))
        if stage:
            draft.reads.append(self._tensor(role, stage - 1, index, self._hidden[stage - 1]))
        elif not extra and self.scenario.workload.extra_forward:
            draft.reads.append(self._feedback(index))
        if stage + 1 < len(self.stages):
            draft.writes.append(self._tensor(role, stage, index, self._hidden[stage]))
        elif extra:
            draft.writes.append(self._feedback(index))
        if not extra:
            draft.writes.append(self._tensor("saved", stage, index, self._saved[stage]))
        return draft

    def _backward(self, action: StageAction) -> Draft:
        stage, _, index = action
        draft = Draft(action, self.stages[stage].backward_s)
        draft.reads.append(self._tensor("saved", stage, index, self._saved[stage]))
        if stage + 1 < len(self.stages):
            draft.reads.append(self._tensor("gradient", stage + 1, index, self._gradient[stage + 1]))
        if stage:
            draft.writes.append(self._tensor("gradient", stage, index, self._gradient[stage]))
        return draft

    def _feedback(self, index: int) -> int:
        size = self.component.layers[-1].output_bytes * self.batch
        return self._tensor("feedback", len(self.stages) - 1, index, size)

    def _hidden_bytes(self, stage: int) -> float:
        last = self.stages[stage].last_layer
        return (self.component.cut_bytes(last) + self.component.carried_bytes) * self.batch

    def _gradient_bytes(self, stage: int) -> float:
        return self.component.cut_bytes(self.stages[stage].first_layer - 1) * self.batch

    def _reduce_and_step(self, stage: int) -> None:
        """Add the gradient reduction of a stage's replicas and its optimizer step."""
        trained = trained_parameters(self.component, self.stages[stage])
        if not trained:
            return
        position = self.stages[stage].position
        step = Draft(
            StageAction(stage, OPTIMIZER),
            self.scenario.costs.optimizer_s(trained, self.scenario.workload.recipe),
        )
        if self.placement.copies > 1:
            row = self.rows[position]
            last = max(i for i, d in enumerate(row) if d.action[:2] == (stage, BACKWARD))
            for index, (offset_s, parameters) in enumerate(self._buckets(stage)):
                ready = self._tensor("gradients", stage, index, 0.0)
                reduced = self._tensor("reduced", stage, index, 0.0)
                row[last].early.append((offset_s, ready))
                size = parameters * self.scenario.workload.recipe.gradient_bytes
                self.collectives.append(
                    Collective("all_reduce", (position,), size, position, (ready,), (reduced,))
                )
                step.reads.append(reduced)
            if not self.recipe.buckets:
                row[last].writes += [tensor for _, tensor in row[last].early]
                row[last].early.clear()
        self.rows[position].append(step)

    def _buckets(self, stage: int) -> list[tuple[float, int]]:
        """Return (seconds into the backward, parameters) of each gradient bucket, in the order they are ready."""
        first, last = self.stages[stage].first_layer, self.stages[stage].last_layer
        duration_s = self.stages[stage].backward_s
        layers = self.component.layers
        if not self.recipe.buckets:
            return [(duration_s, trained_parameters(self.component, self.stages[stage]))]
        _, backward_s = layer_times(self.scenario, self.cut.component, self.batch)
        buckets, elapsed_s, held = [], 0.0, 0
        for index in range(last, first - 1, -1):
            elapsed_s += float(backward_s[index])
            held += layers[index].parameters if layers[index].backward == "full" else 0
            if held * self.scenario.workload.recipe.gradient_bytes >= BUCKET_BYTES:
                buckets.append((min(elapsed_s, duration_s), held))
                held = 0
        return buckets + ([(duration_s, held)] if held else [])

    def _insert(self, frozen: FrozenWork, filling: Filling) -> None:
        """Put frozen ops where they belong: before the pipeline, into bubbles, or after its last backward."""
        for position, row in enumerate(self.rows):
            own = [placed for placed in frozen.placed if placed.position == position]
            if not self.recipe.cross_iteration:
                row[:0] = [placed.draft for placed in own]
                continue
            indices = self._indices(position, own, filling)
            for inserted, (placed, index) in enumerate(zip(own, indices, strict=True)):
                row.insert(index + inserted, placed.draft)

    def _indices(self, position: int, own: Sequence[PlacedOp], filling: Filling) -> list[int]:
        """Return before which op of a position's own row each of its frozen ops goes.

        What no bubble took first uses the time in which the gradients are reduced; the optimizer step does not
        wait for the rest. Where there is no trace to go by, all of it runs before the step.
        """
        row = self.rows[position]
        step = next((i for i, draft in enumerate(row) if draft.action[1] == OPTIMIZER), len(row))
        starts = filling.starts[position] if filling.starts else ()
        free_s = starts[step - 1] + row[step - 1].duration_s if starts else 0.0
        indices: list[int] = []
        reach = 0
        for placed in own:
            if placed.bubble is not None:
                at = bisect_left(starts, filling.bubbles[placed.bubble].start_s - 1e-12)
                free_s = max(free_s, filling.bubbles[placed.bubble].start_s) if at == step else free_s
            else:
                waiting = not starts or (step < len(row) and free_s < starts[step])
                at = step if waiting else len(row)
            reach = max(reach, at)
            free_s += placed.draft.duration_s if reach == step else 0.0
            indices.append(reach)
        return indices

    def _finish(self, filling: Filling) -> Plan:
        hosted = [[s for s in self.stages if s.position == position] for position in range(self.shape.degree)]
        prologue_s = 0.0
        if self.recipe.cross_iteration:
            work = all_at_once(self.scenario, self.group_batch, self.shape.degree, self.shape.replicas)
            prologue_s = sum(layer.duration_s for layer in work)
        return Plan(
            ops=tuple(tuple(draft.finish() for draft in row) for row in self.rows),
            tensors=tuple(self.tensors),
            placement=self.placement,
            stages=self.stages,
            collectives=tuple(self.collectives),
            resident=tuple(resident_buffers(self.scenario, stages, self.batch) for stages in hosted),
            given=tuple(self.given),
            kept=tuple(self.kept),
            posted_after=self._posted_at_once() if self.recipe.blocking else {},
            blocking=self.recipe.blocking,
            cross_iteration=self.recipe.cross_iteration,
            prologue_s=prologue_s,
            filling=filling,
        )

    def _posted_at_once(self) -> dict[tuple[int, int], int]:
        """Return receives that do not wait for their turn: each side of a pipeline would wait for the other.

        Frozen activations are exchanged among all positions, as in a gather; what the extra forwards feed back
        meets a first stage that is still at its own.
        """
        return {
            (tensor, position): -1
            for position, row in enumerate(self.rows)
            for draft in row
            for tensor in draft.reads
            if self.tensors[tensor].role in ("frozen", "feedback")
        }
