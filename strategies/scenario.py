"""The scenario: which model is trained on which cluster, with which workload.

It is what every strategy is asked about; the strategy's own parameters are its fields.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from profiles.costs import ModelCosts
from profiles.errors import InputError
from profiles.models import Model
from profiles.recipes import RECIPES, MemoryRecipe
from strategies.scene import Scene, check_gpus

DRAWS: Final = ("iteration", "rank")
CHECKPOINTINGS: Final = ("none", "full")
PLACEMENTS: Final = ("pipeline-inner", "data-inner")
DEFAULT_BATCH_PER_GPU: Final = 32


@dataclass(frozen=True, slots=True)
class TrainingWorkload:
    """What one training iteration does.

    Attributes:
        num_gpus: GPUs in all.
        batch_size: samples of all GPUs together.
        self_conditioning: probability of the extra forward pass of all backbones; None takes their own.
        self_conditioning_draw: ``iteration`` draws once for all ranks; with ``rank`` each data-parallel group
            draws, and the slowest decides.
        checkpointing: ``none``, or ``full``: keep each stage's input, run its forward again before its backward.
        memory_recipe: bytes per trained parameter, a key of ``RECIPES``.
        placement: ``pipeline-inner`` gives neighbouring GPUs to one pipeline group, ``data-inner`` to its replicas.
        extra_forward: whether the iteration at hand runs the extra forward pass.
    """

    num_gpus: int
    batch_size: int
    self_conditioning: float | None = None
    self_conditioning_draw: str = "iteration"
    checkpointing: str = "none"
    memory_recipe: str = "mixed"
    placement: str = "pipeline-inner"
    extra_forward: bool = False

    def __post_init__(self) -> None:
        if self.num_gpus < 1:
            raise InputError(f"--gpus is {self.num_gpus}, must be at least 1")
        if self.batch_size < 1:
            raise InputError(f"--batch-size is {self.batch_size}, must be at least 1")
        if self.self_conditioning is not None and not 0 <= self.self_conditioning <= 1:
            raise InputError(f"--self-conditioning is {self.self_conditioning}, must be between 0 and 1")
        for flag, value, choices in (
            ("self-conditioning-draw", self.self_conditioning_draw, DRAWS),
            ("checkpointing", self.checkpointing, CHECKPOINTINGS),
            ("memory-recipe", self.memory_recipe, tuple(RECIPES)),
            ("placement", self.placement, PLACEMENTS),
        ):
            if value not in choices:
                raise InputError(f"--{flag} is '{value}', must be one of {', '.join(choices)}")

    @property
    def recipe(self) -> MemoryRecipe:
        """The memory recipe."""
        return RECIPES[self.memory_recipe]


@dataclass(frozen=True, repr=False)
class Scenario(Scene[TrainingWorkload]):
    """A model that is trained on a cluster under a workload; of the model, only what training needs.

    What is kept with ``remember`` serves iterations with and without the extra forward pass alike.

    Raises:
        InputError: the cluster is too small, the model has no costs on its devices, or its backbones differ in
            self-conditioning.
    """

    def __post_init__(self) -> None:
        check_gpus(self.cluster, self.workload.num_gpus)
        object.__setattr__(self, "model", self.model.for_task("train"))
        if self.workload.self_conditioning is None:
            _check_self_conditioning(self.model)
        _ = self.costs

    @cached_property
    def costs(self) -> ModelCosts:
        """Times of the model's layers on the cluster's device."""
        return ModelCosts(self.model, self.cluster.device)

    @property
    def backbone(self) -> int:
        """The index of the only backbone.

        Raises:
            InfeasibleError: the model has none or several.
        """
        return self.backbone_index

    @property
    def self_conditioning(self) -> float:
        """Probability that an iteration runs the extra forward pass."""
        if self.workload.self_conditioning is not None:
            return self.workload.self_conditioning
        return max((self.model.components[i].self_conditioning for i in self.model.backbones), default=0.0)

    def extra_forward_probability(self, num_groups: int) -> float:
        """Return the probability that some of the data-parallel groups runs the extra forward pass.

        One draw counts for all ranks, or each group draws for itself and the slowest decides.
        """
        probability = self.self_conditioning
        if self.workload.self_conditioning_draw == "rank":
            return float(1 - (1 - probability) ** num_groups)
        return probability

    def only(self, backbone: int, num_gpus: int) -> "Scenario":
        """The scenario that trains one backbone alone on some of the GPUs, with the same batch."""

        def make() -> Scenario:
            workload = replace(
                self.workload,
                num_gpus=num_gpus,
                self_conditioning=self.self_conditioning,
                extra_forward=False,
            )
            return replace(self, model=self.model.only(backbone), workload=workload)

        return self.remember(("only", backbone, num_gpus), make)

    def with_extra_forward(self, extra_forward: bool) -> "Scenario":
        """The scenario of the iterations that run, or do not run, the extra forward pass."""
        return self if extra_forward == self.workload.extra_forward else self._twin

    @cached_property
    def _twin(self) -> "Scenario":
        workload = replace(self.workload, extra_forward=not self.workload.extra_forward)
        return self._under(workload, "costs", "_memo")

    def with_batch(self, batch_size: int) -> "Scenario":
        """The scenario of another batch size."""
        return self._under(replace(self.workload, batch_size=batch_size), "costs")


def _check_self_conditioning(model: Model) -> None:
    """Refuse backbones that differ in how often they run the extra forward pass.

    Raises:
        InputError: they do.
    """
    backbones = [model.components[i] for i in model.backbones]
    if len({backbone.self_conditioning for backbone in backbones}) > 1:
        values = ", ".join(f"{backbone.name}: {backbone.self_conditioning:g}" for backbone in backbones)
        raise InputError(
            f"the backbones differ in self_conditioning ({values}), but they run together or not at all: give"
            " --self-conditioning"
        )
