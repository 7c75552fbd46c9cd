from dataclasses import replace

import numpy as np
import pytest

from ananet.core.cameras import project
from ananet.datasets.depth import (
    MIN_AGREEING,
    Depths,
    KeypointDepths,
    View,
    agreeing,
    common_view,
    images_of,
    join_tracks,
    label_matches,
    tracks_of,
    triangulate,
    with_surroundings,
)
from ananet.datasets.scene_depth import scene_depths

K = np.array([[800.0, 0, 500], [0, 800, 500], [0, 0, 1]])


def look_at(centre, target=(0, 0, 5)) -> tuple[np.ndarray, np.ndarray]:
    """World-to-camera pose of a camera that looks at a point, with y downwards."""
    z = np.subtract(target, centre) / np.linalg.norm(np.subtract(target, centre))
    x = np.cross([0, 1, 0], z)
    x /= np.linalg.norm(x)
    R = np.stack([x, np.cross(z, x), z])
    return R, -R @ np.array(centre, float)


def view_of(points: np.ndarray, centre, seed: int = 0, lost: int = 0) -> View:
    """A camera that sees points of the world; descriptors are the same in all views, but for the last, lost ones."""
    R, t = look_at(centre)
    seen = points @ R.T + t
    descriptors = np.random.default_rng(99).normal(size=(len(points), 32)).astype(np.float32)
    descriptors[len(points) - lost :] = np.random.default_rng(seed).normal(size=(lost, 32))
    return View(project(seen[:, :2] / seen[:, 2:], K).astype(np.float32), descriptors, K, R, t, (1000, 1000))


@pytest.fixture
def world() -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack([rng.uniform(-2, 2, 200), rng.uniform(-2, 2, 200), rng.uniform(4, 7, 200)], axis=1)


def run(_name, function, arguments):
    return list(map(function, arguments))


def test_points_are_triangulated(world):
    first, second = view_of(world, (0, 0, 0)), view_of(world, (1, 0.2, 0))
    index = np.arange(200)[:, None].repeat(2, axis=1)
    inverse, deviation = triangulate(first, second, index)
    true = 1 / (world @ first.R.T + first.t)[:, 2]
    np.testing.assert_allclose(inverse, true, rtol=1e-4)
    # The deviation is what a pixel in the second photo amounts to.
    moved = view_of(world, (1, 0.2, 0))
    place, slope = images_of(first, second, index[:, 0], true)
    np.testing.assert_allclose(place, second.points, atol=1e-3)
    moved.points[:] = place + slope / np.linalg.norm(slope, axis=1, keepdims=True)
    np.testing.assert_allclose(triangulate(first, moved, index)[0] - true, deviation, rtol=0.05)
    # Off the line, and behind a camera.
    across = np.stack([-slope[:, 1], slope[:, 0]], axis=1) / np.linalg.norm(slope, axis=1, keepdims=True)
    moved.points[:] = place + 3 * across
    assert np.isnan(triangulate(first, moved, index)[0]).all()
    moved.points[:] = place - 2000 * slope / np.linalg.norm(slope, axis=1, keepdims=True)
    assert np.isnan(triangulate(first, moved, index)[0]).all()


def test_points_at_infinity_are_nothing_special():
    far = np.array([[0.0, 0, 1e7], [1e6, 1e5, 1e7]])
    first, second = view_of(far, (0, 0, 0)), view_of(far, (1, 0, 0))
    inverse, deviation = triangulate(first, second, np.array([[0, 0], [1, 1]]))
    assert (np.abs(inverse) < deviation).all()


def test_the_largest_group_that_agrees_is_kept():
    nan = np.nan
    values = np.array([[1.0, 1.01, 2.0, nan], [nan, nan, nan, nan], [3.0, nan, nan, 9.0]], np.float32)
    deviations = np.full_like(values, 0.01)
    deviations[2, 3] = 0.001
    kept, of_kept = agreeing(values, np.where(np.isnan(values), nan, deviations))
    np.testing.assert_array_equal(kept, np.array([[1.0, 1.01, nan, nan], [nan] * 4, [nan, nan, nan, 9.0]], np.float32))
    assert np.array_equal(np.isfinite(kept), np.isfinite(of_kept))
    assert agreeing(values[:, :0], deviations[:, :0])[0].shape == (3, 0)


