"""``python -m dapolab`` is the command line."""

import sys

from dapolab.cli import main

sys.exit(main())
