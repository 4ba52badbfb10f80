"""The scenario of sampling: which model draws on which cluster, with which workload.

It is what every sampler is asked about; the sampler's own parameters are its fields.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar, Self

from profiles.architectures.components import Component
from profiles.architectures.extents import Extent
from profiles.architectures.models import Model
from profiles.costs.layers import ComponentCosts, TaskCosts
from profiles.costs.resolutions import with_frames, with_text
from profiles.errors import counted, wrong
from profiles.machines.clusters import Cluster
from profiles.machines.hosts import AHEAD, NO_CALLS, STEP_OPERATORS, Calls
from profiles.machines.whatifs import whatif_words
from profiles.software.levers import HALF, device_in, products_in, weight_bytes
from strategies.parameters import named_options, titles
from strategies.plans.workloads import ALL, EMBEDDED, GUIDANCES, SHARDED, SamplingWorkload
from strategies.scenario import Same, Scene, model_of_task


@dataclass(frozen=True, repr=False)
class SamplingScenario(Scene[SamplingWorkload]):
    """A model that draws images on a cluster; of the model, only what sampling needs."""

    task: ClassVar[str] = "sample"
    of_costs: ClassVar[tuple[str, ...]] = (
        "height",
        "width",
        "text_tokens",
        "frames",
        "precision",
        "attention",
    )

    def __post_init__(self) -> None:
        self._check_measured()
        self.cluster.check_gpus(self.workload.num_gpus)
        _check_included(self.model, self.workload.include)
        model = model_of_task(Same(self.model), self.task, self.workload.include)
        tokens = self.workload.text_tokens
        if self.workload.frames is not None:
            model = with_frames(model, self.workload.frames, self.cluster.device)
        object.__setattr__(self, "model", model if tokens is None else with_text(model, tokens))
        object.__setattr__(self, "stack", self.stack.changed(self.workload.attention))
        self._check_own_options()
        _ = self.costs

    def _check_own_options(self) -> None:
        """Refuse components that are not there, and options whose host link, fp8 or decoder kernels are unknown."""
        _check_included(self.model, self.workload.include)
        if self.workload.encoders_moved or self.workload.swapped:
            _ = self.host_side
        if self.workload.precision != HALF:
            products_in(self.workload.precision, self.cluster.device)
        if self.workload.guidance == EMBEDDED != self.model.guidance:
            others = ", ".join(guidance for guidance in GUIDANCES if guidance != EMBEDDED)
            takes = f"{self.model.name} takes no guidance scale as an input; choose from {others}"
            raise wrong("guidance", f"is {EMBEDDED}, but {takes}")
        if self.workload.vae_parallel > self.workload.num_gpus:
            problem = f"is {self.workload.vae_parallel}, must be at most `gpus({self.workload.num_gpus})`"
            raise wrong("vae_parallel", problem)
        if self.workload.vae_parallel > 1:
            for decoder in (self.model.components[i] for i in self.included(self.decoders)):
                if not decoder.half_kernels:
                    problem = f"needs the kernels of {decoder.name}: {self.model.name} has no kernels.csv"
                    raise wrong("vae_parallel", problem)

    def on(self, num_gpus: int) -> Self:
        """The scene on another number of GPUs, no more of which divide a decoder than there are."""
        return self.with_options(num_gpus=num_gpus, vae_parallel=min(self.workload.vae_parallel, num_gpus))

    @cached_property
    def costs(self) -> TaskCosts:
        """Times of the model's layers on the cluster's device, at the resolution drawn."""
        return self._costs()

    def _costs(self, pace: float = 1.0) -> TaskCosts:
        """Times of the layers where products in fewer bits take a factor of their law's seconds."""
        device, workload = self.cluster.device, self.workload
        return TaskCosts(
            self.model,
            device,
            workload.height,
            workload.width,
            self.slowed_stack,
            calibration=self.calibration,
            backbone_device=device_in(device, workload.precision, pace),
        )

    @property
    def asked(self) -> dict[str, Any]:
        """The questions of sampling alone, under public keys."""
        return {name: getattr(self.workload, name) for name in ("resolution", "steps", "guidance")}

    @property
    def options(self) -> dict[str, Any]:
        """The options that reproduce this scenario."""
        workload = self.workload
        tokens = max((self.model.components[i].text_tokens for i in self.model.backbones), default=0)
        values = {"include": ",".join(workload.include)} | named_options(workload) | self.frames
        return values | ({"text_tokens": tokens} if tokens else {}) | self.shared_options

    @cached_property
    def decoders(self) -> tuple[int, ...]:
        """Indices of the frozen components that need a backbone's output, in the order in which they run."""
        model, reached = self.model, set(self.model.backbones)
        for index in model.order:
            if reached.intersection(model.inputs_of(index)):
                reached.add(index)
        return tuple(index for index in model.frozen if index in reached)

    @cached_property
    def encoders(self) -> tuple[int, ...]:
        """Indices of the other frozen components, which run before the backbone."""
        return tuple(index for index in self.model.frozen if index not in self.decoders)

    def included(self, components: Iterable[int]) -> list[int]:
        """Those of some frozen components that run too."""
        names = self.workload.include
        return [i for i in components if names == (ALL,) or self.model.components[i].name in names]

    @property
    def departures(self) -> tuple[str, ...]:
        """All that departs from the cluster as it is and from the usual way of drawing, in words."""
        frames = (counted(count, "frame") for count in self.frames.values())
        return (*frames, *titles(self.workload).values(), *whatif_words(self.cluster.changes))

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of a parameter of the backbone."""
        return weight_bytes(self.workload.precision)

    @property
    def shards(self) -> int:
        """GPUs among which each block of the backbone is divided."""
        return self.workload.num_gpus if self.workload.weights == SHARDED else 1

    def variants(self, num_groups: int, draws: str) -> list[tuple["SamplingScenario", float, float]]:
        """The only run, whatever the number of groups and whoever draws: certain, and the work of all."""
        return [(self, 1.0, 1.0)]

    @cached_property
    def calls(self) -> Calls:
        """What calls cost the box's host under the software stack; nothing where it dispatches no operators.

        In graphs it dispatches none; for a backbone whose operators nobody counted, that is not known.
        """
        if not self.operator_s:
            return NO_CALLS
        slowness = self.calibration.factor * self.cluster.host.slowness
        return Calls(slowness, AHEAD * self.operator_s, self.stack.call_s)

    @cached_property
    def operator_s(self) -> float:
        """Seconds of the host for one operator; 0 where nobody counted the backbone's, as of ``calls``."""
        known = self.backbone_costs.host_s.any()
        return self.calibration.factor * self.slowed_stack.forward_operator_s if known else 0.0

    @cached_property
    def frozen_calls(self) -> Calls:
        """What calls cost the host while frozen components run, whatever becomes of the backbone's."""
        operator_s = self.slowed_stack.of_frozen.forward_operator_s
        if not operator_s or not any(self.costs.components[i].host_s.any() for i in self.model.frozen):
            return NO_CALLS
        factor = self.calibration.factor
        ahead_s, call_s = AHEAD * factor * operator_s, self.stack.of_frozen.call_s
        return Calls(factor * self.cluster.host.slowness, ahead_s, call_s)

    @property
    def solver_s(self) -> float:
        """Seconds of the host in a denoising step beside the backbone."""
        return STEP_OPERATORS * self.operator_s

    @cached_property
    def streams(self) -> Cluster:
        """The cluster whose collectives cost the GPUs no time of software: that is the host's, in ``calls``.

        Where operators are not counted there is no host to pay, and the GPUs do.
        """
        if self.stack.forward_operator_s and not self.operator_s:
            return self.cluster
        return replace(self.cluster, collectives=replace(self.cluster.collectives, call_s=0.0))

    @property
    def backbone(self) -> Component:
        """The only backbone."""
        return self.model.components[self.backbone_index]

    @property
    def backbone_costs(self) -> ComponentCosts:
        """Times of the backbone's layers."""
        return self.costs.components[self.backbone_index]

    @property
    def extent(self) -> Extent:
        """Size of the backbone at this resolution, over its reference."""
        return self.costs.extents[self.backbone_index]

    @cached_property
    def output_bytes(self) -> float:
        """Bytes of one noise prediction."""
        return self.backbone.layers[-1].output_bytes * self.extent.pixels * self.extent.bytes

    @cached_property
    def latent_bytes(self) -> float:
        """Bytes of one image's latents; half of a prediction that holds the noise's variance too."""
        size = self.backbone.latent_bytes * self.extent.pixels * self.extent.bytes
        return size or self.output_bytes

    @property
    def guidance_groups(self) -> int:
        """Groups of GPUs that each do one of the two noise predictions; 1 where none is divided."""
        return 2 if self.workload.guidance == "parallel" else 1

    @property
    def gpus_per_prediction(self) -> int:
        """GPUs that compute one noise prediction together where all other degrees are one of them: at least 1."""
        return max(1, self.workload.num_gpus // self.guidance_groups)

    @property
    def lines(self) -> int:
        """Rows of all frames: what a sequence is divided by at most."""
        return self.rows * self.backbone.frames

    @property
    def rows(self) -> int:
        """Rows of the backbone's image tokens; of a video, those of one frame."""
        workload, backbone = self.workload, self.backbone
        tokens = backbone.image_tokens / backbone.frames * self.extent.pixels
        return max(1, round(sqrt(tokens * workload.height / workload.width)))

    def hidden_bytes(self, layer: int) -> float:
        """The bytes of the hidden state after a layer, of one sample: image and text."""
        return self.backbone.layers[layer].output_bytes * self.extent.tokens * self.extent.bytes


def _check_included(model: Model, include: Iterable[str]) -> None:
    """Refuse names of no frozen component."""
    frozen = [model.components[i].name for i in model.frozen]
    for name in include:
        if name not in (*frozen, ALL):
            begun = " or ".join(component for component in frozen if component.startswith(name))
            meant = f"did you mean {begun}? " if begun else ""
            known = f"the frozen components of {model.name} are {', '.join(frozen) or 'none'}"
            raise wrong("include", f"names '{name}', {meant}{known}")
