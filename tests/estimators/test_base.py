"""What holds for every estimator; the selection of matches; estimators by name."""

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, Pruned, estimate_pose
from ananet.core.geometry import rotation_error, sampson_distance, translation_error
from ananet.estimators import ESTIMATORS, estimate_fundamental, estimate_homography, load_estimator
from ananet.estimators.base import IN_WORDS, MIN_SELECTED, select_matches
from ananet.estimators.methods import MAGSAC, RANSAC, PoseLib
from tests.conftest import make_problem

# Those that tell wrong matches from right ones; `eight-point` has a file of its own.
NAMES = ("ransac", "magsac", "poselib")


@pytest.mark.parametrize("estimator", NAMES)
def test_pose_of_a_known_motion(estimator, problem):
    pose = estimate_pose(problem.matches, estimator)
    assert rotation_error(torch.from_numpy(pose.R), problem.R) < 0.5
    assert translation_error(torch.from_numpy(pose.t), problem.t) < 2
    assert pose.t @ problem.t.numpy() > 0, "points must lie in front of both cameras"
    assert np.linalg.norm(pose.t) == pytest.approx(1)
    assert problem.inlier[pose.inliers].mean() > 0.95


@pytest.mark.parametrize("estimator", ["magsac", "poselib"])
def test_scores_can_order_the_samples(estimator, problem):
    scores = problem.inlier + np.random.default_rng(0).random(len(problem.inlier))
    pose = estimate_pose(problem.matches.with_scores(scores), estimator, use_scores=True)
    assert rotation_error(torch.from_numpy(pose.R), problem.R) < 2
    # Inliers come back in the order of the input, not in the order of the scores.
    assert problem.inlier[pose.inliers].mean() > 0.9


@pytest.mark.parametrize("estimator", NAMES)
@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 7, 8])
def test_few_matches_have_an_answer_or_none(estimator, n):
    few = make_problem(inliers=30, outliers=0).matches[:n]
    pose = estimate_pose(few, estimator)
    assert pose is None or np.isfinite(pose.R).all()
    fundamental = estimate_fundamental(few, estimator)
    assert fundamental is None or (fundamental.F.shape == (3, 3) and fundamental.inliers.shape == (n,))
    homography = estimate_homography(few, estimator)
    assert homography is None or (homography.H.shape == (3, 3) and homography.inliers.shape == (n,))
    if n < 4:
        assert homography is None
    if n < 5:
        assert pose is None
    if n < 8:
        assert fundamental is None


@pytest.mark.parametrize("estimator", NAMES)
def test_identical_points_do_not_crash(estimator):
    same = np.full((20, 2), 50.0)
    matches = Correspondences(same, same, K0=np.diag([500, 500, 1.0]), K1=np.diag([500, 500, 1.0]))
    pose = estimate_pose(matches, estimator)
    assert pose is None or np.isfinite(pose.R).all()
    estimate_fundamental(matches, estimator)
    homography = estimate_homography(matches, estimator)
    assert homography is None or np.isfinite(homography.H).all()


@pytest.mark.parametrize("estimator", NAMES)
def test_fundamental_matrix_of_pixels(estimator, problem):
    found = estimate_fundamental(problem.matches, estimator)
    m = problem.matches._as_tensors()
    distance = sampson_distance(m.points0, m.points1, torch.from_numpy(found.F)).numpy()
    assert np.median(distance[problem.inlier]) < 0.5
    assert np.linalg.norm(found.F) == pytest.approx(1)
    np.testing.assert_array_equal(found.inliers, distance < load_estimator(estimator).settings("fundamental").threshold)


@pytest.mark.parametrize("estimator", NAMES)
def test_skewed_cameras(estimator):
    clean = make_problem(noise=0.0, outliers=0)
    m = clean.matches._as_tensors()
    skewed = m.K0 + torch.tensor([[0, 150.0, 0], [0, 0, 0], [0, 0, 0]])
    rays = m.normalized()
    p0, p1 = (torch.cat([r, torch.ones(len(m), 1)], dim=1) @ skewed.T for r in (rays[:, :2], rays[:, 2:]))
    pose = estimate_pose(Correspondences(p0[:, :2], p1[:, :2], K0=skewed, K1=skewed), estimator)
    assert all(isinstance(values, torch.Tensor) for values in (pose.R, pose.t, pose.inliers))
    assert rotation_error(pose.R, clean.R) < 0.01


@pytest.mark.parametrize("estimator", NAMES)
def test_a_loaded_estimator_answers_again_and_again(estimator, problem):
    loaded = load_estimator(estimator, threshold=2.0)
    poses = [loaded.pose(problem.matches) for _ in range(2)]
    np.testing.assert_array_equal(poses[0].R, poses[1].R)
    np.testing.assert_array_equal(poses[0].inliers, estimate_pose(problem.matches, estimator, threshold=2).inliers)
    assert loaded.fundamental(problem.matches).F.dtype == np.float64
    assert loaded.ray_threshold(problem.matches) == pytest.approx(2 / 500)


