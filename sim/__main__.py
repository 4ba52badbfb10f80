"""The command ``sim``, also as ``python -m sim``: it can be interrupted from its first moment on."""

import os
import signal
import sys


def _leave(_number: int, _frame: object) -> None:
    """End at once, while nothing is done yet that could be saved."""
    os.write(2, b"sim: interrupted\n")
    os._exit(130)


def main() -> int:
    """Run the command line and return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from sim.cli.main import main as run  # noqa: PLC0415  takes a while

    return run()


if __name__ == "__main__":
    sys.exit(main())
