"""Numbers of DiffusionPipe: ratios of times, throughputs and solution times; and the useful share of PipeFusion.

The paper does not say how self-conditioning is drawn, when its data parallelism reduces gradients, or which of
ControlNet's layers are trained, locked or frozen; every choice is simulated. It calls the throughput of cascades
comparable to DeepSpeed-P, each backbone on its own half of the devices, but gives neither numbers nor batch sizes.

Solution times are those of one core of this machine; no test asserts them.

Source: Tian et al., DiffusionPipe (arXiv 2405.01248), Tables 1 and 2, Fig. 4, section 6, appendix C, Table 5; PULSE,
section V-B; PipeFusion (arXiv 2405.14430v1), section 3.3.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from time import perf_counter
from typing import Final, NamedTuple

from profiles.architectures.models import Model
from profiles.architectures.synthetic import equal_blocks_transformer, equal_layers_model
from profiles.checks import sum_in_order
from sim.explore.points import find_points
from sim.outcomes.results import Result
from sim.outcomes.runs import bound, run_point
from sim.replay.engine import simulate
from sim.replay.metrics import idle_s
from strategies.orders.problem import wave_problem
from strategies.orders.synthesis import synthesize
from strategies.plans.network import network_of
from strategies.registry import make_strategy
from strategies.scenario import Scenario
from strategies.strategy import Strategy
from validate.points import best, drawing, fastest, model_of, replayed, sampler, scenario, trained
from validate.published.records import Record, published, the_published
from validate.published.training.models import CONDITIONED, on_p4de, with_all_gradients

CONTROLNETS: Final = ("controlnet-hint-vae", "controlnet")
"""Both readings of ControlNet's frozen part (see their model files), that of Table 1 first."""
RECIPES: Final = {"fp32": "mixed", "fp16": "mixed-fp16-gradient"}
"""Memory recipes by the precision of their gradients."""
LOCAL_BATCH: Final = 8
"""The local batch of Table 2."""
LAYERS: Final = 12
"""Layers of an equal-layers backbone: a multiple of 2, 3 and 4 stages."""
EQUAL: Final = "equal layers"
"""Provenance of times that are all alike by assumption."""
STEPS: Final = 50
"""Sampling steps in PipeFusion's section 3.3."""


def _frozen_ratio(model: str, batch: int | None) -> float:
    """Forward time of the frozen part over forward and backward time of the trained part."""
    assert batch is not None
    point = on_p4de(model, 1, 1)
    costs = point.costs.components
    frozen_s = sum_in_order(float(costs[i].forward_s(batch).sum()) for i in point.model.frozen)
    backbones = [costs[i] for i in point.model.backbones]
    trained_s = sum_in_order(float((c.forward_s(batch) + c.backward_s(batch)).sum()) for c in backbones)
    return frozen_s / trained_s


def frozen_ratios() -> Iterator[Record]:
    """Table 1 of DiffusionPipe."""
    for row in published("Table 1", model="sd21"):
        also = the_published("Table 1", model="controlnet", batch_size=row.batch_size or 0)
        yield Record.of(row, _frozen_ratio("sd21", row.batch_size), "sd21")
        for model in CONTROLNETS:
            yield Record.of(also, _frozen_ratio(model, row.batch_size), model)


def synchronisation_share(model: str | Model, num_gpus: int, recipe: str) -> float:
    """Share of a data-parallel iteration in which gradients are reduced, without overlap.

    They are reduced in DistributedDataParallel's buckets, each a call of its own: over several nodes these take longer
    than one call for all gradients, whose pieces fill the network better.
    """
    point = on_p4de(model, num_gpus, LOCAL_BATCH * num_gpus, self_conditioning=0.0, memory_recipe=recipe)
    once = trained("ddp", point, overlap="none").expected
    reduced_s = trained("ddp", point, overlap="buckets").expected.collective_s
    return reduced_s / (once.duration_s - once.collective_s + reduced_s)


def synchronisation_shares() -> Iterator[Record]:
    """Table 2 of DiffusionPipe."""
    cases: dict[str, tuple[str, str | Model]] = {
        "sd21": ("sd21", "sd21"),
        **{f"{name}, copy alone": ("controlnet", name) for name in CONTROLNETS},
        "controlnet-hint-vae, locked U-Net too": ("controlnet", with_all_gradients(CONTROLNETS[0], "p4de")),
    }
    for name, (asked, model) in cases.items():
        for gradients, recipe in RECIPES.items():
            for row in published("Table 2", model=asked):
                share = synchronisation_share(model, row.num_gpus or 1, recipe)
                yield Record.of(row, share, f"{name}; {gradients} gradients")


