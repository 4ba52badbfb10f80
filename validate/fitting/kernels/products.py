"""Laws of matrix products and convolutions, fitted to measured shapes."""

from pathlib import Path
from typing import Final

import numpy as np

from profiles.machines.law_tables import Coefficients, product_law
from profiles.machines.laws import ELEMENT_BYTES, PARTS, FloatArray
from validate.fitting.kernels import rows
from validate.fitting.kernels.fits import Fit, Unknown, fit
from validate.fitting.kernels.rows import Samples
from validate.fitting.kernels.targets import Target

ONE: Final = np.ones(())
PLAIN: Final = {"data": 1.0, "weight": 1.0}


def product_seconds(values: Coefficients, samples: Samples) -> FloatArray:
    """Seconds of matrix products (m, n, k) by a law's coefficients."""
    m, n, k = samples.shapes
    return product_law(values).seconds(ONE, m, n, k, ELEMENT_BYTES * (m * k + k * n + m * n))


def fit_products(samples: Samples, target: Target, priors: Coefficients, *, cached: bool) -> Fit:
    """Fit the law of matrix products, whose paces stay below the peaks, and a launch unless ``priors`` say it."""
    unknowns = {
        "fixed_us": Unknown(2.5),
        "TFLOP_per_s": Unknown(0.8 * target.flop_peak, target.flop_peak),
        "GB_per_s": Unknown(0.8 * target.bytes_peak, target.bytes_peak),
        "chain_us": Unknown(0.05),
        "ramp": Unknown(100.0),
    }
    if cached:
        unknowns |= {"cache_MB": Unknown(12.0), "cache_GB_per_s": Unknown(2 * target.bytes_peak)}
    given = {**PLAIN, **priors}
    return fit(product_seconds, samples, {k: v for k, v in unknowns.items() if k not in given}, given)


def fit_pace(samples: Samples, values: Coefficients, target: Target) -> Fit:
    """Fit the pace of products alone."""
    given = {key: value for key, value in values.items() if key != "TFLOP_per_s"}
    start = min(values["TFLOP_per_s"], target.flop_peak)
    return fit(product_seconds, samples, {"TFLOP_per_s": Unknown(start, target.flop_peak)}, given)


def gradient_factors(folder: Path, prefix: str, values: Coefficients) -> dict[str, float]:
    """Seconds of data and weight products over those of forward ones, each relative to a law, in the median."""
    medians = {
        part: _median_ratio(product_seconds(values, found), found)
        for part in PARTS
        for found in [rows.products(folder, prefix, part)]
    }
    return {part: medians[part] / medians["forward"] for part in ("data", "weight")}


def convolution_factors(folder: Path, prefix: str, values: Coefficients) -> tuple[dict[str, float], int]:
    """Seconds of convolutions over those of products of their shapes, in the median by part, and their number."""
    law, factors, count = product_law(values), dict[str, float](), 0
    for part in PARTS:
        samples = rows.convolutions(folder, prefix, part)
        m, n, k, moved = samples.shapes
        shape = (n, k, m) if part == "weight" else (m, n, k)
        factors[part] = _median_ratio(law.seconds(ONE, *shape, moved), samples)
        count += len(samples)
    return factors, count


def _median_ratio(predicted: FloatArray, samples: Samples) -> float:
    return float(np.median(samples.seconds / predicted))
