"""Estimators by name."""

import pytest

from ananet import InputError
from ananet.estimators import ESTIMATORS, load_estimator
from ananet.estimators.opencv import MAGSAC, RANSAC
from ananet.estimators.poselib import PoseLib


def test_names_and_options():
    assert ESTIMATORS.names == ["poselib", "ransac", "magsac", "eight-point"]
    assert isinstance(load_estimator(), PoseLib)
    assert isinstance(load_estimator("ransac"), RANSAC)
    assert isinstance(load_estimator("magsac"), MAGSAC)
    given = load_estimator("poselib@loss=huber@loss_scale=0.5", confidence=0.99)
    assert isinstance(given, PoseLib)
    assert given.name == "poselib@loss=huber@loss_scale=0.5@confidence=0.99"
    assert repr(load_estimator("magsac@use_scores=true")) == "<estimator magsac@use_scores=true>"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("lmeds", "estimator: expected one of poselib, ransac, magsac, eight-point, got 'lmeds'"),
        ("ransac@threshold=high", "threshold: expected a number, got 'high'"),
        ("ransac@loss=huber", "options of the estimator 'ransac': expected some of threshold, confidence, use_scores"),
        ("magsac@threshold", "estimator: expected an option as name=value after '@', got 'threshold'"),
        (7, "estimator: expected a name, got 7"),
    ],
)
def test_wrong_names_and_options_are_told(wrong, message):
    with pytest.raises(InputError, match=message):
        load_estimator(wrong)
