"""Units that can be seen to be wrong."""

import warnings

import numpy as np
import pytest
import torch

import ananet
from ananet import Correspondences, InputError
from ananet.core.cameras import centred_camera
from ananet.core.correspondences import unit_doubt

SIZE = (1600.0, 1000.0)
K = centred_camera(1400, (1600, 1000))
POINTS = np.random.default_rng(0).uniform(0, 1, (50, 2)) * SIZE


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_angles_in_degrees_are_an_error(kind):
    angles = kind(np.linspace(0, 359, 50))
    with pytest.raises(InputError, match=r"angles1: expected radians .* got 0 to 359; .*np\.deg2rad"):
        Correspondences(kind(POINTS), kind(POINTS), angles0=kind(np.zeros(50)), angles1=angles)
    with pytest.raises(InputError, match="angles0: expected radians"):
        ananet.load("all")(kind(POINTS), kind(POINTS), angles0=angles, angles1=angles)
    for right in (np.deg2rad(np.linspace(0, 360, 50)), np.linspace(-2 * np.pi, 2 * np.pi, 50), np.full(50, -1.0)):
        Correspondences(POINTS, POINTS, angles0=right, angles1=right)


def test_a_ratio_upside_down_is_an_error():
    with pytest.raises(InputError, match=r"ratio: expected values in \[0, 1\], got .* nearest descriptor over"):
        Correspondences(POINTS, POINTS, ratio=np.linspace(1, 2, 50))


@pytest.mark.parametrize("sizes", [np.zeros(50), np.full(50, -1.0), np.full(50, np.nan)])
def test_sizes_that_are_none(sizes):
    with pytest.raises(InputError, match="keypoint_sizes0: expected"):
        Correspondences(POINTS, POINTS, keypoint_sizes0=sizes, keypoint_sizes1=sizes)


@pytest.mark.parametrize(
    ("points", "K", "size", "words"),
    [
        (POINTS / SIZE, None, SIZE, "points0: expected pixels, .* as if they were normalised"),
        (POINTS / SIZE * 2 - 1, None, SIZE, "as if they were normalised"),
        ((POINTS - K[:2, 2]) / 1400, K, None, "as if they were normalised"),
        (
            POINTS[:, ::-1],
            None,
            SIZE,
            r"points0: points lie outside the image; are x and y \(or width and height\) swapped\?",
        ),
        (POINTS, None, SIZE[::-1], "swapped"),
        (POINTS * 4, None, SIZE, "points0: most are outside the image of image_size0; are they of another resolution"),
        (POINTS, centred_camera(35, (1600, 1000)), SIZE, "K0: a focal length of 35 pixels .* not millimetres"),
        (POINTS, K * [[2.0], [2.0], [1.0]], SIZE, "K0: the principal point"),
        (POINTS, centred_camera(35, (36, 24)), None, "K0: with a focal length of 35, .* not millimetres"),
    ],
)
def test_likely_wrong_units_are_a_warning(points, K, size, words):
    given = {"K0": K, "K1": K, "image_size0": size, "image_size1": size}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.warns(UserWarning, match=words) as seen:
        Correspondences(points, points, **given)
    assert {warning.filename for warning in seen} == {__file__}, "at the caller's line"
    with pytest.warns(UserWarning, match=words):
        ananet.load("all")(points.copy(), points.copy(), **given)


def test_usual_and_degenerate_input_is_no_reason_to_warn():
    size = {"image_size0": SIZE, "image_size1": SIZE}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Correspondences(POINTS, POINTS, K0=K, K1=K, **size)
        Correspondences(POINTS, POINTS)
        Correspondences(POINTS / SIZE, POINTS / SIZE, K0=np.eye(3), K1=np.eye(3))
        for few in (0, 1, 7):
            Correspondences(POINTS[:few] / SIZE, POINTS[:few] / SIZE, **size)
        same = np.full((50, 2), 0.5)
        Correspondences(same, same, K0=K, K1=K, **size)
        outside = np.where(np.arange(50)[:, None] % 25 == 0, 65535.0, POINTS)
        Correspondences(outside, outside, **size)
    assert unit_doubt(0, np.zeros((0, 2)), None, SIZE) is None
