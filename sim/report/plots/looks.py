"""Looks: the colour and the marker of each strategy, the same in every figure.

Strategies of one family share a hue, from dark to light. Those of one task can be told apart by colour alone, also by
the colour-blind; across tasks, whose pictures never mix, hues are used twice, but never with the same marker.
"""

from collections.abc import Mapping
from typing import Final

from strategies.registry import every_strategy

LOOKS: Final[Mapping[str, tuple[str, str]]] = {
    # every GPU holds all layers
    "ddp": ("#1A1264", "o"),
    "zero2": ("#1F66E5", "s"),
    "zero3": ("#78C0FA", "D"),
    "fsdp": ("#4800D8", "d"),
    # pipelines of the backbone alone
    "gpipe": ("#7A1F0A", "^"),
    "1f1b": ("#EA5A0C", "v"),
    "interleaved": ("#EFA661", "P"),
    "zero-bubble": ("#F7DB40", "<"),
    # pipelines that place frozen layers, or a second backbone
    "spp": ("#0F4038", "X"),
    "diffusionpipe": ("#0A8254", "*"),
    "bidirectional": ("#A0E8A6", ">"),
    # pipelines folded at the skips
    "wave": ("#A030A5", "p"),
    "pulse": ("#BE90B4", "h"),
    # one GPU
    "single": ("#A8A8A8", "o"),
    # every GPU draws a patch
    "distrifusion": ("#1A1264", "X"),
    "sync-patch": ("#1F66E5", "D"),
    "naive-patch": ("#78C0FA", "s"),
    # every GPU computes a part of each layer
    "tensor": ("#7A1F0A", "v"),
    "ring": ("#EA5A0C", "^"),
    "ulysses": ("#EFA661", "<"),
    "usp": ("#F7DB40", "P"),
    "attention2d": ("#B4FCB4", "h"),
    # patches pass through a pipeline
    "pipefusion": ("#0F4038", "p"),
    "hybrid": ("#0A8254", ">"),
    # every GPU draws a step
    "paradigms": ("#A030A5", "*"),
}
MARKERS: Final = "osD^vP<X>*phd"
OTHERS: Final = "#222222"
"""The colour of strategies that other packages bring."""
FADED: Final = 0.45
"""Opacity of points that are not recommended."""
RECOMMENDED: Final = "recommended"
"""Label of the ring around the best."""


def strategy_look(name: str) -> tuple[str, str]:
    """Return the colour and the marker of a strategy; those of other packages share a colour."""
    if name in LOOKS:
        return LOOKS[name]
    brought = [other for other in every_strategy() if other not in LOOKS]
    number = brought.index(name) if name in brought else len(brought)
    return OTHERS, MARKERS[number % len(MARKERS)]


def label_of(name: str, *, seams: bool) -> str:
    """Return a strategy as legends name it; one whose points are not recommended with the reason."""
    return f"{name} (seams show)" if seams else name
