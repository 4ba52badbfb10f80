"""The profiler: measures a model's components, and writes the model folder with their times."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from profiles.errors import DiffusimError, InputError
from profiles.files import path_kind
from profiles.models import Model, read_model
from validate.counting.component import ModelCount, count_model
from validate.counting.config_files import Asked, ConfigFile
from validate.counting.configured import count_configured, slug
from validate.counting.folder import folder_texts
from validate.counting.specs import Architecture, ComponentSpec
from validate.counting.trace import first_line
from validate.machine import NOT_KNOWN, OtherPrograms, disturbance
from validate.profiling.building import COUNTED_AS, DTYPES
from validate.profiling.clocks import WALL, Clock, clock_of
from validate.profiling.environment import Value, clocks, device_name, environment
from validate.profiling.measuring import ComponentTimes, Settings, measure
from validate.profiling.time_files import time_texts
from validate.profiling.tiny import profiled_architecture
from validate.writing import write_files

WAITING: Final = 0.05
"""Share of a pass that a GPU may wait for the host without a word."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of a model on a device, and with what."""

    model: str
    device: str
    counted: ModelCount
    components: tuple[ComponentTimes, ...]
    header: dict[str, Value]

    @property
    def other_cores(self) -> float:
        """Cores that other programs kept busy meanwhile; NaN where that is not known."""
        cores = self.header["other_programs_cores"]
        return cores if isinstance(cores, float) else NOT_KNOWN


def profile(
    model: str,
    device: str,
    settings: Settings,
    *,
    height: int | None = None,
    width: int | None = None,
    components: Sequence[str] = (),
    name: str | None = None,
    output: Path | None = None,
) -> Profile:
    """Measure every layer of a model's components, and write them.

    Args:
        model: one of the architectures, or of the tiny ones.
        device: ``cpu`` or ``cuda``.
        settings: how to measure.
        height: pixels; the model's own by default.
        width: pixels; the model's own by default.
        components: names; all by default.
        name: of the device, by which a simulation finds the times; ``cpu`` or the GPU's by default.
        output: the model folder; nothing is written without.

    Raises:
        InputError: an argument breaks a rule, there is no such device, a component does not fit or takes too long,
            or the folder holds other layers.
    """
    seat = _seat(device, settings, name)
    counted = counted_for(model, settings.dtype, height=height, width=width, components=components)
    return _profiled(model, counted, settings, seat, output)


def profile_files(
    files: Sequence[ConfigFile],
    asked: Asked,
    device: str,
    settings: Settings,
    *,
    components: Sequence[str] = (),
    name: str | None = None,
    output: Path | None = None,
) -> Profile:
    """Measure every layer of an architecture of the user's own files, and write them.

    Args:
        files: a backbone and its frozen encoders, or one encoder.
        asked: what the command line asks for beside them.
        device: as above, like the rest.
        settings: how to measure.
        components: names; all by default.
        name: of the device.
        output: the model folder.

    Raises:
        InputError: as above, or the class refuses what it is given.
    """
    seat = _seat(device, settings, name)
    _check_dtype(settings.dtype)
    counted = count_configured(files, replace(asked, dtype=COUNTED_AS[settings.dtype]))
    model = slug(counted.architecture.title)
    counted = _only_counted(counted, components)
    try:
        return _profiled(model, counted, settings, seat, output)
    except DiffusimError:
        raise
    except Exception as error:  # whatever the class says to its arguments
        batches = ",".join(map(str, settings.batch_sizes))
        raise InputError(
            f"{counted.architecture.title} cannot run at batch sizes {batches} in {settings.dtype}: {first_line(error)}"
        ) from error


def _seat(device: str, settings: Settings, name: str | None) -> tuple[Clock, str]:
    """Return the clock and the name of a device."""
    clock = clock_of(device, settings.clock)
    name = name or device_name(clock.device)
    if not name.replace("-", "").replace(".", "").isalnum():
        raise InputError(f"--name is '{name}', must be of letters, digits, '-' and '.'")
    return clock, name


def _profiled(
    model: str, counted: ModelCount, settings: Settings, seat: tuple[Clock, str], output: Path | None
) -> Profile:
    clock, name = seat
    if output is not None:
        check_folder(output, model, counted)
    found = _measure(model, name, counted, settings, clock)
    if output is not None:
        write_profile(output, found)
    return found


def counted_for(
    model: str,
    dtype: str,
    *,
    height: int | None = None,
    width: int | None = None,
    components: Sequence[str] = (),
) -> ModelCount:
    """Return the count of the components of a model that are to be measured, in their precision.

    Raises:
        InputError: there is no such model, component or precision.
    """
    _check_dtype(dtype)
    architecture = _only(profiled_architecture(model), components)
    return count_model(replace(architecture, dtype=COUNTED_AS[dtype]), height, width)


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise InputError(f"--dtype is '{dtype}', must be one of {', '.join(DTYPES)}")


def check_folder(folder: Path, name: str, counted: ModelCount) -> None:
    """Refuse a folder that holds another model, or this one at another size.

    Raises:
        InputError: it does.
    """
    kind = path_kind(folder)
    if kind == "file":
        raise InputError(f"--output {folder}: is not a folder")
    if kind == "nothing" or not any(folder.iterdir()):
        return
    there = read_model(folder)
    if (there.height, there.width) != (counted.height, counted.width):
        sizes = f"{there.height}x{there.width}, not at {counted.height}x{counted.width}"
        raise InputError(f"--output {folder}: holds {there.name} at {sizes}; name another folder")
    if _layers_there(there) != _layers_counted(counted):
        raise InputError(
            f"--output {folder}: holds other layers than the components of {name} that were asked for; name another"
            " folder"
        )


