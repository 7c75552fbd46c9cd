"""`python -m ananet_lite`."""

import sys

from ananet_lite.cli import main

sys.exit(main())
