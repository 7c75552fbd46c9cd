"""Motions told apart: every case has an answer, the same for the same seed."""

import numpy as np
import pytest
import torch

import ananet
from ananet import Correspondences, InputError, group_motions
from ananet.core import geometry
from ananet.core.metrics import misclassification_error
from ananet.pruners import Pruned
from ananet.twoview.motions import in_words

K = np.array([[700.0, 0, 320], [0, 700.0, 240], [0, 0, 1]])
SIZE = {"image_size0": (640, 480), "image_size1": (640, 480)}


def turn(degrees, axis):
    axis = np.asarray(axis, float) / np.linalg.norm(axis)
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    angle = np.radians(degrees)
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def project(X):
    image = X @ K.T
    return image[:, :2] / image[:, 2:]


def body(random, count, centre, R=None, t=(0, 0, 0), depth=1.0, size=0.6, noise=0.3):
    """Matches of a rigid thing at a centre that turns about it and shifts; `depth` 0 makes it a plane."""
    X = np.asarray(centre) + size * random.uniform(-1, 1, (count, 3)) * [1, 1, depth]
    moved = (X - centre) @ (np.eye(3) if R is None else R).T + centre + np.asarray(t)
    return project(X), project(moved) + noise * random.standard_normal((count, 2))


def scene(*parts, wrong=0, random=None):
    """Matches of several things and some wrong ones, and their truth."""
    points0, points1 = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    truth = np.repeat(np.arange(len(parts)) + 1, [len(part[0]) for part in parts])
    if wrong:
        ends = random.uniform(0, [640, 480], (2, wrong, 2))
        points0, points1 = np.concatenate([points0, ends[0]]), np.concatenate([points1, ends[1]])
        truth = np.concatenate([truth, np.zeros(wrong, int)])
    return points0, points1, truth


@pytest.fixture
def random():
    return np.random.default_rng(5)


@pytest.fixture
def three(random):
    """Three things that move on their own, of 90, 60 and 40 matches, and 6 wrong ones."""
    return scene(
        body(random, 90, (-1.0, -0.4, 5), turn(12, (0, 1, 0)), (0.3, 0, 0)),
        body(random, 60, (1.0, 0.4, 5), turn(-15, (1, 0, 0)), (0, 0.3, 0.2)),
        body(random, 40, (0.9, -0.9, 4), turn(25, (0, 0, 1)), (-0.3, 0.1, 0)),
        wrong=6,
        random=random,
    )


def test_three_motions(three):
    points0, points1, truth = three
    motions = group_motions(Correspondences(points0, points1, **SIZE))
    assert len(motions) == 3
    assert misclassification_error(motions.labels, truth) < 0.05
    supports = [motion.support for motion in motions.motions]
    assert supports == sorted(supports, reverse=True)
    assert supports == [int((motions.labels == number).sum()) for number in range(3)]
    assert all(motion.kind == "fundamental" and 0.5 < motion.confidence <= 1 for motion in motions.motions)
    assert repr(motions).startswith("Motions(3 of 196 matches: ")


def test_models_explain_their_matches(three):
    points0, points1, _ = three
    matches = Correspondences(points0, points1, **SIZE)
    motions = group_motions(matches.to("cpu"))
    for number, motion in enumerate(motions.motions):
        own = matches[motions.labels == number].to("cpu")
        distance = geometry.sampson_distance(own.points0, own.points1, motion.model)
        assert distance.median() < 0.5


def test_cameras_make_the_models_essential(three):
    points0, points1, _ = three
    matches = Correspondences(points0, points1, K0=K, K1=K)
    motions = group_motions(matches)
    rays = matches._as_tensors().normalized()
    for number, motion in enumerate(motions.motions):
        assert motion.kind == "essential"
        values = np.linalg.svd(motion.model)[1]
        np.testing.assert_allclose(values, [2**-0.5, 2**-0.5, 0], atol=1e-9)
        own = torch.from_numpy(motions.labels == number)
        distance = 700 * geometry.sampson_distance(rays[own, :2], rays[own, 2:], torch.from_numpy(motion.model))
        assert distance.median() < 0.6


def test_the_same_seed_gives_the_same_answer(three):
    points0, points1, _ = three
    matches = Correspondences(points0, points1, **SIZE)
    first, second = group_motions(matches, seed=3), group_motions(matches, seed=3)
    np.testing.assert_array_equal(first.labels, second.labels)
    for one, other in zip(first.motions, second.motions, strict=True):
        np.testing.assert_array_equal(one.model, other.model)


