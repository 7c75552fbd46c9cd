import sqlite3

import pytest

from ananet.integrations.colmap import parts
from ananet.integrations.colmap.database import open_database, transaction
from ananet.integrations.colmap.parts import Parts
from tests.integrations.colmap.databases import Writer


@pytest.mark.parametrize(("seconds", "active", "stays"), [(0.0, True, 1), (0.0, False, 0), (60.0, True, 0)])
def test_what_was_done_stays(seconds, active, stays, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SECONDS_PER_PART", seconds)
    Writer(tmp_path / "a.db").close()
    writing = pytest.raises(RuntimeError)
    with open_database(tmp_path / "a.db") as database, writing, transaction(database, write=True):
        part = Parts(database, active)
        for number in (1, 2):
            database.connection.execute("INSERT INTO matches VALUES (?, 0, 2, NULL)", (number,))
            if number == 1:
                part.end_of_item()
        raise RuntimeError
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT count(*) FROM matches").fetchone() == (stays,)
    connection.close()
