"""A few matches at places that no image has do not change the verdict on the others."""

import numpy as np
import pytest
import torch

import ananet
from ananet import Correspondences
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.weights import bundled
from tests.conftest import make_problem

WIDTH, HEIGHT, FOCAL = 1024, 768, 800.0
K = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])
SIZE = np.array([WIDTH, HEIGHT])
GIVEN = {"cameras": {"K0": K, "K1": K}, "sizes": {"image_size0": SIZE, "image_size1": SIZE}}
# Shares of 2000 matches, of half as many: time grows with the square.
PROBLEMS, MATCHES = 3, 1000


@pytest.fixture(scope="module")
def problems():
    """Points, ratios and mutual flags of matches as training sees them."""
    drawn = synthesize(PROBLEMS, torch.Generator().manual_seed(3), SyntheticSettings(matches=MATCHES))
    points = drawn.matches.double().numpy() * FOCAL + np.tile(SIZE / 2, 2)
    rng = np.random.default_rng(0)
    right = drawn.inlier.numpy()
    ratio = np.where(right, rng.uniform(0.3, 0.9, right.shape), rng.uniform(0.8, 1, right.shape))
    return [
        (rows[:, :2], rows[:, 2:], {"ratio": of_pair, "mutual": of_pair < 0.9})
        for rows, of_pair in zip(points, ratio, strict=True)
    ]


def far_places(count: int, rng: np.random.Generator) -> np.ndarray:
    """[count x 2] from just outside of the image to where single precision ends, in any direction."""
    angle = rng.uniform(0, 2 * np.pi, count)
    direction = np.c_[np.cos(angle), np.sin(angle)]
    # Distance from the centre to the border along the direction.
    border = (SIZE / 2 / np.maximum(np.abs(direction), 1e-9)).min(axis=1)
    # Half of them less than ten times as far as the border, the others anywhere.
    exponent = np.where(rng.random(count) < 0.5, rng.uniform(0.01, 1, count), rng.uniform(1, 35, count))
    return SIZE / 2 + direction * (border * 10**exponent)[:, None]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", sorted(bundled()))
def test_far_matches_change_little_of_the_others(name, given, problems):
    pruner = ananet.load(name, device="cpu")
    changed: dict[int, list[float]] = {1: [], 5: [], 50: []}
    for number, (points0, points1, side) in enumerate(problems):
        before = pruner(points0, points1, **GIVEN[given], **side).mask
        for count, shares in changed.items():
            rng = np.random.default_rng([number, count])
            moved = rng.choice(len(points0), count, replace=False)
            first = rng.random(count) < 0.5
            places = [points0.copy(), points1.copy()]
            places[0][moved[first]] = far_places(int(first.sum()), rng)
            places[1][moved[~first]] = far_places(int((~first).sum()), rng)
            others = np.delete(np.arange(len(points0)), moved)
            after = pruner(*places, **GIVEN[given], **side).mask
            shares.append((before != after)[others].mean())
    means = {count: np.mean(shares) for count, shares in changed.items()}
    assert max(means.values()) <= 0.02, means


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", sorted(bundled()))
def test_far_matches_change_what_leaving_them_out_changes(name, given, problems):
    pruner = ananet.load(name, device="cpu")
    points0, points1, side = problems[0]
    points0, points1, side = points0[:400], points1[:400], {kind: values[:400] for kind, values in side.items()}
    moved = np.random.default_rng(0).choice(400, 10, replace=False)
    others = np.delete(np.arange(400), moved)
    far = points0.copy()
    far[moved] = 65535
    together = pruner(far, points1, **GIVEN[given], **side)
    without = pruner(
        points0[others], points1[others], **GIVEN[given], **{kind: values[others] for kind, values in side.items()}
    )
    assert not together.mask[moved].any()
    np.testing.assert_array_equal(together.mask[others], without.mask)
    np.testing.assert_allclose(together.logits[others], without.logits, atol=1e-5)


@pytest.mark.parametrize("name", sorted(bundled()))
def test_batches_answer_as_single_calls_do_where_coordinates_are_impossible(name):
    pruner = ananet.load(name, device="cpu")
    m = make_problem(60, 40).matches
    p0, p1 = m.numpy_points()

    def pair(where, value, kind=np.float64):
        far = p0.copy()
        far[where] = value
        return Correspondences(far.astype(kind), p1.astype(kind), K0=m.K0, K1=m.K1, ratio=m.ratio, mutual=m.mutual)

    everyone = slice(None)
    pairs = [
        m,
        pair(everyone, 1e38),
        pair(everyone, -1e38, np.float32),
        pair(everyone, 1e300),
        pair(slice(0, 50), 1e38, np.float32),
        pair(slice(0, 99), 65535),
        pair(slice(0, 1), 3e38, np.float32)[:1],
        m[:0],
        pair(slice(0, 5), [1e38, -1e15]),
    ]
    for order in (pairs, pairs[::-1], pairs[1:4], pairs[1:2]):
        for together, one in zip(pruner.batch(order), order, strict=True):
            alone = pruner(one)
            assert np.isfinite(together.logits).all()
            np.testing.assert_allclose(together.logits, alone.logits, atol=1e-4, rtol=1e-4)
            np.testing.assert_array_equal(together.mask, alone.mask)


CLASSICAL = ["all", "mutual", "ratio", "gms", "lpm", "ransac", "magsac"]


@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("given", ["nothing", "cameras", "sizes"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_classical_pruners_keep_of_the_others_what_they_keep_without(name, given, kind):
    m = make_problem(1500, 500).matches
    p0, p1 = m.numpy_points()
    view = {
        "nothing": {},
        "cameras": {"K0": m.K0, "K1": m.K1},
        "sizes": {"image_size0": m.image_size0, "image_size1": m.image_size1},
    }[given]
    pruner = ananet.load(name)
    others = np.arange(len(m)) != 7
    alone = pruner(
        p0[others].astype(kind), p1[others].astype(kind), **view, ratio=m.ratio[others], mutual=m.mutual[others]
    )
    assert alone.mask.mean() > 0.2
    for place in ([1e15, 0], [1e30, -1e30], [-1e38, 1e38], [3e38, 3e38]):
        for far_first in (True, False):
            far = [p0.copy(), p1.copy()]
            far[0 if far_first else 1][7] = place
            kept = pruner(far[0].astype(kind), far[1].astype(kind), **view, ratio=m.ratio, mutual=m.mutual)
            np.testing.assert_array_equal(kept.mask[others], alone.mask)
            assert np.isfinite(kept.logits).all()
            assert name in ("all", "mutual", "ratio") or not kept.mask[7]


@pytest.mark.parametrize("name", CLASSICAL)
def test_far_matches_alone_get_an_answer(name):
    rng = np.random.default_rng(0)
    for scale in (1e15, 1e30, 1e38):
        far = rng.uniform(-1, 1, (30, 2)) * scale
        kept = ananet.load(name)(far, -far, ratio=np.full(30, 0.5), mutual=np.ones(30))
        assert kept.mask.shape == (30,) and np.isfinite(kept.logits).all()


def test_a_sentinel_does_not_stretch_the_grid():
    m = make_problem(1500, 500).matches
    p0, p1 = m.numpy_points()
    before = ananet.load("gms")(p0, p1).mask
    p0[:50] = 65535
    after = ananet.load("gms")(p0, p1).mask
    assert before.mean() > 0.3 and (before != after)[50:].mean() < 0.05 and not after[:50].any()
