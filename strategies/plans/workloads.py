"""Workloads: what one training iteration, or one run of the sampler, is to do."""

from dataclasses import dataclass
from numbers import Real
from typing import Final

from profiles.errors import wrong
from profiles.recipes import EMA_BYTES, RECIPES, MemoryRecipe, recipe_of
from profiles.resolutions import in_words, sides_of
from profiles.texts import MAX_TEXT
from strategies.parameters import check_integer, check_option

DRAWS: Final = ("iteration", "rank")
CHECKPOINTINGS: Final = ("none", "full")
PLACEMENTS: Final = ("pipeline-inner", "data-inner")
FROZEN: Final = ("online", "cached")
DEFAULT_BATCH_PER_GPU: Final = 32
GUIDANCES: Final = ("none", "batch", "parallel")
TEXTS: Final = ("divided", "replicated")
MAX_SIDE: Final = 65536
MAX_FRAMES: Final = 65536
MAX_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TrainingWorkload:
    """The workload of one training iteration.

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
        resolution: pixels, one number or width x height; None takes the model's reference.
        frames: of a video; None takes the model's.
        frozen: ``online`` runs the frozen components in every iteration; with ``cached`` their outputs come from the
            data loader, but for those that cannot be computed before training.
        ema: moving average of the weights, a key of ``EMA_BYTES``.
    """

    num_gpus: int
    batch_size: int
    self_conditioning: float | None = None
    self_conditioning_draw: str = "iteration"
    checkpointing: str = "none"
    memory_recipe: str = "mixed"
    placement: str = "pipeline-inner"
    extra_forward: bool = False
    resolution: str | None = None
    frozen: str = "online"
    ema: str = "none"
    frames: int | None = None

    def __post_init__(self) -> None:
        check_integer("num_gpus", self.num_gpus, flag="gpus")
        check_integer("batch_size", self.batch_size)
        for pixels in () if self.resolution is None else sides_of(self.resolution):
            check_integer("resolution", pixels, most=MAX_SIDE)
        if self.frames is not None:
            check_integer("frames", self.frames, most=MAX_FRAMES)
        share = self.self_conditioning
        if share is not None and (
            isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share <= 1
        ):
            raise wrong("self_conditioning", f"is {share!r}, must be between 0 and 1")
        check_option("self_conditioning_draw", self.self_conditioning_draw, DRAWS)
        check_option("checkpointing", self.checkpointing, CHECKPOINTINGS)
        check_option("memory_recipe", self.memory_recipe, tuple(RECIPES))
        check_option("placement", self.placement, PLACEMENTS)
        check_option("frozen", self.frozen, FROZEN)
        check_option("ema", self.ema, tuple(EMA_BYTES))

    @property
    def recipe(self) -> MemoryRecipe:
        """The memory recipe."""
        return recipe_of(self.memory_recipe, self.ema)


@dataclass(frozen=True, slots=True)
class SamplingWorkload:
    """The workload of one run of the sampler.

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
        frames: of a video; None takes the model's.
        text_tokens: tokens of the text that pass through the backbone's layers; None takes the model's.
        text: of a sequence that is divided, whether its text is too: ``divided``, as diffusers and xDiT since 0.4 do,
            or ``replicated`` on all devices, as xDiT did before.
    """

    num_gpus: int
    height: int
    width: int
    steps: int = 20
    guidance: str = "batch"
    batch_size: int = 1
    include: tuple[str, ...] = ()
    decode_chunks: int = 1
    text_tokens: int | None = None
    text: str = TEXTS[0]
    frames: int | None = None

    def __post_init__(self) -> None:
        check_integer("num_gpus", self.num_gpus, flag="gpus")
        check_integer("height", self.height, most=MAX_SIDE, flag="resolution")
        check_integer("width", self.width, most=MAX_SIDE, flag="resolution")
        check_integer("steps", self.steps, most=MAX_STEPS)
        check_integer("batch_size", self.batch_size)
        check_integer("decode_chunks", self.decode_chunks, most=self.height)
        check_option("guidance", self.guidance, GUIDANCES)
        check_option("text", self.text, TEXTS)
        if self.frames is not None:
            check_integer("frames", self.frames, most=MAX_FRAMES)
        if self.text_tokens is not None:
            check_integer("text_tokens", self.text_tokens, most=MAX_TEXT)
        if not isinstance(self.include, tuple) or not all(isinstance(name, str) for name in self.include):
            raise wrong("include", f"is {self.include!r}, must be a tuple of names")

    @property
    def resolution(self) -> str:
        """Width and height, one number where they are the same."""
        return in_words(self.height, self.width)

    @property
    def predictions(self) -> int:
        """Noise predictions per image and step: with and without the prompt, where there is guidance."""
        return 1 if self.guidance == "none" else 2
