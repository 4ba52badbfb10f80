"""Cascades: DiffusionPipe's two directions beside data parallelism, section 6.1.

The paper finds its throughput comparable to DeepSpeed-P, every backbone on its own half of the devices, and prints
no number; batch sizes are not printed either.

Source: Tian et al., DiffusionPipe (arXiv 2405.01248), section 6.1, Fig. 13 c and d.
"""

from collections.abc import Sequence
from typing import Final

from strategies.scenario import Scenario
from validate.published.rows import Prediction, Section, percent, the_published
from validate.published.scenes import best, fastest, scenario

CASCADES: Final = ("cdm-lsun", "cdm-imagenet")
MACHINES: Final = ((8, 256), (64, 2048))
"""GPUs and batch sizes: one node and eight, ``LOCAL_BATCH`` samples per GPU."""
LOCAL_BATCH: Final = 32


def cascades(machines: Sequence[tuple[int, int]] = MACHINES) -> Section:
    """Return DiffusionPipe over DeepSpeed-S and -P on both cascades, by GPUs and batch size."""
    row = the_published("6.1", model="cdm-lsun")
    rows: list[list[str]] = []
    predictions: list[Prediction] = []
    for model in CASCADES:
        for num_gpus, batch in machines:
            point = scenario(model, "p4de", num_gpus, batch)
            pipe = fastest(point, "diffusionpipe", fill="none")
            ratios = {}
            for backbones in ("sequential", "parallel"):
                other = best(point, "ddp", overlap="none", backbones=backbones)
                ratios[backbones] = None if other is None else pipe.samples_per_s / other.samples_per_s
            words = ["does not fit" if of is None else f"{of:.2f}" for of in ratios.values()]
            keys = ("pipeline_degree", "micro_batches", "group_size")
            shape = "P {}, M {}, D {}".format(*(pipe.parameters[key] for key in keys))
            rows.append(
                [
                    f"{model}, {num_gpus} GPUs, batch {batch}",
                    _balance(point),
                    f"{pipe.samples_per_s:.1f} ({shape})",
                    percent(pipe.bubble_ratio),
                    *words,
                ]
            )
            if model == row.model and ratios["parallel"] is not None:
                predictions.append(Prediction(row, ratios["parallel"], f"{num_gpus} GPUs, batch {batch}"))
    return Section(
        "DiffusionPipe, section 6.1: cascades, the best (P, M, D) of each; DDP reduces after the backward",
        (
            "model, machine",
            "backbones' times",
            "DiffusionPipe, samples/s",
            "bubble",
            "over DeepSpeed-S",
            "over DeepSpeed-P",
        ),
        [["published", "close", "-", "-", "-", "comparable"], *rows],
        "DeepSpeed-P adds the rates of its backbones, which favours unequal ones, runs each at twice the local batch,"
        " and between nodes reduces one backbone's gradients per node instead of both's.",
        predictions,
    )


def _balance(point: Scenario) -> str:
    """Return the times of the two backbones at ``LOCAL_BATCH``, over the shorter one's."""
    costs = [point.costs.components[i] for i in point.model.backbones]
    times = [float((c.forward_s(LOCAL_BATCH) + c.backward_s(LOCAL_BATCH)).sum()) for c in costs]
    return " : ".join(f"{time / min(times):.2f}" for time in times)
