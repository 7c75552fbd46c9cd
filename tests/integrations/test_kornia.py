"""On the real kornia."""

import math

import pytest
import torch

from ananet import InputError, load
from ananet.integrations.kornia import PrunedMatcher, WithFrames
from tests.conftest import make_problem
from tests.integrations.test_opencv import Seen

feature = pytest.importorskip("kornia.feature")


def frames(points, scale=6.0, orientation=0.0):
    count = len(points)
    scales, turns = torch.as_tensor(scale).expand(count), torch.as_tensor(orientation).expand(count)
    return feature.laf_from_center_scale_ori(points[None].float(), scales.view(1, -1, 1, 1), turns.view(1, -1, 1))


class Stored(torch.nn.Module):
    """A local feature that finds what it was given, in kornia's form."""

    def __init__(self, lafs, descriptors):
        super().__init__()
        self.found = {0: (lafs[0], descriptors[0]), 1: (lafs[1], descriptors[1])}

    def forward(self, image, mask=None):
        lafs, descriptors = self.found[int(image[0, 0, 0, 0])]
        # Detectors fill up with frames of zeros.
        lafs = torch.cat([lafs, torch.zeros(1, 5, 2, 3)], dim=1)
        descriptors = torch.cat([descriptors[None], torch.zeros(1, 5, descriptors.shape[1])], dim=1)
        return lafs, torch.ones(lafs.shape[:2]), descriptors


@pytest.fixture
def pair():
    """Frames and descriptors of two images; the nearest neighbour of each keypoint is its match."""
    problem = make_problem(inliers=150, outliers=100)
    generator = torch.Generator().manual_seed(0)
    descriptors = torch.randn(250, 32, generator=generator)
    others = descriptors + 0.1 * torch.randn(250, 32, generator=generator)
    order = torch.randperm(250, generator=generator)
    m = problem.matches._as_tensors()
    lafs = frames(m.points0), frames(m.points1[order])
    return problem, lafs, (descriptors, others[order]), order


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_signature_of_kornias_matchers(mode, pair):
    problem, lafs, descriptors, order = pair
    # By coordinates alone: the descriptors of wrong matches agree here as well as those of right ones.
    matcher = PrunedMatcher("ananet")
    with mode():
        distances, indices = matcher(*descriptors, *lafs, (480, 640), (480, 640))
    assert distances.shape == (len(indices), 1) and indices.shape[1] == 2 and indices.dtype == torch.int64
    assert ((distances >= 0) & (distances <= 0.6)).all()
    assert (order[indices[:, 1]] == indices[:, 0]).all()
    assert problem.inlier[indices[:, 0]].mean() > 0.9 and len(indices) > 100


def test_in_a_local_feature_matcher(pair):
    """kornia's own LocalFeatureMatcher, which shows matchers descriptors alone."""
    _, lafs, descriptors, _ = pair
    images = {f"image{number}": torch.full((1, 1, 480, 640), float(number)) for number in (0, 1)}
    matcher = feature.LocalFeatureMatcher(WithFrames(Stored(lafs, descriptors)), PrunedMatcher())
    with torch.inference_mode():
        found = matcher(images)
        distances, indices = PrunedMatcher()(*descriptors, *lafs, (480, 640), (480, 640))
    torch.testing.assert_close(found["keypoints0"], feature.get_laf_center(lafs[0])[0, indices[:, 0]])
    torch.testing.assert_close(found["keypoints1"], feature.get_laf_center(lafs[1])[0, indices[:, 1]])
    torch.testing.assert_close(found["confidence"].flatten(), 1 - distances[:, 0])


def test_with_a_detector_of_kornia():
    image = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    image = torch.nn.functional.interpolate(image, scale_factor=4, mode="bicubic")
    matcher = feature.LocalFeatureMatcher(WithFrames(feature.SIFTFeature(200)), PrunedMatcher())
    with torch.inference_mode():
        found = matcher({"image0": image, "image1": image})
    torch.testing.assert_close(found["keypoints0"], found["keypoints1"])
    assert len(found["keypoints0"]) > 50


def test_sizes_and_angles_from_frames():
    points = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    first, second = frames(points, torch.tensor([6.0, 12.0]), torch.tensor([0.0, 30.0])), frames(points, 9.0, 10.0)
    second[0, 1, :, :2] *= 2
    seen, descriptors = Seen(), torch.eye(2)
    PrunedMatcher(seen)(descriptors, descriptors, first, second, (50, 60), (50, 60))
    torch.testing.assert_close(seen.matches.keypoint_sizes0, torch.tensor([2.0, 4.0]))
    torch.testing.assert_close(seen.matches.keypoint_sizes1, torch.tensor([3.0, 6.0]))
    # kornia counts angles the other way round; those of the second image are all the same, and so not measured.
    assert seen.matches.angles0 is None
    assert seen.matches.image_size0 == (60, 50)
    turned = frames(points, 9.0, torch.tensor([10.0, -20.0]))
    PrunedMatcher(seen)(descriptors, descriptors, first, turned)
    torch.testing.assert_close(seen.matches.angles0, torch.tensor([0.0, -math.pi / 6]))
    assert seen.matches.image_size0 == (31, 41)


def test_nothing_and_nonsense():
    matcher = PrunedMatcher(load("all"))
    none = torch.zeros(1, 0, 2, 3)
    distances, indices = matcher(torch.zeros(0, 8), torch.zeros(3, 8), none, frames(torch.rand(3, 2)))
    assert distances.shape == (0, 1) and indices.shape == (0, 2)
    with pytest.raises(InputError, match="WithFrames"):
        matcher(torch.rand(5, 128), torch.rand(5, 128))
    with pytest.raises(InputError, match="WithFrames"):
        matcher(torch.rand(5, 4), torch.rand(5, 4))
