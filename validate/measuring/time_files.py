"""The files of measured times, as a profile writes them; ``validate.fitting.layer_times`` reads them back."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from profiles.units import MILLISECOND
from validate.fitting.layer_times import QUANTILE_RULES, QUANTITIES, TIME_RULES
from validate.measuring.environment import Value, toml_lines
from validate.measuring.optimizers import RECIPES
from validate.measuring.passes import WHOLE, BatchTimes, ComponentTimes, trained_parameters
from validate.writing import csv_text

BACKWARD: Final = "backward_ms is a later micro-batch's, whose gradients are added to those already there"


def time_texts(
    name: str, components: Sequence[ComponentTimes], header: Mapping[str, Value]
) -> dict[Path, str]:
    """Files of a profile, by their path in the model folder.

    Args:
        name: of the device.
        components: what was measured.
        header: the environment.
    """
    rows = sum(len(part.counted.layers) * len(part.batches) for part in components)
    lines = toml_lines({**header, "backward": BACKWARD, "rows": rows})
    for component in components:
        for batch in component.batches:
            lines += ["", "[[whole]]", *toml_lines(_whole(component, batch))]
    for component in components:
        if component.optimizer_s is not None:
            update: dict[str, Value] = {
                "component": component.name,
                "parameters": trained_parameters(component.counted),
                "recipe": RECIPES[str(header["dtype"])],
                "ms": _ms(component.optimizer_s),
            }
            lines += ["", "[[optimizer]]", *toml_lines(update)]
    return {
        Path("times") / f"{name}.csv": csv_text(TIME_RULES, _time_rows(components)),
        Path("times") / f"{name}.toml": "\n".join(lines) + "\n",
        Path("quantiles") / f"{name}.csv": csv_text(QUANTILE_RULES, _quantile_rows(components)),
    }


def _whole(component: ComponentTimes, batch: BatchTimes) -> dict[str, Value]:
    found: dict[str, Value] = {"component": component.name, "batch_size": batch.batch}
    parts = list(zip(("forward", "backward"), WHOLE, strict=True))
    for name, quantity in parts if component.counted.spec.trainable else parts[:1]:
        found[f"{name}_ms"] = _ms(batch.whole[quantity])
        found[f"{name}_sum_over_whole"] = round(batch.sum_over_whole(quantity), 4)
    if component.counted.spec.trainable:
        found["backward_first_ms"] = _ms(sum(batch.median("backward_first")))
    shares = {f"{name}_waiting_for_host": batch.waiting(quantity) for name, quantity in parts}
    return found | {key: round(share, 4) for key, share in shares.items() if share is not None}


def _time_rows(components: Sequence[ComponentTimes]) -> Iterator[list[object]]:
    for component in components:
        for batch in component.batches:
            columns = zip(batch.median("forward"), batch.median("backward_later"), strict=True)
            for index, times in enumerate(columns):
                yield [component.name, index, batch.batch, *map(_ms, times)]


def _quantile_rows(components: Sequence[ComponentTimes]) -> Iterator[list[object]]:
    for component in components:
        for batch in component.batches:
            for quantity in QUANTITIES:
                for index, seconds in enumerate(batch.layers[quantity].T):
                    yield [component.name, index, batch.batch, quantity, *map(_ms, seconds)]


def _ms(seconds: float) -> float:
    return round(float(seconds) / MILLISECOND, 5)
