"""The environment that a report was written in."""

import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from validate.reporting.sections import Section

PACKAGES: Final = (
    "diffusim", "numpy", "scipy", "pandas", "simpy", "highspy", "pulp", "matplotlib", "torch", "diffusers",
    "transformers",
)  # fmt: skip


def environment() -> Section:
    """Versions, machine and time that the numbers were computed with."""
    return Section("Environment", ("", ""), [[key, value] for key, value in _facts()])


def _facts() -> Iterator[tuple[str, str]]:
    yield "written", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "Python", platform.python_version()
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "CPU cores", str(os.cpu_count())
    yield from ((package, _version(package)) for package in PACKAGES)
    yield "GPU", _gpu()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _gpu() -> str:
    """Names of the GPUs, as torch sees them."""
    try:
        import torch  # noqa: PLC0415  it may not be installed
    except ImportError:
        return "not looked for: torch is not installed"
    if not torch.cuda.is_available():
        return "none"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{', '.join(names)}; CUDA {torch.version.cuda}"
