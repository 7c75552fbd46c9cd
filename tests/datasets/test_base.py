from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError
from ananet.core.cameras import rotate_axes
from ananet.datasets.base import (
    LabelledPair,
    PairTable,
    PosedImage,
    PosedPair,
    PosedScene,
    is_hard,
    join,
    table_from_arrays,
    table_of_pairs,
)
from ananet.estimators import Pose
from tests.conftest import make_problem
from tests.datasets.depth_pairs import pair_with_depth


def posed(t: tuple[float, float, float] = (0, 0, 0), name: str = "a") -> PosedImage:
    return PosedImage(Path(name), np.eye(3), np.eye(3), np.array(t, float))


def test_poses_are_relative_and_turn_with_the_photos():
    pair = PosedPair(posed((0, 0, 1)), posed((2, 0, 1)))
    R, t = pair.relative_pose()
    assert R.tolist() == np.eye(3).tolist() and t.tolist() == [2, 0, 0]
    R, t = PosedPair(pair.image0, pair.image1, rotations=(0, 1)).relative_pose()
    np.testing.assert_allclose(R, rotate_axes(1))
    # What was on the right is on top of the turned photo.
    np.testing.assert_allclose(t, [0, -2, 0])


def test_without_a_baseline_there_is_no_epipolar_geometry():
    assert not PosedPair(posed((1, 2, 3)), posed((1, 2, 3 + 1e-7))).has_baseline
    assert PosedPair(posed((1, 2, 3)), posed((1, 2, 3.01))).has_baseline


def test_a_scene_has_its_listed_pairs_or_any_two():
    images = {name: posed(name=name) for name in "cab"}
    assert [pair.name for pair in PosedScene("s", images).all_pairs()] == ["a-b", "a-c", "b-c"]
    listed = [PosedPair(images["c"], images["a"], "c-a")]
    assert PosedScene("s", images, listed).all_pairs() is listed


def test_labels_follow_the_pose_whatever_its_length():
    problem = make_problem(noise=0.0)
    pair = LabelledPair.from_pose("p", problem.matches, problem.R, 7 * problem.t, "s")
    assert torch.equal(pair.inlier, pair.distance < 1e-4)
    assert pair.inlier[torch.from_numpy(problem.inlier)].all() and not pair.inlier.all()
    assert pair.t.norm() == pytest.approx(1) and pair.scene == "s"


def test_truth_by_depth():
    pair = pair_with_depth()
    known, right = pair.truth()
    near = torch.arange(200)
    assert torch.equal(known[near], (near < 140) | (near >= 200)), "right and accidental ones, not unknown ones"
    assert known[200:].all(), "a match off the line is wrong, even if its depth is unknown"
    assert right.sum() == 100 and right[:100].all()
    off_line = replace(pair, inlier=torch.zeros_like(pair.inlier))
    assert off_line.truth()[0].all() and not off_line.truth()[1].any()
    assert replace(pair, known=None, right=None, share=None).truth() is None
    hardly = torch.zeros_like(pair.known)
    assert replace(pair, known=hardly, right=hardly).truth() is None
    assert pair_with_depth(share=0).is_empty and not pair.is_empty


def test_hard_pairs():
    def hard(share: float = 0.5, **counts: int) -> bool:
        return pair_with_depth(share, **counts).hard

    assert hard(right=6, unknown=4) and not hard(right=6, unknown=4, share=0.19), "fewer than 12, of much common view"
    assert hard(right=13, unknown=0), "fewer than 30 % of 53 or more"
    assert not hard(right=40, unknown=0) and not hard(right=6), "unknown ones near the line may be right"
    pair = pair_with_depth(right=6, unknown=4)
    assert not is_hard(replace(pair, matches=pair.matches.replace(ratio=None)))
    assert not is_hard(replace(pair, known=None, right=None, share=None)) and not pair_with_depth(0).hard


def test_pose_errors():
    problem = make_problem()
    pair = LabelledPair.from_pose("p", problem.matches, problem.R, problem.t)
    found = pair.pose_error(Pose(problem.R.numpy(), -problem.t.numpy(), problem.inlier))
    assert found.worse < 0.01 and not found.failed, "the sign of a translation is not known"
    turned = problem.R.numpy() @ rotate_axes(1)
    assert pair.pose_error(Pose(turned, problem.t.numpy(), problem.inlier)).rotation == pytest.approx(90)
    assert pair.pose_error(None).failed and pair.pose_error(None).worse == 180


K = np.array([[300.0, 0, 161], [0, 310, 118], [0, 0, 1]])


def image(count: int, seed: int = 0, known: bool = True) -> dict[str, np.ndarray | None]:
    rng = np.random.default_rng(seed)
    return {
        "points": rng.uniform(0, 300, (count, 2)),
        "sizes": rng.uniform(2, 40, count) if known else None,
        "angles": rng.uniform(0, 6, count) if known else None,
        "K": K,
        "image_size": np.array([320, 240]),
    }


def pair(images: tuple[int, int], index: list[int]) -> dict[str, np.ndarray]:
    return {
        "images": np.array(images),
        "R": np.eye(3),
        "t": np.array([0.0, 0.6, 0.8]),
        "index": np.array(index),
        "ratio": np.linspace(0, 1, len(index)),
        "mutual": np.arange(len(index)) % 2 == 0,
    }


