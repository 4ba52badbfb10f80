"""Compute that runs beside communication, in a thread of its own (on a GPU, on a stream of its own)."""

import contextlib
import threading
import time
from typing import Final

import torch

WIDTHS: Final = {"cpu": (256, torch.float32), "cuda": (4096, torch.bfloat16)}
"""Side and type of the matrices: some milliseconds a product on a CPU core, a quarter on an H100."""
PRODUCTS: Final = 8
"""Matrix products between two readings of the clock on a GPU; one on a processor."""


class Compute:
    """Matrix products, one after the other, from ``with`` to its end; their durations are noted as they finish."""

    def __init__(self, device: torch.device) -> None:
        width, dtype = WIDTHS[device.type]
        self._device = device
        self._threads = torch.get_num_threads()
        self._matrix = torch.full((width, width), 1 / width, dtype=dtype, device=device)
        self._stop = threading.Event()
        self._spans: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def __enter__(self) -> "Compute":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        on_gpu = self._device.type == "cuda"
        torch.set_num_threads(self._threads)  # a thread has a number of its own
        stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            value = self._matrix
            while not self._stop.is_set():
                begin = time.perf_counter()
                for _ in range(PRODUCTS if on_gpu else 1):
                    value = self._matrix @ value
                if stream:
                    stream.synchronize()
                self._spans.append((begin, time.perf_counter()))

    def mean_s(self, begin: float, end: float) -> float | None:
        """Seconds of one product between two readings of ``time.perf_counter``, all delays included."""
        spans = [(first, last) for first, last in list(self._spans) if first >= begin and last <= end]
        return (spans[-1][1] - spans[0][0]) / len(spans) if spans else None
