"""Fits: coefficients that come nearest to measured seconds, and their errors on shapes left out.

Residuals are logarithms of predicted over measured seconds, so that a launch of 5 us counts as much as one of 50 ms;
beyond a tenth they count with their size, not its square. Every fifth group (the shapes of one weight; the attentions
of one kind of heads) is left out, so that no similar shape is fitted.

Products, convolutions and attention are fitted to measured shapes. Measured rows of attention are causal or not: a
causal kernel computes half of the scores, and ``tile`` more keys per query where its tiles cross the diagonal; its
fixed time may differ. Device files hold neither, as no simulated attention is causal. Rates of memory-bound kernels are
medians over large ones, by kind.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from scipy.optimize import least_squares

from profiles.errors import InputError
from profiles.files import read_text
from profiles.machines.laws import ELEMENT_BYTES, PARTS, AttentionLaw, ProductLaw, Traffic
from profiles.measuring.fitting.least_squares import Errors
from profiles.units import TFLOP, FloatArray, in_si
from validate.fitting.kernels import rows
from validate.fitting.kernels.rows import Samples

FOLDS: Final = 5
ALIKE: Final = 0.1
"""Residuals up to about this count with their square, larger ones with their size."""
LEAST_COEFFICIENT: Final = 1e-9
NOTHING: Final = 1e-3
"""A coefficient below this, in the units of a file, becomes 0: the samples show no such cost."""
AT_BOUND: Final = 0.999
"""A coefficient beyond this share of its bound counts as at its bound."""
DIGITS: Final = 4

Coefficients = Mapping[str, float]
"""Numbers of a law by their keys in a device file."""
CACHE_KEYS: Final = ("cache_MB", "cache_GB_per_s")
OVERLAP: Final = "overlap"

Predict = Callable[[Coefficients, Samples], FloatArray]
"""Seconds of samples by coefficients."""


Unknown = tuple[float, float]
"""Start of a coefficient, and the most that it may be."""
NO_BOUND: Final = 1e9


@dataclass(frozen=True)
class Fit:
    """Coefficients fitted to all samples, and errors of each sample predicted by a fit without its fifth of the groups.

    ``fixed`` were not fitted, ``bound`` are at their bounds; ``fitted`` are errors of the fit to all samples.
    """

    values: Mapping[str, float]
    fixed: Coefficients
    bound: Sequence[str]
    fitted: Errors
    left_out: Errors

    def __str__(self) -> str:
        return f"{len(self.fitted)} shapes, within {shown(self.left_out)} by a fit without its fifth of the groups"


def shown(errors: Errors) -> str:
    """Median and 90th percentile of errors."""
    return f"{100 * errors.median:.1f} % (median) and {100 * errors.tail:.1f} % (90th percentile)"


def fit(predict: Predict, samples: Samples, unknowns: Mapping[str, Unknown], fixed: Coefficients) -> Fit:
    """Fit unknown coefficients beside given ones; a single group is left out shape by shape."""
    values = _solve(predict, samples, unknowns, fixed)
    folds = (samples.groups if samples.groups.any() else np.arange(len(samples))) % FOLDS
    left_out = np.empty(len(samples))
    for out in (folds == fold for fold in set(folds)):
        without = _solve(predict, samples.at(~out), unknowns, fixed)
        left_out[out] = predict({**fixed, **without}, samples.at(out))
    bound = [key for key, (_, most) in unknowns.items() if values[key] > AT_BOUND * most]
    fitted = predict({**fixed, **values}, samples)
    return Fit(values, fixed, bound, *(Errors(samples.seconds, seconds) for seconds in (fitted, left_out)))


def _solve(
    predict: Predict, samples: Samples, unknowns: Mapping[str, Unknown], fixed: Coefficients
) -> dict[str, float]:
    def values(logarithms: FloatArray) -> dict[str, float]:
        return dict(zip(unknowns, np.exp(logarithms).tolist(), strict=True))

    def residuals(logarithms: FloatArray) -> FloatArray:
        return np.log(predict({**fixed, **values(logarithms)}, samples) / samples.seconds)

    start, most = np.log(list(unknowns.values())).T
    first, bounds = np.minimum(start, most - 1e-6), (np.full(len(start), np.log(LEAST_COEFFICIENT)), most)
    solution = least_squares(residuals, first, bounds=bounds, loss="soft_l1", f_scale=ALIKE)
    return {key: value if value > NOTHING else 0.0 for key, value in values(solution.x).items()}


POWER: Final = 0.25
"""Exponent with which the pace of products follows the power that a multiprocessor may draw: an A100 of 300 W reaches
235 TFLOP/s, one of 400 W 253 (``rows`` of a100-80gb-pcie and a100-80gb-sxm)."""
CLASSES: Final = ("matmul", "conv", "attention", "memory")
"""Classes of kernels, each with a law."""


@dataclass(frozen=True)
class Origin:
    """Where the coefficients of one class of kernels come from; '' where a word is not given."""

    rows: Sequence[str] = ()
    like: str = ""
    gradients: str = ""
    backward: str = ""
    priors: str = ""
    device: str = ""
    stream: str = ""
    launch: str = ""
    cache: str = ""
    note: str = ""
    traffic: str = ""
    cached: bool = False
    streams: bool = False
    processors: int = 0
    device_peak: float = 0.0
    seen: float = 0.0
    overlap: float = 1.0
    backward_tile: float | None = None
    wide: float = 0.0
    wide_as: str = ""


@dataclass(frozen=True)
class Target:
    """One device: its peaks in the units of a device file, and where each class of laws comes from."""

    name: str
    peaks: str
    flop_peak: float
    bytes_peak: float
    l2_mb: float
    watts: float
    origins: Mapping[str, Origin]

    def scaled(self, values: Coefficients, other: "Target") -> dict[str, float]:
        """Coefficients of another device, its rates but the cache's scaled by the peaks, its cache by its size."""
        flop, memory = self.flop_peak / other.flop_peak, self.bytes_peak / other.bytes_peak
        cache = self.l2_mb / other.l2_mb if other.l2_mb else 1.0
        ratios = {"TFLOP_per_s": flop, "GB_per_s": memory, "cache_GB_per_s": 1.0, "cache_MB": cache}
        return {
            key: value * ratios.get(key, next((ratios[unit] for unit in ratios if key.endswith(unit)), 1.0))
            for key, value in values.items()
        }

    def cooler(self, other: "Target") -> float:
        """Pace of products over that of another device with more power for each multiprocessor."""
        return min(1.0, (self.watts / other.watts) ** POWER) if self.watts and other.watts else 1.0


