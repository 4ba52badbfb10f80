"""Workloads: what one training iteration, or one run of the sampler, is to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from profiles.architectures.models import MAX_FRAMES, MAX_SIDE
from profiles.checks import is_number, is_one_of
from profiles.costs.resolutions import MAX_TEXT_TOKENS, in_words, sides_of
from profiles.errors import counted, shown, wrong
from profiles.software.levers import EXCHANGED, HALF, PRECISIONS, levers
from profiles.software.recipes import EMA_BYTES, RECIPES, MemoryRecipe, recipe_of
from profiles.software.stacks import CHOICES, MAX_ITERATION_US
from strategies.parameters import check_integer, check_options, option

ONE_DRAW, OWN_DRAWS = "iteration", "rank"
DRAWS: Final = ("runtime", ONE_DRAW, OWN_DRAWS)
"""Who draws self-conditioning: whoever does in a strategy's runtimes, all ranks at once, or each group by itself."""
CHECKPOINTINGS: Final = ("none", "block", "selective", "full")
AUTO: Final = "auto"
"""No checkpointing, and where a point lacks memory the fastest of ``RELIEF`` that fits."""
RELIEF: Final = ("block", "selective")
"""What is tried where memory is short, in this order. The first is what training scripts do then: diffusers'
``--gradient_checkpointing``, and nearly all of FastVideo, diffusion-pipe, musubi-tuner and torchtitan's configurations
of video models. The second is faster where it fits."""
PLACEMENTS: Final = ("pipeline-inner", "data-inner")
ONLINE, CACHED = "online", "cached"
EMBEDDED: Final = "embedded"
SEQUENTIAL: Final = "sequential"
GUIDANCES: Final = ("none", EMBEDDED, "batch", SEQUENTIAL, "parallel")
ONE_PREDICTION: Final = GUIDANCES[:2]
"""Guidance with one prediction a step: none, or a scale that the backbone was trained to take as an input."""
ALL: Final = "all"
"""Stands for every frozen component among those that run too."""
RESIDENCES: Final = ("resident", "offloaded")
SHARDED: Final = "sharded"
WEIGHTS: Final = ("whole", SHARDED)
STREAMED: Final = "sequential"
OFFLOADED: Final[Mapping[str, str]] = {"model": "components", STREAMED: "layers"}
"""What comes to the GPU, where no component stays there, by the name of the option."""
HEADS: Final = ("divided", "padded")
TEXTS: Final = ("divided", "replicated")
MAX_STEPS: Final = 1_000
"""Most denoising steps; training takes no more, and each step is simulated."""
LEAST_TILE: Final = 64
"""Pixels of a side of the smallest tile: smaller ones would be mostly overlap and border."""
FRAMES_HELP: Final = "of a video, such as 81 (default: the model's reference)"
TEXT_HELP: Final = "tokens of the prompt, beside those of the image (default: the model's)"
ALL_WEIGHTS: Final = "all"
"""All weights of the backbones are trained."""
MAX_RANK: Final = 4096
"""Largest rank: beyond it, the products would not be thin beside any linear of today."""


def _attention() -> Any:  # noqa: ANN401  as of ``option``
    """The option that names the generation of attention's kernels."""
    words = "generation of attention's kernels (default: the stack's)"
    return option(None, words, choices=CHOICES["attention"], title="attention {}")


def _precision() -> Any:  # noqa: ANN401  as of ``option``
    """The option that names the precision of matrix products."""
    return option(
        HALF,
        "of the backbone's matrix products and their weights; quality is not modelled",
        choices=PRECISIONS,
        title="products in {}",
        alters_images=True,
    )


def _number_of(option: str, value: str, word: str, rule: str, *, least: int = 1, most: int = 10**6) -> int:
    """Return the N of an option that is ``word:N``, or refuse it by its rule."""
    kind, _, digits = value.partition(":") if isinstance(value, str) else ("", "", "")
    whole = kind == word and digits.isascii() and digits.isdecimal() and len(digits) <= 6
    if not whole or not least <= int(digits) <= most:
        raise wrong(option, f"is {shown(value)}, must be {rule}")
    return int(digits)


