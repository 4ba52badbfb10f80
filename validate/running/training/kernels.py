"""Kernels that train a small real model, stage by stage, as the plan says.

The hidden state crosses a cut with every live skip, or, where the plan keeps skips local,
alone, and each skip from the stage that makes it to the stage that takes it. Frozen outputs that were not delivered are
NaN, and so is every gradient that follows from them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from profiles.architectures.models import Model
from strategies.pipelining.mesh import GATHER, SCATTER
from strategies.plans.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    EXTRA_FORWARD,
    OPTIMIZER,
    FrozenAction,
    StageAction,
)
from strategies.plans.plan import Op, Plan
from strategies.plans.wiring import Wiring
from validate.running.executor import Kernels, Mark
from validate.running.links import RankSeat
from validate.running.training.layers import (
    LEARNING_RATE,
    Gradients,
    Layers,
    batch_of,
    frozen_outputs,
    gradients_of,
)
from validate.running.training.samples import Span, Training

HIDDEN_STATE: Final = (-1, -1)
LOSS: Final = (-2, -2)
State = dict[
    tuple[int, int], Tensor
]  # the hidden state, and skips by (source, target), or gradients of these
Name = tuple[str, int]  # role and stage of a tensor of the plan
Values = dict[Name, State]


class Batch(NamedTuple):
    """The inputs of a backbone's micro-batch: samples, frozen outputs, and the number of samples in all."""

    inputs: Tensor
    targets: Tensor
    context: Mapping[int, Tensor]
    batch_size: int


class Saved(NamedTuple):
    """Inputs and outputs of a forward, and, once its backward began, the outputs with their gradients."""

    leaves: Values
    outputs: State
    gradients: tuple[list[Tensor], list[Tensor]] = ([], [])


class Passes:
    """The passes of the stages of one device."""

    def __init__(self, model: Model, layers: Layers, plan: Plan) -> None:
        self._model, self._layers, self._stages = model, layers, plan.stages
        self._local = any(tensor.role.startswith("skip to ") for tensor in plan.tensors)
        self._saved: dict[tuple[int, int], list[Saved]] = {}

    def _crossing(self, role: str, stage: int) -> list[tuple[int, int]]:
        """Return the keys of the states in a tensor of a stage's forward."""
        of = self._stages[stage]
        component = self._model.components[of.component]
        if role.startswith("skip to "):
            to = self._stages[int(role.rpartition(" ")[2])]
            ends = range(to.first_layer, to.last_layer + 1)
            made = range(of.first_layer, of.last_layer + 1)
            return [(s.source, s.target) for s in component.skips if s.source in made and s.target in ends]
        relayed = [] if self._local or role == "feedback" else component.live_skips(of.last_layer)
        return [HIDDEN_STATE, *((skip.source, skip.target) for skip in relayed)]

    def forward(self, action: StageAction, read: Values, writes: Sequence[Name], batch: Batch) -> Values:
        """Run a stage forwards and return its outputs; those of an extra forward need no gradients."""
        extra, stage = action.kind == EXTRA_FORWARD, self._stages[action.stage]
        with torch.set_grad_enabled(not extra):
            leaves = {
                name: {key: value.detach().requires_grad_(not extra) for key, value in values.items()}
                for name, values in read.items()
            }
            state = {k: v for name, of in leaves.items() if name[0] != "feedback" for k, v in of.items()}
            hidden = state.pop(HIDDEN_STATE, batch.inputs)
            for (role, _), fed_back in leaves.items():
                hidden = hidden + fed_back[HIDDEN_STATE] if role == "feedback" else hidden
            layers = range(stage.first_layer, stage.last_layer + 1)
            hidden = self._layers.run(stage.component, layers, hidden, state, batch.context)
            state[HIDDEN_STATE] = hidden
            roles = {name: name[0].removeprefix("extra ") for name in writes}
            written = {
                name: {key: state[key] for key in self._crossing(role, action.stage)}
                for name, role in roles.items()
                if role in ("hidden", "feedback") or role.startswith("skip to ")
            }
            if not extra:
                outputs = {key: value for values in written.values() for key, value in values.items()}
                if stage.last_layer == len(self._model.components[stage.component].layers) - 1:
                    error = (hidden - batch.targets).square().sum()
                    outputs[LOSS] = error / (batch.batch_size * hidden[0].numel())
                self._saved.setdefault(action[::2], []).append(Saved(leaves, outputs))
        return {name: {k: value.detach() for k, value in values.items()} for name, values in written.items()}

    def backward(self, action: StageAction, read: Values) -> Values:
        """Run a stage backwards; gradients are added to those of the parameters."""
        saved = self._saved[action[::2]].pop()
        torch.autograd.backward(*_given(saved, read))
        return _written(saved, action.stage, [leaf.grad for leaf in _all(saved.leaves)])

    def backward_input(self, action: StageAction, read: Values) -> Values:
        """Return the gradients of a stage's inputs; those of its weights come later."""
        saved = self._saved[action[::2]].pop()
        outputs, gradients = _given(saved, read)
        self._saved[action[::2]].append(saved._replace(gradients=(outputs, gradients)))
        leaves = _all(saved.leaves)
        results: Sequence[Tensor | None] = ()
        if leaves:
            results = torch.autograd.grad(outputs, leaves, gradients, retain_graph=True, allow_unused=True)
        return _written(saved, action.stage, results)

    def backward_weight(self, action: StageAction, parameters: Sequence[Tensor]) -> None:
        """Add the gradients of a stage's weights; those in between are computed once more."""
        outputs, gradients = self._saved[action[::2]].pop().gradients
        added = torch.autograd.grad(outputs, parameters, gradients, allow_unused=True) if parameters else ()
        for parameter, gradient in zip(parameters, added, strict=True):
            if gradient is not None and parameter.grad is not None:
                parameter.grad += gradient


