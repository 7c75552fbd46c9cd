"""Photos around a mug whose print repeats on its other side, as exact projections."""

import numpy as np
import pytest

from ananet import InputError
from ananet.core.cameras import centred_camera
from ananet.twoview.collection import Confirmation, confirm_pairs, in_words

PHOTOS, SIZE = 24, (640, 480)
K = centred_camera(600, SIZE)


@pytest.fixture(scope="module")
def mug():
    return make_mug()


def make_mug():
    """Keypoints, sizes, matches of all pairs, of the same points or of points on opposite sides, and cameras."""
    rng = np.random.default_rng(0)
    half = 150
    angle, height = rng.uniform(0, np.pi, half), rng.uniform(-1, 1, half)
    # The table around it does not repeat.
    table = np.column_stack([rng.uniform(-2, 2, (300, 2)), np.full(300, 1.2)])
    angle, height = np.concatenate([angle, angle + np.pi]), np.concatenate([height, height])
    points = np.concatenate([np.column_stack([np.cos(angle), np.sin(angle), height]), table])
    seen, keypoints = [], {}
    for photo in range(PHOTOS):
        turn = 2 * np.pi * photo / PHOTOS
        centre = 5 * np.array([np.cos(turn), np.sin(turn), 0])
        R = np.stack([[-np.sin(turn), np.cos(turn), 0], [0, 0, 1], [-np.cos(turn), -np.sin(turn), 0]])
        visible = np.cos(angle - turn) > 0.3
        # Of the table, only the part in front.
        visible = np.concatenate([visible, table @ centre > 3])
        local = (points[visible] - centre) @ R.T @ K.T
        keypoints[photo] = local[:, :2] / local[:, 2:] + rng.normal(0, 0.3, (visible.sum(), 2))
        seen.append({int(point): row for row, point in enumerate(np.flatnonzero(visible))})
    other_side = {point: (point + half) % (2 * half) for point in range(2 * half)}
    matches = {}
    for a in range(PHOTOS):
        for b in range(a + 1, PHOTOS):
            pairs = [(row, seen[b][point]) for point, row in seen[a].items() if point in seen[b]]
            if len(pairs) < 40:
                pairs = [(row, seen[b][other_side[p]]) for p, row in seen[a].items() if other_side.get(p) in seen[b]]
            matches[a, b] = np.array(pairs, np.int64).reshape(-1, 2)
    return keypoints, dict.fromkeys(keypoints, SIZE), matches, dict.fromkeys(keypoints, K)


def apart(pair: tuple[int, int]) -> float:
    steps = abs(pair[0] - pair[1])
    return 360 / PHOTOS * min(steps, PHOTOS - steps)


def test_opposite_sides_are_doubtful_and_neighbours_are_not(mug):
    found = confirm_pairs(*mug)
    opposite = [pair for pair in found if apart(pair) > 150 and len(mug[2][pair]) >= 15]
    assert len(opposite) > 20 and all(found[pair].doubtful for pair in opposite)
    assert all(found[pair].confirmed < 0.1 and found[pair].turn > 90 for pair in opposite)
    near = [found[pair] for pair in found if apart(pair) <= 45]
    assert not any(one.doubtful for one in near) and np.median([one.confirmed for one in near]) > 0.7


def test_the_circle_is_closed(mug):
    found = confirm_pairs(*mug)
    assert not any(found[tuple(sorted((a, (a + 1) % PHOTOS)))].doubtful for a in range(PHOTOS))


def test_pairs_that_connect_photos_are_never_doubtful(mug):
    keypoints, sizes, matches, cameras = mug
    alone = {(0, 12): matches[0, 12]}
    assert confirm_pairs(keypoints, sizes, alone, cameras) == {(0, 12): Confirmation(1.0, None, False)}
    # Without cameras they are guessed.
    assert confirm_pairs(keypoints, sizes, alone) == {(0, 12): Confirmation(1.0, None, False)}


def test_a_few_matches_say_nothing(mug):
    keypoints, sizes, matches, cameras = mug
    few = {pair: kept[:14] for pair, kept in matches.items()}
    assert set(confirm_pairs(keypoints, sizes, few, cameras).values()) == {Confirmation(0.0, None, False)}
    assert confirm_pairs({}, {}, {}) == {}


def test_keypoints_that_are_not_there(mug):
    keypoints, sizes, matches, cameras = mug
    with pytest.raises(InputError, match=r"expected keypoints below \d+ of photo \d+, got -?\d+ in \(0, 1\)"):
        confirm_pairs(keypoints, sizes, {(0, 1): matches[0, 1] + 10_000}, cameras)


def test_reasons():
    assert in_words(Confirmation(0.02, 120.0, True)) == (
        "stronger pairs confirm 2% of its matches, its rotation is 120 degrees off"
    )
    assert in_words(Confirmation(0.02, None, True)) == "stronger pairs confirm 2% of its matches"
