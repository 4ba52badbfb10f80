"""Phrases: what is simulated and what memory lacks, in words that titles, results and reasons share."""

from collections.abc import Mapping
from typing import Any, Final

from profiles.units import GIB
from strategies.plans.workloads import ALL

OUT_OF_MEMORY: Final = "out of memory"
"""The reason of points that do not fit, without its numbers."""


def activity(task: str, options: Mapping[str, Any]) -> str:
    """What is simulated, in words for titles: sampling is of the denoising steps, and what is included beside them."""
    if task == "train":
        return "training"
    if options["include"] == ALL:
        return "end to end"
    return (
        f"denoising with {options['include'].replace(',', ', ')}" if options["include"] else "denoising only"
    )


def missing_memory(needed_bytes: float, there_bytes: float, *, at_least: bool = False) -> str:
    """Memory needed, memory there and the difference, in words."""
    needed, there = needed_bytes / GIB, there_bytes / GIB
    words, digits = "needs at least" if at_least else "needs", 1 if needed - there >= 0.05 else 3
    return (
        f"{words} {needed:.{digits}f} GiB, the device has {there:.{digits}f} GiB:"
        f" {needed - there:.{digits}f} GiB too much"
    )
