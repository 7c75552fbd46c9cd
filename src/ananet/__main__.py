"""`python -m ananet` is the `ananet` command."""

import sys

from ananet.cli import main

sys.exit(main())
