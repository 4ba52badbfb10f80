"""The scenario: which model is trained on which cluster, with which workload.

It is what every strategy is asked about; the strategy's own parameters are its fields.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeVar

from profiles.clusters import Cluster
from profiles.costs import ModelCosts
from profiles.errors import InputError
from profiles.models import Model
from profiles.recipes import RECIPES, MemoryRecipe
from strategies.scene import Scene, check_gpus

T = TypeVar("T")

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


@dataclass(frozen=True)
class Scenario(Scene[TrainingWorkload, ModelCosts]):
    """A model on a cluster under a workload, with the costs of the layers there.

    ``asked_model`` and ``asked_cluster`` are the folder or file they were read from, where they are not shipped.
    What strategies derive from it and would else derive again for every point is kept with ``remember``.
    """

    @classmethod
    def of(cls, model: Model, cluster: Cluster, workload: TrainingWorkload) -> "Scenario":
        """Return a scenario with its costs.

        Raises:
            InputError: the cluster is too small, or the model has no costs on its devices.
        """
        check_gpus(cluster, workload.num_gpus)
        model = model.for_task("train")
        own = {model.components[i].self_conditioning for i in model.backbones}
        if workload.self_conditioning is None and len(own) > 1:
            values = ", ".join(
                f"{model.components[i].name}: {model.components[i].self_conditioning:g}"
                for i in model.backbones
            )
            raise InputError(
                f"the backbones differ in self_conditioning ({values}), but they run together or not at all: give"
                " --self-conditioning"
            )
        return cls(model, cluster, workload, ModelCosts(model, cluster.device))

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

    @cached_property
    def _question(self) -> TrainingWorkload:
        return replace(self.workload, extra_forward=False)

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        """What is kept for this workload."""
        kept: dict[Hashable, Any] = self._memo.setdefault(self._question, {})
        return kept

    @cached_property
    def _iterations(self) -> "dict[bool, Scenario]":
        """The scenarios of the iterations that run, and do not run, the extra forward pass."""
        workloads = {extra: replace(self.workload, extra_forward=extra) for extra in (False, True)}
        return {extra: replace(self, workload=workload) for extra, workload in workloads.items()}

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` makes, made once for each key and workload; the extra forward makes no difference."""
        kept = self._kept
        if key not in kept:
            kept[key] = make()
        value: T = kept[key]
        return value

    def only(self, backbone: int, num_gpus: int) -> "Scenario":
        """Return the scenario that trains one backbone alone on some of the GPUs, with the same batch."""

        def make() -> Scenario:
            workload = replace(self._question, num_gpus=num_gpus, self_conditioning=self.self_conditioning)
            scenario = Scenario.of(self.model.only(backbone), self.cluster, workload)
            return replace(scenario, asked_model=self.asked_model, asked_cluster=self.asked_cluster)

        return self.remember(("only", backbone, num_gpus), make)

    def with_extra_forward(self, extra_forward: bool) -> "Scenario":
        """Return the scenario of the iterations that run, or do not run, the extra forward pass."""
        return self._iterations[extra_forward]
