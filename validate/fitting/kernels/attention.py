"""Laws of fused attention, fitted to measured shapes.

Measured rows are causal or not. A causal kernel computes half of the scores, and ``tile`` keys more per query where
its tiles cross the diagonal; it may have another fixed time. Neither is kept: what is simulated is not causal.
"""

from pathlib import Path
from typing import Final

import numpy as np

from profiles.machines.law_tables import CACHE_KEYS, OVERLAP, Coefficients, attention_law
from profiles.machines.laws import ELEMENT_BYTES, FloatArray, padded
from validate.fitting.kernels import rows
from validate.fitting.kernels.fits import Fit, Unknown, fit
from validate.fitting.kernels.rows import Samples
from validate.fitting.kernels.targets import Target

SEEN_CHANNELS: Final = 72.0
"""Head dimension of PixArt, whose published latencies set the pace of a device without measured kernels."""
FORWARD: Final = {"backward_TFLOP_per_s": 1.0, "backward_rows": 0.0}
"""Stand-ins while the forward law is fitted."""


def scores(samples: Samples, occupying_rows: float, extra_keys: float, tile: float) -> FloatArray:
    """Scores that a kernel computes."""
    batch, heads, _, queries, keys, _, causal = samples.shapes
    all_queries = batch * heads * queries
    seen = np.where(causal > 0, keys - queries / 2 + tile, keys + extra_keys)
    last = np.where(causal > 0, keys + tile, keys + extra_keys)
    return all_queries * seen + occupying_rows * last


def moved_bytes(samples: Samples) -> FloatArray:
    """Bytes of queries, keys, values and result; fewer keys than queries where heads share them."""
    batch, heads, kv_heads, queries, keys, head_dim, _ = samples.shapes
    return 2 * ELEMENT_BYTES * batch * (heads * queries + kv_heads * keys) * head_dim


def forward_seconds(values: Coefficients, samples: Samples) -> FloatArray:
    """Seconds of forward kernels by a law's coefficients, ``tile`` and ``causal_us``."""
    law = attention_law(FORWARD | dict(values))
    *_, head_dim, causal = samples.shapes
    found = law.of_scores(scores(samples, law.rows, law.keys, values["tile"]), head_dim, moved_bytes(samples))
    return found + np.where(causal > 0, values["causal_us"] - values["fixed_us"], 0.0) * 1e-6


def fit_forward(
    samples: Samples, target: Target, priors: Coefficients, cache: Coefficients, overlap: float = 1.0
) -> Fit:
    """Fit the forward law; what rows of one mask or one head dimension leave open stands as in ``priors``.

    Where all rows are causal, ``causal_us`` is the one fixed time. Where a cache shows, traffic hides behind products
    and exponentials whether it hits or misses, so that its paces are those that matrix products show.
    """
    *_, head_dim, causal = samples.shapes
    unknowns = {
        "fixed_us": Unknown(5.0),
        "TFLOP_per_s": Unknown(0.8 * target.flop_peak, target.flop_peak),
        "GB_per_s": Unknown(0.5 * target.bytes_peak, target.bytes_peak),
        "rows": Unknown(1e4),
        "keys": Unknown(64.0),
        "channels": Unknown(20.0),
        "tile": Unknown(64.0),
        "causal_us": Unknown(5.0),
    }
    given: dict[str, float] = {} if overlap == 1 else {OVERLAP: overlap}
    if (causal > 0).all():
        given |= {"keys": priors["keys"], "fixed_us": 0.0}
    if not (causal > 0).any():
        given |= {"tile": 0.0, "causal_us": 0.0}
    if len(set(head_dim.tolist())) == 1:
        given["channels"] = priors["channels"]
    if cache:
        given |= {key: cache[key] for key in ("GB_per_s", *CACHE_KEYS)}
    return fit(forward_seconds, samples, {k: v for k, v in unknowns.items() if k not in given}, given)


def fit_pace(samples: Samples, values: Coefficients, target: Target) -> Fit:
    """Fit the pace of the forward products alone."""
    given = {key: value for key, value in values.items() if key != "TFLOP_per_s"}
    start = min(values["TFLOP_per_s"], target.flop_peak)
    return fit(forward_seconds, samples, {"TFLOP_per_s": Unknown(start, target.flop_peak)}, given)


def pace_of(seen: float, values: Coefficients) -> float:
    """TFLOP/s of the law at which 72 channels, padded, are seen to run at some TFLOP/s."""
    return seen * (float(padded(np.array(SEEN_CHANNELS))) + values["channels"]) / SEEN_CHANNELS


def backward_seconds(values: Coefficients, samples: Samples) -> FloatArray:
    """Seconds of backward kernels by a law's coefficients and ``tile``."""
    law = attention_law(values)
    head_dim = samples.shapes[5]
    computed = scores(samples, law.backward_rows, law.keys, values["tile"])
    return law.backward_of_scores(computed, head_dim, 2 * moved_bytes(samples))


def fit_backward(folder: Path, prefix: str, values: Coefficients, target: Target) -> Fit:
    """Fit the pace of the backward products, and the queries that occupy a device."""
    unknowns = {
        "backward_TFLOP_per_s": Unknown(0.5 * target.flop_peak, target.flop_peak),
        "backward_rows": Unknown(values["rows"]),
    }
    return fit(backward_seconds, rows.attention(folder, [prefix], "bwd"), unknowns, values)
