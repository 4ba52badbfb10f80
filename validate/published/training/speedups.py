"""Throughputs that DiffusionPipe compares: section 6.1, Figs. 13, 14 and 15.

The paper does not say how self-conditioning is drawn, when its data parallelism reduces gradients, or which of
ControlNet's layers are trained, locked or frozen; every choice is simulated. It calls the throughput of cascades
comparable to DeepSpeed-P, each backbone on its own half of the devices, but gives neither numbers nor batch sizes.

Source: Tian et al., DiffusionPipe (arXiv 2405.01248), section 6.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from profiles.architectures.models import Model
from sim.outcomes.results import Result
from strategies.scenario import Scenario
from validate.points import best, fastest
from validate.published.records import Record, published, the_published
from validate.published.training.experiment import Found, experiment
from validate.published.training.models import CONDITIONED, on_p4de, with_all_gradients
from validate.published.training.ratios import CONTROLNETS
from validate.tables import percent

DRAWS: Final = ((0.5, "iteration"), (0.0, "iteration"), (0.5, "rank"))
"""Probability of the extra forward pass, and who draws it."""
OVERLAPS: Final = {"none": "after the backward", "buckets": "in buckets"}
"""When data parallelism reduces its gradients."""
FILLS: Final = ("partial", "full", "none")
CASCADES: Final = ("cdm-lsun", "cdm-imagenet")
MACHINES: Final = ((8, 256), (64, 2048))
"""GPUs and batch sizes of the cascades: one node and eight, ``LOCAL_BATCH`` samples per GPU."""
LOCAL_BATCH: Final = 32


class SpeedUp(NamedTuple):
    """Best results of each method under one choice, with the model and the draw of self-conditioning in words.

    GPipe has 2 stages of equally many blocks and 4 micro-batches; ``ddp`` is by when it reduces gradients; ZeRO-3
    reduces after the backward, and is None where no point fits.
    """

    model: str
    drawn: str
    pipe: Result
    gpipe: Result
    ddp: dict[str, Result]
    zero3: Result | None

    def over(self, other: Result) -> float:
        """DiffusionPipe's throughput over another's."""
        return self.pipe.samples_per_s / other.samples_per_s

    @property
    def setting(self) -> str:
        """The choices in words."""
        return f"{self.model}; self-conditioning {self.drawn}"

    @property
    def cells(self) -> list[str]:
        """The choices, throughput and bubble ratio of DiffusionPipe, and its ratios over all others, in words."""
        others = (self.gpipe, *self.ddp.values(), self.zero3)
        ratios = ["-" if other is None else f"{self.over(other):.2f}" for other in others]
        return [self.model, self.drawn, rate(self.pipe), percent(self.pipe.bubble_ratio), *ratios]


def rate(result: Result) -> str:
    """The throughput of a pipeline and its (P, M, D)."""
    degrees = (result.parameters[name] for name in ("pipeline_degree", "micro_batches", "group_size"))
    shape = ", ".join(f"{letter} {degree}" for letter, degree in zip("PMD", degrees, strict=True))
    return f"{result.samples_per_s:.1f} ({shape})"


def speed_ups(
    name: str, model: str | Model, num_gpus: int, batch_size: int, draws: Sequence[tuple[float, str]] = DRAWS
) -> Iterator[SpeedUp]:
    """The throughputs of one model on one machine under each way to draw self-conditioning."""
    for probability, draw in draws:
        how = {"self_conditioning": probability, "self_conditioning_draw": draw}
        point = on_p4de(model, num_gpus, batch_size, **how)
        drawn = "half, one draw" if draw == "iteration" else "half, each group draws"
        yield SpeedUp(
            name,
            drawn if probability else "none",
            fastest(point, "diffusionpipe", fill="partial"),
            fastest(point, "gpipe", partition="blocks", pipeline_degree=2, micro_batches=4),
            {overlap: fastest(point, "ddp", overlap=overlap) for overlap in OVERLAPS},
            best(point, "zero3", overlap="none"),
        )


@experiment
def eight_nodes() -> Found:
    """Section 6.1 on 64 GPUs: ControlNet, batch 2048."""
    every = with_all_gradients(CONTROLNETS[0], "p4de")
    yield _published("controlnet")
    for case in (
        *speed_ups(CONTROLNETS[0], CONTROLNETS[0], 64, 2048),
        *speed_ups(f"{CONTROLNETS[0]}, all gradients", every, 64, 2048, DRAWS[:1]),
        *speed_ups("controlnet", "controlnet", 64, 2048, DRAWS[:1]),
    ):
        yield case.cells
        yield from ratios_over(case, "controlnet")


@experiment
def one_node() -> Found:
    """Section 6.1 and Fig. 14 on 8 GPUs, batch 256."""
    yield _published("sd21")
    others = (case for name in CONTROLNETS for case in speed_ups(name, name, 8, 256, DRAWS[:1]))
    for case in (*speed_ups("sd21", "sd21", 8, 256), *others):
        yield case.cells
        if case.model == "sd21":
            yield from ratios_over(case, "sd21")
        row = the_published("Fig. 14", model=case.model.removesuffix("-hint-vae"))
        yield Record.of(row, case.pipe.bubble_ratio, case.setting)


def _published(model: str) -> list[str]:
    gpipe, ddp = (the_published("6.1", model=model, method=f"diffusionpipe/{of}") for of in ("gpipe", "ddp"))
    bubble = the_published("Fig. 14", model=model)
    said = [f"< {bubble.value:.0%}", f"{gpipe.value:g}", f"{ddp.value:g}"]
    return [f"{model}, published", "", "", *said, "", ""]


def ratios_over(case: SpeedUp, model: str) -> Iterator[Record]:
    """Section 6.1's ratios over GPipe and DDP in one case."""
    row = the_published("6.1", model=model, method="diffusionpipe/gpipe")
    yield Record.of(row, case.over(case.gpipe), case.setting)
    row = the_published("6.1", model=model, method="diffusionpipe/ddp")
    for overlap, ddp in case.ddp.items():
        yield Record.of(row, case.over(ddp), f"{case.setting}; DDP reduces {OVERLAPS[overlap]}")


