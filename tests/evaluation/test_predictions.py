from dataclasses import replace

import numpy as np
import pytest

from ananet import InputError
from ananet.evaluation.predictions import (
    Origin,
    Prediction,
    Predictions,
    check_origin,
    check_pair,
    fingerprint,
    read_predictions,
    write_predictions,
)

from ..conftest import make_problem

ORIGIN = Origin("tiny", [{"threshold": 0.4}], "abc", "posed scenes", {"detector": "sift", "limit": None})


@pytest.fixture
def stored(tmp_path):
    matches = make_problem().matches
    answers = [
        Prediction(np.arange(500) % 3 == 0, np.linspace(-5, 5, 500, dtype=np.float32)),
        Prediction(np.zeros(0, bool), np.zeros(0, np.float32)),
    ]
    path = tmp_path / "tiny.safetensors"
    names = ["a", "b"]
    prints = [fingerprint(matches), fingerprint(matches[[]])]
    write_predictions(path, Predictions(ORIGIN, names, prints, answers, {"numpy": "2"}))
    return path, matches, answers


def test_round_trip(stored):
    path, matches, answers = stored
    found = read_predictions(path)
    assert found.origin == ORIGIN and found.names == ["a", "b"] and found.versions == {"numpy": "2"}
    for was, now in zip(answers, found.answers, strict=True):
        assert (was.mask == now.mask).all() and (was.logits == now.logits).all()
    check_origin(path, found.origin, ORIGIN)
    check_pair(path, found, 0, "a", matches)
    check_pair(path, found, 1, "b", matches[[]])


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (replace(ORIGIN, pruner="other"), "pruner was tiny, expected other"),
        (replace(ORIGIN, options=[{"threshold": 0.5}]), r"options was \[.*0.4.*\], expected \[.*0.5.*\]"),
        (replace(ORIGIN, weights_sha256="def"), "weights .sha256. was abc, expected def"),
        (replace(ORIGIN, source="MULTI"), "source was posed scenes, expected MULTI"),
        (replace(ORIGIN, settings={"detector": "orb"}), "match settings was"),
    ],
)
def test_other_origins_are_refused(stored, changed, word):
    with pytest.raises(InputError, match=f"is stale: its {word}"):
        check_origin(stored[0], ORIGIN, changed)


def test_other_matches_are_refused(stored):
    path, matches, _ = stored
    found = read_predictions(path)
    with pytest.raises(InputError, match="stale: pair 0 is z, the file has a"):
        check_pair(path, found, 0, "z", matches)
    with pytest.raises(InputError, match="stale: pair 2 is c, the file has nothing"):
        check_pair(path, found, 2, "c", matches)
    for other in (matches[:400], matches[np.r_[1, 0, 2:500]], make_problem(seed=1).matches):
        with pytest.raises(InputError, match="stale: it was made of other matches of a"):
            check_pair(path, found, 0, "a", other)


def test_what_is_no_file_of_predictions(tmp_path, world):
    with pytest.raises(InputError, match="predictions: no file"):
        read_predictions(tmp_path / "nothing.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="predictions: .* cannot be read"):
        read_predictions(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="predictions: expected format"):
        read_predictions(world.weights)
