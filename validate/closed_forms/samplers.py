"""Closed forms of sampling: PipeFusion's time, and the bytes that each method sends.

S steps, M patches, N devices, L layers, t seconds of one patch on one stage, A bytes of the hidden state of the whole
image, for both predictions where guidance is in the batch; equal layers, free links, no synchronous steps.

For hybrid: G guidance groups, Ulysses degree U, ring degree R, P stages, tensor degree T, D data groups with images of
their own; W synchronous steps; A bytes of the hidden state, n of the noise prediction and l of the latents, of all
samples of one pass; K skips that end in a later stage.
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final, NamedTuple

from sim.outcomes.runs import run_point
from sim.replay.engine import simulate
from sim.replay.metrics import busy_s
from strategies.plans.traces import Trace
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make
from strategies.sampling_scenario import SamplingScenario
from validate.closed_forms.forms import Form, form, letter_text
from validate.equal_blocks import equal_blocks_transformer
from validate.points import cluster_of, sampled, sampling

DEGREES: Final = (2, 4, 8)
LAYERS: Final = 24
LAYER_S: Final = 0.25
ROWS: Final = 32
HIDDEN: Final = 64
HIDDEN_BYTES: Final = 2.0 * ROWS**2 * HIDDEN
LATENT_BYTES: Final = 2.0 * 4 * (2 * ROWS) ** 2
"""Bytes of one sample's noise prediction, which devices gather at the end of a step, and of one image's latents."""
SENDING: Final = ("tensor", "distrifusion", "ring", "ulysses", "pipefusion")
HYBRID_LAYERS: Final = 8
STEPS: Final = 4
WARMUP: Final = 1


def _scenario(num_gpus: int, steps: int, guidance: str = "none") -> SamplingScenario:
    model = equal_blocks_transformer(LAYERS, LAYER_S, rows=ROWS, hidden_size=HIDDEN)
    return sampling(model, "ideal", num_gpus, (model.height, model.width), steps, guidance=guidance)


def pipefusion() -> Iterator[Form]:
    """The useful share of PipeFusion's devices, and its period in the long run."""
    for stages in DEGREES:
        for patches, steps in product((stages, 2 * stages, 4 * stages), (1, 5, 50)):
            point = _scenario(stages, steps)
            trace = sampled("pipefusion", point, patches=patches, warmup_steps=0)
            letters = {"N": stages, "M": patches, "S": steps}
            useful = busy_s(trace) / trace.end_s
            yield form("PipeFusion: useful share", "pipefusion", useful, letters, letter_text(letters))
        for patches in (stages // 2, stages, 2 * stages):
            result = run_point(
                make("pipefusion", {"patches": patches, "warmup_steps": 0}), _scenario(stages, 8)
            )
            period = {"N": stages, "M": patches, "t": LAYERS * LAYER_S / stages / patches}
            family = "PipeFusion: seconds of a step in the long run"
            yield form(family, "pipefusion", result.step_s, period, letter_text(period))


def sent_bytes() -> Iterator[Form]:
    """Bytes that one device of each of five methods sends in one step, with and without guidance in the batch."""
    for (guidance, batch), gpus, name in product((("none", 1), ("batch", 2)), DEGREES, SENDING):
        letters = {"N": gpus, "A": batch * HIDDEN_BYTES, "L": LAYERS}
        setting = f"{name}, N = {gpus}, guidance {guidance}"
        sent = _sent(name, gpus, guidance, batch)
        yield form("Bytes that a device sends in a step", name, sent, letters, setting)


def _sent(name: str, gpus: int, guidance: str, batch: int) -> float:
    """Bytes of one device's messages, or of its exchanges without the gather of the noise prediction.

    Under tensor parallelism every device has the whole prediction.
    """
    parameters = {"distrifusion": {"warmup_steps": 0}, "pipefusion": {"warmup_steps": 0, "patches": 2 * gpus}}
    trace = sampled(name, _scenario(gpus, 1, guidance), **parameters.get(name, {}))
    if name == "pipefusion":
        return trace.p2p_bytes / (gpus - 1)
    gathered = 0.0 if name == "tensor" else (gpus - 1) * LATENT_BYTES * batch
    return (trace.collective_bytes - gathered) / gpus


class Degrees(NamedTuple):
    """The degree of each axis of hybrid, and the images of each data group.

    With ``skips`` each layer of the first half hands its output to its mirror image, which is in a later stage.
    """

    guidance: int
    ulysses: int
    ring: int
    pipeline: int
    tensor: int
    data: int = 1
    images: int = 1
    skips: bool = False

    @property
    def letters(self) -> dict[str, float]:
        """Letters of the formulas; two patches for each stage, and both predictions where guidance is not divided."""
        samples = self.images * 2 // self.guidance
        return {
            **dict(zip("GURPTD", self, strict=False)),
            "K": HYBRID_LAYERS // 2 if self.skips else 0,
            "M": 2 * self.pipeline if self.pipeline > 1 else 1,
            **{"S": STEPS, "W": WARMUP, "L": HYBRID_LAYERS},
            **{"A": samples * HIDDEN_BYTES, "n": samples * LATENT_BYTES, "l": self.images * LATENT_BYTES},
        }


PRODUCTS: Final = (
    *(Degrees(*of) for of in product((1, 2), (1, 2), (1, 2), (1, 2), (1, 2)) if prod(of) > 2),
    Degrees(1, 4, 2, 2, 1),
    Degrees(2, 2, 4, 1, 1),
    Degrees(1, 2, 1, 4, 4),
    Degrees(2, 2, 2, 2, 2, data=2, images=3),
    Degrees(1, 4, 1, 1, 2, data=3, images=2),
    Degrees(1, 2, 1, 2, 2, skips=True),
    Degrees(2, 2, 2, 4, 1, skips=True),
)
"""All products of degrees 1 and 2 of at least two axes, and some larger ones."""


def hybrid() -> Iterator[Form]:
    """Bytes that all GPUs send in collectives and in messages, for products of degrees."""
    for degrees in PRODUCTS:
        trace, letters = _hybrid(degrees), degrees.letters
        degree_text = ", ".join(f"{letter} = {letters[letter]}" for letter in "GURPT")
        setting = f"{degree_text}, D = {degrees.data}, {degrees.images} images each, K = {letters['K']}"
        for of, sent in (("collectives", trace.collective_bytes), ("messages", trace.p2p_bytes)):
            yield form(f"hybrid: bytes of {of}", of, sent, letters, setting)


def _hybrid(degrees: Degrees) -> Trace:
    model = equal_blocks_transformer(HYBRID_LAYERS, rows=ROWS, hidden_size=HIDDEN, skips=degrees.skips)
    images, size = degrees.data * degrees.images, (model.height, model.width)
    workload = SamplingWorkload(prod(degrees[:6]), *size, STEPS, "batch", batch_size=images)
    axes = ("guidance", "ulysses", "ring", "pipeline", "tensor")
    parameters = {f"{axis}_degree": getattr(degrees, axis) for axis in axes}
    parameters |= {"patches": degrees.letters["M"], "warmup_steps": WARMUP}
    scenario = SamplingScenario(model, cluster_of("ideal"), workload)
    return simulate(make("hybrid", parameters).plan(scenario))