@pytest.mark.parametrize("estimator", NAMES)
@pytest.mark.parametrize("call", [estimate_pose, estimate_fundamental, estimate_homography])
def test_wrong_options_are_named(estimator, call, problem):
    for wrong in (0, -1, np.inf, np.nan, "1px", True, [1]):
        with pytest.raises(InputError, match="threshold: expected a (positive number of pixels|number), got"):
            call(problem.matches, estimator, threshold=wrong)
    for wrong in (0, 1, np.nan, "high", True):
        with pytest.raises(InputError, match="confidence: expected a (probability above 0 and below 1|number)"):
            call(problem.matches, estimator, confidence=wrong)
    with pytest.raises(InputError, match="use_scores: expected true or false, got 'yes'"):
        call(problem.matches, estimator, use_scores="yes")


def test_wrong_arguments_are_named(problem):
    with pytest.raises(InputError, match="expected one of .*poselib, ransac, magsac, eight-point, got 'lmeds'"):
        estimate_pose(problem.matches, "lmeds")
    with pytest.raises(InputError, match="threshold: expected a positive number of pixels, got 0"):
        estimate_pose(problem.matches, threshold=0)
    with pytest.raises(InputError, match="expected K0 and K1"):
        estimate_pose(Correspondences(np.zeros((9, 2)), np.zeros((9, 2))))
    with pytest.raises(
        InputError, match="use_scores: the estimator 'ransac' cannot use scores, expected magsac or poselib"
    ):
        estimate_pose(problem.matches, "ransac", use_scores=True)
    with pytest.raises(InputError, match="expected matches with scores"):
        estimate_pose(problem.matches, "magsac", use_scores=True)


@pytest.mark.parametrize("call", [estimate_pose, estimate_fundamental, estimate_homography])
@pytest.mark.parametrize("wrong", [np.zeros((9, 2)), [[1, 2]], None])
def test_only_correspondences_are_taken(call, wrong):
    with pytest.raises(InputError, match=f"matches: expected Correspondences, got {type(wrong).__name__}"):
        call(wrong)


def test_every_estimator_is_tested_here():
    assert {"ransac", "magsac", "poselib"} <= set(ESTIMATORS.names)


def pruned(mask, logits=None) -> Pruned:
    mask = np.asarray(mask)
    logits = np.where(mask, 2.0, -2.0).astype(np.float32) if logits is None else np.asarray(logits, np.float32)
    return Pruned(mask, 1 / (1 + np.exp(-logits)), logits)


def line(n: int, **more) -> Correspondences:
    """n matches of different points."""
    points = np.stack([np.arange(n), np.arange(n) % 7], axis=1) * 10.0
    return Correspondences(points, points + 3, image_size0=(640, 480), image_size1=(640, 480), **more)


def test_all_kept():
    mask = np.arange(60) % 2 == 0
    assert select_matches(line(60), pruned(mask), "all").tolist() == mask.tolist()


def test_mutual_ones_where_that_is_known():
    mask, mutual = np.arange(100) < 80, np.arange(100) % 2 == 0
    assert select_matches(line(100, mutual=mutual), pruned(mask), "one-to-one").tolist() == (mask & mutual).tolist()


def test_otherwise_the_best_of_conflicting_ones():
    matches = line(60)
    # Match 59 ends where match 0 ends, and begins elsewhere.
    points1 = matches.points1.copy()
    points1[59] = points1[0]
    matches = matches.replace(points1=points1)
    logits = np.full(60, 2.0)
    logits[59] = 1.0
    assert select_matches(matches, pruned(np.ones(60, bool), logits), "one-to-one").tolist() == [True] * 59 + [False]
    # What was not kept outdoes nothing.
    logits[0] = -1.0
    found = select_matches(matches, pruned(logits > 0, logits), "one-to-one")
    assert found.tolist() == [False] + [True] * 59


def test_without_cameras_and_sizes_nobody_knows_what_is_apart():
    points = np.zeros((50, 2))
    matches = Correspondences(points, points + np.arange(50)[:, None])
    assert select_matches(matches, pruned(np.ones(50, bool)), "one-to-one").all()


def test_few_are_not_made_fewer():
    n = MIN_SELECTED
    matches = line(n, mutual=np.arange(n) > 0)
    assert select_matches(matches, pruned(np.ones(n, bool)), "one-to-one").all()


