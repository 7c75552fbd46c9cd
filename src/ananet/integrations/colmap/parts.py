"""Transactions of long calls."""

from __future__ import annotations

import time

from ananet.integrations.colmap.database import Database

SECONDS_PER_PART = 3.0


class Parts:
    """Commits every few seconds of a write transaction, so that what a call has done stays if it is killed."""

    def __init__(self, database: Database, active: bool) -> None:
        self.database, self.active = database, active
        self.committed = time.monotonic()

    def end_of_item(self) -> None:
        """Say that what is written is complete so far."""
        if self.active and time.monotonic() > self.committed + SECONDS_PER_PART:
            self.database.connection.execute("COMMIT")
            self.database.connection.execute("BEGIN IMMEDIATE")
            self.committed = time.monotonic()
