"""``python -m sim`` is the command ``sim``."""

import sys

from sim.cli.main import main

sys.exit(main())
