"""The command ``sim``, also as ``python -m sim``: it can be interrupted from its first moment on."""

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final, NoReturn

from sim.interrupts import numbers

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""
COLLECTED: Final = 100_000
"""New objects after which Python looks for garbage; a command leaves little."""


def _leave(_number: int, _frame: object) -> None:
    """End at once, while nothing is done yet that could be saved."""
    with suppress(OSError):  # nobody listens
        os.write(2, b"sim: interrupted\n")
    os._exit(INTERRUPTED)


def main() -> NoReturn:
    """Run the command line and end with its exit code; it never returns.

    It ends at once, since Python takes a while to take all objects away; but not where a profiler, a debugger or a
    measure of coverage looks on: these write down what they found when Python ends.
    """
    _interrupts_go_to(_leave)
    gc.set_threshold(COLLECTED)
    from sim.cli.main import main as run  # noqa: PLC0415  takes a while

    code = run()
    _interrupts_go_to(signal.SIG_IGN)  # all is said
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):  # which was said, or nobody listens
            stream.flush()
    if _is_watched():
        sys.exit(code)
    os._exit(code)


def _is_watched() -> bool:
    """Whether a profiler, a debugger or a measure of coverage looks on."""
    if sys.gettrace() or sys.getprofile():
        return True
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


def _interrupts_go_to(handler: Any) -> None:  # noqa: ANN401  as of signal.signal
    for number in numbers():
        signal.signal(number, handler)


if __name__ == "__main__":
    main()
