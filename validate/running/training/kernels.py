"""Kernels that train a small real model, stage by stage, as the plan says.

The hidden state crosses a cut with every live skip, or, where the plan keeps skips local,
alone, and each skip from the stage that makes it to the stage that takes it. Frozen outputs that were not delivered are
NaN, and so is every gradient that follows from them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from profiles.architectures.models import Model
from strategies.pipelining.mesh import GATHER, SCATTER
from strategies.plans.actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    EXTRA_FORWARD,
    FORWARD,
    OPTIMIZER,
    FrozenAction,
    StageAction,
)
from strategies.plans.plan import Op, Plan
from strategies.plans.wiring import Wiring
from validate.running.executor import Kernels, Mark, RankSeat
from validate.running.training.layers import LEARNING_RATE, Context, Gradients, Layers, State, batch_of

HIDDEN_STATE: Final = (-1, -1)
LOSS: Final = (-2, -2)
Name = tuple[str, int]  # role and stage of a tensor of the plan
Values = dict[Name, State]
Batch = tuple[Tensor, Tensor, Context]
"""Inputs and targets of a micro-batch, and its frozen outputs."""


class FrozenSamples(NamedTuple):
    """Ranges of the group's samples that each frozen op takes, by (device, index), and each frozen tensor holds."""

    ops: dict[tuple[int, int], list[range]]
    tensors: dict[int, range]

    def of_replica(self, replica: int, replicas: int) -> "FrozenSamples":
        """The same in samples of one replica of a position, which takes every ``replicas``-th of the group."""

        def share(span: range) -> range:
            return range(-(-(span.start - replica) // replicas), -(-(span.stop - replica) // replicas))

        ops = {key: [*map(share, spans)] for key, spans in self.ops.items()}
        return FrozenSamples(ops, {tensor: share(span) for tensor, span in self.tensors.items()})


@dataclass(frozen=True, slots=True)
class Training:
    """A small model of a structure, with the samples of all ranks, and of a micro-batch on one rank."""

    model: Model
    batch_size: int
    micro_batch: int
    samples: FrozenSamples
    extra_forward: bool = False


class Saved(NamedTuple):
    """Inputs and outputs of a forward, and, once its backward began, the outputs with their gradients."""

    leaves: Values
    outputs: State
    gradients: tuple[list[Tensor], list[Tensor]] = ([], [])


class Passes:
    """The passes of the stages of one device."""

    def __init__(self, layers: Layers, plan: Plan) -> None:
        self._layers, self._stages = layers, plan.stages
        self._local = any(tensor.role.startswith("skip to ") for tensor in plan.tensors)
        self._saved: defaultdict[tuple[int, int], list[Saved]] = defaultdict(list)

    def _crossing(self, role: str, stage: int) -> list[tuple[int, int]]:
        """Return the keys of the states in a tensor of a stage's forward."""
        owner = self._stages[stage]
        component = self._layers.model.components[owner.component]
        if role.startswith("skip to "):
            to = self._stages[int(role.rpartition(" ")[2])]
            ends = range(to.first_layer, to.last_layer + 1)
            made = range(owner.first_layer, owner.last_layer + 1)
            return [(s.source, s.target) for s in component.skips if s.source in made and s.target in ends]
        relayed = [] if self._local or role == "feedback" else component.live_skips(owner.last_layer)
        return [HIDDEN_STATE, *((skip.source, skip.target) for skip in relayed)]

    def forward(
        self, action: StageAction, read: Values, writes: Sequence[Name], batch: Batch, samples: int
    ) -> Values:
        """Run a stage forwards and return its outputs; those of an extra forward need no gradients."""
        extra, stage = action.kind == EXTRA_FORWARD, self._stages[action.stage]
        fed_back = [values[HIDDEN_STATE] for (role, _), values in read.items() if role == "feedback"]
        leaves = {
            name: {key: value.detach().requires_grad_(not extra) for key, value in values.items()}
            for name, values in read.items()
            if name[0] != "feedback"
        }
        state = {key: leaf for values in leaves.values() for key, leaf in values.items()}
        inputs, targets, context = batch
        layers, outputs = range(stage.first_layer, stage.last_layer + 1), State()
        with torch.set_grad_enabled(not extra):
            hidden = sum(fed_back, state.pop(HIDDEN_STATE, inputs))
            hidden = self._layers.run(stage.component, layers, hidden, state, context)
            if stage.last_layer == len(self._layers.model.components[stage.component].layers) - 1:
                outputs[LOSS] = (hidden - targets).square().sum() / (samples * hidden[0].numel())
        state[HIDDEN_STATE], written = hidden, dict[Name, State]()
        for name in writes:
            role = name[0].removeprefix("extra ")
            if role in ("hidden", "feedback") or role.startswith("skip to "):
                written[name] = {key: state[key] for key in self._crossing(role, action.stage)}
                outputs |= written[name]
        if not extra:
            self._saved[action[::2]].append(Saved(leaves, outputs))
        return {name: {k: value.detach() for k, value in values.items()} for name, values in written.items()}

    def backward(self, action: StageAction, read: Values, parameters: Sequence[Tensor]) -> Values:
        """Run a stage backwards: return the gradients of its inputs, and add those of its weights.

        Each of the two may come alone; where weights come later, gradients in between are computed once more.
        """
        saved, kind = self._saved[action[::2]].pop(), action.kind
        if kind != BACKWARD_WEIGHT:
            output = {key: value for key, value in saved.outputs.items() if value.requires_grad}
            brought = {key: value for values in read.values() for key, value in values.items()}
            given = [brought[key] if key != LOSS else torch.ones_like(value) for key, value in output.items()]
            saved = saved._replace(gradients=(list(output.values()), given))
        if kind == BACKWARD_INPUT:
            self._saved[action[::2]].append(saved)
        leaves = {} if kind == BACKWARD_WEIGHT else saved.leaves
        weights = () if kind == BACKWARD_INPUT else parameters
        wanted = [*(leaf for values in leaves.values() for leaf in values.values()), *weights]
        if wanted:
            outputs, given = saved.gradients
            torch.autograd.backward(outputs, given, retain_graph=kind == BACKWARD_INPUT, inputs=wanted)
        written: Values = {}
        for (role, source), values in leaves.items():
            name = "gradient" if role == "hidden" else f"skip gradient to {source}"
            gradients = {
                key: torch.zeros_like(value) if value.grad is None else value.grad
                for key, value in values.items()
            }
            written[name, action.stage] = gradients
        return written


class Weights:
    """The weights and gradients of a stage, each in one piece, of which each rank owns an equal share."""

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int, num_ranks: int) -> None:
        self.parameters, self.sharded = parameters, num_ranks > 1
        share = -(-sum(parameter.numel() for parameter in parameters) // num_ranks)
        self.owned = slice(rank * share, (rank + 1) * share)
        self.weights, self.gradients = torch.zeros(2, share * num_ranks, dtype=torch.float64)
        end = 0
        for parameter in parameters:
            part = slice(end, end := end + parameter.numel())
            self.weights[part] = parameter.data.flatten()
            parameter.data = self.weights[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
        self.clear()

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

    def __init__(self, training: Training, wiring: Wiring, seat: RankSeat) -> None:
        self._training, self._wiring, self._plan, self._number = training, wiring, wiring.plan, seat.device
        replicas, group_batch = seat.placement.replicas, training.batch_size // seat.placement.num_groups
        first, end = seat.group * group_batch, (seat.group + 1) * group_batch
        self._samples_here = slice(first + seat.replica, end, replicas)
        self._samples = training.samples.of_replica(seat.replica, replicas)
        self._layers, plan, ops = Layers(training.model), self._plan, self._plan.ops[seat.device]
        self._passes = Passes(self._layers, plan)
        for op in ops:
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
        self._weights = {
            n: Weights(self._layers.parameters(*layers), *shares) for n, layers in self._ranges.items()
        }
        reads = [(op.action, plan.tensors[t]) for op in ops for t in op.reads]
        stages = [(a.stage, tensor) for a, tensor in reads if isinstance(a, StageAction)]
        self._freed = {
            stage for stage, tensor in stages if (tensor.role, tensor.stage) == ("gathered", stage)
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
        inputs = {c: self._draw(iteration + ahead, c)[0] for c in self._last}
        prepared = {c: self._frozen[c, last] for c, last in self._last.items() if self._frozen}
        self._frozen = {
            (c, layer): torch.full_like(inputs[c], torch.nan)
            for c, last in self._last.items()
            for layer in range(last + 1)
        } | {(c, -1): batch for c, batch in inputs.items()}
        if ahead and not prepared:  # no earlier iteration computed them
            everyone = Layers(self._training.model).frozen_outputs(iteration, self._training.batch_size)
            prepared = {component: values[self._samples_here] for component, values in everyone.items()}
        self._context = prepared if ahead else {c: self._frozen[c, last] for c, last in self._last.items()}

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
        if action.kind == OPTIMIZER:
            weights.step()
            return
        read = {tensors[t][:2]: self._values[t] for t in op.reads if t in self._values}
        if action.kind in (FORWARD, EXTRA_FORWARD):
            names = [tensors[tensor][:2] for tensor in op.writes]
            samples = self._training.batch_size
            written = self._passes.forward(action, read, names, self._micro_batch(action), samples)
        else:
            written = self._passes.backward(action, read, weights.parameters)
        self._values.update({t: written[tensors[t][:2]] for t in op.writes if tensors[t][:2] in written})
        if (self._number, index) in self._scattered:
            weights.set_aside(index)
        if action.stage in self._freed:
            weights.free()

    def _run_frozen(self, action: FrozenAction, spans: Sequence[range]) -> None:
        component, layer, _ = action

        def pieces(values: Tensor) -> Tensor:
            return torch.cat([values[span.start : span.stop] for span in spans])

        needed = () if layer else self._training.model.inputs_of(component)
        context = {c: pieces(self._frozen[c, self._last[c]]) for c in needed if c in self._last}
        hidden = pieces(self._frozen[component, layer - 1])
        with torch.no_grad():
            result = self._layers.run(component, range(layer, layer + 1), hidden, {}, context)
        for span, part in zip(spans, torch.split(result, [*map(len, spans)]), strict=True):
            self._frozen[component, layer][span.start : span.stop] = part

    def _micro_batch(self, action: StageAction) -> Batch:
        component, _ = self._ranges[action.stage]
        size = self._training.micro_batch
        rows = slice(action.micro_batch * size, (action.micro_batch + 1) * size)
        inputs, targets = self._batch[component]
        # a copy: pieces for later micro-batches still arrive, and autograd wants what it keeps to stay as it is
        context = {c: values[rows].clone() for c, values in self._context.items()}
        return inputs[rows], targets[rows], context

    def _frozen_rows(self, tensor: int) -> Tensor:
        """The rows that a frozen tensor holds."""
        _, component, layer, _ = self._plan.tensors[tensor]
        span = self._samples.tensors[tensor]
        return self._frozen[component, layer][span.start : span.stop]

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
        transfer, tensors = self._plan.collectives[collective], self._plan.tensors
        if transfer.operation == GATHER:
            for stage in {tensors[tensor].stage for tensor in transfer.writes}:
                self._weights[stage].gather(group)
            return
        later = self._plan.collectives[collective + 1 :]
        following = {self._wiring.writers[tensor] for other in later for tensor in other.reads}
        for stage, writer in {tensors[t].stage: self._wiring.writers[t] for t in transfer.reads}.items():
            if stage in self._ranges and writer not in following:  # no later collective takes a bucket of it
                self._weights[stage].reduce(writer[1], group)

    def result(self) -> Gradients:
        for weights in self._weights.values():
            weights.unite()
        return self._layers.gradients(self._ranges.values())
