"""The profiler: times a model's components, and writes a model folder with their times.

``profiles.measuring.fitting.calibration`` reads them back.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.table import Table

from profiles.architectures.component_files import TIME_COLUMNS
from profiles.architectures.models import read_model
from profiles.errors import InputError
from profiles.files import path_kind
from profiles.measuring.counting.component import ModelCount, count_model
from profiles.measuring.counting.configured import architecture, count_configured, slug
from profiles.measuring.counting.folder import folder_texts
from profiles.measuring.counting.specs import asked_of, check_alone, read_config
from profiles.measuring.counting.trace import blamed
from profiles.measuring.fitting.calibration import QUANTITIES
from profiles.measuring.timing.building import COUNTED_AS, RECIPES
from profiles.measuring.timing.environment import Value, device_name, environment
from profiles.measuring.timing.passes import ComponentTimes, Settings, clock_of, measure
from profiles.measuring.writing import csv_text, show, table, toml_text
from profiles.outputs import write_files
from profiles.units import MILLISECOND

BACKWARD: Final = "backward_ms is a later micro-batch's, whose gradients are added to those already there"
COLUMNS: Final = ("component", "batch", "layers", "forward ms", "sum / whole", "backward ms", "sum / whole")


def profile(
    model: str | ModelCount,
    device: str,
    settings: Settings,
    *,
    height: int | None = None,
    width: int | None = None,
    components: Sequence[str] = (),
    name: str | None = None,
    output: Path,
) -> Table:
    """Time every layer of a model's components, all or some, write them into a model folder, and return their table.

    The model is one of the architectures or of the tiny ones, or counted from the user's own files. A simulation finds
    the times by the name of the device: ``cpu`` or the GPU's by default.
    """
    clock = clock_of(device)
    name = name or device_name(clock.device)
    if not name.replace("-", "").replace(".", "").isalnum():
        raise InputError(f"--name is '{name}', must be of letters, digits, '-' and '.'")
    if isinstance(model, str):
        counted, label = counted_for(model, settings.dtype, height=height, width=width), model
    else:
        counted, label = model, slug(model.architecture.title)
    counted = _with_only(components, counted) if components else counted
    _check_folder(output, label, counted)
    times = []
    with blamed(f"{counted.architecture.title} cannot run in {settings.dtype}"):
        for component in counted.components:
            print(f"measure: measuring {component.spec.name} of {label}", file=sys.stderr)
            times.append(measure(component, counted.height, counted.width, settings, clock))
    header: dict[str, Value] = {"source": "sim measure profile: medians of layers timed in place"}
    header |= {"model": label, "height": counted.height, "width": counted.width, "device": clock.device.type}
    header |= {"dtype": settings.dtype, **environment(clock.device)}
    header |= {key: getattr(settings, key) for key in ("warmup", "rounds", "seed")}
    texts = time_texts(name, times, header)
    if path_kind(output / "model.toml") == "nothing":
        texts |= folder_texts(label, counted)
    write_files(output, texts)
    print(f"measure: wrote {output}", file=sys.stderr)
    size = f"{counted.height}x{counted.width}"
    return times_table(f"{label} on {name}, {size}, {settings.dtype}", times)


def counted_for(model: str, dtype: str, *, height: int | None = None, width: int | None = None) -> ModelCount:
    """Count an architecture that is to be timed, in the precision of its times."""
    return count_model(replace(architecture(model, tiny=True), dtype=COUNTED_AS[dtype]), height, width)


def _with_only(names: Sequence[str], counted: ModelCount) -> ModelCount:
    """The components of some names, without their inputs among the others."""
    known = [part.spec.name for part in counted.components]
    for name in names:
        if name not in known:
            title = counted.architecture.title
            raise InputError(f"unknown component '{name}' of {title}; choose from {', '.join(known)}")
    parts = []
    for part in (part for part in counted.components if part.spec.name in names):
        inputs = tuple(source for source in part.spec.inputs if source in names)
        spec = replace(part.spec, inputs=inputs)
        parts.append(replace(part, spec=spec, reads=tuple(read for read in part.reads if read[0] in names)))
    return replace(counted, components=tuple(parts))


def _check_folder(folder: Path, name: str, counted: ModelCount) -> None:
    """Refuse a folder that holds another model, or this one at another size."""
    if path_kind(folder) == "nothing" or (folder.is_dir() and not any(folder.iterdir())):
        return
    known = read_model(folder)
    held = f"--output {folder}: holds {known.name}"
    if (known.height, known.width) != (counted.height, counted.width):
        sizes = f"{known.height}x{known.width}, not at {counted.height}x{counted.width}"
        raise InputError(f"{held} at {sizes}; name another folder")
    layers = [(component.name, layer.name) for component in known.components for layer in component.layers]
    if layers != [(part.spec.name, layer.name) for part in counted.components for layer in part.layers]:
        raise InputError(f"{held} with other layers than those of {name} to be timed; name another folder")


def run_profile(options: argparse.Namespace) -> None:
    """Measure a model and write its folder."""
    settings = Settings(
        batch_sizes=options.batch_sizes,
        dtype=options.dtype or ("bfloat16" if options.device == "cuda" else "float32"),
        **{key: getattr(options, key) for key in ("warmup", "rounds")},
    )
    model = options.model
    if options.config is None:
        check_alone(options)
    else:
        files = [read_config(path) for path in options.config]
        model = count_configured(files, asked_of(options, COUNTED_AS[settings.dtype]))
    components = tuple(options.components.split(",")) if options.components else ()
    flags = {key: getattr(options, key) for key in ("height", "width", "name", "output")}
    show(150, profile(model, options.device, settings, components=components, **flags))


def times_table(title: str, components: Sequence[ComponentTimes]) -> Table:
    """One row per component and batch size, in milliseconds."""
    rows = []
    for component in components:
        for batch in component.batches:
            row = [component.counted.spec.name, f"{batch.batch}", f"{len(component.counted.layers)}"]
            for name, seconds in batch.layers.items():
                total = sum(seconds)
                row += [f"{1e3 * total:.2f}", f"{batch.sum_over_whole(name):.3f}"] if total else ["", ""]
            rows.append(row)
    return table(title, COLUMNS, rows, left=("component",))


def time_texts(
    name: str, components: Sequence[ComponentTimes], header: Mapping[str, Value]
) -> dict[Path, str]:
    """Files of a profile on a device called ``name``, by their path in the model folder."""
    rows: list[list[object]] = []
    whole, updates = [], []
    for component in components:
        for batch in component.batches:
            row: dict[str, Value] = {"component": component.counted.spec.name, "batch_size": batch.batch}
            for quantity in QUANTITIES if component.counted.spec.trainable else QUANTITIES[:1]:
                row[f"{quantity}_ms"] = _ms(batch.whole[quantity])
                row[f"{quantity}_sum_over_whole"] = round(batch.sum_over_whole(quantity), 4)
            whole.append(row)
            columns = zip(*batch.layers.values(), strict=True)
            rows += (
                [component.counted.spec.name, n, batch.batch, *map(_ms, times)]
                for n, times in enumerate(columns)
            )
        if component.optimizer_s is not None:
            recipe, ms = RECIPES[str(header["dtype"])], _ms(component.optimizer_s)
            trained = {
                "component": component.counted.spec.name,
                "parameters": component.counted.total.trained,
            }
            updates.append(trained | {"recipe": recipe, "ms": ms})
    values = {**header, "backward": BACKWARD, "rows": len(rows), "whole": whole, "optimizer": updates}
    return {
        Path("times") / f"{name}.csv": csv_text(TIME_COLUMNS, rows),
        Path("times") / f"{name}.toml": toml_text(values),
    }


def _ms(seconds: float) -> float:
    return round(float(seconds) / MILLISECOND, 5)
