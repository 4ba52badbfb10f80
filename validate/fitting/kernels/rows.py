"""Rows of measured kernels: matrix products, attention, convolutions and memory-bound kernels, each shape once.

They lie in a folder that is named, and those that it lacks in ``measured`` here.
Rows whose needed cells are empty are left out; the rows of one shape, from one source or several, count once by their
median.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiles.errors import InputError
from profiles.machines.laws import KernelPart
from profiles.units import MICROSECOND, FloatArray

LAYOUTS: Final[dict[str, KernelPart]] = {"TN": "forward", "NN": "data", "NT": "weight"}
PASSES: Final[dict[str, KernelPart]] = {"fwd": "forward", "bwd_data": "data", "bwd_weight": "weight"}
CHANNELS: Final = 64
"""Least channels, in and out, of convolutions that count; fewer have first and last layers, which fill no tile."""
LARGEST_HEAD: Final = 128
FEWEST_QUERIES: Final = 256


@dataclass(frozen=True)
class Samples:
    """Measured kernels: shapes by column, seconds, and the group of each, which a fit leaves out as a whole."""

    shapes: tuple[FloatArray, ...]
    seconds: FloatArray
    groups: FloatArray

    def __len__(self) -> int:
        return len(self.seconds)

    def at(self, chosen: NDArray[np.bool_]) -> "Samples":
        """Some of the samples."""
        return Samples(tuple(s[chosen] for s in self.shapes), self.seconds[chosen], self.groups[chosen])


@cache
def _read(folder: Path, name: str) -> pd.DataFrame:
    path, own = folder / name, Path(__file__).with_name("measured") / name
    if not path.is_file():
        raise InputError(f"{path}: no such file; --data must name the folder of measured kernels")
    return pd.concat([pd.read_csv(file) for file in (path, own) if file.is_file()])


def _select(folder: Path, name: str, prefixes: Sequence[str], needed: Sequence[str]) -> pd.DataFrame:
    frame = _read(folder, name)
    chosen = frame[frame.source_id.str.startswith(tuple(prefixes))]
    chosen = chosen.dropna(subset=[*needed, "latency_us"])
    if chosen.empty:
        raise InputError(f"{folder / name}: no row has a source_id that starts with {' or '.join(prefixes)}")
    return chosen


def samples_of(frame: pd.DataFrame, shape: Sequence[str], group: Sequence[str]) -> Samples:
    """Each shape of a table once, by its columns, and the columns that tell groups apart."""
    once = frame.groupby(list(shape), as_index=False).latency_us.median()
    columns = tuple(once[column].to_numpy(float) for column in shape)
    groups = np.asarray(once.groupby(list(group)).ngroup(), dtype=float)
    return Samples(columns, once.latency_us.to_numpy(float) * MICROSECOND, groups)


def provenance(folder: Path, *prefixes: str) -> str:
    """Prefixes of source ids, each with the repository and the commit that ``sources.csv`` gives."""
    frame = _read(folder, "sources.csv")
    sources = [frame[frame.source_id.str.startswith(prefix)].iloc[0] for prefix in prefixes]
    return " and ".join(
        f"{prefix} ({each.repository} {str(each.commit)[:8]})"
        for prefix, each in zip(prefixes, sources, strict=True)
    )


def products(folder: Path, prefix: str, part: KernelPart | None = None) -> Samples:
    """Matrix products (m, n, k); all layouts, or those of one part of a layer. A group is one weight (n, k)."""
    frame = _select(folder, "gemm.csv", [prefix], ["m", "n", "k"])
    if part is not None:
        frame = frame[frame.layout.map(LAYOUTS) == part]
    return samples_of(frame, ["m", "n", "k"], ["n", "k"])


def attention(folder: Path, prefixes: Sequence[str], direction: str = "fwd") -> Samples:
    """Fused attention (batch, heads, kv_heads, queries, keys, head_dim, causal). A group is one kind of heads.

    Left out are larger heads than diffusion models have, and few queries against many keys, as in decoding, for which
    other kernels divide the keys.
    """
    shape = ["batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "causal"]
    frame = _select(folder, "attention.csv", prefixes, shape)
    frame = frame[(frame["pass"] == direction) & (frame.head_dim <= LARGEST_HEAD)]
    frame = frame[(frame.seq_q >= frame.seq_kv) | (frame.seq_q >= FEWEST_QUERIES)]
    return samples_of(frame, shape, ["heads", "kv_heads", "head_dim", "causal"])


def convolutions(folder: Path, prefix: str, part: KernelPart) -> Samples:
    """Convolutions (m, n, k, bytes) of stride 1 and enough channels, one part of a layer."""
    frame = _select(folder, "conv.csv", [prefix], ["batch", "c_in", "h", "w", "c_out", "kh", "kw"])
    frame = frame[frame["pass"].map(PASSES) == part]
    frame = frame[(frame.c_in >= CHANNELS) & (frame.c_out >= CHANNELS)]
    frame = frame[(frame.stride_h == 1) & (frame.stride_w == 1)]
    out_h = frame.h + 2 * frame.pad_h - frame.kh + 1
    out_w = frame.w + 2 * frame.pad_w - frame.kw + 1
    m, n, k = frame.batch * out_h * out_w, frame.c_out, frame.c_in * frame.kh * frame.kw
    moved = 2 * (frame.batch * frame.c_in * frame.h * frame.w + m * n + k * n)
    return samples_of(frame.assign(m=m, n=n, k=k, moved=moved), ["m", "n", "k", "moved"], ["n", "k"])


def memory(folder: Path, prefix: str, operation: str, device: str | None = None) -> pd.DataFrame:
    """Memory-bound kernels of one operation, of any if it is '': columns bytes_min, latency_us, GBps_of_bytes_min."""
    frame = _read(folder, "memory_ops.csv")
    chosen = frame[frame.source_id.str.startswith(prefix) & ((frame.op == operation) | (operation == ""))]
    if device is not None:
        chosen = chosen[chosen.device == device]
    if chosen.empty:
        raise InputError(
            f"{folder / 'memory_ops.csv'}: no {operation} of {device} has a source_id that starts with {prefix}"
        )
    return chosen


def throughput(folder: Path, prefix: str, device: str, network: str, mode: str) -> float:
    """Images per second of a network on one GPU in mixed precision, at the fastest batch."""
    frame = _read(folder, "convnets.csv")
    chosen = frame[frame.source_id.str.startswith(prefix) & (frame.device == device) & (frame.gpus == 1)]
    chosen = chosen[(chosen.network == network) & (chosen["mode"] == mode) & (chosen.precision == "amp-fp16")]
    chosen = chosen[chosen.image.astype(str) == "224"]
    if chosen.empty:
        raise InputError(f"{folder / 'convnets.csv'}: no {mode} of {network} on {device} from {prefix}")
    return float(chosen.throughput_img_s.max())
