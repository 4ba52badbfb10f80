"""Numbers of DiffusionPipe: ratios of times and throughputs; and the useful share of PipeFusion.

The paper does not say who draws self-conditioning, when its data parallelism reduces gradients, or which of
ControlNet's layers are trained, locked or frozen; every choice is simulated, and says by which flags. It calls the
throughput of cascades comparable to DeepSpeed-P, each backbone on its own half of the devices, but gives neither
numbers nor batch sizes.

Source: Tian et al., DiffusionPipe (arXiv 2405.01248), Tables 1 and 2, Fig. 4, section 6, appendix C; PipeFusion (arXiv
2405.14430v1), section 3.3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, product
from typing import Any, Final

from profiles.architectures.synthetic import equal_layers_model
from sim.outcomes.runs import run_point
from sim.replay.metrics import idle_s
from strategies.registry import make
from strategies.scenario import Scenario
from validate.equal_blocks import equal_blocks_transformer
from validate.points import command_for, fastest, replayed, sampling, scenario, train
from validate.published.records import OVER, Record, published, the_published

CONTROLNETS: Final = ("controlnet-hint-vae", "controlnet-cldm")
"""Both readings of ControlNet's frozen part (see their model files), that of Table 1 first."""
READINGS: Final = {"sd21": ("sd21",), "controlnet": CONTROLNETS}
CONDITIONED: Final = 0.5
"""Probability of the extra forward pass where DiffusionPipe trains with it (Table 5), as in Chen et al., Analog Bits
(2022). Their own recipes train without."""
STACK: Final = "eager-2023"
"""DiffusionPipe's stack: mixed precision of early 2023."""
LOCAL_BATCH: Final = 8
"""The local batch of Table 2."""
LAYERS: Final = 12
"""Layers of an equal-layers backbone: a multiple of 2, 3 and 4 stages."""
EQUAL: Final = "equal layers"
"""Provenance of times that are all alike by assumption."""
STEPS: Final = 50
"""Sampling steps in PipeFusion's section 3.3."""


def on_p4de(model: str, num_gpus: int, batch_size: int, **options: Any) -> Scenario:  # noqa: ANN401  as scenario's
    """A scenario of DiffusionPipe's machines and stack."""
    return scenario(model, "p4de", num_gpus, batch_size, stack=STACK, **options)


def frozen_ratios() -> Iterator[Record]:
    """Table 1: forward time of the frozen part over forward and backward time of the trained part."""
    for row in published("Table 1"):
        for model in READINGS[row.model]:
            batch = row.batch_size or 1
            point = on_p4de(model, 1, batch)
            costs = point.costs.components
            frozen_s = sum(float(costs[i].forward_s(batch).sum()) for i in point.model.frozen)
            backbones = [costs[i] for i in point.model.backbones]
            trained_s = sum(
                float((backbone.forward_s(batch) + backbone.backward_s(batch)).sum())
                for backbone in backbones
            )
            yield Record.of(row, frozen_s / trained_s, command_for("ddp", point))


def synchronisation_shares() -> Iterator[Record]:
    """Table 2: share of a data-parallel iteration in which gradients are reduced, without overlap.

    They are reduced in DistributedDataParallel's buckets, each a call of its own: over several nodes these take longer
    than one call for all gradients, whose pieces fill the network better.
    """
    for row in published("Table 2"):
        gpus = row.num_gpus or 1
        for name, recipe in product(READINGS[row.model], ("mixed", "mixed-fp16-gradient")):
            point = on_p4de(name, gpus, LOCAL_BATCH * gpus, self_conditioning=0.0, memory_recipe=recipe)
            once = train("ddp", point, overlap="none").expected
            reduced_s = train("ddp", point, overlap="buckets").expected.collective_s
            share = reduced_s / (once.duration_s - once.collective_s + reduced_s)
            yield Record.of(row, share, command_for("ddp", point))


@cache
def unfilled_bubbles_of(share: float, stages: int, count: int) -> dict[str, float]:
    """Bubbles of 1F1B on equal layers behind a data-parallel frozen part, over the iteration and the frozen time.

    ``share`` is the time of the frozen part over that of the backbone, ``count`` the number of micro-batches.
    """
    batch = stages * count * LAYERS
    model = equal_layers_model(LAYERS, frozen_share=share)
    point = scenario(model, "ideal", stages, batch, self_conditioning=0.0)
    trace = replayed("1f1b", point, pipeline_degree=stages, micro_batches=count, partition="blocks")
    frozen_s = float(point.costs.components[0].forward_s(batch).sum()) / stages
    bubble_s = idle_s(trace)
    return {"bubble_ratio": bubble_s / trace.end_s, "bubble_over_frozen_time": bubble_s / frozen_s}


def unfilled_bubbles() -> Iterator[Record]:
    """Fig. 4: 1F1B on equal layers, the frozen part run data-parallel before it.

    The bubble of 2 stages and 1 micro-batch over the frozen time, one of 24 numbers for a model, is the time of the
    backbone over that of the frozen part.
    """
    first = {"quantity": "bubble_over_frozen_time", "note": "2 stages, 1 micro-batches"}
    for row in published("Fig. 4"):
        share = 1 / the_published("Fig. 4", model=row.model, **first).value
        stages, count = (int(words.split()[0]) for words in row.note.split(", ")[:2])
        value = unfilled_bubbles_of(share, stages, count)[row.quantity]
        yield Record.of(row, value, f"equal layers, frozen over trained {share:.4f}", provenance=EQUAL)