@experiment
def ablation() -> Found:
    """Fig. 15: the gain of filling, and of partial batches, on 8 GPUs."""
    cases = [(name, batch) for name in CONTROLNETS for batch in (256, 384)]
    for name, batch in (*cases, ("sd21", 256)):
        filled = by_fill(on_p4de(name, 8, batch, self_conditioning=CONDITIONED[name]))
        rates = {fill: result.samples_per_s for fill, result in filled.items()}
        losses = [f"{rate(filled[fill])}, {rates[fill] / rates['partial'] - 1:+.1%}" for fill in FILLS[1:]]
        yield [name, f"{batch}", rate(filled["partial"]), *losses, percent(rates["full"] / rates["none"] - 1)]
        if name != "sd21":
            yield from losses_unfilled(filled, batch, name)


def by_fill(point: Scenario) -> dict[str, Result]:
    """The best DiffusionPipe by what it fills."""
    return {fill: fastest(point, "diffusionpipe", fill=fill) for fill in FILLS}


def losses_unfilled(filled: dict[str, Result], batch: int, name: str) -> Iterator[Record]:
    """Fig. 15's losses with less filling or none; ``name`` is the setting."""
    compared = {
        "no partial batch/diffusionpipe": ("full", "partial"),
        "no filling/diffusionpipe": ("none", "partial"),
        "no partial batch = no filling": ("none", "full"),
    }
    for row in published("Fig. 15", batch_size=batch):
        less, more = (filled[fill].samples_per_s for fill in compared[row.method])
        yield Record.of(row, 1 - less / more, name)


@experiment
def cascades(machines: Sequence[tuple[int, int]] = MACHINES) -> Found:
    """Section 6.1, Fig. 13 c and d: DiffusionPipe's two directions over DeepSpeed-S and -P, by GPUs and batch size."""
    row = the_published("6.1", model="cdm-lsun")
    yield ["published", "close", "-", "-", "-", "comparable"]
    for model, (num_gpus, batch) in ((model, machine) for model in CASCADES for machine in machines):
        point = on_p4de(model, num_gpus, batch)
        pipe = fastest(point, "diffusionpipe", fill="none")
        others = [best(point, "ddp", overlap="none", backbones=of) for of in ("sequential", "parallel")]
        ratios = [None if of is None else pipe.samples_per_s / of.samples_per_s for of in others]
        words = ["does not fit" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        where = f"{num_gpus} GPUs, batch {batch}"
        yield [f"{model}, {where}", _balance(point), rate(pipe), percent(pipe.bubble_ratio), *words]
        if model == row.model and ratios[1] is not None:
            yield Record.of(row, ratios[1], where)


def _balance(point: Scenario) -> str:
    """The times of the two backbones at ``LOCAL_BATCH``, over the shorter one's."""
    costs = [point.costs.components[i] for i in point.model.backbones]
    times = [float((c.forward_s(LOCAL_BATCH) + c.backward_s(LOCAL_BATCH)).sum()) for c in costs]
    return " : ".join(f"{time / min(times):.2f}" for time in times)
