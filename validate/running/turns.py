"""Turns: one rank of a machine computes at a time, so that an op takes as long as one that is profiled alone."""

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

from torch import distributed as dist


class Turns:
    """Entered by the rank whose turn it is; the others wait. All ranks make one together."""

    def __init__(self) -> None:
        made: list[Any] = [None]
        if dist.get_rank() == 0:
            handle, made[0] = tempfile.mkstemp(prefix="diffusim-turns-")
            os.close(handle)
        dist.broadcast_object_list(made)
        self._file = Path(made[0]).open("r+b")  # noqa: SIM115  open as long as the rank runs
        dist.barrier()
        if dist.get_rank() == 0:
            Path(made[0]).unlink()

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
