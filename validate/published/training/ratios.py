"""Ratios of times that papers publish: frozen over trained, gradient reduction, unfilled bubbles, useful shares.

Source: Tian et al., DiffusionPipe (arXiv 2405.01248), Tables 1 and 2, Fig. 4; PipeFusion (arXiv 2405.14430v1), section
3.3.
"""

from functools import cache
from typing import Final

from profiles.architectures.models import Model
from profiles.architectures.synthetic import equal_blocks_transformer, equal_layers_model
from profiles.checks import sum_in_order
from sim.outcomes.runs import run_point
from sim.replay.metrics import idle_s
from validate.points import drawing, replayed, sampler, scenario, trained
from validate.published.records import Record, published, the_published
from validate.published.training.experiment import Found, experiment
from validate.published.training.models import on_p4de, with_all_gradients
from validate.tables import percent

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


@experiment
def frozen_ratios() -> Found:
    """Table 1 of DiffusionPipe."""
    for row in published("Table 1", model="sd21"):
        also = the_published("Table 1", model="controlnet", batch_size=row.batch_size or 0)
        own, *others = (_frozen_ratio(model, row.batch_size) for model in ("sd21", *CONTROLNETS))
        yield Record.of(row, own, "sd21")
        for ratio, model in zip(others, CONTROLNETS, strict=True):
            yield Record.of(also, ratio, model)
        yield [f"local batch {row.batch_size}", *map(percent, (row.value, own, also.value, *others))]


def synchronisation_share(model: str | Model, num_gpus: int, recipe: str) -> float:
    """Share of a data-parallel iteration in which gradients are reduced, without overlap.

    They are reduced in DistributedDataParallel's buckets, each a call of its own: over several nodes these take longer
    than one call for all gradients, whose pieces fill the network better.
    """
    point = on_p4de(model, num_gpus, LOCAL_BATCH * num_gpus, self_conditioning=0.0, memory_recipe=recipe)
    once = trained("ddp", point, overlap="none").expected
    reduced_s = trained("ddp", point, overlap="buckets").expected.collective_s
    return reduced_s / (once.duration_s - once.collective_s + reduced_s)


def slowness(published_share: float, simulated_share: float) -> float:
    """Factor by which all but the reduction must take longer for the published share to come out."""
    return (1 / published_share - 1) / (1 / simulated_share - 1)


@experiment
def synchronisation_shares() -> Found:
    """Table 2 of DiffusionPipe, with the slowdown of everything else that it implies."""
    cases: dict[str, tuple[str, str | Model]] = {
        "sd21": ("sd21", "sd21"),
        **{f"{name}, copy alone": ("controlnet", name) for name in CONTROLNETS},
        "controlnet-hint-vae, locked U-Net too": ("controlnet", with_all_gradients(CONTROLNETS[0], "p4de")),
    }
    for name, (asked, model) in cases.items():
        for gradients, recipe in RECIPES.items():
            cells, factors = [], []
            for row in published("Table 2", model=asked):
                share = synchronisation_share(model, row.num_gpus or 1, recipe)
                yield Record.of(row, share, f"{name}; {gradients} gradients")
                factors.append(slowness(row.value, share))
                cells.append(f"{percent(row.value)}, {percent(share)}")
            yield [f"{name}; {gradients}", *cells, f"{min(factors):.2f} to {max(factors):.2f}"]


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


@experiment
def unfilled_bubbles() -> Found:
    """Fig. 4 of DiffusionPipe: 1F1B on equal layers, the frozen part run data-parallel before it."""
    differences: dict[str, list[float]] = {}
    for row in published("Fig. 4"):
        share = frozen_share(row.model)
        stages, count = (int(words.split()[0]) for words in row.note.split(", ")[:2])
        found = unfilled_bubbles_of(share, stages, count)[row.quantity]
        setting = f"equal layers, frozen over trained {share:.4f}"
        yield Record.of(row, found, setting, provenance=EQUAL)
        differences.setdefault(row.quantity, []).append(abs(found - row.value))
    for quantity, of in differences.items():
        yield [quantity.replace("_", " "), f"{len(of)}", f"{max(of):.4f}"]


@experiment
def useful_share() -> Found:
    """Section 3.3 of PipeFusion: the share of its devices' time that is compute."""
    row = the_published("3.3")
    stages = row.num_gpus or 1
    model = equal_blocks_transformer(LAYERS)
    point = drawing(model, "ideal", stages, (model.height, model.width), STEPS, guidance="none")
    share = 1 - run_point(sampler("pipefusion", patches=stages, warmup_steps=0), point).bubble_ratio
    yield Record.of(row, share, "equal layers, no synchronous step", provenance=EQUAL)
    yield [row.note, f"{row.value:.3f}", f"{share:.3f}"]
