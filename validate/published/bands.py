"""Bands from residuals: what independent times say of how far predictions lie off, held out source by source.

Numbers of one source share its machine and its software, so that a band from some of them says little of others.
Therefore the quantiles of a group are widened until, each source's rows being predicted from the other sources' alone,
the wanted share of them lies inside. A group with few rows or one source has no band of its own, and takes that of a
wider one.
"""

from collections.abc import Iterator, Sequence
from math import ceil, exp
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from profiles.bands import ANY, BANDS
from profiles.errors import InputError
from validate.published.standings import Standing
from validate.writing import write_file

LEVEL: Final = 0.8
"""Share of true times between low and high."""
LEAST_ROWS: Final = 9
"""Fewer rows have no tenth and ninetieth percentile: ``(rows + 1) * 0.9`` must not exceed them."""
LEAST_SOURCES: Final = 2
NARROWEST: Final = 0.01
"""Logarithm of the narrowest factor: what rounding of printed numbers leaves."""
KEYS: Final = ("task", "device", "stack", "kind")
CHAIN: Final = (KEYS, ("task", "stack", "kind"), ("task", "kind"), ("task", "stack"), ("task",), ())
"""What groups are told apart by, the narrowest first."""
SOURCE: Final = "python -m validate published --bands: independent times, widened until sources held out fit"


class Interval(NamedTuple):
    """Logarithms of true over predicted time between which most lie: ``low`` at most 0, ``high`` at least 0."""

    low: float
    high: float

    def needed(self, value: float) -> float:
        """The factor by which the interval must be widened to hold a value."""
        return value / (self.high if value > 0 else self.low)


def quantiles(values: Sequence[float]) -> Interval:
    """The interval that holds the share ``LEVEL`` of further values like these, were they independent."""
    ordered, tail = sorted(values), (1 - LEVEL) / 2
    beyond = max(len(ordered) - ceil((len(ordered) + 1) * (1 - tail)), 0)
    return Interval(min(ordered[beyond], -NARROWEST), max(ordered[-1 - beyond], NARROWEST))


def held_out(values: pd.Series, sources: pd.Series) -> Interval:
    """The quantiles, widened until the share ``LEVEL`` of the rows lies in what the other sources' rows give."""
    needed = []
    for source in sources.unique():
        others = quantiles(list(values[sources != source]))
        needed += [others.needed(value) for value in values[sources == source]]
    factor = max(1.0, float(np.quantile(needed, LEVEL, method="higher")))
    found = quantiles(list(values))
    return Interval(found.low * factor, found.high * factor)


def bands(residuals: pd.DataFrame) -> pd.DataFrame:
    """One line per group that has enough rows and sources, the narrowest groups first; factors on predicted times.

    Raises:
        InputError: there are too few rows for any.
    """
    own = residuals[residuals["standing"] == Standing.INDEPENDENT]
    found = [line for keys in CHAIN for line in _lines(own, keys)]
    if not found or found[-1]["task"] != ANY:
        raise InputError(f"{len(own)} independent times: too few for a band")
    return pd.DataFrame(found)


def _lines(rows: pd.DataFrame, keys: Sequence[str]) -> Iterator[dict[str, object]]:
    groups = rows.groupby(list(keys)) if keys else [((), rows)]
    for said, group in groups:
        sources = group["source"]
        if len(group) < LEAST_ROWS or sources.nunique() < LEAST_SOURCES:
            continue
        low, high = held_out(-group["log_ratio"], sources)
        names = dict.fromkeys(KEYS, ANY) | dict(zip(keys, said, strict=True))
        factors = {"low": round(exp(low), 3), "high": round(exp(high), 3)}
        yield names | factors | {"rows": len(group), "sources": sources.nunique()}


def write_bands(residuals: pd.DataFrame, path: Path = BANDS) -> None:
    """Write the bands as ``profiles.bands`` reads them."""
    lines = [f"# {SOURCE}.", f'source = "{SOURCE}"', f"level = {LEVEL}"]
    for band in bands(residuals).to_dict("records"):
        words = (
            f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
            for key, value in band.items()
        )
        lines += ["", "[[band]]", *words]
    write_file(path, "\n".join(lines) + "\n")