def useful_share() -> Iterator[Record]:
    """Section 3.3 of PipeFusion: the share of its devices' time that is compute."""
    row = the_published("3.3")
    stages, model = row.num_gpus or 1, equal_blocks_transformer(LAYERS)
    point = sampling(model, "ideal", stages, (model.height, model.width), STEPS, guidance="none")
    share = 1 - run_point(make("pipefusion", {"patches": stages, "warmup_steps": 0}), point).bubble_ratio
    yield Record.of(row, share, "equal layers, no synchronous step", provenance=EQUAL)


DRAWS: Final = (
    (CONDITIONED, "iteration", "rank"),
    (CONDITIONED, "iteration", "iteration"),
    (CONDITIONED, "rank", "rank"),
    (0.0, "iteration", "iteration"),
)
"""Probability of the extra forward pass; who draws it under DiffusionPipe, whose groups follow one plan of an
iteration, and in the baselines, whose ranks and pipelines know nothing of one another. The first is the base."""
BASELINES: Final[dict[str, dict[str, Any]]] = {
    "gpipe": {"pipeline_degree": 2, "micro_batches": 4, "group_size": 2, "partition": "blocks"},
    "ddp": {"overlap": "none"},
}
"""Baselines of section 6.1: GPipe with 2 stages of equally many blocks, each on one GPU; DeepSpeed without ZeRO, which
reduces gradients after the backward (runtime/engine.py, allreduce_gradients)."""


def speed_ups(
    model: str, num_gpus: int, batch_size: int, draws: Sequence[tuple[float, str, str]] = DRAWS[:1]
) -> Iterator[Record]:
    """DiffusionPipe's throughput over GPipe's and DDP's (section 6.1), and on one node its bubbles (Fig. 14)."""
    row_model = model.partition("-")[0]
    for probability, own, others in draws:
        own_point, point = (
            on_p4de(model, num_gpus, batch_size, self_conditioning=probability, self_conditioning_draw=by)
            for by in (own, others)
        )
        pipe = fastest(own_point, "diffusionpipe", fill="partial")
        command = command_for("diffusionpipe", own_point, "sweep", fill="partial")
        if num_gpus == 8:
            yield Record.of(the_published("Fig. 14", model=row_model), pipe.bubble_ratio, command)
        for name, parameters in BASELINES.items():
            for row in published("6.1", model=row_model, method=f"diffusionpipe/{name}", num_gpus=num_gpus):
                ratio = pipe.samples_per_s / train(name, point, **parameters).samples_per_s
                yield Record.of(row, ratio, f"{command}{OVER}{command_for(name, point, **parameters)}")


def eight_nodes() -> Iterator[Record]:
    """Section 6.1 on 64 GPUs: ControlNet, batch 2048."""
    for name in CONTROLNETS:
        yield from speed_ups(name, 64, 2048, DRAWS)


def one_node() -> Iterator[Record]:
    """Section 6.1 and Fig. 14 on 8 GPUs, batch 256."""
    yield from speed_ups("sd21", 8, 256, DRAWS)
    for name in CONTROLNETS:
        yield from speed_ups(name, 8, 256)


FILLS: Final = {
    "no partial batch/diffusionpipe": ("full", "partial"),
    "no filling/diffusionpipe": ("none", "partial"),
    "no partial batch = no filling": ("none", "full"),
}
"""Fillings with the loss and without it, by the comparison of Fig. 15."""


def ablation(names: Sequence[str] = CONTROLNETS) -> Iterator[Record]:
    """Fig. 15: the gain of filling, and of partial batches, on 8 GPUs."""
    for name in names:
        for batch in (256, 384):
            point = on_p4de(name, 8, batch, self_conditioning=CONDITIONED)
            fills = ("partial", "full", "none")
            rates = {fill: fastest(point, "diffusionpipe", fill=fill).samples_per_s for fill in fills}
            for row in published("Fig. 15", batch_size=batch):
                less, more = FILLS[row.method]
                commands = (command_for("diffusionpipe", point, "sweep", fill=fill) for fill in (less, more))
                yield Record.of(row, 1 - rates[less] / rates[more], OVER.join(commands))


def cascades(machines: Sequence[tuple[int, int]] = ((8, 256), (64, 2048))) -> Iterator[Record]:
    """Section 6.1, Fig. 13 c and d: DiffusionPipe's two directions over DeepSpeed-P, by GPUs and batch size.

    DeepSpeed-P adds the rates of its backbones, which favours unequal ones, runs each at twice the local batch, and
    between nodes reduces one backbone's gradients per node instead of both's.
    """
    row = the_published("6.1", model="cdm-lsun")
    for num_gpus, batch in machines:
        point = on_p4de(row.model, num_gpus, batch)
        pipe = fastest(point, "diffusionpipe", fill="none")
        other = fastest(point, "ddp", overlap="none", backbones="parallel")
        command = command_for("diffusionpipe", point, "sweep", fill="none")
        command += OVER + command_for("ddp", point, "sweep", overlap="none", backbones="parallel")
        yield Record.of(row, pipe.samples_per_s / other.samples_per_s, command)


TABLES: Final[Mapping[str, Sequence[Callable[[], Iterator[Record]]]]] = {
    "table-1": (frozen_ratios,),
    "table-2": (synchronisation_shares,),
    "section-6.1": (one_node, eight_nodes),
    "fig-15": (ablation,),
    "cascades": (cascades,),
}
"""Experiments by the name of their table."""
EXPERIMENTS: Final = (*chain.from_iterable(TABLES.values()), unfilled_bubbles, useful_share)
