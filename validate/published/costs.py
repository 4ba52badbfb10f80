"""Assumptions on what the layers of PULSE's models cost, each a model of its own.

The paper prints no layer times. Activations in single precision, products in half precision, as under autocast, are the
base: the volumes of Table III and the largest micro-batches of section VII-C2 ask for the first, 14 bytes per
parameter (Eq. 14) and the throughputs for the second. Its V100s and NPUs may run attention unfused.
"""

from functools import cache
from typing import Final

from profiles.models import Model, load_model
from validate.published.scenes import in_half_precision, with_more_traffic, with_unfused_attention

SLOWER: Final = 4.0
"""Memory at a quarter of its data-sheet bandwidth: the far end of a row of assumptions, measured nowhere."""
SINGLE: Final = "activations in single precision"
SLOWEST: Final = f"attention unfused, memory {SLOWER:g} times slower"
COSTS: Final = (SINGLE, "activations in half precision", "FLOP alone", "attention unfused", SLOWEST)
"""The first is the base; the others change it."""


@cache
def costs_of(name: str) -> dict[str, Model]:
    """Return a model under each assumption."""
    single = load_model(name)
    unfused = with_unfused_attention(single)
    models = (
        single,
        in_half_precision(name),
        with_more_traffic(single, 0.0),
        unfused,
        with_more_traffic(unfused, SLOWER),
    )
    return dict(zip(COSTS, models, strict=True))
