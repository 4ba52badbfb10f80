"""The command ``sim``, also as ``python -m sim``."""

import gc
import sys
from typing import Final, NoReturn

from sim.cli.main import main as run

COLLECTED: Final = 100_000
"""New objects after which Python looks for garbage; a command leaves little."""


def main() -> NoReturn:
    """Run the command line and end with its exit code."""
    gc.set_threshold(COLLECTED)
    sys.exit(run())


if __name__ == "__main__":
    main()
