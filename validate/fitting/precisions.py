"""Matrix products in fewer bits than half precision, fitted to measured ones beside a device's own law.

A measured product begins with the cast of its first operand from half precision, scale and all; the law has a part that
grows with that operand. The rates of memory and cache stay those of the law in half precision.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from profiles.errors import InputError
from profiles.machines.devices import load_device
from profiles.machines.laws import Laws
from profiles.software.levers import Products, element_bytes
from profiles.units import FloatArray
from validate.fitting.kernels.laws import DIGITS, NO_BOUND, ONE, Coefficients, fit
from validate.fitting.kernels.rows import Samples, samples_of

ENGINE: Final = "sglang/0.5.14"
"""Whose products set the laws, as they set those in half precision; its casts to fp8 are one kernel."""
ENGINES: Final = (ENGINE, "trtllm/1.3.0rc20")
"""Whose products set the bands."""
TABLES: Final = {"fp8": "fp8", "mxfp8": "fp8_block", "nvfp4": "nvfp4"}
"""Names of the precisions in the tables. Blocks of 128 stand for those of 32 in mxfp8: on Blackwell the same units take
both, and scales are powers of two."""
OTHERS: Final = {"h100-80gb-sxm": "h100_sxm", "h200-141gb-sxm": "h200_sxm", "l40s-48gb": "l40s"}
"""Devices measured in fp8 alone, and their folders."""
WORKSTATION: Final = {"rtxpro6000-96gb": "rtx_pro_6000_server"}
"""Devices measured in fp8 and nvfp4."""
BLACKWELL: Final = {"b200-180gb-sxm": "b200_sxm", "gb200": "gb200", "b300": "b300_sxm", "gb300": "gb300"}
"""Devices with units that scale blocks."""
DEVICES: Final = {
    "fp8": OTHERS | BLACKWELL | WORKSTATION,
    "mxfp8": BLACKWELL,
    "nvfp4": BLACKWELL | WORKSTATION,
}
FEWEST_ROWS: Final = 256
SIDES: Final = (512, 32768)
"""Fewest and most outputs, and inputs, of products that are fitted."""
START: Final = Products(3.0, 1.6, 0.05, 100.0, 3.0)
IMAGE_ROWS: Final = 2048
"""Fewest rows of products that set the bands."""
QUANTILES: Final = (0.1, 0.9)


def _seconds(laws: Laws, element_bytes: float, values: Coefficients, samples: Samples) -> FloatArray:
    """Seconds of products, each with its cast."""
    smaller = Products(**values).on(laws, element_bytes)
    m, n, k = samples.shapes
    laws = Laws(laws.matmul, laws.conv, laws.attention, laws.memory, smaller)
    return laws.matmul_s(ONE, m, n, k) / laws.matmul.forward


def read_products(folder: Path, engine: str, table: str) -> Samples:
    """Products (m, n, k) of one engine in one precision; a group is one weight."""
    path = folder / "gemm" / engine / "gemm_perf.parquet"
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; --data must name aiconfigurator_core/systems/data of an unpacked wheel"
        )
    rows = pd.read_parquet(path)
    rows = rows[
        (rows.gemm_dtype == table) & (rows.m >= FEWEST_ROWS) & rows.n.between(*SIDES) & rows.k.between(*SIDES)
    ]
    return samples_of(rows.assign(latency_us=1000 * rows.latency), ["m", "n", "k"], ["n", "k"])


def fitted(data: Path, device: str, folder: str, precision: str) -> Iterator[str]:
    """The lines of ``levers.toml`` for one device in one precision."""
    laws, size = load_device(device).own_laws, element_bytes(precision)
    assert laws is not None
    both = [read_products(data / folder, engine, TABLES[precision]) for engine in ENGINES]
    unknowns = {
        name: (value, NO_BOUND) for name, value in START._asdict().items() if name not in ("low", "high")
    }
    law = fit(lambda values, samples: _seconds(laws, size, values, samples), both[0], unknowns, {})
    large = [samples.at(samples.shapes[0] >= IMAGE_ROWS) for samples in both]
    ratios = np.concatenate(
        [samples.seconds / _seconds(laws, size, law.values, samples) for samples in large]
    )
    low, high = np.quantile(ratios, QUANTILES).tolist()
    yield f"# {device}: {law}"
    yield f"[[precision.{precision}.products]]"
    for name, value in (*law.values.items(), ("low", low), ("high", high)):
        yield f"{name} = {value:.{DIGITS}g}"


def run_precisions(options: Namespace) -> None:
    """Print the laws of products in fewer bits, as ``levers.toml`` has them."""
    for precision in TABLES:
        for device, folder in DEVICES[precision].items():
            print("\n".join(fitted(options.data, device, folder, precision)), end="\n\n")
