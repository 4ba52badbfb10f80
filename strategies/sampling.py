"""The sampling scenario: which model draws which images on which cluster."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Final

from profiles.components import Component
from profiles.errors import InputError
from profiles.sampling_costs import Extent, SamplingCosts
from strategies.scene import Scene, check_gpus

GUIDANCES: Final = ("none", "batch", "parallel")
MAX_SIDE: Final = 65536
MAX_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SamplingWorkload:
    """What one run of the sampler draws.

    Attributes:
        num_gpus: GPUs in all.
        height: pixels.
        width: pixels.
        steps: denoising steps.
        guidance: classifier-free guidance: ``none``; ``batch`` runs both predictions in one batch; ``parallel``
            on two groups of GPUs.
        batch_size: images drawn together.
        include: frozen components that run too, by name; all are resident in any case.
        decode_chunks: bands of rows that the VAE decodes one after another, where it is included.
    """

    num_gpus: int
    height: int
    width: int
    steps: int = 20
    guidance: str = "batch"
    batch_size: int = 1
    include: tuple[str, ...] = ()
    decode_chunks: int = 1

    def __post_init__(self) -> None:
        for flag, value, most in (
            ("gpus", self.num_gpus, None),
            ("resolution", self.height, MAX_SIDE),
            ("resolution", self.width, MAX_SIDE),
            ("steps", self.steps, MAX_STEPS),
            ("batch-size", self.batch_size, None),
            ("decode-chunks", self.decode_chunks, self.height),
        ):
            if value < 1:
                raise InputError(f"--{flag} is {value}, must be at least 1")
            if most is not None and value > most:
                raise InputError(f"--{flag} is {value}, must be at most {most}")
        if self.guidance not in GUIDANCES:
            raise InputError(f"--guidance is '{self.guidance}', must be one of {', '.join(GUIDANCES)}")

    @property
    def resolution(self) -> str:
        """Width and height, one number where they are the same."""
        return str(self.width) if self.width == self.height else f"{self.width}x{self.height}"

    @property
    def predictions(self) -> int:
        """Noise predictions per image and step: with and without the prompt, where there is guidance."""
        return 1 if self.guidance == "none" else 2


@dataclass(frozen=True, repr=False)
class SamplingScenario(Scene[SamplingWorkload]):
    """A model that draws images on a cluster; of the model, only what sampling needs.

    Raises:
        InputError: the cluster is too small, the model has no costs on its devices, or a component is unknown.
    """

    def __post_init__(self) -> None:
        check_gpus(self.cluster, self.workload.num_gpus)
        object.__setattr__(self, "model", self.model.for_task("sample"))
        frozen = [self.model.components[i].name for i in self.model.frozen]
        for name in self.workload.include:
            if name not in frozen:
                known = ", ".join(frozen) or "none"
                raise InputError(
                    f"--include names '{name}', the frozen components of {self.model.name} are {known}"
                )
        _ = self.costs

    @cached_property
    def costs(self) -> SamplingCosts:
        """Times of the model's layers on the cluster's device, at the resolution drawn."""
        return SamplingCosts(self.model, self.cluster.device, self.workload.height, self.workload.width)

    @property
    def backbone(self) -> Component:
        """The only backbone."""
        return self.model.components[self.backbone_index]

    @property
    def extent(self) -> Extent:
        """How large the backbone is at this resolution, over its reference."""
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
    def rows(self) -> int:
        """Rows of the backbone's image tokens; of a video, those of one frame."""
        workload, backbone = self.workload, self.backbone
        tokens = backbone.image_tokens / backbone.frames * self.extent.pixels
        return max(1, round(sqrt(tokens * workload.height / workload.width)))

    def hidden_bytes(self, layer: int) -> float:
        """Return the bytes of the hidden state after a layer, of one sample: image and text."""
        return self.backbone.layers[layer].output_bytes * self.extent.tokens * self.extent.bytes

    def on(self, num_gpus: int) -> "SamplingScenario":
        """The scenario on fewer GPUs, where each layer takes as long."""
        if num_gpus == self.workload.num_gpus:
            return self
        workload = replace(self.workload, num_gpus=num_gpus)
        return self.remember(("on", num_gpus), lambda: self._under(workload, "costs"))