@dataclass(frozen=True, slots=True)
class TrainingWorkload:
    """The workload of one training iteration.

    Attributes:
        batch_size: samples of all GPUs together.
        self_conditioning: probability of the extra forward pass of all backbones.
        self_conditioning_draw: ``iteration`` draws once for all ranks; with ``rank`` each data-parallel group
            draws, and the slowest decides; ``runtime``: as the strategy's runtimes do (``Strategy.draws``).
        checkpointing: ``block``: keep the input of each block, run its forward again before its backward
            (``torch.utils.checkpoint``); ``block:N``: the input of each N blocks, which run again together;
            ``selective``: keep also what attention leaves (``create_selective_checkpoint_contexts``); ``full``: keep
            only each stage's input.
        placement: ``pipeline-inner`` gives neighbouring GPUs to one pipeline group, ``data-inner`` to its replicas.
        extra_forward: whether the iteration at hand runs the extra forward pass.
        resolution: pixels, one number or width x height; None takes the model's reference, as of ``frames``.
        frozen: with ``cached`` outputs of frozen components come from the data loader, except those that cannot be
            computed before training; with ``cached:NAMES`` those of these components alone.
        offload: ``optimizer``: its states and its step are on the host; ``layers:N``: the frozen weights of the last
            N blocks lie in the host's memory and are copied to the GPU for each pass.
    """

    num_gpus: int
    batch_size: int
    self_conditioning: float | None = option(
        None,
        "probability of its extra forward pass (default: the model's)",
        kind=float,
        key="apart",
        metavar="P",
    )
    self_conditioning_draw: str = option(
        DRAWS[0],
        "who draws for the extra forward pass: iteration: one draw for all GPUs; rank: each rank draws, and all wait"
        " for one that runs it; runtime: as frameworks do, rank for ddp, zero2, zero3, fsdp, iteration for pipelines",
        choices=DRAWS,
        key="always",
    )
    checkpointing: str = option(
        "none",
        "what is recomputed: none, block, block:N, selective or full",
        key="always",
        title="{} checkpointing",
        metavar="WHAT",
    )
    memory_recipe: str = option(
        "mixed", "bytes per parameter (default: mixed)", choices=tuple(RECIPES), key="always"
    )
    placement: str = option("pipeline-inner", "who gets fast links", choices=PLACEMENTS, key="always")
    extra_forward: bool = False
    resolution: str | None = None
    frozen: str = option(
        ONLINE,
        "online: frozen encoders run; cached: their outputs are loaded; cached:vae_encoder: those of the named",
        key="apart",
        title="frozen outputs {}",
        metavar="WHAT",
    )
    ema: str = option(
        "none",
        "moving average of weights",
        choices=tuple(EMA_BYTES),
        key="always",
        title="EMA in {}",
        nargs="?",
        const="fp32",
    )
    trainable: str = option(
        ALL_WEIGHTS,
        "all, or lora:RANK: adapters of a rank beside frozen weights",
        title=lambda run: f"LoRA of rank {run.rank}",
        metavar="WHAT",
    )
    offload: str = option(
        "none",
        "on the host: none, optimizer, or layers:N blocks",
        title=lambda run: f"{run.swapped} blocks on the host" if run.swapped else "optimizer on the host",
        metavar="WHAT",
    )
    frames: int | None = option(None, FRAMES_HELP, kind=int, most=MAX_FRAMES, key="apart", metavar="N")
    attention: str | None = _attention()
    precision: str = _precision()
    encoder_precision: str | None = option(
        None,
        "precision of frozen encoders in training (default: the stack's)",
        choices=CHOICES["encoders"],
        title="encoders in {}",
    )
    iteration_us: int | None = option(
        None,
        "microseconds that the host adds to each iteration (default: the stack's)",
        kind=int,
        least=0,
        most=MAX_ITERATION_US,
        title="{} us of the host an iteration",
        metavar="US",
    )
    text_tokens: int | None = option(None, TEXT_HELP, kind=int, most=MAX_TEXT_TOKENS, title="{} text tokens")

    def __post_init__(self) -> None:
        check_integer("gpus", self.num_gpus)
        check_integer("batch_size", self.batch_size)
        _ = self.cached, self.recomputed_together
        for pixels in () if self.resolution is None else sides_of(self.resolution):
            check_integer("resolution", pixels, most=MAX_SIDE)
        check_options(self)
        share = self.self_conditioning
        if share is not None and not (is_number(share) and 0 <= share <= 1):
            raise wrong("self_conditioning", f"is {shown(share)}, must be between 0 and 1")
        if self.swapped and not self.rank:
            raise wrong("offload", f"is {self.offload}, which needs frozen weights: `trainable` lora:RANK")
        if self.offload == "optimizer" and self.recipe.moved_bytes:
            raise wrong("offload", f"is optimizer, but nothing steps {self.memory_recipe} on a host")

    @property
    def cached(self) -> tuple[str, ...]:
        """Names of the frozen components whose outputs are loaded; ``all`` stands for every one."""
        if is_one_of(self.frozen, ONLINE, CACHED):
            return (ALL,) if self.frozen == CACHED else ()
        kind, _, names = self.frozen.partition(":") if isinstance(self.frozen, str) else ("", "", "")
        named = tuple(names.split(","))
        if kind != CACHED or not all(named) or len({*named}) < len(named):
            rule = f"must be {ONLINE}, {CACHED} or {CACHED}:NAMES, each once, such as {CACHED}:vae_encoder"
            raise wrong("frozen", f"is {shown(self.frozen)}, {rule}")
        return named

    @property
    def recomputed_together(self) -> int:
        """Blocks that run again together; 0 where it is not by blocks."""
        if is_one_of(self.checkpointing, *CHECKPOINTINGS):
            return int(self.checkpointing in RELIEF)
        rule = f"one of {', '.join(CHECKPOINTINGS)}, or block:N, N from 2"
        return _number_of("checkpointing", self.checkpointing, "block", rule, least=2)

    @property
    def swapped(self) -> int:
        """Blocks of a backbone whose weights lie in the host's memory."""
        if is_one_of(self.offload, "none", "optimizer"):
            return 0
        rule = "none, optimizer or layers:N in training, N from 1"
        return _number_of("offload", self.offload, "layers", rule)

    @property
    def rank(self) -> int:
        """Rank of the adapters; 0 where all weights are trained."""
        if is_one_of(self.trainable, ALL_WEIGHTS):
            return 0
        rule = f"{ALL_WEIGHTS} or lora:RANK, RANK from 1 to {MAX_RANK}"
        return _number_of("trainable", self.trainable, "lora", rule, most=MAX_RANK)

    @property
    def recipe(self) -> MemoryRecipe:
        """The memory recipe."""
        return recipe_of(self.memory_recipe, self.ema)


