"""Closed forms of sampling: PipeFusion's time, and the bytes that each method sends.

S steps, M patches, N devices, L layers, t seconds of one patch on one stage, A bytes of the hidden state of the whole
image; equal layers, free links, no synchronous steps.
"""

from collections.abc import Iterator
from typing import Any, Final

from profiles.clusters import load_cluster
from profiles.synthetic import equal_blocks_transformer
from sim.replay.engine import simulate
from sim.replay.metrics import busy_s
from sim.runs import run_point
from strategies.plans.traces import Trace
from strategies.registry import make_sampler
from strategies.scenario import SamplingScenario, SamplingWorkload
from validate.closed_forms.forms import Form

LAYERS: Final = 24
LAYER_S: Final = 0.25
ROWS: Final = 32
HIDDEN: Final = 64
HIDDEN_BYTES: Final = 2.0 * ROWS**2 * HIDDEN
LATENT_BYTES: Final = 2.0 * 4 * (2 * ROWS) ** 2
"""Of the noise prediction, which the patches' devices gather at the end of a step."""
PIPEFUSION: Final = "Wang et al., PipeFusion (2024), section 4"
BYTES: Final = (
    "PipeFusion, Table 1, with the factors of ring collectives; Ulysses' all-to-alls divide by N twice"
)


def _scenario(num_gpus: int, steps: int, guidance: str = "none") -> SamplingScenario:
    model = equal_blocks_transformer(LAYERS, LAYER_S, rows=ROWS, hidden_size=HIDDEN)
    workload = SamplingWorkload(num_gpus, model.height, model.width, steps, guidance)
    return SamplingScenario(model, load_cluster("ideal"), workload)


def _replayed(name: str, scenario: SamplingScenario, **asked: Any) -> Trace:  # noqa: ANN401  as of make_sampler
    return simulate(make_sampler(name, asked).plan(scenario))


def pipefusion() -> Iterator[Form]:
    """Yield the useful share of PipeFusion's devices, and its period in the long run."""
    for stages in (2, 4, 8):
        for patches in (stages, 2 * stages, 4 * stages):
            for steps in (1, 5, 50):
                yield _useful_share(stages, patches, steps)
        for patches in (stages // 2, stages, 2 * stages):
            yield _period(stages, patches)


def _useful_share(stages: int, patches: int, steps: int) -> Form:
    trace = _replayed("pipefusion", _scenario(stages, steps), patches=patches, warmup_steps=0)
    return Form(
        "PipeFusion: useful share",
        f"N = {stages}, M = {patches}, S = {steps}",
        "M S / (M S + N - 1)",
        patches * steps / (patches * steps + stages - 1),
        busy_s(trace) / trace.end_s,
        PIPEFUSION,
    )


def _period(stages: int, patches: int) -> Form:
    sampler = make_sampler("pipefusion", {"patches": patches, "warmup_steps": 0})
    patch_s = LAYERS * LAYER_S / stages / patches
    return Form(
        "PipeFusion: seconds of a step in the long run",
        f"N = {stages}, M = {patches}",
        "max(M, N) t",
        max(patches, stages) * patch_s,
        run_point(sampler, _scenario(stages, 8)).step_s,
        PIPEFUSION,
    )


def sent_bytes() -> Iterator[Form]:
    """Yield what one device of each of five methods sends in one step, with and without guidance in the batch."""
    for guidance, batch in (("none", 1), ("batch", 2)):
        for gpus in (2, 4, 8):
            ring = (gpus - 1) / gpus * batch * HIDDEN_BYTES * LAYERS
            for name, formula, expected in (
                ("tensor", "4 (N - 1) / N A L", 4 * ring),
                ("distrifusion", "2 (N - 1) / N A L", 2 * ring),
                ("ring", "2 (N - 1) / N A L", 2 * ring),
                ("ulysses", "4 (N - 1) / N^2 A L", 4 * ring / gpus),
            ):
                setting = f"{name}, N = {gpus}, guidance {guidance}"
                found = _sent(name, gpus, guidance, batch)
                yield Form("Bytes that a device sends in a step", setting, formula, expected, found, BYTES)
            trace = _replayed("pipefusion", _scenario(gpus, 1, guidance), patches=2 * gpus, warmup_steps=0)
            yield Form(
                "Bytes that a device sends in a step",
                f"pipefusion, N = {gpus}, guidance {guidance}",
                "A",
                batch * HIDDEN_BYTES,
                trace.p2p_bytes / (gpus - 1),
                BYTES,
            )


def _sent(name: str, gpus: int, guidance: str, batch: int) -> float:
    """Return the bytes of one device's exchanges, without the gather of the noise prediction.

    Under tensor parallelism every device has the whole prediction.
    """
    asked = {"warmup_steps": 0} if name == "distrifusion" else {}
    trace = _replayed(name, _scenario(gpus, 1, guidance), **asked)
    gathered = 0.0 if name == "tensor" else (gpus - 1) * LATENT_BYTES * batch
    return (trace.collective_bytes - gathered) / gpus
