"""Closed forms and the command ``closed-forms``: one line per family, and the values that differ, or all values.

Seconds of an iteration, its idle share, activations held and bytes sent; PipeFusion's time.

P positions, M micro-batches, f and b seconds of the forward and the backward of one stage on one micro-batch
(b = 2 f: B of the input part and W of the weight part), v chunks per position; equal stages, free links. In a wave
stages are half as long, and f and b are those of one of them. In PULSE's volumes: D devices, K blocks of which block i
hands its output to block K - 1 - i, a bytes of a hidden state.

S steps, M patches, N devices, L layers, t seconds of one patch on one stage, A bytes of the hidden state of the whole
image, for both predictions where guidance is in the batch; equal layers, free links, no synchronous steps.

For hybrid: G guidance groups, Ulysses degree U, ring degree R, P stages, tensor degree T, D data groups with images of
their own; W synchronous steps; A bytes of the hidden state, n of the noise prediction and l of the latents, of all
samples of one pass; K skips that end in a later stage.

The formulas stand in ``forms.csv`` as published, in Python.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

from profiles.architectures.synthetic import equal_layers_model
from profiles.measuring.writing import grouped
from sim.outcomes.runs import run_point
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes, resident_bytes
from sim.replay.metrics import busy_s, idle_s
from strategies.plans.traces import Trace
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make
from strategies.sampling_scenario import SamplingScenario
from validate.equal_blocks import equal_blocks_transformer
from validate.points import cluster_of, forward_bytes, replayed, sampled, sampling, scenario
from validate.tables import Section, print_sections, read_cells

FORMULAS: Final = Path(__file__).with_name("forms.csv")
EXACT: Final = 1e-9
"""Relative difference of two sums of floating point numbers in another order."""


class Form(NamedTuple):
    """One value of a formula beside the simulated one; ``setting`` gives its numbers in words."""

    family: str
    setting: str
    formula: str
    expected: float
    simulated: float
    source: str

    @property
    def error(self) -> float:
        """The relative difference; the absolute one where the formula says 0."""
        difference = self.simulated - self.expected
        return difference / self.expected if self.expected else difference

    @property
    def holds(self) -> bool:
        """Whether the two differ by rounding alone."""
        return abs(self.error) <= EXACT


@cache
def _formulas() -> Mapping[tuple[str, str], tuple[str, str]]:
    """Formula and source by family and variant (column ``of``)."""
    return {(row["family"], row["of"]): (row["formula"], row["source"]) for row in read_cells(FORMULAS)}


def form(
    family: str, quantity: str, simulated: float, letters: Mapping[str, float], setting: str = ""
) -> Form:
    """A simulated value beside the formula that ``forms.csv`` has for a family and its variant ``of``.

    The setting in words is by default ``of`` and the letters that are whole numbers.
    """
    formula, source = _formulas()[family, quantity]
    expected = eval(formula, None, letters)
    return Form(
        family, setting or f"{quantity}, {letter_text(letters)}", formula, expected, simulated, source
    )


def letter_text(letters: Mapping[str, float]) -> str:
    """The letters that are whole numbers, in words."""
    return ", ".join(f"{letter} = {value}" for letter, value in letters.items() if isinstance(value, int))


DEGREES: Final = (2, 4, 8)
GRIDS: Final = {
    "gpipe": ((1, 2, 4), (1,)),
    "1f1b": ((1, 2, 4), (1,)),
    "interleaved": ((1, 2, 4), (2, 4)),
    "zero-bubble": ((1, 2, 4), (1,)),
    "bidirectional": ((1, 2, 3), (1,)),
    "wave": ((1,), (2,)),
    "pulse": ((1,), (2,)),
}
"""Micro-batches over positions and stages per position, by strategy."""
SECONDS: Final = {"f": 1.0, "b": 2.0, "B": 1.0, "W": 1.0}
RATIO: Final = "1 - M * v * (f + b) / seconds"
ROWS: Final = 32
HIDDEN: Final = 64
HIDDEN_BYTES: Final = 2.0 * ROWS**2 * HIDDEN


def pipelines() -> Iterator[Form]:
    """Seconds, bubble ratio and activations of each named order."""
    for strategy, (rounds, chunks) in GRIDS.items():
        for degree, times, chunk in product(DEGREES, rounds, chunks):
            yield from _pipeline(strategy, {"P": degree, "M": times * degree, "v": chunk})


def _pipeline(strategy: str, letters: dict[str, int]) -> Iterator[Form]:
    """The forms of a pipeline whose stages are one layer each; for PULSE no activations, as its order is a wave's."""
    degree, count, chunks = letters.values()
    model = equal_layers_model(degree * chunks, SECONDS["f"], saved_bytes=1.0)
    parameters = {"chunks": chunks} if strategy == "interleaved" else {}
    point = scenario(model, "ideal", degree, count, self_conditioning=0.0)
    trace = replayed(strategy, point, pipeline_degree=degree, micro_batches=count, **parameters)
    values = {**letters, **SECONDS}
    setting = letter_text({key: letters[key] for key in letters if key != "v" or strategy == "interleaved"})
    seconds = form(f"{strategy}: seconds", strategy, trace.end_s, values, setting)
    yield seconds
    idle = 1 - letters["M"] * letters["v"] * (SECONDS["f"] + SECONDS["b"]) / seconds.expected
    ratio = idle_s(trace) / trace.end_s
    yield Form(f"{strategy}: bubble ratio", setting, RATIO, idle, ratio, seconds.source)
    if strategy != "pulse":
        held = float((peak_memory_bytes(trace) - resident_bytes(trace)).max())
        yield form(f"{strategy}: activations held", strategy, held, values, setting)


