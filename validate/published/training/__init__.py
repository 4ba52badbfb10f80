"""Training experiments that papers publish, simulated; each is one table and some records."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import Final

from sim.explore.working.workers import end, follow_parent
from validate.published.training.experiment import Findings, texts

EXPERIMENTS: Final[tuple[Callable[[], Findings], ...]] = tuple(
    getattr(import_module(f"{__name__}.{module}"), name)
    for module, _, name in (of.partition(".") for of in texts()["order"])
)
WORKERS: Final = 2


def made(experiments: Sequence[Callable[[], Findings]] | None = None) -> Iterator[Findings]:
    """The findings of the experiments in their order, made in parallel; whoever stops early waits for no other."""
    executor = ProcessPoolExecutor(WORKERS, initializer=follow_parent)
    try:
        asked = EXPERIMENTS if experiments is None else experiments
        for future in [executor.submit(one) for one in asked]:
            yield future.result()
    finally:
        end(executor)