def frozen_share(model: str) -> float:
    """Time of the frozen part over that of the backbone: the inverse of one of Fig. 4's 24 numbers for a model.

    That number is the bubble of 2 stages and 1 micro-batch over the frozen time.
    """
    rows = published("Fig. 4", model=model, quantity="bubble_over_frozen_time", num_gpus=2)
    return 1 / next(row.value for row in rows if row.note == "2 stages, 1 micro-batches")


@cache
def unfilled_bubbles_of(share: float, stages: int, count: int) -> dict[str, float]:
    """Bubbles of 1F1B on equal layers behind a data-parallel frozen part, over the iteration and the frozen time.

    ``share`` is the time of the frozen part over that of the backbone, ``count`` the number of micro-batches.
    """
    batch = stages * count * LAYERS
    model = equal_layers_model(LAYERS, frozen_share=share)
    point = scenario(model, "ideal", stages, batch, self_conditioning=0.0)
    trace = replayed("1f1b", point, pipeline_degree=stages, micro_batches=count)
    frozen_s = float(point.costs.components[0].forward_s(batch).sum()) / stages
    bubble_s = idle_s(trace)
    return {"bubble_ratio": bubble_s / trace.end_s, "bubble_over_frozen_time": bubble_s / frozen_s}


def unfilled_bubbles() -> Iterator[Record]:
    """Fig. 4 of DiffusionPipe: 1F1B on equal layers, the frozen part run data-parallel before it."""
    for row in published("Fig. 4"):
        share = frozen_share(row.model)
        stages, count = (int(words.split()[0]) for words in row.note.split(", ")[:2])
        found = unfilled_bubbles_of(share, stages, count)[row.quantity]
        setting = f"equal layers, frozen over trained {share:.4f}"
        yield Record.of(row, found, setting, provenance=EQUAL)


def useful_share() -> Iterator[Record]:
    """Section 3.3 of PipeFusion: the share of its devices' time that is compute."""
    row = the_published("3.3")
    stages = row.num_gpus or 1
    model = equal_blocks_transformer(LAYERS)
    point = drawing(model, "ideal", stages, (model.height, model.width), STEPS, guidance="none")
    share = 1 - run_point(sampler("pipefusion", patches=stages, warmup_steps=0), point).bubble_ratio
    yield Record.of(row, share, "equal layers, no synchronous step", provenance=EQUAL)


DRAWS: Final = ((0.5, "iteration"), (0.0, "iteration"), (0.5, "rank"))
"""Probability of the extra forward pass, and who draws it."""
OVERLAPS: Final = {"none": "after the backward", "buckets": "in buckets"}
"""When data parallelism reduces its gradients."""
FILLS: Final = ("partial", "full", "none")
MACHINES: Final = ((8, 256), (64, 2048))
"""GPUs and batch sizes of the cascades: one node and eight."""


class SpeedUp(NamedTuple):
    """Best results of each method under one choice, with the model and the draw of self-conditioning in words.

    GPipe has 2 stages of equally many blocks and 4 micro-batches; ``ddp`` is by when it reduces gradients.
    """

    model: str
    drawn: str
    pipe: Result
    gpipe: Result
    ddp: dict[str, Result]

    def over(self, other: Result) -> float:
        """DiffusionPipe's throughput over another's."""
        return self.pipe.samples_per_s / other.samples_per_s

    @property
    def setting(self) -> str:
        """The choices in words."""
        return f"{self.model}; self-conditioning {self.drawn}"


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
        )


def eight_nodes() -> Iterator[Record]:
    """Section 6.1 on 64 GPUs: ControlNet, batch 2048."""
    every = with_all_gradients(CONTROLNETS[0], "p4de")
    for case in (
        *speed_ups(CONTROLNETS[0], CONTROLNETS[0], 64, 2048),
        *speed_ups(f"{CONTROLNETS[0]}, all gradients", every, 64, 2048, DRAWS[:1]),
        *speed_ups("controlnet", "controlnet", 64, 2048, DRAWS[:1]),
    ):
        yield from ratios_over(case, "controlnet")


def one_node() -> Iterator[Record]:
    """Section 6.1 and Fig. 14 on 8 GPUs, batch 256."""
    others = (case for name in CONTROLNETS for case in speed_ups(name, name, 8, 256, DRAWS[:1]))
    for case in (*speed_ups("sd21", "sd21", 8, 256), *others):
        if case.model == "sd21":
            yield from ratios_over(case, "sd21")
        row = the_published("Fig. 14", model=case.model.removesuffix("-hint-vae"))
        yield Record.of(row, case.pipe.bubble_ratio, case.setting)


