"""Closed forms of DiffusionPipe's Figure 4: the bubbles of 1F1B behind a frozen part, before they are filled.

S stages, M micro-batches, f the time of the frozen part over that of the backbone, run data-parallel before it.
"""

from collections.abc import Iterator
from typing import Final

from profiles.synthetic import equal_layers_model
from sim.metrics import idle_s
from validate.closed_forms.forms import Form, trained
from validate.published.records import published

SHARES: Final = ("sd21", "controlnet")
STAGES: Final = (2, 3, 4)
COUNTS: Final = (1, 2, 3, 4)
LAYERS: Final = 12
"""Of the backbone: a multiple of every number of stages."""
SOURCE: Final = "Tian et al., DiffusionPipe (MLSys 2024), Fig. 4"


def figure_4() -> Iterator[Form]:
    """Yield the bubble ratio and the bubble over the frozen part's time, for both of the figure's models."""
    for model in SHARES:
        share = _frozen_share(model)
        for stages in STAGES:
            for count in COUNTS:
                yield from _point(model, share, stages, count)


def _frozen_share(model: str) -> float:
    """Return the inverse of one of the printed bubbles over the frozen time: that of 2 stages, 1 micro-batch."""
    rows = published("Fig. 4", model=model, quantity="bubble_over_frozen_time")
    first = next(row for row in rows if row.num_gpus == 2 and row.note.startswith("2 stages, 1 "))
    return 1 / first.value


def _point(model: str, share: float, stages: int, count: int) -> Iterator[Form]:
    layers = equal_layers_model(LAYERS, frozen_share=share)
    batch = stages * count * LAYERS
    trace = trained(layers, "1f1b", stages, batch, micro_batches=count)
    backbone_s = 3e-3 * LAYERS * batch / stages
    setting = f"{model}, f = {share:.4f}, S = {stages}, M = {count}"
    ratio = (stages - 1) / (count + stages - 1 + share * count)
    over = (stages - 1) / (share * count)
    family = "DiffusionPipe, Fig. 4"
    bubble_s = idle_s(trace)
    yield Form(
        f"{family}: bubble ratio",
        setting,
        "(S - 1) / (M + S - 1 + f M)",
        ratio,
        bubble_s / trace.end_s,
        SOURCE,
    )
    yield Form(
        f"{family}: bubble over frozen time", setting, "(S - 1) / (f M)", over,
        bubble_s / (share * backbone_s), SOURCE,
    )  # fmt: skip