@dataclass(frozen=True, slots=True)
class SamplingWorkload:
    """The workload of one run of the sampler.

    Attributes:
        height: pixels, as ``width``.
        guidance: ``embedded``: the backbone takes its scale as an input and one prediction is enough; ``sequential``:
            a group of GPUs that makes both runs the backbone twice in a step.
        batch_size: images sampled together.
        text: whether, where tokens are divided, those of the text are too: ``divided``, as in diffusers and xDiT since
            0.4, or ``replicated`` on all devices, as in xDiT before.
        encoders: with ``offloaded`` each text encoder is brought from the host's memory before it is used, and taken
            back.
        offload: ``layers:N``: the weights of the backbone's last N blocks lie in the host's memory, and each block's
            are copied to the GPU while the block before it is computed; ``model``: each component comes before it
            runs, and goes back before the next comes; ``sequential``: each layer's weights come before it runs.
        weights: ``sharded``: each GPU holds a share of each of the backbone's blocks, or of those on the host, and each
            is gathered while the block before it is computed.
    """

    num_gpus: int
    height: int
    width: int
    steps: int = option(
        20,
        "denoising steps (default: those that the model's file names, else 20)",
        kind=int,
        most=MAX_STEPS,
        key="apart",
    )
    guidance: str = option(
        "batch",
        "none, or embedded: one prediction; both in one batch, one after the other, or on two groups of GPUs"
        " (default: the runtime's, else the model's)",
        choices=GUIDANCES,
        key="apart",
    )
    batch_size: int = 1
    include: tuple[str, ...] = option(
        (),
        "frozen components that run too, with commas, or all; vae_encoder: an image or video is given",
        key="apart",
        metavar="NAMES",
    )
    decode_chunks: int = option(1, "bands of rows in which an included VAE decodes", kind=int, key="always")
    text_tokens: int | None = option(None, TEXT_HELP, kind=int, most=MAX_TEXT_TOKENS, key="apart")
    text: str = option(TEXTS[0], "whether sequence parallelism divides the text", choices=TEXTS, key="always")
    frames: int | None = option(None, FRAMES_HELP, kind=int, most=MAX_FRAMES, key="apart", metavar="N")
    encoders: str = option(
        RESIDENCES[0], "whether encoders stay, or come and go", choices=RESIDENCES, title="encoders {}"
    )
    vae_tile: int | None = option(
        None,
        "sides of tiles that an included VAE decodes",
        kind=int,
        least=LEAST_TILE,
        most=MAX_SIDE,
        title="VAE in tiles of {} pixels",
        metavar="PIXELS",
    )
    vae_parallel: int = option(
        1, "GPUs that share an included VAE", kind=int, title="VAE on {} GPUs", metavar="GPUS"
    )
    heads: str = option(
        HEADS[0], "whether Ulysses pads heads that it cannot divide", choices=HEADS, title="heads {}"
    )
    precision: str = _precision()
    all_to_all: str = option(
        HALF,
        "precision of what Ulysses exchanges",
        choices=EXCHANGED,
        title="all-to-all in {}",
        alters_images=True,
    )
    cache_steps: float = option(
        0.0,
        f"share of the steps that a cache skips, or a published cache: {', '.join(levers()['cache'])}",
        title=lambda run: f"{counted(run.steps - run.computed_steps, 'step')} cached",
        alters_images=True,
        metavar="SHARE",
    )
    offload: str = option(
        "none",
        "on the host: none, layers:N blocks, model or sequential: the components, or layers, that do not run",
        title=lambda run: f"{OFFLOADED.get(run.offload) or counted(run.swapped, 'block')} offloaded",
        metavar="WHAT",
    )
    weights: str = option(
        WEIGHTS[0],
        "whether each GPU has the whole backbone, or a shard, from which blocks are gathered",
        choices=WEIGHTS,
        title="weights {}",
    )
    attention: str | None = _attention()
    guided_predictions: int = option(
        2, "noise predictions of a step with guidance (default: the model's)", kind=int, least=2, most=8
    )

    def __post_init__(self) -> None:
        check_integer("gpus", self.num_gpus)
        check_integer("resolution", self.height, most=MAX_SIDE)
        check_integer("resolution", self.width, most=MAX_SIDE)
        check_integer("batch_size", self.batch_size)
        check_options(self)
        check_integer("decode_chunks", self.decode_chunks, most=self.height)
        share = self.cache_steps
        if not (is_number(share) and 0 <= share < 1):
            raise wrong(
                "cache_steps", f"is {shown(share)}, must be a share of the steps: at least 0, below 1"
            )
        if share and self.computed_steps == self.steps:
            raise wrong("cache_steps", f"is {share:g}, which skips none of {self.steps} steps")
        self._check_decoding()
        _ = self.swapped
        if self.moved and self.encoders == "offloaded":
            raise wrong("encoders", f"is {self.encoders}, but `offload` {self.offload} moves all components")
        if self.moved and self.weights == SHARDED:
            raise wrong("weights", f"is {SHARDED}, but `offload` {self.offload} moves whole components")
        if not isinstance(self.include, tuple) or not all(isinstance(name, str) for name in self.include):
            raise wrong("include", f"is {shown(self.include)}, must be a tuple of names")
        if ALL in self.include and len(self.include) > 1:
            raise wrong("include", f"names {', '.join(self.include)}: '{ALL}' must stand alone")

    def _check_decoding(self) -> None:
        """Refuse more than one way to divide an image that the VAE decodes."""
        ways = {
            "decode_chunks": self.decode_chunks > 1,
            "vae_tile": self.vae_tile is not None,
            "vae_parallel": self.vae_parallel > 1,
        }
        divided = [name for name, divides in ways.items() if divides]
        if len(divided) > 1:
            names = " and ".join(f"`{name}`" for name in divided)
            raise wrong(
                divided[0], f"is {getattr(self, divided[0])}, but {names} are ways to divide one image"
            )

    @property
    def swapped(self) -> int:
        """Blocks of the backbone whose weights lie in the host's memory."""
        if is_one_of(self.offload, "none", *OFFLOADED):
            return 0
        rule = f"none, {', '.join(OFFLOADED)} or layers:N in sampling, N from 1"
        return _number_of("offload", self.offload, "layers", rule)

    @property
    def moved(self) -> bool:
        """Whether no component stays on the GPU."""
        return self.offload in OFFLOADED

    @property
    def streamed(self) -> bool:
        """Whether the weights of a layer come before it runs, and are dropped after it."""
        return self.offload == STREAMED

    @property
    def encoders_moved(self) -> bool:
        """Whether text encoders do not stay on the GPU."""
        return self.moved or self.encoders == "offloaded"

    @property
    def computed_steps(self) -> int:
        """Denoising steps in which the backbone runs."""
        return self.steps - int(self.steps * self.cache_steps)

    @property
    def resolution(self) -> str:
        """Width and height, one number where they are the same."""
        return in_words(self.height, self.width)

    @property
    def predictions(self) -> int:
        """Noise predictions per image and step: with and without the prompt, or more, where there is guidance."""
        return 1 if self.guidance in ONE_PREDICTION else self.guided_predictions

    @property
    def prompts(self) -> int:
        """Prompts that the predictions of an image read: that given, and none."""
        return min(self.predictions, 2)
