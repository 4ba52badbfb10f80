"""Dask: a cluster's workers as an executor."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from profiles.errors import InputError

PATIENCE_S: Final = 10.0
"""Seconds to wait for the scheduler."""


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
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is said in our own words
    try:
        client = Client(address, timeout=PATIENCE_S)
    except (OSError, ValueError, TypeError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"--dask is '{address}', where no scheduler answers: {words}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"--dask is '{address}', a cluster without workers")
        yield {"executor": client.get_executor(pure=False), "workers": threads}