@cache
def targets() -> Mapping[str, Target]:
    """Targets by device name, in the order of the file."""
    read = tomllib.loads(read_text(Path(__file__).with_name("targets.toml")))
    return {
        name: Target(
            name,
            source["peaks"],
            float(source["peak_TFLOP_per_s"]),
            float(source["peak_GB_per_s"]),
            float(source.get("l2_MB", 0.0)),
            float(source.get("W_per_processor", 0.0)),
            {kind: Origin(**source[kind]) for kind in CLASSES},
        )
        for name, source in read.items()
    }


def target(name: str) -> Target:
    """Target of one device."""
    if name not in targets():
        raise InputError(f"no measured kernels of device '{name}'; choose from {', '.join(targets())}")
    return targets()[name]


ONE: Final = np.ones(())
PLAIN: Final = {"data": 1.0, "weight": 1.0}


def product_seconds(values: Coefficients, samples: Samples) -> FloatArray:
    """Seconds of matrix products (m, n, k) by a law's coefficients."""
    m, n, k = samples.shapes
    return ProductLaw(**in_si(values)).seconds(ONE, m, n, k, ELEMENT_BYTES * (m * k + k * n + m * n))


def tiles_of(target: Target, processors: int) -> dict[str, float]:
    """What a law of so many multiprocessors knows of them; nothing of none."""
    return {"processors": processors, "peak_TFLOP_per_s": target.flop_peak} if processors else {}


