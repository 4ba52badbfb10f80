"""Device files, as fits write them."""

import json
from collections.abc import Mapping
from typing import Final

DIGITS: Final = 5


def device_text(
    name: str, source: str, memory_gib: float | None, rates: Mapping[str, float], sources: Mapping[str, str]
) -> str:
    """Text of a device file.

    Args:
        name: of the device.
        source: where all of it comes from, in one sentence.
        memory_gib: None where it is not known.
        rates: by key, in the units of the file.
        sources: by key, where each rate comes from.
    """
    lines = [f"name = {json.dumps(name)}", f"source = {json.dumps(source)}"]
    lines += [] if memory_gib is None else [f"memory_GiB = {memory_gib:g}"]
    lines += ["", "[rates]", *(f"{key} = {rate:.{DIGITS}g}" for key, rate in rates.items())]
    lines += ["", "[rates.sources]", *(f"{key} = {json.dumps(said)}" for key, said in sources.items())]
    return "\n".join(lines) + "\n"
