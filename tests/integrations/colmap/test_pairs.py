import numpy as np
import pytest

from ananet.errors import InputError
from ananet.integrations.colmap import pairs
from ananet.integrations.colmap.database import Pair, open_database
from ananet.integrations.colmap.pairs import choose_pairs
from tests.integrations.colmap.databases import Writer

POINTS = np.random.default_rng(0).uniform(20, 400, (5, 2))


@pytest.fixture
def database(tmp_path):
    """Thirteen images, of which the last has no descriptors, and matches of one pair."""
    writer = Writer(tmp_path / "a.db")
    for number in range(13):
        writer.image(POINTS, descriptors=None if number == 12 else np.zeros((5, 128), np.uint8))
    writer.matches(5, 3, [(0, 0)])
    writer.close()
    with open_database(tmp_path / "a.db") as database:
        yield database


@pytest.mark.parametrize("tile", [1, 5, 64])
def test_all_pairs_each_once(tile, database, monkeypatch):
    monkeypatch.setattr(pairs, "TILE", tile)
    count, chosen = choose_pairs(database, "all")
    chosen = list(chosen)
    assert count == len(chosen) == 66 and sorted(chosen) == [Pair(a, b) for a in range(1, 13) for b in range(a + 1, 13)]


def test_neighbours_in_a_sequence(database, monkeypatch):
    monkeypatch.setattr(pairs, "NEXT_PHOTOS", 2)
    count, chosen = choose_pairs(database, "sequential")
    # By name: "photo 0.jpg", "photo 1.jpg", "photo 10.jpg", "photo 11.jpg", "photo 2.jpg", ...
    assert count == 11 + 10 and {Pair(1, 2), Pair(1, 11), Pair(2, 11), Pair(3, 12), Pair(3, 4)} <= set(chosen)
    assert Pair(2, 3) not in chosen and all(a < b for a, b in chosen)


def test_chosen_pairs(database, tmp_path):
    assert choose_pairs(database, "existing") == (1, [Pair(3, 5)])
    named = [("photo 4.jpg", "photo 0.jpg"), ("photo 0.jpg", "photo 4.jpg"), ("photo 1.jpg", "photo 12.jpg")]
    assert choose_pairs(database, named) == (1, [Pair(1, 5)])
    (tmp_path / "pairs.txt").write_text("photo 4.jpg\tphoto 0.jpg\n")
    assert choose_pairs(database, tmp_path / "pairs.txt") == (1, [Pair(1, 5)])
    with pytest.raises(InputError, match="pairs: expected the names of two images of .*a.db, got 'x y'"):
        choose_pairs(database, [("x", "y")])


def test_promising_pairs(tmp_path):
    """Of fifteen images, each sees what the next one sees, and nothing else."""
    rng, writer = np.random.default_rng(0), Writer(tmp_path / "b.db")
    described = rng.integers(0, 256, (16, 20, 128)).astype(np.uint8)
    for number in range(15):
        rows = np.concatenate([described[number], described[number + 1]])
        writer.image(rng.uniform(20, 400, (40, 2)), descriptors=rows)
    writer.close()
    with open_database(tmp_path / "b.db") as opened:
        count, chosen = choose_pairs(opened, "auto")
    assert count == len(chosen) == 75 and {Pair(n, n + 1) for n in range(1, 15)} <= set(chosen)
