"""The watch: every rank shows that it lives, so that the others can name one that does not, and stop."""

import os
import sys
import threading
import time
from datetime import timedelta
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

BEAT_S: Final = 0.5
LOST_S: Final = 10.0
"""Silence after which a rank counts as lost."""
DONE: Final = "done"


class Watch:
    """While it is entered, a thread beats for its rank and listens to the others, through the store that all share."""

    def __init__(self, store: TCPStore, rank: int, num_ranks: int) -> None:
        self._store = store.clone()  # type: ignore[attr-defined]  # a connection of its own
        self._store.set_timeout(timedelta(seconds=LOST_S))
        self._rank = rank
        self._keys = [f"beat/{other}" for other in range(num_ranks)]
        self._heard: dict[int, tuple[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> None:
        self._beat(0)
        self._thread.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Say that this rank is done: its silence means nothing any more.

        Where a connection broke, wait for the watch to name a lost rank, which ends this process; else tell the others.
        """
        if error is None:
            self._ended.set()
            self._thread.join()
            self._store.set(self._keys[self._rank], DONE)
        elif isinstance(error, RuntimeError):
            self._thread.join(LOST_S + 4 * BEAT_S)
            self._ended.set()
            self._store.set(self._keys[self._rank], f"rank {self._rank}: {str(error).splitlines()[0]}")

    def _beat(self, number: int) -> None:
        self._store.set(self._keys[self._rank], str(number))

    def _run(self) -> None:
        number = 0
        try:
            while not self._ended.wait(BEAT_S):
                number += 1
                self._beat(number)
                self._listen()
        except RuntimeError:
            if not self._ended.is_set():
                _stop("the store of all ranks is gone: rank 0, or what launched it, has ended", True)

    def _listen(self) -> None:
        now = time.monotonic()
        values = [value.decode() for value in self._store.multi_get(self._keys)]
        for other, value in enumerate(values):
            if self._heard.get(other, ("", 0.0))[0] != value:
                self._heard[other] = (value, now)
        failed = [value for value in values if value.startswith("rank ")]
        heard = self._heard.items()
        lost = [other for other, (value, since) in heard if value != DONE and now - since > LOST_S]
        if failed or lost:
            first = min(other for other in range(len(values)) if other not in lost)
            silent = f"rank {', '.join(map(str, lost))} has been silent for {LOST_S:g} s: killed, or stuck"
            _stop(failed[0] if failed else silent, self._rank == first)


def _stop(reason: str, speak: bool) -> None:
    """End this process at once: its main thread may hang in a collective for ever."""
    if speak:
        said = f"validate: error: {reason}; the other ranks stop, nothing was written"
        print(said, file=sys.stderr, flush=True)
    os._exit(2)