def _all(leaves: Values) -> list[Tensor]:
    return [leaf for (role, _), values in leaves.items() if role != "feedback" for leaf in values.values()]


def _given(saved: Saved, read: Values) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs of a stage with their gradients."""
    gradients = {key: value for values in read.values() for key, value in values.items()}
    if LOSS in saved.outputs:
        gradients[LOSS] = torch.ones_like(saved.outputs[LOSS])
    of = {key: value for key, value in saved.outputs.items() if value.requires_grad}
    return list(of.values()), [gradients[key] for key in of]


def _written(saved: Saved, stage: int, results: Sequence[Tensor | None]) -> Values:
    """Return the gradients of a stage's inputs, under the names by which they are sent."""
    gradients, written = iter(results), dict[Name, State]()
    for (role, source), leaves in saved.leaves.items():
        if role != "feedback":
            pairs = [(key, leaf, next(gradients)) for key, leaf in leaves.items()]
            name = "gradient" if role == "hidden" else f"skip gradient to {source}"
            written[name, stage] = {k: torch.zeros_like(x) if g is None else g for k, x, g in pairs}
    return written


class Weights:
    """The weights and gradients of a stage, each in one piece, of which each rank owns an equal share."""

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int, num_ranks: int) -> None:
        self.parameters, self.sharded = parameters, num_ranks > 1
        share = -(-sum(parameter.numel() for parameter in parameters) // num_ranks)
        self.owned = slice(rank * share, (rank + 1) * share)
        self.weights, self.gradients = torch.zeros(2, share * num_ranks, dtype=torch.float64)
        both = self._views(self.weights), self._views(self.gradients)
        for parameter, weight, gradient in zip(parameters, *both, strict=True):
            weight.copy_(parameter.data)
            parameter.data, parameter.grad = weight, gradient
        self.clear()

    def _views(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat tensor that stand for each parameter; the rest is padding."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = torch.split(flat[: sum(sizes)], sizes)
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]

    def clear(self) -> None:
        """Forget all gradients."""
        self.gradients.zero_()
        self._aside: dict[int, Tensor] = {}
        self._sums = torch.zeros_like(self.weights[self.owned]) if self.sharded else self.gradients

    def free(self) -> None:
        """Lose all weights but those that the rank owns."""
        kept = self.weights[self.owned].clone()
        self.weights.fill_(torch.nan)
        self.weights[self.owned] = kept

    def gather(self, group: dist.ProcessGroup) -> None:
        """Gather the weights that other ranks own."""
        dist.all_gather_single(self.weights, self.weights[self.owned].clone(), group=group)

    def set_aside(self, op: int) -> None:
        """Keep the gradients of one backward apart: the next one may begin while they are still being scattered."""
        self._aside[op] = self.gradients.clone()
        self.gradients.zero_()

    def reduce(self, op: int, group: dist.ProcessGroup) -> None:
        """Sum gradients over all ranks; where they are divided, those of one backward, and keep the own part."""
        if not self.sharded:
            dist.all_reduce(self.gradients, group=group)
            return
        received = torch.empty_like(self._sums)
        dist.reduce_scatter_single(received, self._aside.pop(op), group=group)
        self._sums += received

    def step(self) -> None:
        """Step the optimizer on the weights that the rank owns; all others are then out of date."""
        self.weights[self.owned].sub_(self._sums, alpha=LEARNING_RATE)
        if self.sharded:
            self.free()

    def unite(self) -> None:
        """Gather the sums of all ranks as the gradients of the parameters; all ranks must ask."""
        if self.sharded:
            dist.all_gather_single(self.gradients, self._sums)


class ModuleKernels(Kernels):
    """Carries out the ops of one device on real layers, on its own samples of the batch.

    It keeps the values of tensors, the weights of each stage, and the output of each frozen (component, layer).
    """

    sleeping = False

    def __init__(self, training: Training, wiring: Wiring, seat: RankSeat) -> None:
        self._training, self._wiring, self._plan, self._number = training, wiring, wiring.plan, seat.device
        replicas, group_batch = seat.placement.replicas, training.batch_size // seat.placement.num_groups
        first, end = seat.group * group_batch, (seat.group + 1) * group_batch
        self._samples_here = slice(first + seat.replica, end, replicas)
        self._samples = training.samples.of_replica(seat.replica, replicas)
        self._layers, plan = Layers(training.model, {}), self._plan
        self._passes = Passes(training.model, self._layers, plan)
        for op in plan.ops[seat.device]:
            if isinstance(op.action, FrozenAction):
                self._layers.get(op.action.component, op.action.layer)  # threads would share one generator
        self._last = {c: len(training.model.components[c].layers) - 1 for c in training.model.frozen}
        self._values: dict[int, State] = {}
        self._frozen: dict[tuple[int, int], Tensor] = {}
        sharded = bool({c.operation for c in plan.collectives} & {SCATTER, GATHER})
        shares = (dist.get_rank(), plan.placement.num_gpus) if sharded else (0, 1)
        self._ranges = {
            number: (stage.component, range(stage.first_layer, stage.last_layer + 1))
            for number, stage in enumerate(plan.stages)
            if stage.position == seat.device
        }
        self._weights = {n: Weights(self._layers.parameters(*of), *shares) for n, of in self._ranges.items()}
        self._freed = {
            stage
            for op in plan.ops[self._number]
            for role, stage, _ in (plan.tensors[tensor][:3] for tensor in op.reads)
            if role == "gathered" and isinstance(op.action, StageAction) and op.action.stage == stage
        }
        scattering = (collective for collective in plan.collectives if collective.operation == SCATTER)
        self._scattered = {wiring.writers[tensor] for collective in scattering for tensor in collective.reads}
        for stage in self._freed:
            self._weights[stage].free()

    def begin(self, iteration: int) -> None:
        """Load the batch; frozen work may be of the next one, and this one's outputs be left from the one before."""
        self._values.clear()
        for weights in self._weights.values():
            weights.clear()
        self._batch = {c: self._draw(iteration, c) for c in self._training.model.backbones}
        ahead = self._plan.cross_iteration
        self._inputs = {c: self._draw(iteration + ahead, c)[0] for c in self._last}
        prepared = {c: self._frozen[c, last] for c, last in self._last.items() if self._frozen}
        self._frozen = {
            (c, layer): torch.full_like(self._inputs[c], torch.nan)
            for c, last in self._last.items()
            for layer in range(last + 1)
        }
        self._context = {c: self._frozen[c, last] for c, last in self._last.items()}
        if ahead and not prepared:  # no earlier iteration computed them
            everyone = frozen_outputs(Layers(self._training.model, {}), iteration, self._training.batch_size)
            prepared = {component: values[self._samples_here] for component, values in everyone.items()}
        if ahead:
            self._context = prepared

    def _draw(self, iteration: int, component: int) -> tuple[Tensor, Tensor]:
        inputs, targets = batch_of(iteration, component, self._training.batch_size)
        return inputs[self._samples_here], targets[self._samples_here]

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Carry out an op; gradient buckets are all ready at its end."""
        if isinstance(op.action, FrozenAction):
            self._run_frozen(op.action, self._samples.ops[self._number, index])
        else:
            assert isinstance(op.action, StageAction)
            self._run_stage(index, op, op.action)
        for _, tensor in op.early:
            mark(tensor)

    def _run_stage(self, index: int, op: Op, action: StageAction) -> None:
        weights, tensors = self._weights[action.stage], self._plan.tensors
        read = {tensors[t][:2]: self._values[t] for t in op.reads if t in self._values}
        written: Values = {}
        if action.kind == OPTIMIZER:
            weights.step()
            return
        if action.kind == BACKWARD:
            written = self._passes.backward(action, read)
        elif action.kind == BACKWARD_INPUT:
            written = self._passes.backward_input(action, read)
        elif action.kind == BACKWARD_WEIGHT:
            self._passes.backward_weight(action, weights.parameters)
        else:
            names = [tensors[tensor][:2] for tensor in op.writes]
            written = self._passes.forward(action, read, names, self._micro_batch(action))
        self._values.update({t: written[tensors[t][:2]] for t in op.writes if tensors[t][:2] in written})
        if (self._number, index) in self._scattered:
            weights.set_aside(index)
        if action.stage in self._freed:
            weights.free()

    def _run_frozen(self, action: FrozenAction, spans: Sequence[Span]) -> None:
        component, layer, _ = action
        source = self._frozen[component, layer - 1] if layer else self._inputs[component]
        needed = () if layer else self._training.model.inputs_of(component)
        context = {c: _pieces(self._frozen[c, self._last[c]], spans) for c in needed if c in self._last}
        with torch.no_grad():
            result = self._layers.run(component, range(layer, layer + 1), _pieces(source, spans), {}, context)
            for (first, end), part in zip(spans, torch.split(result, [b - a for a, b in spans]), strict=True):
                self._frozen[component, layer][first:end].copy_(part)

    def _micro_batch(self, action: StageAction) -> Batch:
        component, _ = self._ranges[action.stage]
        size = self._training.micro_batch
        rows = slice(action.micro_batch * size, (action.micro_batch + 1) * size)
        inputs, targets = self._batch[component]
        # a copy: pieces for later micro-batches still arrive, and autograd wants what it keeps to stay as it is
        context = {c: values[rows].clone() for c, values in self._context.items()}
        return Batch(inputs[rows], targets[rows], context, self._training.batch_size)

    def _frozen_rows(self, tensor: int) -> Tensor:
        """The rows that a frozen tensor holds."""
        _, component, layer, _ = self._plan.tensors[tensor]
        return self._frozen[component, layer][slice(*self._samples.tensors[tensor])]

    def pack(self, tensor: int) -> Any:  # noqa: ANN401  arrays
        if tensor in self._samples.tensors:
            return self._frozen_rows(tensor).numpy()
        return {key: value.numpy() for key, value in self._values[tensor].items()}

    def unpack(self, tensor: int, payload: Any) -> None:  # noqa: ANN401  as above
        if tensor in self._samples.tensors:
            self._frozen_rows(tensor).copy_(torch.from_numpy(payload))
        else:
            self._values[tensor] = {key: torch.from_numpy(value) for key, value in payload.items()}

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Sum or scatter the gradients of a stage with the last of its buckets, or gather its weights."""
        of, tensors = self._plan.collectives[collective], self._plan.tensors
        if of.operation == GATHER:
            for stage in {tensors[tensor].stage for tensor in of.writes}:
                self._weights[stage].gather(group)
            return
        later = self._plan.collectives[collective + 1 :]
        following = {self._wiring.writers[tensor] for other in later for tensor in other.reads}
        for stage, writer in {tensors[t].stage: self._wiring.writers[t] for t in of.reads}.items():
            if stage in self._ranges and writer not in following:  # no later collective takes a bucket of it
                self._weights[stage].reduce(writer[1], group)

    def result(self) -> Gradients:
        for weights in self._weights.values():
            weights.unite()
        return gradients_of(self._layers, self._ranges.values())


def _pieces(values: Tensor, spans: Sequence[Span]) -> Tensor:
    return torch.cat([values[first:end] for first, end in spans])