def test_tensors_in_tensors_out(three):
    points0, points1, _ = three
    plain = group_motions(Correspondences(points0, points1))
    tensors = group_motions(Correspondences(torch.from_numpy(points0), torch.from_numpy(points1)))
    assert isinstance(plain.labels, np.ndarray) and isinstance(tensors.labels, torch.Tensor)
    assert all(isinstance(motion.model, torch.Tensor) for motion in tensors.motions)
    np.testing.assert_array_equal(plain.labels, tensors.labels)


def test_units_do_not_matter(three):
    points0, points1, truth = three
    small = group_motions(Correspondences(points0 / 700, points1 / 700))
    assert len(small) == 3 and misclassification_error(small.labels, truth) < 0.05


def test_what_was_not_kept_follows_nothing(three):
    points0, points1, truth = three
    matches = Correspondences(points0, points1, **SIZE)
    mask = truth != 2
    logits = np.where(mask, 3.0, -3.0).astype(np.float32)
    given = [{"mask": each} for each in (mask, torch.from_numpy(mask), mask.tolist())]
    for arguments in (*given, {"kept": Pruned(mask, logits, logits)}):
        motions = group_motions(matches, **arguments)
        assert len(motions) == 2
        assert (motions.labels[~mask] == -1).all()


def test_one_rigid_scene_of_two_planes_is_one_motion(random):
    R, t = turn(8, (0, 1, 0)), np.array([-0.8, 0.1, 0.1])
    parts = []
    for centre, depth_slope in (((-1.2, 0, 6), 0.8), ((1.2, 0, 5), -0.9)):
        X = np.asarray(centre) + random.uniform(-1, 1, (120, 3)) * [1, 1, 0]
        X[:, 2] += depth_slope * (X[:, 0] - centre[0])
        parts.append((project(X), project(X @ R.T + t) + 0.3 * random.standard_normal((120, 2))))
    points0, points1, _ = scene(*parts)
    motions = group_motions(Correspondences(points0, points1))
    assert len(motions) == 1 and motions.motions[0].kind == "fundamental"
    assert motions.motions[0].support >= 235


def test_a_planar_scene_is_one_homography(random):
    points0, points1 = body(random, 150, (0, 0, 5), turn(10, (0, 1, 0)), (0.3, 0, 0), depth=0.0, size=1.5)
    motions = group_motions(Correspondences(points0, points1))
    assert [motion.kind for motion in motions.motions] == ["homography"]
    moved = np.column_stack([points0, np.ones(150)]) @ motions.motions[0].model.T
    assert np.median(np.linalg.norm(moved[:, :2] / moved[:, 2:] - points1, axis=1)) < 0.6


def test_a_pure_rotation_is_one_homography(random):
    X = random.uniform([-2, -1.5, 3], [2, 1.5, 9], (200, 3))
    points1 = project(X @ turn(6, (0.2, 1, 0)).T) + 0.3 * random.standard_normal((200, 2))
    for cameras in ({}, {"K0": K, "K1": K}):
        motions = group_motions(Correspondences(project(X), points1, **cameras))
        assert [motion.kind for motion in motions.motions] == ["homography"]


def test_before_a_still_camera_what_moves_is_told_from_what_does_not(random):
    still = project(random.uniform([-2, -1.5, 3], [2, 1.5, 9], (120, 3)))
    car = body(random, 40, (0.5, 0.5, 5), t=(0.5, 0, 0))
    points0, points1, truth = scene((still, still + 0.1 * random.standard_normal(still.shape)), car)
    motions = group_motions(Correspondences(points0, points1))
    assert len(motions) == 2
    assert misclassification_error(motions.labels, truth) == 0
    assert motions.motions[0].kind == "homography"
    np.testing.assert_allclose(motions.motions[0].model, np.eye(3) / np.sqrt(3))


def test_two_equal_photos_are_one_motion(random):
    points = random.uniform(0, 480, (60, 2))
    motions = group_motions(Correspondences(points, points))
    assert len(motions) == 1 and (motions.labels == 0).all()


@pytest.mark.parametrize("count", [0, 1, 7])
def test_fewer_than_eight_matches_are_no_motion(random, count):
    points0, points1 = body(random, 30, (0, 0, 5), turn(10, (0, 1, 0)), (0.3, 0, 0))
    motions = group_motions(Correspondences(points0[:count], points1[:count]))
    assert len(motions) == 0 and (motions.labels == -1).all() and motions.labels.shape == (count,)
    assert in_words(motions.to_dict()) == "none found"


def test_eight_exact_matches_are_one_motion(random):
    points0, points1 = body(random, 8, (0, 0, 5), turn(10, (0, 1, 0)), (0.3, 0, 0), noise=0.0)
    assert len(group_motions(Correspondences(points0, points1))) == 1