def fit_products(samples: Samples, target: Target, priors: Coefficients, origin: Origin) -> Fit:
    """The law of matrix products, fitted with rates up to the peaks; ``priors`` may give the time of a launch."""
    unknowns = {
        "fixed_us": (2.5, NO_BOUND),
        "TFLOP_per_s": (0.8 * target.flop_peak, target.flop_peak),
        "GB_per_s": (0.8 * target.bytes_peak, target.bytes_peak),
        "chain_us": (0.05, NO_BOUND),
        "ramp": (100.0, NO_BOUND),
    }
    if origin.cached:
        unknowns |= {"cache_MB": (12.0, NO_BOUND), "cache_GB_per_s": (2 * target.bytes_peak, NO_BOUND)}
    if origin.processors:
        unknowns["edge"] = (10.0, NO_BOUND)
    fixed = {**PLAIN, **tiles_of(target, origin.processors), **priors}
    return fit(product_seconds, samples, {k: v for k, v in unknowns.items() if k not in fixed}, fixed)


def fit_pace(
    predict: Predict, samples: Samples, values: Coefficients, target: Target, *, streams: bool = False
) -> Fit:
    """The law of ``values`` with the rate of products fitted anew, and with ``streams`` that of memory."""
    peaks = {"TFLOP_per_s": target.flop_peak} | ({"GB_per_s": target.bytes_peak} if streams else {})
    fixed = {key: value for key, value in values.items() if key not in peaks}
    unknowns = {key: (min(values[key], peak), peak) for key, peak in peaks.items()}
    return fit(predict, samples, unknowns, fixed)


def gradient_factors(folder: Path, prefix: str, values: Coefficients) -> dict[str, float]:
    """Seconds of data and weight products over those of forward ones, each relative to a law, in the median."""
    samples = {part: rows.products(folder, prefix, part) for part in PARTS}
    medians = {part: _median_ratio(product_seconds(values, timed), timed) for part, timed in samples.items()}
    return {part: medians[part] / medians["forward"] for part in ("data", "weight")}


def convolution_factors(folder: Path, prefix: str, values: Coefficients) -> tuple[dict[str, float], int]:
    """Seconds of convolutions over those of products of their shapes, in the median by part, and their number."""
    law, factors, count = ProductLaw(**in_si(values)), dict[str, float](), 0
    for part in PARTS:
        samples = rows.convolutions(folder, prefix, part)
        m, n, k, moved = samples.shapes
        shape = (n, k, m) if part == "weight" else (m, n, k)
        factors[part] = _median_ratio(law.seconds(ONE, *shape, moved), samples)
        count += len(samples)
    return factors, count


def _median_ratio(predicted: FloatArray, samples: Samples) -> float:
    return float(np.median(samples.seconds / predicted))


SEEN_CHANNELS: Final = 72.0
"""Head dimension of PixArt, whose published latencies set the rate of a device without measured kernels."""
FORWARD: Final = {"backward_TFLOP_per_s": 1.0, "backward_rows": 0.0}
"""Stand-ins while the forward law is fitted."""


def _attention(values: Coefficients) -> AttentionLaw:
    """The law of coefficients, without those of causal masks."""
    known = {key: value for key, value in values.items() if key not in ("tile", "causal_us")}
    return AttentionLaw(**in_si(known))


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
    law = _attention(FORWARD | dict(values))
    *_, head_dim, causal = samples.shapes
    seconds = law.of_scores(
        scores(samples, law.rows, law.keys, values["tile"]), head_dim, moved_bytes(samples)
    )
    return seconds + np.where(causal > 0, values["causal_us"] - values["fixed_us"], 0.0) * 1e-6


def fit_forward(
    samples: Samples, target: Target, priors: Coefficients, cache: Coefficients, overlap: float = 1.0
) -> Fit:
    """The forward law, fitted; ``priors`` give coefficients that rows of one mask or head dimension leave open.

    Where all rows are causal, ``causal_us`` is the only fixed time. Where the device has a ``cache``, its rates are
    those fitted to matrix products, as attention's traffic hides behind products and exponentials whether it hits or
    misses.
    """
    *_, head_dim, causal = samples.shapes
    unknowns = {
        "fixed_us": (5.0, NO_BOUND),
        "TFLOP_per_s": (0.8 * target.flop_peak, target.flop_peak),
        "GB_per_s": (0.5 * target.bytes_peak, target.bytes_peak),
        "rows": (1e4, NO_BOUND),
        "keys": (64.0, NO_BOUND),
        "channels": (20.0, NO_BOUND),
        "tile": (64.0, NO_BOUND),
        "causal_us": (5.0, NO_BOUND),
    }
    fixed: dict[str, float] = {} if overlap == 1 else {OVERLAP: overlap}
    if (causal > 0).all():
        fixed |= {"keys": priors["keys"], "fixed_us": 0.0}
    if not (causal > 0).any():
        fixed |= {"tile": 0.0, "causal_us": 0.0}
    if len(set(head_dim.tolist())) == 1:
        fixed["channels"] = priors["channels"]
    if cache:
        fixed |= {key: cache[key] for key in ("GB_per_s", *CACHE_KEYS)}
    return fit(forward_seconds, samples, {k: v for k, v in unknowns.items() if k not in fixed}, fixed)


