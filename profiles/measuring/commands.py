"""The commands that measure: ``profile`` and ``links``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import InputError
from profiles.machines.devices import load_device
from profiles.measuring.counting.config_files import asked_of, check_alone, read_config
from profiles.measuring.launching import check_least, launch, launched_place
from profiles.measuring.writing import write_file
from profiles.outputs import check_writable

if TYPE_CHECKING:
    from profiles.measuring.linking.samples import Measurement


def run_profile(options: argparse.Namespace) -> None:
    """Measure a model and write its folder."""
    import torch  # noqa: PLC0415  importing torch takes seconds

    from profiles.measuring.timing.passes import Settings  # noqa: PLC0415  as above
    from profiles.measuring.timing.profiler import profile, report_profile  # noqa: PLC0415  as above

    check_least(("--threads", options.threads, 1))
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    settings = Settings(
        batch_sizes=options.batch_sizes,
        dtype=options.dtype or ("bfloat16" if options.device == "cuda" else "float32"),
        **{key: getattr(options, key) for key in ("warmup", "rounds", "clock")},
    )
    if options.config is None:
        check_alone(options)
        model = options.model
    else:
        model = [read_config(path) for path in options.config], asked_of(options, "float16")
    components = tuple(options.components.split(",")) if options.components else ()
    flags = {key: getattr(options, key) for key in ("height", "width", "name", "output")}
    report_profile(profile(model, options.device, settings, components=components, **flags), options.output)


def run_links(options: argparse.Namespace) -> None:
    """Measure, as a rank or by starting ranks, or read logs; then fit, write, and print how well it fits."""
    from profiles.measuring.linking.samples import read_logs  # noqa: PLC0415  importing scipy takes a while

    place = None if options.nccl_tests else launched_place()
    _check_links(options)
    measurement: Measurement | None
    if options.nccl_tests:
        measurement = read_logs(options.nccl_tests)
    elif place:
        check_least(("--ranks", place.num_ranks, 2))
        measurement = _measure(options.backend, options.max_mib)
    else:
        check_least(("--ranks", options.ranks, 2))
        measurement = launch(options.ranks, _measure, options.backend or "gloo", options.max_mib)[0]
    if measurement:
        _conclude(measurement, options)


def _check_links(options: argparse.Namespace) -> None:
    """Refuse flags that would fail after minutes of measuring."""
    load_device(options.device)
    check_least(("--max-mib", options.max_mib, 1))
    for flag, path in (("--output", options.output), ("--samples", options.samples)):
        if path:
            check_writable(flag, path)
            if path.resolve() in map(Path.resolve, options.nccl_tests or ()):
                raise InputError(f"{flag} {path}: is one of the logs, must be another file")


def _measure(backend: str | None, max_mib: int) -> "Measurement | None":
    """Return the measurement of all ranks together; None on all ranks but 0."""
    from profiles.measuring.linking.times import measure  # noqa: PLC0415  importing torch takes seconds

    place = launched_place()
    assert place is not None
    return measure(place, backend, max_mib * 2**20)


def _conclude(measurement: "Measurement", options: argparse.Namespace) -> None:
    """Fit, write, and print how far the file's cluster is from what was measured."""
    from profiles.measuring.linking.fits import fit_links  # noqa: PLC0415
    from profiles.measuring.linking.report import cluster_text, print_links, write_cluster  # noqa: PLC0415
    from profiles.measuring.linking.samples import sample_text  # noqa: PLC0415

    fit = fit_links(measurement, options.name or options.output.stem, options.device, options.kind)
    cluster = write_cluster(options.output, cluster_text(fit, bool(measurement.slowdowns)))
    if options.samples:
        write_file(options.samples, sample_text(measurement))
    print_links(measurement, cluster, fit.notes)
    print(f"wrote {options.output}")