def write_profile(folder: Path, found: Profile) -> None:
    """Write the times into a model folder, which is written with them where there is none.

    Raises:
        InputError: a file cannot be written.
    """
    texts = time_texts(found.device, list(found.components), found.header)
    if path_kind(folder / "model.toml") == "nothing":
        texts |= folder_texts(found.model, found.counted)
    write_files(folder, texts)


def report_profile(found: Profile, output: Path | None) -> None:
    """Print what was measured; warn of a busy machine."""
    title = f"{found.model} on {found.device}, {found.counted.height}x{found.counted.width}, {found.header['dtype']}"
    Console(width=150).print(times_table(title, found.components))
    for line in waiting_lines(found.components):
        print(f"validate: {line}", file=sys.stderr)
    said = disturbance(found.other_cores) if found.header["clock"] == WALL else ""
    if said:
        print(f"validate: warning: {said}; --clock thread is not misled by others", file=sys.stderr)
    if output is not None:
        print(f"validate: wrote {output}", file=sys.stderr)


def waiting_lines(components: Sequence[ComponentTimes]) -> Iterator[str]:
    """Yield one line for each component whose passes a GPU spends waiting for the host to launch kernels.

    The sum of the layers over the whole does not tell: it is one all the same.
    """
    for component in components:
        found = [
            f"{100 * share:.0f} % of {what} at batch {batch.batch}"
            for what, quantity in (("forward", "forward"), ("backward", "backward_later"))
            for batch in component.batches
            if (share := batch.waiting(quantity) or 0.0) > WAITING
        ]
        if found:
            yield (
                f"{component.counted.spec.name}: the GPU waited for the host at least {', '.join(found)}:"
                " these are times of launching kernels as much as of their work"
            )


def times_table(title: str, components: Sequence[ComponentTimes]) -> Table:
    """Return a table with one row per component and batch size, in milliseconds."""
    result = Table(title=title, title_justify="left")
    for column in (
        "component",
        "batch",
        "layers",
        "forward ms",
        "sum / whole",
        "backward, first",
        "later",
        "sum / whole",
    ):
        result.add_column(column, justify="left" if column == "component" else "right")
    for component in components:
        for batch in component.batches:
            trained = component.counted.spec.trainable
            backward = [sum(batch.median(name)) for name in ("backward_first", "backward_later")]
            result.add_row(
                component.counted.spec.name,
                f"{batch.batch}",
                f"{len(component.counted.layers)}",
                f"{1e3 * sum(batch.median('forward')):.2f}",
                f"{batch.sum_over_whole('forward'):.3f}",
                *(f"{1e3 * seconds:.2f}" if trained else "" for seconds in backward),
                f"{batch.sum_over_whole('backward_later'):.3f}" if trained else "",
            )
    return result


def _measure(model: str, name: str, counted: ModelCount, settings: Settings, clock: Clock) -> Profile:
    device_type = clock.device.type
    before, others = clocks(clock.device), OtherPrograms()
    times = []
    for component in counted.components:
        print(f"validate: measuring {component.spec.name} of {model}", file=sys.stderr)
        times.append(measure(component, counted.height, counted.width, settings, clock))
    header: dict[str, Value] = {
        "source": "python -m validate profile: medians of layers timed in place",
        "model": model,
        "height": counted.height,
        "width": counted.width,
        "device": device_type,
        "dtype": settings.dtype,
        "clock": settings.clock if device_type == "cpu" else "events",
        **environment(clock.device),
        "clocks_before": before,
        "clocks_after": clocks(clock.device),
        "warmup": settings.warmup,
        "rounds": settings.rounds,
        "seed": settings.seed,
    }
    cores = others.cores()
    header["other_programs_cores"] = "not known" if isnan(cores) else round(cores, 3)
    return Profile(model, name, counted, tuple(times), header)


def _only(architecture: Architecture, names: Sequence[str]) -> Architecture:
    """Return an architecture of some of its components."""
    _check_names([component.name for component in architecture.components], names, architecture.title)
    kept = [
        _forgetting(component, names)
        for component in architecture.components
        if not names or component.name in names
    ]
    return replace(architecture, components=tuple(kept))


def _only_counted(counted: ModelCount, names: Sequence[str]) -> ModelCount:
    """Return a count of some of its components."""
    known = [component.spec.name for component in counted.components]
    _check_names(known, names, counted.architecture.title)
    kept = [
        replace(component, spec=_forgetting(component.spec, names))
        for component in counted.components
        if not names or component.spec.name in names
    ]
    return replace(counted, components=tuple(kept))


def _check_names(known: Sequence[str], names: Sequence[str], title: str) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"unknown component '{name}' of {title}; choose from {', '.join(known)}")


def _forgetting(component: ComponentSpec, names: Sequence[str]) -> ComponentSpec:
    """Return a component that forgets its inputs among those that are not there."""
    return replace(
        component,
        inputs=tuple(source for source in component.inputs if not names or source in names),
        reads={key: source for key, source in component.reads.items() if not names or source in names},
    )


def _layers_there(model: Model) -> list[tuple[str, str]]:
    return [(component.name, layer.name) for component in model.components for layer in component.layers]


def _layers_counted(counted: ModelCount) -> list[tuple[str, str]]:
    return [
        (component.spec.name, layer.name) for component in counted.components for layer in component.layers
    ]
