"""The scenario: which model runs on which cluster, with which workload; that of sampling is a module of its own.

It is what every strategy is asked about; the strategy's own parameters are its fields.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from profiles.architectures.models import Model
from profiles.costs.adapters import with_adapters
from profiles.costs.bands import Band
from profiles.costs.calibration import Calibration, MeasuredRun, check_same
from profiles.costs.layers import ModelCosts, TaskCosts
from profiles.costs.offloading import HostSide
from profiles.costs.resolutions import in_words, resized, sides_of, with_frames, with_text
from profiles.errors import InfeasibleError, InputError, counted, wrong
from profiles.machines.clusters import Cluster
from profiles.machines.whatifs import whatif_words
from profiles.software.levers import HALF, products_in
from profiles.software.reserved import room_bytes
from profiles.software.stacks import UNFUSED, Stack, load_stack
from strategies.parameters import named_options, titles
from strategies.plans.workloads import ALL, DRAWS, ONE_DRAW, OWN_DRAWS, SamplingWorkload, TrainingWorkload

W = TypeVar("W", bound="TrainingWorkload | SamplingWorkload")
T = TypeVar("T")

OF_STACKS: Final = ("attention", "encoder_precision", "iteration_us")
"""Options of training that change the stack."""
MISSING: Final[Any] = object()
"""Stands for no value; nothing that is remembered is this object."""


class Same:
    """A frozen value as a key by which what follows from it is kept: the same object, not an equal one."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:  # noqa: ANN401
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


@lru_cache(maxsize=64)
def model_of_task(model: Same, task: str, also: tuple[str, ...] = ()) -> Model:
    """The model with only the components that a task needs, and those named, made once of each model."""
    made: Model = model.value.for_task(task, also)
    return made