def ratios_over(case: SpeedUp, model: str) -> Iterator[Record]:
    """Section 6.1's ratios over GPipe and DDP in one case."""
    row = the_published("6.1", model=model, method="diffusionpipe/gpipe")
    yield Record.of(row, case.over(case.gpipe), case.setting)
    row = the_published("6.1", model=model, method="diffusionpipe/ddp")
    for overlap, ddp in case.ddp.items():
        yield Record.of(row, case.over(ddp), f"{case.setting}; DDP reduces {OVERLAPS[overlap]}")


def ablation() -> Iterator[Record]:
    """Fig. 15: the gain of filling, and of partial batches, on 8 GPUs."""
    for name, batch in ((name, batch) for name in CONTROLNETS for batch in (256, 384)):
        filled = by_fill(on_p4de(name, 8, batch, self_conditioning=CONDITIONED[name]))
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


def cascades(machines: Sequence[tuple[int, int]] = MACHINES) -> Iterator[Record]:
    """Section 6.1, Fig. 13 c and d: DiffusionPipe's two directions over DeepSpeed-P, by GPUs and batch size.

    DeepSpeed-P adds the rates of its backbones, which favours unequal ones, runs each at twice the local batch, and
    between nodes reduces one backbone's gradients per node instead of both's.
    """
    row = the_published("6.1", model="cdm-lsun")
    for num_gpus, batch in machines:
        point = on_p4de(row.model, num_gpus, batch)
        pipe = fastest(point, "diffusionpipe", fill="none")
        other = best(point, "ddp", overlap="none", backbones="parallel")
        if other is not None:
            yield Record.of(row, pipe.samples_per_s / other.samples_per_s, f"{num_gpus} GPUs, batch {batch}")


TIMED: Final = "timed here"
"""Provenance of seconds measured on this machine."""
GPUS: Final = 64
BATCH_SIZE: Final = 2048
"""The largest batch of the paper's single backbones on 64 GPUs; that of cascades is not published."""
SHAPE: Final = {"pipeline_degree": 4, "micro_batches": 4}
"""A pipeline whose bubbles are filled: 4 stages, 4 micro-batches, as in the paper's Fig. 6."""
PROOFS: Final = {False: "the integer programme", True: "list scheduling meets its lower bound"}
"""What proves the wave's length, by whether the lower bound may be the proof."""


def _seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _trained(model: str) -> Scenario:
    """A model under the conditions of Table 5."""
    return scenario(model, "p4de", GPUS, BATCH_SIZE, self_conditioning=CONDITIONED.get(model))


def _partition_s(model: str) -> tuple[float, int]:
    """Seconds to partition a model's backbones for every point of DiffusionPipe, bounds included; and the points."""
    point = _trained(model)
    points = find_points(point, ["diffusionpipe"], {"fill": "partial"})
    strategies = [p.strategy for p in points if isinstance(p.strategy, Strategy)]
    return _seconds(lambda: [bound(strategy, point) for strategy in strategies]), len(strategies)


def _filling_s(model: str) -> float:
    """Seconds to fill all bubbles of one plan."""
    point = _trained(model)
    strategy: Strategy = make_strategy("diffusionpipe", SHAPE)
    plan = strategy.plan(point)
    trace = simulate(plan, network_of(point, plan.placement))
    return _seconds(lambda: strategy.refine(point, trace))


def wave_s(*, certificate: bool) -> tuple[float, float]:
    """Seconds to synthesise the wave of 4 devices and 4 micro-batches with proof, and its makespan.

    With ``certificate`` the lower bound may be the proof; else the integer programme has to find it.
    """
    problem = wave_problem(SHAPE["pipeline_degree"], SHAPE["micro_batches"], 1)
    start = perf_counter()
    found = synthesize(problem, certificate=certificate)
    assert found.proven
    return perf_counter() - start, found.ordering.makespan_s


def solution_times() -> Iterator[Record]:
    """Table 5 of DiffusionPipe and the time of PULSE's integer programme."""
    for row in published("Table 5"):
        if row.method == "filling" and not model_of(row.model).for_task("train").frozen:
            continue
        if row.method == "partition":
            seconds, points = _partition_s(row.model)
            setting = f"one core, {points} points, bounds included"
        else:
            seconds, setting = _filling_s(row.model), "one core, one plan"
        yield Record.of(row, seconds, setting, provenance=TIMED)
    row = the_published("V-B", method="ILP")
    for certificate, how in PROOFS.items():
        seconds, makespan = wave_s(certificate=certificate)
        setting = f"{how}, proven; {makespan:g} forwards long"
        yield Record.of(row, seconds, setting, provenance=TIMED)