def skips() -> Iterator[Form]:
    """Bytes of 1F1B, whose stages relay the skips, and of PULSE, whose devices keep them."""
    relayed = {"skip_route": "relay", "partition": "blocks"}
    for degree, waves in product(DEGREES, (1, 2)):
        blocks = 2 * degree * waves
        model = equal_blocks_transformer(blocks, rows=ROWS, hidden_size=HIDDEN, skips=True)
        point = scenario(model, "ideal", degree, degree, self_conditioning=0.0)
        letters = {"D": degree, "K": blocks, "a": HIDDEN_BYTES}
        for name, parameters in (("1f1b, relayed", relayed), ("pulse", {})):
            strategy = name.partition(",")[0]
            trace = replayed(strategy, point, pipeline_degree=degree, micro_batches=degree, **parameters)
            yield form("PULSE: bytes of one sample forwards", name, forward_bytes(trace) / degree, letters)


LAYERS: Final = 24
LAYER_S: Final = 0.25
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
            sampler = make("pipefusion", {"patches": patches, "warmup_steps": 0})
            result = run_point(sampler, _scenario(stages, 8))
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
    *(Degrees(*sizes) for sizes in product((1, 2), (1, 2), (1, 2), (1, 2), (1, 2)) if prod(sizes) > 2),
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
        for operation, sent in (("collectives", trace.collective_bytes), ("messages", trace.p2p_bytes)):
            yield form(f"hybrid: bytes of {operation}", operation, sent, letters, setting)


def _hybrid(degrees: Degrees) -> Trace:
    model = equal_blocks_transformer(HYBRID_LAYERS, rows=ROWS, hidden_size=HIDDEN, skips=degrees.skips)
    images, size = degrees.data * degrees.images, (model.height, model.width)
    workload = SamplingWorkload(prod(degrees[:6]), *size, STEPS, "batch", batch_size=images)
    axes = ("guidance", "ulysses", "ring", "pipeline", "tensor")
    parameters = {f"{axis}_degree": getattr(degrees, axis) for axis in axes}
    parameters |= {"patches": degrees.letters["M"], "warmup_steps": WARMUP}
    scenario = SamplingScenario(model, cluster_of("ideal"), workload)
    return simulate(make("hybrid", parameters).plan(scenario))


def closed_forms() -> list[Form]:
    """Every value of all families."""
    return [*pipelines(), *pipefusion(), *sent_bytes(), *hybrid(), *skips()]


def run_closed_forms(options: argparse.Namespace) -> int:
    """Print the summary, and all values or those that differ; return 1 where one does."""
    forms = closed_forms()
    shown = forms if options.all else [form for form in forms if not form.holds]
    families = grouped(shown, lambda one: one.family)
    print_sections([summary(forms), *(_section(family, of_family) for family, of_family in families.items())])
    return int(not all(form.holds for form in forms))


def _section(family: str, forms: Sequence[Form]) -> Section:
    """One table of a family."""
    rows = []
    for one in forms:
        numbers = (f"{one.expected:.7g}", f"{one.simulated:.7g}", f"{one.error:+.1e}")
        rows.append([one.setting, one.formula, *numbers, "yes" if one.holds else "NO"])
    title = f"{family}: {len(forms)} values, {_verdict(forms)}, largest error {_worst(forms)}"
    header = ("setting", "formula", "its value", "simulated", "error", "holds")
    return Section(title, header, rows, f"Source: {'; '.join(dict.fromkeys(one.source for one in forms))}.")


def _verdict(forms: Sequence[Form]) -> str:
    missed = sum(not one.holds for one in forms)
    return f"{missed} do not hold" if missed else "all hold"


def _worst(forms: Sequence[Form]) -> str:
    return f"{max((one.error for one in forms), key=abs):+.1e}"


def summary(forms: Sequence[Form]) -> Section:
    """One line per family."""
    families, rows = grouped(forms, lambda one: one.family), []
    for family, of_family in families.items():
        formulas = "; ".join(dict.fromkeys(one.formula for one in of_family))
        rows.append(
            [
                family,
                formulas,
                f"{len(of_family)}",
                f"{sum(one.holds for one in of_family)}",
                _worst(of_family),
            ]
        )
    title = f"Closed forms: {len(forms)} values of {len(families)} families, {_verdict(forms)}"
    return Section(title, ("family", "formula", "values", "hold", "largest relative error"), rows)
