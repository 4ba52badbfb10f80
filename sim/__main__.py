"""The command ``sim``, also as ``python -m sim``: it can be interrupted from its first moment on."""

import os
import signal
import sys
from typing import Any, Final

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""


def _leave(_number: int, _frame: object) -> None:
    """End at once, while nothing is done yet that could be saved."""
    os.write(2, b"sim: interrupted\n")
    os._exit(INTERRUPTED)


def main() -> int:
    """Run the command line and return its exit code."""
    _interrupts_go_to(_leave)
    from sim.cli.main import main as run  # noqa: PLC0415  takes a while

    code = run()
    _interrupts_go_to(signal.SIG_IGN)  # all is said and written; Python takes a moment to end
    if code == INTERRUPTED:  # Python would end as if by SIGINT where an import was interrupted
        sys.stdout.flush()
        os._exit(code)
    return code


def _interrupts_go_to(handler: Any) -> None:  # noqa: ANN401  as of signal.signal
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