def test_the_other_photo_of_a_pair_does_not_count():
    """Its depth is left out of the mean, and a keypoint that is left with one photo has no depth."""
    values = np.array([[1.0, 1.0, 1.3], [1.0, 1.0, np.nan]], np.float32)
    depths = KeypointDepths(np.array([4, 7, 9]), values, np.where(np.isnan(values), np.nan, 0.1).astype(np.float32))
    assert MIN_AGREEING == 2
    np.testing.assert_allclose(depths.without().inverse, [1.1, 1.0], rtol=1e-6)
    np.testing.assert_allclose(depths.without(9).inverse, [1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(depths.without(4).inverse, [1.15, np.nan], rtol=1e-6)
    np.testing.assert_allclose(depths.without(4, agreeing=1).inverse, [1.15, 1.0], rtol=1e-6)
    np.testing.assert_allclose(depths.without().deviation, [0.1 / 3**0.5, 0.1 / 2**0.5], rtol=1e-6)


def test_surroundings_tell_the_depth_where_it_is_even():
    """On a plane the depth is known well; at an edge its range is wide; alone nothing is known."""
    rng = np.random.default_rng(0)
    around = rng.uniform(-40, 40, (20, 2))
    middle = np.array([[200, 200], [600, 600], [950, 50]])
    points = np.concatenate([middle[0] + around, middle[1] + around, middle])
    slanted, edge = 0.2 + around @ np.array([1e-3, -2e-3]), np.where(around[:, 0] > 0, 0.5, 0.2)
    inverse = np.concatenate([slanted, edge, np.full(3, np.nan)]).astype(np.float32)
    values = inverse[:, None].repeat(3, axis=1)
    values[40:, :] = np.nan
    depths = KeypointDepths(np.array([1, 2, 3]), values, np.where(np.isnan(values), np.nan, 1e-3).astype(np.float32))
    view = View(points.astype(np.float32), np.zeros((43, 2)), K, np.eye(3), np.zeros(3), (1000, 1000))
    whole = with_surroundings(depths, view)
    found = whole.without()
    assert abs(found.inverse[40] - 0.2) < 1e-3 and found.deviation[40] < 3e-3
    assert 0.2 < found.inverse[41] < 0.5 and found.deviation[41] > 0.1
    assert np.isnan(found.inverse[42])
    np.testing.assert_allclose(whole.without(1).inverse[40], 0.2, atol=1e-3)
    few = KeypointDepths(depths.photos, values[:, :2], depths.deviations[:, :2])
    assert np.isnan(with_surroundings(replace(few, photos=few.photos[:2]), view).without(1).inverse).all()


def test_the_range_of_a_photo_excludes_what_is_nearer():
    inverse = np.concatenate([np.linspace(0.1, 0.2, 150), [np.nan]])
    found = Depths(inverse, np.where(np.isnan(inverse), np.nan, 1e-3)).within_range()
    low, high = found.inverse[150] - 2 * found.deviation[150], found.inverse[150] + 2 * found.deviation[150]
    assert low < 0 and 0.2 < high < 0.4 and np.array_equal(found.inverse[:150], inverse[:150])
    assert np.isnan(Depths(inverse[-50:], inverse[-50:]).within_range().inverse[-1]), "too few to show a range"


def test_a_scene_labels_right_accidental_wrong_and_unknown(world):
    centres = [(0, 0, 0), (1, 0.1, 0), (-1, 0, 0.2), (0.5, -0.8, 0), (2, 0.3, 0.5)]
    views = [view_of(world, centre, seed, lost=40) for seed, centre in enumerate(centres)]
    depths = scene_depths(views, 100, run)
    first, second = views[0], views[1]
    depths0, depths1 = depths[0].without(1), depths[1].without(0)
    true = 1 / (world @ first.R.T + first.t)[:, 2]
    known = np.isfinite(depths0.inverse)
    assert known[:160].all()
    np.testing.assert_allclose(depths0.inverse[:160], true[:160], rtol=1e-3)

    # Keypoints 160 to 199 have no descriptor in common: of them nothing is known but their surroundings.
    lonely = np.flatnonzero(~known & ~np.isfinite(depths1.inverse))
    place, slope = images_of(first, second, np.arange(200), true)
    along = slope / np.linalg.norm(slope, axis=1, keepdims=True)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    moved = {
        "right": place + 1,
        "accidental": place + 60 * along,
        "wrong": place + 60 * across,
        "between": place + 6 * along,
    }
    index = np.arange(200)[:, None].repeat(2, axis=1)
    labels = {}
    for name, points in moved.items():
        other = View(points, second.descriptors, K, second.R, second.t, second.image_size)
        # The second keypoint is somewhere else, so that its own depth is not known.
        nothing = Depths(np.full(200, np.nan), np.full(200, np.nan))
        labels[name] = label_matches(first, other, index, depths0, nothing)
        assert not labels[name][0][lonely].any() and not labels[name][1][lonely].any()
    tracked = slice(0, 160)
    assert labels["right"][0][tracked].all() and labels["right"][1][tracked].all()
    assert labels["accidental"][0][tracked].all() and not labels["accidental"][1].any()
    assert labels["wrong"][0][tracked].all() and not labels["wrong"][1].any()
    assert not labels["between"][0][tracked].any()
    # Either keypoint alone is enough, and behind the camera nothing is right.
    of_second = label_matches(first, second, index, Depths(np.full(200, np.nan), np.full(200, np.nan)), depths1)
    assert of_second[1][tracked].all()
    behind = Depths(np.full(200, 100.0), np.full(200, 1e-6))
    turned = View(
        second.points, second.descriptors, K, np.diag([-1.0, 1, -1]) @ first.R, np.array([0, 0, -9.0]), (1000, 1000)
    )
    assert np.array_equal(
        label_matches(first, turned, index, behind, nothing), (np.ones(200, bool), np.zeros(200, bool))
    )


def test_contradictions_are_unknown(world):
    first, second = view_of(world, (0, 0, 0)), view_of(world, (1, 0, 0))
    index = np.arange(200)[:, None].repeat(2, axis=1)
    inverse0, deviation0 = triangulate(first, second, index)
    inverse1, deviation1 = triangulate(second, first, index)
    good0, good1 = Depths(inverse0, deviation0 / 100), Depths(inverse1, deviation1 / 100)
    assert label_matches(first, second, index, good0, good1)[1].all()
    known, right = label_matches(first, second, index, good0, Depths(inverse1 * 2, good1.deviation))
    assert not known.any() and not right.any()
    # An uncertain depth predicts no place, and calls nothing wrong that is within its range.
    known, _ = label_matches(first, second, index, *(Depths(d.inverse * 1.1, d.inverse) for d in (good0, good1)))
    assert not known.any()


def test_common_view(world):
    first = view_of(world, (0, 0, 0))
    depths = Depths(1 / (world @ first.R.T + first.t)[:, 2], np.full(200, 1e-6))
    share, angle = common_view(first, view_of(world, (0.5, 0, 0)), depths)
    assert share > 0.8 and 3 < angle < 8
    assert common_view(first, view_of(world, (0, 0, 11)), depths) == (0, 0), "the other side"
    assert common_view(first, view_of(world, (0, 0, 4)), depths)[0] < 0.5, "much larger"
    away = View(first.points, first.descriptors, K, np.diag([-1.0, 1, -1]) @ first.R, first.t, (1000, 1000))
    assert common_view(first, away, depths) == (0, 0)
    nothing = Depths(np.full(200, np.nan), np.full(200, np.nan))
    assert np.isnan(common_view(first, away, nothing)[0])


def test_photos_without_keypoints_or_matches():
    empty = View(np.zeros((0, 2), np.float32), np.zeros((0, 32), np.float32), K, np.eye(3), np.zeros(3), (1000, 1000))
    some = view_of(np.random.default_rng(0).normal(size=(9, 3)) + np.array([0, 0, 5]), (1, 0, 0))
    for first, second in ((empty, some), (some, empty), (empty, empty)):
        assert [len(part) for tracks in tracks_of(first, second) for part in tracks] == [0] * 6
    depths = scene_depths([empty, some, some], 100, run)
    assert [len(each.without().inverse) for each in depths] == [0, 9, 9]
    assert np.isnan(depths[1].without().inverse).all(), "two photos at one place give no depth"
    assert join_tracks(5, {}).without().inverse.shape == (5,)
    none = label_matches(empty, some, np.zeros((0, 2), np.int64), depths[0].without(), depths[1].without())
    assert [len(each) for each in none] == [0, 0]
