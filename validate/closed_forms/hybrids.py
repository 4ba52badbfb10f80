"""Closed forms of hybrid: the bytes that all its GPUs send in a run, for products of degrees.

G guidance groups, U and R devices around which tokens and keys go, P stages, T devices with parts of a matrix, D groups
with images of their own; M patches, S steps, W of them synchronous, L layers; A bytes of the hidden state, n of the
noise prediction and l of the latents, of all samples of one pass; K skips that end in a later stage.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from profiles.clusters import load_cluster
from profiles.synthetic import equal_blocks_transformer
from sim.replay.engine import simulate
from strategies.plans.traces import Trace
from strategies.registry import make_sampler
from strategies.scenario import SamplingScenario, SamplingWorkload
from validate.closed_forms.forms import Form

LAYERS: Final = 8
ROWS: Final = 32
HIDDEN: Final = 64
HIDDEN_BYTES: Final = 2.0 * ROWS**2 * HIDDEN
LATENT_BYTES: Final = 2.0 * 4 * (2 * ROWS) ** 2
"""Of one sample's noise prediction, and of one image's latents."""
STEPS: Final = 4
WARMUP: Final = 1
SOURCE: Final = "xDiT (2024), Table 1, with the factors of ring collectives, and of each group of a product"
COLLECTIVES: Final = (
    "G D (L A (4 (U-1)/U + 4 (T-1)) S + 2 L A (R-1) (W + M (S-W)) + n (T (RU-1) + RUT (G-1)) S)"
)
MESSAGES: Final = "G D T ((P-1+K) A S + l (S-1)) where P > 1"


@dataclass(frozen=True, slots=True)
class Degrees:
    """How many ways each axis divides the work; ``batch_size`` images in each of ``data`` groups.

    With ``skips`` each layer of the first half hands its output to its mirror image, and an even pipeline keeps none.
    """

    guidance: int
    ulysses: int
    ring: int
    pipeline: int
    tensor: int
    data: int = 1
    batch_size: int = 1
    skips: bool = False

    def __str__(self) -> str:
        degrees = f"G = {self.guidance}, U = {self.ulysses}, R = {self.ring}, P = {self.pipeline}, T = {self.tensor}"
        return f"{degrees}, D = {self.data}, {self.batch_size} images each, K = {self.crossing}"

    @property
    def num_gpus(self) -> int:
        """GPUs of all groups."""
        return self.guidance * self.team * self.pipeline * self.data

    @property
    def team(self) -> int:
        """Devices that compute one patch together."""
        return self.ring * self.ulysses * self.tensor

    @property
    def patches(self) -> int:
        """Patches of an image: two for each stage, the whole image without a pipeline."""
        return 2 * self.pipeline if self.pipeline > 1 else 1

    @property
    def crossing(self) -> int:
        """Skips that end in a later stage: all of them, where the middle of the model begins a stage."""
        return LAYERS // 2 if self.skips else 0

    @property
    def samples(self) -> int:
        """Noise predictions in one pass; where guidance is not divided, each pass makes both."""
        return self.batch_size * 2 // self.guidance

    def collective_bytes(self) -> float:
        """Bytes that all devices send in collectives: around attention, in sums, and of the noise prediction."""
        displaced = STEPS - WARMUP if self.pipeline > 1 else 0
        passes = STEPS - displaced + self.patches * displaced
        around = 4 * (self.ulysses - 1) / self.ulysses * STEPS + 2 * (self.ring - 1) * passes
        sums = 4 * (self.tensor - 1) * STEPS
        inside = self.tensor * (self.ring * self.ulysses - 1)
        gathers = inside + self.team * (self.guidance - 1)
        sent = LAYERS * HIDDEN_BYTES * (around + sums) + LATENT_BYTES * gathers * STEPS
        return self.guidance * self.data * self.samples * sent

    def message_bytes(self) -> float:
        """Bytes that all devices send in messages: hidden states from stage to stage, and latents back."""
        if self.pipeline == 1:
            return 0.0
        hidden = (self.pipeline - 1 + self.crossing) * HIDDEN_BYTES * self.samples * STEPS
        latents = LATENT_BYTES * self.batch_size * (STEPS - 1)
        return self.guidance * self.data * self.tensor * (hidden + latents)


def _products() -> Iterator[Degrees]:
    """Yield all products of degrees 1 and 2 that divide twice at least, and some larger."""
    for guidance, ulysses, ring, pipeline, tensor in product((1, 2), repeat=5):
        if guidance * ulysses * ring * pipeline * tensor > 2:
            yield Degrees(guidance, ulysses, ring, pipeline, tensor)
    yield Degrees(1, 4, 2, 2, 1)
    yield Degrees(2, 2, 4, 1, 1)
    yield Degrees(1, 2, 1, 4, 4)
    yield Degrees(2, 2, 2, 2, 2, data=2, batch_size=3)
    yield Degrees(1, 4, 1, 1, 2, data=3, batch_size=2)
    yield Degrees(1, 2, 1, 2, 2, skips=True)
    yield Degrees(2, 2, 2, 4, 1, skips=True)


def _replayed(degrees: Degrees) -> Trace:
    model = equal_blocks_transformer(LAYERS, rows=ROWS, hidden_size=HIDDEN, skips=degrees.skips)
    workload = SamplingWorkload(
        degrees.num_gpus,
        model.height,
        model.width,
        STEPS,
        "batch",
        batch_size=degrees.data * degrees.batch_size,
    )
    asked = {
        "guidance_degree": degrees.guidance,
        "ulysses_degree": degrees.ulysses,
        "ring_degree": degrees.ring,
        "pipeline_degree": degrees.pipeline,
        "tensor_degree": degrees.tensor,
        "patches": degrees.patches,
        "warmup_steps": WARMUP,
    }
    scenario = SamplingScenario(model, load_cluster("ideal"), workload)
    return simulate(make_sampler("hybrid", asked).plan(scenario))


def hybrid() -> Iterator[Form]:
    """Yield what all GPUs send in collectives and in messages."""
    for degrees in _products():
        trace = _replayed(degrees)
        for what, formula, expected, sent in (
            ("collectives", COLLECTIVES, degrees.collective_bytes(), trace.collective_bytes),
            ("messages", MESSAGES, degrees.message_bytes(), trace.p2p_bytes),
        ):
            yield Form(f"hybrid: bytes of {what}", str(degrees), formula, expected, sent, SOURCE)
