"""Dask: a cluster's workers as an executor."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from threading import Event, Thread
from typing import Any, Final

from profiles.errors import InputError

PATIENCE_S: Final = 10.0
"""Seconds to wait for the scheduler."""
ABSENCE_S: Final = 30.0
"""Seconds without any worker after which nobody waits for one."""
LOOK_S: Final = 2.0
"""Seconds between two looks whether there are workers."""


class ClusterExecutor(Executor):
    """The workers of a client's cluster: what is asked of them fails once none of them has been there for a while."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401  of an optional package
        self._client = client
        self._open: set[Future[Any]] = set()
        self._over = Event()
        Thread(target=self._watch, daemon=True).start()

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:  # noqa: ANN401
        """Ask the cluster for a call; its future fails with ``BrokenExecutor`` where nobody is left to answer."""
        asked, future = self._client.submit(work, *given, pure=False, **named), Future[Any]()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        future.add_done_callback(lambda of: asked.cancel() if of.cancelled() else None)
        self._client.loop.add_callback(_hand_over, asked, future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Look after the workers no more."""
        self._over.set()

    def _watch(self) -> None:
        absent_s = 0.0
        while not self._over.wait(LOOK_S):
            absent_s = 0.0 if self._is_staffed() else absent_s + LOOK_S
            for future in tuple(self._open) if absent_s >= ABSENCE_S else ():
                with suppress(InvalidStateError):
                    future.set_exception(BrokenExecutor(f"no worker was there for {ABSENCE_S:g} s"))

    def _is_staffed(self) -> bool:
        with suppress(OSError, AttributeError):  # the scheduler is gone too, or the client is closed
            return bool(self._client.nthreads())
        return False


async def _hand_over(asked: Any, future: Future[Any]) -> None:  # noqa: ANN401  of an optional package
    """Let a future tell what became of a call, unless nobody listens to it any more.

    Dask's own executor looks twice, at the answer and at its state: where a worker leaves in between, an answer is
    taken for an error.
    """
    with suppress(InvalidStateError):
        try:
            answer = await asked
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(answer)


@contextmanager
def on_cluster(address: str | None) -> Iterator[dict[str, Any]]:
    """An executor of a Dask cluster and the threads of its workers, as ``run_sweep`` takes them; nothing of none.

    Raises:
        InputError: Dask is not installed, no scheduler answers at the address, or it has no worker.
    """
    if address is None:
        yield {}
        return
    if find_spec("distributed") is None:
        raise InputError(f"--dask is '{address}', but that needs Dask: pip install 'diffusim[dask]'")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is said in our own words
    try:
        client: Any = import_module("distributed").Client(address, timeout=PATIENCE_S)
    except (OSError, ValueError, TypeError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"--dask is '{address}', where no scheduler answers: {words}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"--dask is '{address}', a cluster without workers")
        with ClusterExecutor(client) as executor:
            yield {"executor": executor, "workers": threads}