@pytest.fixture
def table() -> PairTable:
    images = [image(4, 0), image(3, 1), image(2, 2, known=False)]
    return table_from_arrays(images, [pair((0, 1), [2, 0, 0]), pair((1, 2), [1, 1])])


def test_arrays_become_flat_columns(table):
    table.check("here")
    assert (table.images, table.pairs) == (3, 2)
    assert table.image_start.tolist() == [0, 4, 7, 9] and table.pair_start.tolist() == [0, 3, 5]
    assert table.image_camera[2].tolist() == [300, 310, 161, 118]
    assert table.index.tolist() == [2, 0, 0, 1, 1] and table.ratio.tolist() == [0, 128, 255, 0, 255]
    assert table.sizes.dtype == table.angles.dtype == torch.float16
    for values in (table.sizes, table.angles):
        assert values[:7].isfinite().all() and values[7:].isnan().all(), "not known of the last image"
    np.testing.assert_allclose(table.sizes[:4], image(4, 0)["sizes"], rtol=1e-3)


def test_no_images_and_no_pairs_are_a_table():
    table = table_from_arrays([], [])
    table.check("here")
    assert (table.images, table.pairs) == (0, 0) and table.pair_rotation.shape == (0, 3, 3)


def test_joined_tables_hold_the_same_pairs(table):
    empty = table_from_arrays([image(5)], [])
    joined = join([empty, table, table])
    joined.check("here")
    assert (joined.images, joined.pairs) == (7, 4)
    assert joined.pair_images.tolist() == [[1, 2], [2, 3], [4, 5], [5, 6]]
    assert joined.image_start.tolist() == [0, 5, 9, 12, 14, 18, 21, 23]
    assert joined.pair_start.tolist() == [0, 3, 5, 8, 10]
    assert torch.equal(joined.points[5:14], table.points) and torch.equal(joined.points[14:], table.points)


def test_labelled_pairs_become_a_table():
    problem = make_problem(30, 20)
    bare = Correspondences(problem.matches.points0, problem.matches.points1, K0=K, K1=K)
    known = problem.matches.replace(
        keypoint_sizes0=torch.full((50,), 3.0),
        keypoint_sizes1=torch.full((50,), 6.0),
        angles0=torch.zeros(50),
        angles1=torch.ones(50),
    )
    table = table_of_pairs(LabelledPair.from_pose("p", m, problem.R, problem.t) for m in (known, bare))
    table.check("here")
    assert (table.images, table.pairs) == (4, 2) and table.pair_start.tolist() == [0, 50, 100]
    np.testing.assert_allclose(table.points[50:100], problem.matches.points1, atol=1e-4, rtol=0)
    assert table.sizes[:100].tolist() == [3.0] * 50 + [6.0] * 50 and table.angles[50:100].tolist() == [1.0] * 50
    assert table.sizes[100:].isnan().all() and table.angles[100:].isnan().all()
    assert table.ratio[50:].tolist() == [255] * 50, "nothing speaks for a match whose ratio nobody knows"
    assert not table.mutual[50:].any() and np.array_equal(table.mutual[:50], problem.matches.mutual)
    assert table.image_size.tolist() == [[640, 480], [640, 480], [323, 237], [323, 237]]


def test_pairs_without_cameras_or_poses_are_no_table():
    problem = make_problem(30, 20)
    with pytest.raises(InputError, match="pairs: expected cameras and a pose of every pair, 'p' lacks them"):
        table_of_pairs([LabelledPair("p", problem.matches, torch.from_numpy(problem.inlier))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_start": torch.tensor([0, 4, 7, 10])}, "image_start does not fit the 9 entries"),
        ({"pair_start": torch.tensor([0, 6, 5])}, "pair_start does not fit the 5 entries"),
        ({"pair_start": torch.zeros(0, dtype=torch.int64)}, "pair_start does not fit"),
        ({"sizes": torch.zeros(8)}, "expected 9 entries of sizes, got 8"),
        ({"mutual": torch.zeros(4, dtype=torch.bool)}, "expected 5 entries of mutual, got 4"),
        ({"pair_images": torch.tensor([[0, 1], [1, 3]])}, "pairs refer to images that are not there"),
        ({"pair_images": torch.tensor([[0, 1], [-1, 2]])}, "pairs refer to images that are not there"),
        ({"index": torch.tensor([2, 0, 0, 1, 2], dtype=torch.int32)}, "matches refer to keypoints"),
        ({"index": torch.tensor([2, 0, 0, 1, -1], dtype=torch.int32)}, "matches refer to keypoints"),
        ({"pair_start": torch.tensor([0, 1, 5])}, "matches refer to keypoints"),
        ({"points": torch.full((9, 2), float("nan"))}, "points holds NaN or infinity"),
        ({"pair_translation": torch.full((2, 3), float("inf"))}, "pair_translation holds NaN or infinity"),
    ],
)
def test_tables_that_contradict_themselves_are_refused(table, change, message):
    with pytest.raises(InputError, match=f"here: {message}"):
        replace(table, **change).check("here")
