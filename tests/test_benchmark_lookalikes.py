import numpy as np
import pytest

from ananet import InputError
from ananet.twoview.collection import Confirmation
from benchmarks import lookalikes


def circle(count=24):
    angles = 2 * np.pi * np.arange(count) / count
    places = np.column_stack([5 * np.cos(angles), 5 * np.sin(angles), np.zeros(count)])
    return [(f"{number:04}.jpg", place, -place / 5) for number, place in enumerate(places)]


def test_turns_of_a_path():
    np.testing.assert_allclose(np.abs(lookalikes.turns(circle())), 15)
    assert (
        lookalikes.in_words(lookalikes.turns(circle())) == "turns by 345 degrees in all, with 0 jumps of more than 45"
    )
    jumping = circle()
    jumping[12:] = [(name, -place, -direction) for name, place, direction in jumping[12:]]
    assert "with 1 jumps" in lookalikes.in_words(lookalikes.turns(jumping))
    assert lookalikes.in_words(lookalikes.turns([])) == "no path"


def test_scores():
    assert lookalikes.score(Confirmation(0.05, 10.0, False)) == 1
    assert lookalikes.score(Confirmation(0.05, 100.0, True)) == 0.05


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    lookalikes.draw({"all pairs": circle(), "pairs that pass": []}, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_wrong_input(tmp_path):
    with pytest.raises(InputError, match="photos: expected a folder"):
        lookalikes.main([str(tmp_path / "none"), str(tmp_path)])
