"""``python -m sim`` is the command ``sim``."""

import sys

from sim.cli import main

sys.exit(main())
