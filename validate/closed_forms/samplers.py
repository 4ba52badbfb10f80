"""Closed forms of sampling: PipeFusion's time, and the bytes that each method sends.

S steps, M patches, N devices, L layers, t seconds of one patch on one stage, A bytes of the hidden state of the whole
image, and of both predictions where guidance is in the batch; equal layers, free links, no synchronous steps.
"""

from collections.abc import Iterator
from itertools import product
from typing import Final

from profiles.synthetic import equal_blocks_transformer
from sim.replay.metrics import busy_s
from strategies.scenario import SamplingScenario
from validate.closed_forms.forms import Form, form, said
from validate.points import drawing, drawn, drawn_at_once, sampler

DEGREES: Final = (2, 4, 8)
LAYERS: Final = 24
LAYER_S: Final = 0.25
ROWS: Final = 32
HIDDEN: Final = 64
HIDDEN_BYTES: Final = 2.0 * ROWS**2 * HIDDEN
LATENT_BYTES: Final = 2.0 * 4 * (2 * ROWS) ** 2
"""Of the noise prediction, which the patches' devices gather at the end of a step."""
SENDING: Final = ("tensor", "distrifusion", "ring", "ulysses", "pipefusion")


def _scenario(num_gpus: int, steps: int, guidance: str = "none") -> SamplingScenario:
    model = equal_blocks_transformer(LAYERS, LAYER_S, rows=ROWS, hidden_size=HIDDEN)
    return drawing(model, "ideal", num_gpus, (model.height, model.width), steps, guidance=guidance)


def pipefusion() -> Iterator[Form]:
    """The useful share of PipeFusion's devices, and its period in the long run."""
    for stages in DEGREES:
        for patches, steps in product((stages, 2 * stages, 4 * stages), (1, 5, 50)):
            point = _scenario(stages, steps)
            trace = drawn_at_once("pipefusion", point, patches=patches, warmup_steps=0)
            letters = {"N": stages, "M": patches, "S": steps}
            useful = busy_s(trace) / trace.end_s
            yield form("PipeFusion: useful share", "pipefusion", useful, letters, said(letters))
        for patches in (stages // 2, stages, 2 * stages):
            found = drawn(sampler("pipefusion", patches=patches, warmup_steps=0), _scenario(stages, 8))
            period = {"N": stages, "M": patches, "t": LAYERS * LAYER_S / stages / patches}
            family = "PipeFusion: seconds of a step in the long run"
            yield form(family, "pipefusion", found.step_s or 0.0, period, said(period))


def sent_bytes() -> Iterator[Form]:
    """What one device of each of five methods sends in one step, with and without guidance in the batch."""
    for (guidance, batch), gpus, name in product((("none", 1), ("batch", 2)), DEGREES, SENDING):
        letters = {"N": gpus, "A": batch * HIDDEN_BYTES, "L": LAYERS}
        setting = f"{name}, N = {gpus}, guidance {guidance}"
        found = _sent(name, gpus, guidance, batch)
        yield form("Bytes that a device sends in a step", name, found, letters, setting)


def _sent(name: str, gpus: int, guidance: str, batch: int) -> float:
    """Bytes of one device's messages, or of its exchanges without the gather of the noise prediction.

    Under tensor parallelism every device has the whole prediction.
    """
    asked = {"distrifusion": {"warmup_steps": 0}, "pipefusion": {"warmup_steps": 0, "patches": 2 * gpus}}
    trace = drawn_at_once(name, _scenario(gpus, 1, guidance), **asked.get(name, {}))
    if name == "pipefusion":
        return trace.p2p_bytes / (gpus - 1)
    gathered = 0.0 if name == "tensor" else (gpus - 1) * LATENT_BYTES * batch
    return (trace.collective_bytes - gathered) / gpus
