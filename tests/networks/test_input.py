"""What a network reads of matches."""

import math

import numpy as np
import pytest
import torch

from ananet import Correspondences
from ananet.networks.input import USUAL_LOG_SIZE, network_input, side_channels, side_input, within_view

POINTS = np.array([[10.0, 20], [30, 40]])
K = np.diag([500.0, 500, 1])


def some(**given):
    return Correspondences(POINTS, POINTS + 1, K0=K, K1=K, **given)


def test_coordinates_alone():
    found = network_input(some(ratio=[0.5, 1.0]), ())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, some()._as_tensors().normalized().float())


def test_every_kind_by_hand():
    matches = some(
        ratio=[0.25, 1.0],
        mutual=[True, False],
        keypoint_sizes0=[4.0, 8.0],
        keypoint_sizes1=[8.0, 2.0],
        angles0=[0.0, 1.0],
        angles1=[math.pi / 2, 1.0],
    )
    side = ("mutual", "angle", "ratio", "size")
    found = network_input(matches, side)
    assert found.shape == (2, 4 + side_channels(side)) == (2, 10)
    larger = math.log2(8 / 500) - USUAL_LOG_SIZE
    expected = [[1, 0, 1, 0.75, 1, larger], [-1, 1, 0, 0, -2, larger]]
    torch.testing.assert_close(found[:, 4:], torch.tensor(expected), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("side", [("ratio",), ("mutual",), ("size",), ("angle",), ("angle", "size", "ratio")])
def test_what_is_not_known_is_zero(side):
    found = network_input(some(), side)
    assert found.shape == (2, 4 + side_channels(side))
    assert found[:, 4:].abs().sum() == 0


def test_single_keypoints_may_be_unknown():
    sizes = torch.tensor([[4.0, torch.nan], [4.0, 4.0]])
    angles = torch.tensor([[torch.nan, 1.0], [1.0, 1.0]])
    found = side_input(("size", "angle"), torch.zeros(2), None, None, sizes, angles)
    assert found.isfinite().all()
    assert found[0].abs().sum() == 0
    assert found[1, 2:].tolist() == [1, 0]


def test_batches_and_types_follow_the_coordinates():
    like = torch.zeros(3, 5, dtype=torch.float64)
    found = side_input(("ratio", "mutual"), like, torch.rand(3, 5), torch.ones(3, 5, dtype=torch.bool))
    assert found.shape == (3, 5, 2) and found.dtype == torch.float64


def test_sizes_beyond_reason_stay_bounded():
    found = network_input(some(keypoint_sizes0=[1e-30, 1e30], keypoint_sizes1=[1e30, 1e-30]), ("size",))
    assert found[:, 4:].abs().max() <= 8


def test_what_lies_far_outside_is_out_of_view():
    first = np.array([[320.0, 240], [-319, 0], [-321, 0], [65535, 65535], [959, 799], [961, 0], [0, 801]])
    expected = [True, True, False, False, True, False, False]
    middle = np.full_like(first, 200.0)
    for points in ((first, middle), (middle, first)):
        sized = Correspondences(*points, image_size0=(640, 480), image_size1=(640, 480))._as_tensors()
        assert within_view(sized, sized.normalized()).tolist() == expected
    K0 = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
    far = np.array([[320.0, 240], [1319, 240], [1321, 240], [320, -761]])
    calibrated = Correspondences(far, np.full_like(far, 200.0), K0=K0, K1=K0)._as_tensors()
    assert within_view(calibrated, calibrated.normalized()).tolist() == [True, True, False, False]
