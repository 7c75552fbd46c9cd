import numpy as np
import pytest

from ananet.estimators import load_estimator
from ananet.estimators.opencv import RANSAC, _split


def test_stacks_and_nothing_are_guarded():
    assert _split(None) == []
    assert _split(np.zeros((0, 3))) == []
    assert len(_split(np.r_[np.eye(3), 2 * np.eye(3)])) == 2
    assert _split(np.full((3, 3), np.nan)) == []
    assert _split(np.zeros((3, 3))) == []


@pytest.mark.parametrize("name", ["ransac", "magsac"])
def test_the_default_confidence_is_poselibs(name):
    assert load_estimator(name).confidence == RANSAC.default_confidence == 0.99999
    assert load_estimator(name, confidence=0.9).confidence == 0.9


def test_magsac_draws_the_best_first_if_it_may():
    import cv2

    assert load_estimator("magsac")._options(1.0).sampler == cv2.SAMPLING_UNIFORM
    assert load_estimator("magsac", use_scores=True)._options(1.0).sampler == cv2.SAMPLING_PROSAC
