"""The space around a sweep: throughput against memory."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from profiles.errors import InputError

R = TypeVar("R", bound=Mapping[str, Any])


def pareto_front(rows: Iterable[R]) -> list[R]:
    """The rows that fit and that no other beats in memory and throughput, by memory.

    Args:
        rows: results under their public keys; rows that were not simulated, or are not recommended, are left out.
    """
    fitting = (
        item
        for item in rows
        if "peak_memory_bytes" in item and item.get("fits_memory", True) and item.get("recommended", True)
    )
    front: list[R] = []
    for item in sorted(fitting, key=lambda item: (item["peak_memory_bytes"], -samples_per_s(item))):
        if not front or samples_per_s(item) > samples_per_s(front[-1]):
            front.append(item)
    return front


def samples_per_s(item: Mapping[str, Any]) -> float:
    """The throughput of a result; an image's latency gives that of sampling.

    Raises:
        InputError: it lacks both.
    """
    speed, images, latency_s = (item.get(key) for key in ("samples_per_s", "batch_size", "latency_s"))
    if speed is not None:
        return float(speed)
    if images is None or latency_s is None:
        raise InputError("a row lacks samples_per_s, and batch_size with latency_s: give results as they are")
    return float(images / latency_s)