def test_a_thing_of_five_matches_follows_nothing_of_its_own(random):
    points0, points1, truth = scene(
        body(random, 100, (-0.8, 0, 5), turn(12, (0, 1, 0)), (0.3, 0, 0), size=1.0),
        body(random, 5, (1.6, 1.0, 4), turn(-40, (1, 0, 0)), (0, -0.5, 0), size=0.2),
    )
    motions = group_motions(Correspondences(points0, points1))
    assert len(motions) == 1
    assert (motions.labels[truth == 1] == 0).mean() > 0.95


def test_five_motions(random):
    centres = [(-1.4, -0.9, 5), (1.4, -0.9, 5), (0, 0, 5), (-1.4, 0.9, 5), (1.4, 0.9, 5)]
    parts = [
        body(random, 60, centre, turn(angle, axis), shift, size=0.45)
        for centre, angle, axis, shift in zip(
            centres,
            (20, -25, 15, 30, -18),
            ((0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)),
            ((0.3, 0, 0), (0, 0.25, 0), (-0.2, -0.2, 0), (0.2, -0.3, 0.3), (-0.3, 0.1, -0.2)),
            strict=True,
        )
    ]
    points0, points1, truth = scene(*parts)
    motions = group_motions(Correspondences(points0, points1))
    assert len(motions) == 5
    assert misclassification_error(motions.labels, truth) < 0.08


def test_ninety_percent_wrong_matches(random):
    points0, points1, truth = scene(
        body(random, 70, (-0.8, 0, 5), turn(12, (0, 1, 0)), (0.3, 0, 0)),
        body(random, 50, (0.9, 0.3, 5), turn(-20, (1, 0, 0)), (0, 0.3, 0.2)),
        wrong=1080,
        random=random,
    )
    matches = Correspondences(points0, points1, **SIZE)
    motions = group_motions(matches, ananet.load("ananet", device="cpu")(matches))
    assert len(motions) == 2
    assert misclassification_error(motions.labels, truth) < 0.05


@pytest.mark.parametrize("count", [8, 20, 60, 200])
def test_random_matches_follow_nothing(random, count):
    found = [group_motions(Correspondences(*random.uniform(0, 600, (2, count, 2)))) for _ in range(5)]
    assert sum(len(motions) for motions in found) <= 1


@pytest.mark.parametrize("count", [8, 40])
def test_matches_at_one_place_follow_nothing(count):
    assert len(group_motions(Correspondences(np.ones((count, 2)), np.ones((count, 2))))) == 0


def test_matches_on_a_line_have_an_answer(random):
    x = random.uniform(0, 600, 50)
    motions = group_motions(Correspondences(np.column_stack([x, x]), np.column_stack([x + 9, x])))
    assert len(motions) <= 1


def test_many_matches_are_searched_by_a_part_of_them(random):
    points0, points1, truth = scene(
        body(random, 1200, (-1.0, 0, 5), turn(12, (0, 1, 0)), (0.3, 0, 0)),
        body(random, 800, (1.0, 0.2, 5), turn(-20, (1, 0, 0)), (0, 0.3, 0.2)),
    )
    motions = group_motions(Correspondences(points0, points1))
    assert len(motions) == 2 and misclassification_error(motions.labels, truth) < 0.03


def test_as_plain_numbers(three):
    points0, points1, _ = three
    motions = group_motions(Correspondences(points0, points1))
    plain = motions.to_dict()
    assert plain["count"] == 3 and plain["none"] == int((motions.labels == -1).sum())
    assert np.shape(plain["motions"][0]["model"]) == (3, 3)
    assert in_words(plain).startswith("3: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matches": 3}, "matches: expected Correspondences, got int"),
        ({"mask": np.ones(3, bool)}, "mask: expected 2 bool, got bool of shape"),
        ({"mask": np.ones(2)}, "mask: expected 2 bool, got float64"),
        ({"kept": np.ones(2, bool)}, "kept: expected a pruner's result, .* got ndarray; pass a bool array as mask"),
        ({"kept": Pruned(np.ones(3, bool), np.ones(2), np.ones(2))}, "kept: expected 2 bool"),
        ({"kept": Pruned(np.ones(2, bool), np.ones(2), np.ones(2)), "mask": [True, True]}, "either kept or mask"),
        ({"kept": Pruned(np.ones(2, bool), np.ones(3), np.ones(3))}, "kept: expected 2 logits"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"seed": 0.5}, "seed: expected a whole number"),
    ],
)
def test_wrong_input(change, message):
    arguments = {"matches": Correspondences([[0, 0], [1, 1]], [[0, 0], [1, 1]]), **change}
    with pytest.raises(InputError, match=message):
        group_motions(**arguments)
