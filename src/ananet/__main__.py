"""`python -m ananet` is the `ananet` command."""

import sys

from ananet.cli.main import main

sys.exit(main())
