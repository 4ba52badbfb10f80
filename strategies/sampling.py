"""The sampling scenario: which model draws which images on which cluster."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Final, TypeVar

from profiles.clusters import Cluster
from profiles.components import Component
from profiles.errors import InputError
from profiles.models import Model
from profiles.sampling_costs import Extent, SamplingCosts
from strategies.scene import Scene, check_gpus

T = TypeVar("T")

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


@dataclass(frozen=True)
class SamplingScenario(Scene[SamplingWorkload, SamplingCosts]):
    """A model on a cluster, and what is drawn there, with the costs of the layers at that resolution.

    ``asked_model`` and ``asked_cluster`` are the folder or file they were read from, where they are not shipped.
    """

    @classmethod
    def of(cls, model: Model, cluster: Cluster, workload: SamplingWorkload) -> "SamplingScenario":
        """Return a scenario with its costs.

        Raises:
            InputError: the cluster is too small, the model has no costs on its devices, or a component is unknown.
        """
        check_gpus(cluster, workload.num_gpus)
        model = model.for_task("sample")
        frozen = [model.components[i].name for i in model.frozen]
        for name in workload.include:
            if name not in frozen:
                known = ", ".join(frozen) or "none"
                raise InputError(
                    f"--include names '{name}', the frozen components of {model.name} are {known}"
                )
        costs = SamplingCosts(model, cluster.device, workload.height, workload.width)
        return cls(model, cluster, workload, costs)

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
        """Return the scenario on fewer GPUs; it shares the costs."""

        def make() -> SamplingScenario:
            workload = replace(self.workload, num_gpus=num_gpus)
            return replace(self, workload=workload, _memo={})

        return self if num_gpus == self.workload.num_gpus else self.remember(("on", num_gpus), make)

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` makes, made once for each key."""
        if key not in self._memo:
            self._memo[key] = make()
        value: T = self._memo[key]
        return value