@dataclass(frozen=True)
class Scene(Generic[W]):
    """A model on a cluster under a workload, run by a software stack; it checks itself when it is made.

    ``asked_model``, ``asked_cluster`` and ``asked_stack`` are the folder or file they were read from, where they are
    not shipped. ``measured`` is a run of the same model, device and stack that was measured; it scales compute.
    All else is derived, and stays with this one object: neither a copy with other fields nor a pickled one takes
    it along. What strategies would derive again for every point is kept with ``remember``.
    """

    task: ClassVar[str]
    of_costs: ClassVar[tuple[str, ...]]
    """Fields of the workload by which the model and its times differ."""
    model: Model
    cluster: Cluster
    workload: W
    asked_model: str = ""
    asked_cluster: str = ""
    stack: Stack = field(default_factory=load_stack)
    asked_stack: str = ""
    measured: MeasuredRun | None = None

    def __repr__(self) -> str:
        where = f"{self.cluster_name} by stack {self.stack_name}"
        values = ((item, getattr(self.workload, item.name)) for item in fields(self.workload))
        changed = ", ".join(f"{item.name}={value!r}" for item, value in values if value != item.default)
        return (
            f"<{type(self).__name__} {self.model_name} on {where}: {type(self.workload).__name__}({changed})>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, item.name) for item in fields(self))

    @property
    def model_name(self) -> str:
        """The name or folder that asks for this model again."""
        return self.asked_model or self.model.name

    @property
    def cluster_name(self) -> str:
        """The name or file that asks for this cluster again."""
        return self.asked_cluster or self.cluster.name

    @property
    def stack_name(self) -> str:
        """The name or file that asks for this stack again."""
        return self.asked_stack or self.stack.name

    @cached_property
    def room_bytes(self) -> float | None:
        """Bytes of tensors for which each GPU has room beside what a process reserves; None where unlimited."""
        return room_bytes(self.cluster.device.memory_bytes, self.workload.num_gpus)

    @property
    def slowed_stack(self) -> Stack:
        """The stack on the box's host."""
        return self.stack.slowed(self.cluster.host.slowness)

    @property
    def frames(self) -> dict[str, int]:
        """The option that says how many frames a video has; none of a model of images."""
        return {"frames": self.model.frames} if self.model.draws_videos else {}

    @property
    def calibration(self) -> Calibration:
        """Factor on compute that the measured run gives; 1 where there is none."""
        return Calibration() if self.measured is None else self.measured.calibration

    @property
    def shared_options(self) -> dict[str, int | str]:
        """The options that name what-ifs on the cluster and the measured run."""
        return dict(self.cluster.changes) | ({} if self.measured is None else dict(self.measured.options))

    @cached_property
    def backbone_index(self) -> int:
        """The index of the only backbone.

        Raises:
            InfeasibleError: the model has none or several.
        """
        backbones = self.model.backbones
        if len(backbones) != 1:
            names = ", ".join(self.model.components[i].name for i in backbones) or "none"
            raise InfeasibleError(
                f"needs one backbone, the model has {len(backbones)} ({names})", "needs one backbone"
            )
        return backbones[0]

    @abstractmethod
    def _costs(self, pace: float = 1.0) -> TaskCosts:
        """Times of the layers where products in fewer bits take a factor of their law's seconds."""

    @cached_property
    def band(self) -> Band:
        """Factors on seconds between which measured products in fewer bits leave them."""
        precision = self.workload.precision
        if precision == HALF:
            return Band()
        products = products_in(precision, self.cluster.device)
        usual_s, low_s, high_s = (
            sum(float(costs.components[i].gpu_s(1).sum()) for i in self.model.backbones)
            for costs in map(self._costs, (1.0, products.low, products.high))
        )
        return Band(min(1.0, low_s / usual_s), max(1.0, high_s / usual_s))

    @cached_property
    def host_side(self) -> HostSide:
        """The host as the GPUs of a node reach it."""
        return HostSide.of(self.cluster, self.workload.num_gpus)

    @cached_property
    def _memo(self) -> dict[Hashable, Any]:
        return {}

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value that ``make`` makes, made once for each key."""
        value: T = self._memo.get(key, MISSING)
        if value is MISSING:
            value = self._memo[key] = make()
        return value

    def on(self, num_gpus: int) -> Self:
        """The scene on another number of GPUs, where each layer takes as long."""
        return self.with_options(num_gpus=num_gpus)

    def with_options(self, **options: Any) -> Self:  # noqa: ANN401  those of the workload
        """The scene with other options on which no layer's time depends, such as the GPUs; made once."""
        if all(getattr(self.workload, name) == value for name, value in options.items()):
            return self
        key = ("with", self.workload, *options.items())
        return self.remember(key, lambda: self._under(replace(self.workload, **options), "costs"))

    def under(self, workload: W) -> Self:
        """The scene under another workload; layers of a model that stays as it is take as long."""

        def decides(settings: W) -> tuple[object, ...]:
            return tuple(getattr(settings, name) for name in self.of_costs)

        alike = self
        if decides(workload) != decides(self.workload):
            alike = self.remember(("under", decides(workload)), lambda: replace(self, workload=workload))
        other = alike._under(workload, "costs")
        other._check_own_options()
        return other

    def _check_measured(self) -> None:
        """Refuse a run measured of another model, device or stack."""
        if self.measured is not None:
            check_same(self.measured.of, (self.model.name, self.cluster.device.name, self.stack.name))

    def _check_own_options(self) -> None:
        """Refuse a workload that this model, cluster or stack cannot have."""

    def _under(self, workload: W, *alike: str) -> Self:
        """The scene under another workload, with those derived quantities that are alike under both."""
        self.cluster.check_gpus(workload.num_gpus)
        other = object.__new__(type(self))  # what was checked and derived once is neither again
        vars(other).update(
            {item.name: getattr(self, item.name) for item in fields(self)} | {"workload": workload}
        )
        vars(other).update({name: getattr(self, name) for name in alike})
        return other


@dataclass(frozen=True, repr=False)
class Scenario(Scene[TrainingWorkload]):
    """A model that is trained on a cluster under a workload; of the model, only what training needs.

    The model is as it is at the workload's resolution. What is kept with ``remember`` serves iterations with and
    without the extra forward pass alike; scenarios that are kept go by the whole workload.

    Raises:
        InputError: the cluster is too small, the model has no costs on its devices or cannot have the resolution, or
            its backbones differ in self-conditioning.
    """

    task: ClassVar[str] = "train"
    of_costs: ClassVar[tuple[str, ...]] = (
        "trainable", "resolution", "frames", "text_tokens", "precision", *OF_STACKS,
    )  # fmt: skip

    def __post_init__(self) -> None:
        self._check_measured()
        self.cluster.check_gpus(self.workload.num_gpus)
        model = model_of_task(Same(self.model), self.task)
        workload = self.workload
        device = self.cluster.device
        if workload.text_tokens is not None:
            model = with_text(model, workload.text_tokens)
        if workload.frames is not None:
            model = with_frames(model, workload.frames, device)
        if workload.resolution is not None:
            model = resized(model, *sides_of(workload.resolution), device)
        object.__setattr__(self, "model", with_adapters(model, workload.rank))
        changes = (getattr(workload, name) for name in OF_STACKS)
        object.__setattr__(self, "stack", self.stack.changed(*changes))
        self._check_own_options()
        _ = self.costs

    def _check_own_options(self) -> None:
        """Refuse what a model, a stack or a device cannot have, and what nobody knows: a device's link to its host."""
        if self.workload.self_conditioning is None:
            _check_self_conditioning(self.model)
        if self.workload.checkpointing == "selective" and self.stack.attention == UNFUSED:
            raise wrong(
                "checkpointing", f"is selective, but stack {self.stack.name} has no fused attention to keep"
            )
        backbones = (self.model.components[index] for index in self.model.backbones)
        most = max((len({layer.block for layer in backbone.layers}) for backbone in backbones), default=1)
        if self.workload.recomputed_together > max(most, 1):
            rule = f"must be of at most the {counted(most, 'block')} of a backbone of {self.model.name}"
            raise wrong("checkpointing", f"is {self.workload.checkpointing}, {rule}")
        if self.workload.offload != "none":
            _ = self.host_side
        if self.workload.precision != HALF:
            products_in(self.workload.precision, self.cluster.device)
        there = [
            self.model.components[i].name for i in self.model.frozen if self.model.components[i].cacheable
        ]
        for name in self.workload.cached:
            if name not in (*there, ALL):
                known = f"those of {self.model.name} that can be loaded are {', '.join(there) or 'none'}"
                raise wrong("frozen", f"names '{name}', {known}")

    @cached_property
    def costs(self) -> ModelCosts:
        """Times of the model's layers on the cluster's device."""
        return self._costs()

    def _costs(self, pace: float = 1.0) -> ModelCosts:
        """Times of the layers where products in fewer bits take a factor of their law's seconds."""
        return ModelCosts(
            self.model,
            self.cluster.device,
            self.slowed_stack,
            calibration=self.calibration,
            precision=self.workload.precision,
            pace=pace,
        )

    def step_s(self, parameters: float) -> float:
        """Seconds of the optimizer's step on so many parameters of a GPU, on the GPU or on its host."""
        if self.workload.offload == "optimizer":
            return self.host_side.step_s(parameters, self.workload.recipe)
        return self.costs.optimizer_s(parameters, self.workload.recipe)

    def host_s(self, parameters: float) -> float:
        """Seconds of the host in an iteration that nothing hides, on a GPU that steps so many of the parameters."""
        return self.stack.iteration_s * parameters / self._trained

    @cached_property
    def _trained(self) -> int:
        """Parameters that have gradients."""
        backbones = (self.model.components[i] for i in self.model.backbones)
        return sum(one.trained_parameters(0, len(one.layers)) for one in backbones)

    @cached_property
    def frozen(self) -> tuple[int, ...]:
        """Indices of the frozen components that run in an iteration, inputs before the components that need them."""
        cached = self.workload.cached
        frozen = ((i, self.model.components[i]) for i in self.model.frozen)
        return tuple(
            i
            for i, component in frozen
            if not component.cacheable or (ALL not in cached and component.name not in cached)
        )

    @property
    def asked(self) -> dict[str, Any]:
        """What is trained, under public keys."""
        return {"resolution": in_words(self.model.height, self.model.width), "frozen": self.workload.frozen}

    @property
    def options(self) -> dict[str, Any]:
        """The options that reproduce this scenario."""
        options = named_options(self.workload) | self.frames | self.asked | self.shared_options
        return {"self_conditioning": self.self_conditioning, **options}

    @property
    def departures(self) -> tuple[str, ...]:
        """All that departs from plain training at the model's reference on the cluster as it is, for titles."""
        share = self.self_conditioning
        return (
            *([f"{self.asked['resolution']} pixels"] if self.model.resized_from else []),
            *[counted(frames, "frame") for frames in self.frames.values()],
            *([f"self-conditioning {share:g}"] if share else []),
            *titles(self.workload).values(),
            *whatif_words(self.cluster.changes),
        )

    @property
    def self_conditioning(self) -> float:
        """Probability that an iteration runs the extra forward pass."""
        if self.workload.self_conditioning is not None:
            return self.workload.self_conditioning
        return max((self.model.components[i].self_conditioning for i in self.model.backbones), default=0.0)

    def draws(self, usual: str) -> str:
        """Who draws self-conditioning; ``usual`` is who does in a strategy's runtimes."""
        draw = self.workload.self_conditioning_draw
        return usual if draw == DRAWS[0] else draw

    def extra_forward_probability(self, num_groups: int, draws: str = ONE_DRAW) -> float:
        """The probability that some of the data-parallel groups runs the extra forward pass.

        One draw counts for all ranks, or each group draws for itself and the slowest decides.
        """
        probability = self.self_conditioning
        if self.draws(draws) == OWN_DRAWS:
            return float(1 - (1 - probability) ** num_groups)
        return probability

    def variants(self, num_groups: int, draws: str = ONE_DRAW) -> list[tuple["Scenario", float, float]]:
        """The iterations that occur, each with its probability and the share of the groups that do this work.

        Args:
            num_groups: data-parallel groups.
            draws: who draws self-conditioning in the strategy's runtimes.
        """
        probability, share = self.extra_forward_probability(num_groups, draws), self.self_conditioning
        both = (False, 1 - probability, 1 - share), (True, probability, share)
        return [(self.with_extra_forward(extra), often, part) for extra, often, part in both if part > 0]

    def only(self, backbone: int, num_gpus: int) -> "Scenario":
        """The scenario that trains one backbone alone on some of the GPUs, with the same batch."""

        def make() -> Scenario:
            share = self.self_conditioning
            workload = replace(self.workload, self_conditioning=share, extra_forward=False, num_gpus=num_gpus)
            return replace(self, model=self.model.only(backbone), workload=workload)

        return self.remember(("only", backbone, num_gpus), make)

    def with_extra_forward(self, extra_forward: bool) -> "Scenario":
        """The scenario of the iterations that run, or do not run, the extra forward pass."""
        if extra_forward == self.workload.extra_forward:
            return self
        workload = replace(self.workload, extra_forward=extra_forward)
        return self.remember(("extra", workload), lambda: self._under(workload, "costs", "_memo"))

    def without_casts(self) -> "Scenario":
        """The scenario in which no pass casts weights; else layers take as long."""
        other = self._under(self.workload)
        stack = replace(self.stack, cast_weights=False)
        vars(other).update(stack=stack, costs=self.costs.of_half_weights)
        return other


def _check_self_conditioning(model: Model) -> None:
    """Refuse backbones that differ in how often they run the extra forward pass."""
    backbones = [model.components[i] for i in model.backbones]
    if len({backbone.self_conditioning for backbone in backbones}) > 1:
        values = ", ".join(f"{backbone.name}: {backbone.self_conditioning:g}" for backbone in backbones)
        raise InputError(
            f"the backbones differ in self_conditioning ({values}), but they run together or not at all: give"
            " `self_conditioning`"
        )