def wide_factor(seen: float, values: Coefficients) -> float:
    """Seconds of large heads of 128 channels that are seen to run at some TFLOP/s, over those of the law."""
    return _attention(FORWARD | dict(values)).wide_flop_per_s / (seen * TFLOP)


def backward_seconds(values: Coefficients, samples: Samples) -> FloatArray:
    """Seconds of backward kernels by a law's coefficients and ``tile``."""
    law = _attention(values)
    head_dim = samples.shapes[5]
    computed = scores(samples, law.backward_rows, law.keys, values["tile"])
    return law.backward_of_scores(computed, head_dim, 2 * moved_bytes(samples))


BEYOND_CACHES_BYTES: Final = 50e6
"""Bytes beyond which no second-level cache hides the memory."""
OPERATIONS: Final = {"pointwise": "add", "copy": "relu", "layer_norm": "layernorm", "softmax": "softmax"}
"""Operation that stands for each kind; for a copy, one that reads and writes a tensor once."""
GROUP_NORM: Final = {"softmax": 1, "pointwise": 2}
"""Passes of a group norm over its input or output, by the kind whose rate they have: one kernel reads the input for its
moments, a second one scales it (PyTorch, native/cuda/group_norm_kernel.cu)."""
STREAMS: Final = {"pointwise": "stream_add", "copy": "stream_copy"}


def paces(folder: Path, prefix: str, device: str, operations: Mapping[str, str]) -> dict[str, float]:
    """Return GB/s of each kind by the operation that stands for it, in the median of large ones."""
    rates = {}
    for kind, operation in operations.items():
        frame = rows.memory(folder, prefix, operation, device)
        large = frame[(frame.bytes_min > BEYOND_CACHES_BYTES) | frame.bytes_min.isna()]
        rates[f"{kind}_GB_per_s"] = float(large.GBps_of_bytes_min.median())
    return rates


def group_norm(rates: Coefficients) -> float:
    """GB/s of a group norm, counting all that its two kernels read and write."""
    seconds = sum(passes / rates[f"{kind}_GB_per_s"] for kind, passes in GROUP_NORM.items())
    return sum(GROUP_NORM.values()) / seconds


BETWEEN_US: Final = 0.9
"""Microseconds from the end of one kernel to the start of the next in a stream that is never empty: launches of kernels
of 2.9 us follow one another every 3.8 us, in a graph every 3.4 (V100; Gray, Getting Started with CUDA Graphs, NVIDIA,
2019). Profilers, whose rows memory-bound kernels are, leave it out. With it the smallest ones take 2.7 us on A100 and
2.6 on H100; the smallest products of a graph, timed with it, 2.9 and 2.6."""


def fit_traffic(folder: Path, prefix: str, keys: Sequence[str]) -> Fit:
    """The time of a memory-bound kernel however small, or with ``CACHE_KEYS`` the cache, fitted to rows.

    These are of a kernel that writes beside what it reads, as operators do; those in place stay in the cache.
    """
    cached = "cache_MB" in keys
    frame = rows.memory(folder, prefix, "silu_and_mul" if cached else "add")
    samples = rows.samples_of(frame, ["bytes_min"], ["bytes_min"])
    unknowns = {"fixed_us": (2.0, NO_BOUND), "GB_per_s": (1000.0, NO_BOUND)}
    if cached:
        unknowns |= {"cache_MB": (50.0, NO_BOUND), "cache_GB_per_s": (2000.0, NO_BOUND)}
    return fit(_seconds, samples, unknowns, {})


def _seconds(values: Coefficients, samples: Samples) -> FloatArray:
    """Seconds of samples by their bytes."""
    law = in_si(values)
    fixed_s = law.pop("fixed_s")
    return np.asarray(fixed_s + Traffic(**law).moved_s(samples.shapes[0]))