@pytest.mark.parametrize("rule", IN_WORDS)
def test_nothing(rule):
    assert select_matches(line(0), pruned(np.zeros(0, bool)), rule).shape == (0,)


def test_tensors_on_any_side():
    found = select_matches(line(40), Pruned(torch.ones(40) > 0, torch.ones(40), torch.ones(40)), "one-to-one")
    assert found.dtype == torch.bool and found.all()


@pytest.mark.parametrize("name", ["poselib", "ransac", "magsac"])
def test_a_pose_of_a_pruners_answer(name, problem):
    kept = pruned(problem.inlier)
    pose = estimate_pose(problem.matches, name, kept=kept)
    assert pose is not None and pose.inliers.shape == problem.inlier.shape
    assert not pose.inliers[~problem.inlier].any()
    assert pose.inliers.sum() > 0.8 * problem.inlier.sum()


def test_wrong_answers_are_told(problem):
    with pytest.raises(InputError, match=r"kept: expected the result for these \d+ matches, got 3"):
        estimate_pose(problem.matches, kept=pruned([True] * 3))
    with pytest.raises(InputError, match="kept: expected a pruner's result, .* got ndarray"):
        estimate_pose(problem.matches, kept=problem.inlier)
    with pytest.raises(InputError, match="match_selection: expected one of one-to-one, all, got 'best'"):
        load_estimator("poselib", match_selection="best")


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
        ("ransac@loss=huber", "unknown option loss of estimator 'ransac': it has threshold, confidence, use_scores"),
        ("magsac@threshold", "estimator: expected an option as name=value after '@', got 'threshold'"),
        (7, "estimator: expected a name, got 7"),
    ],
)
def test_wrong_names_and_options_are_told(wrong, message):
    with pytest.raises(InputError, match=message):
        load_estimator(wrong)


def plane(noise: float = 0.3, wrong: int = 0, n: int = 120) -> tuple[Correspondences, np.ndarray]:
    """Matches of a plane with noise in both photos, the last ones wrong, and their homography."""
    rng = np.random.default_rng(3)
    H = np.array([[0.9, -0.2, 60.0], [0.15, 1.1, -30.0], [2e-4, -1e-4, 1.0]])
    points0 = rng.uniform(0, [640, 480], (n, 2))
    mapped = np.c_[points0, np.ones(n)] @ H.T
    points1 = mapped[:, :2] / mapped[:, 2:]
    points1[n - wrong :] = rng.uniform(0, [640, 480], (wrong, 2))
    noisy = [points + rng.normal(0, noise, (n, 2)) for points in (points0, points1)]
    return Correspondences(*noisy, image_size0=(640, 480), image_size1=(640, 480)), H


def corner_error(found: np.ndarray, H: np.ndarray) -> float:
    corners = np.array([[0, 0, 1], [640, 0, 1], [0, 480, 1], [640, 480, 1]])
    both = [corners @ matrix.T for matrix in (found, H)]
    return max(np.linalg.norm(both[0][:, :2] / both[0][:, 2:] - both[1][:, :2] / both[1][:, 2:], axis=1))


@pytest.mark.parametrize("estimator", NAMES)
def test_homography_of_a_plane(estimator):
    matches, H = plane(wrong=40)
    found = estimate_homography(matches, estimator)
    assert corner_error(found.H, H) < 3 and found.H[2, 2] == 1 and found.H.dtype == np.float64
    assert found.inliers[:80].mean() > 0.9 and found.inliers[80:].sum() <= 2


def test_homography_of_exact_matches_by_least_squares():
    matches, H = plane(noise=0.0)
    np.testing.assert_allclose(estimate_homography(matches, "eight-point").H, H, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", [estimate_fundamental, estimate_homography])
def test_every_model_takes_a_pruners_answer(name, call):
    matches, _ = plane(wrong=40)
    right = np.arange(120) < 80
    found = call(matches, name, kept=pruned(right))
    assert not found.inliers[~right].any() and found.inliers.sum() > 60
    assert call(matches, name, kept=pruned(~right & right)) is None
    with pytest.raises(InputError, match="kept: expected a pruner's result"):
        call(matches, name, kept=right)


def test_tensors_give_tensors_of_every_model():
    matches, _ = plane()
    given = Correspondences(torch.from_numpy(matches.points0), torch.from_numpy(matches.points1))
    fundamental, homography = estimate_fundamental(given), estimate_homography(given)
    assert isinstance(fundamental.F, torch.Tensor) and fundamental.inliers.dtype == torch.bool
    assert isinstance(homography.H, torch.Tensor) and homography.inliers.dtype == torch.bool


def test_models_are_named():
    with pytest.raises(InputError, match="model: expected one of essential, fundamental, homography, got 'affine'"):
        load_estimator().settings("affine")
