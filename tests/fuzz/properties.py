"""What an answer has to do with another: of matches in another order, with one match more, in other pixels.

Matches lie as those of photos do, so that every case is answered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import ananet
from ananet import Correspondences
from ananet.core.cameras import centred_camera
from ananet.core.correspondences import PER_MATCH
from ananet.estimators import load_estimator
from ananet.pruners import Pruned
from tests.conftest import make_problem
from tests.fuzz.campaign import Case, target

# Every match of a network attends to every other one: with seeds, which matches form a group may depend on rounding.
NETWORK = "ananet-small@seeds=0"
# Of the others, those that draw no random samples of matches.
PRUNERS = (NETWORK, "all", "mutual", "ratio", "gms", "lpm", "lmf")
# Whose answer about a match follows from this match alone, or which treat both photos alike.
BY_THEMSELVES, SYMMETRIC = ("all", "mutual", "ratio"), ("all", "mutual", "ratio", "lpm")
COUNTS = (1, 2, 3, 5, 8, 9, 16, 33, 80, 200)
SIZE = (640, 480)
# Logits that differ by less differ by rounding: of sums in another order, and of pixels that have no exact multiple.
ROUNDING = 0.05
# With few matches, networks with geometric feedback may see two geometries; rounding tells which one weighs more.
FEW, ROUNDING_OF_FEW = 33, 0.5
# Of a network's decisions on as many matches, one match more, or the photos swapped, may change such shares.
MANY, CHANGED, SWAPPED = 80, 0.1, 0.25
# In degrees: estimators draw samples, so poses of the same matches differ a little.
ANGLE = 1.0

Given = dict[str, Any]


def drawn(data: st.DataObject, counts: tuple[int, ...] = COUNTS) -> Given:
    """Matches of a bent plane that is turned and scaled, and wrong ones among them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count = data.draw(st.sampled_from(counts))
    right = rng.random(count) < rng.uniform(0.3, 1)
    first, centre = rng.uniform(0, SIZE, (count, 2)), np.array(SIZE) / 2
    angle, scale = rng.normal(0, 0.3), np.exp(rng.normal(0, 0.2))
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    bend = rng.uniform(0, 20) * np.sin(first / rng.uniform(60, 200))
    moved = (first - centre) @ turn.T + centre + bend + rng.normal(0, 0.5, (count, 2))
    given: Given = {
        "points0": first,
        "points1": np.where(right[:, None], moved, rng.uniform(0, SIZE, (count, 2))),
        "image_size0": SIZE,
        "image_size1": SIZE,
        "ratio": np.where(right, rng.uniform(0.3, 0.9, count), rng.uniform(0.7, 1, count)),
        "mutual": right | (rng.random(count) < 0.3),
    }
    if data.draw(st.booleans()):
        given |= dict.fromkeys(("K0", "K1"), centred_camera(600, SIZE))
    if data.draw(st.booleans()):
        given |= {f"keypoint_sizes{side}": rng.uniform(2, 20, count) for side in (0, 1)}
        given |= {f"angles{side}": rng.uniform(-3, 3, count) for side in (0, 1)}
    return given


def chosen(given: Given, which: np.ndarray) -> Given:
    """Matches by their numbers."""
    return {name: value[which] if name in PER_MATCH else value for name, value in given.items()}


def swapped(given: Given) -> Given:
    """The same matches from the second photo to the first."""
    other = {"0": "1", "1": "0"}
    return {name[:-1] + other.get(name[-1], name[-1]): value for name, value in given.items()}


def scaled(given: Given, factor: float) -> Given:
    """The same matches of photos with so many times the pixels along each side."""
    larger = given | {name: given[name] * factor for name in given if name.startswith(("points", "keypoint_sizes"))}
    larger |= {name: tuple(factor * side for side in SIZE) for name in ("image_size0", "image_size1")}
    return larger | {name: np.diag([factor, factor, 1]) @ given[name] for name in ("K0", "K1") if name in given}


def with_copy(given: Given, number: int) -> Given:
    """One match twice; the copy is the last."""
    return chosen(given, np.append(np.arange(len(given["points0"])), number))


def assert_same(found: Pruned, expected: Pruned, decision: float, rounding: float = ROUNDING) -> None:
    """The same scores, and the same decisions but where a score lies at the threshold."""
    if rounding and len(expected.mask) <= FEW:
        rounding = ROUNDING_OF_FEW
    np.testing.assert_allclose(found.logits, expected.logits, atol=rounding)
    differ = np.asarray(found.mask != expected.mask)
    assert (np.abs(np.asarray(expected.logits)[differ] - decision) <= rounding).all()


def assert_few_differ(found: Any, expected: Any, most: float) -> None:
    share = np.mean(found != expected)
    assert share <= most, f"{share:.0%} of the decisions differ"


def part(found: Pruned, which: Any) -> Pruned:
    return Pruned(found.mask[which], found.scores[which], found.logits[which])


def of_pruners(names: tuple[str, ...], check: Any) -> Any:
    """A target: `check(data, pruner)` with one of the pruners."""

    def prepare(_: Path) -> Case:
        loaded = {name: ananet.load(name, device="cpu") for name in names}
        return lambda data: check(data, loaded[data.draw(st.sampled_from(names))])

    return prepare


def check_order(data: st.DataObject, pruner: ananet.Pruner) -> None:
    """Matches in another order have the same answers in this order."""
    given = drawn(data)
    order = np.random.default_rng(data.draw(st.integers(0, 2**32))).permutation(len(given["points0"]))
    assert_same(pruner(**chosen(given, order)), part(pruner(**given), order), pruner.decision)


def check_swap(data: st.DataObject, pruner: ananet.Pruner) -> None:
    """The same from the second photo to the first, exactly where a pruner treats both alike."""
    given = drawn(data)
    found, expected = pruner(**swapped(given)), pruner(**given)
    if pruner.name in SYMMETRIC:
        assert_same(found, expected, pruner.decision)
    elif len(expected.mask) >= MANY:
        assert_few_differ(found.mask, expected.mask, SWAPPED)


def check_pixels(data: st.DataObject, pruner: ananet.Pruner) -> None:
    """Photos of another resolution, with cameras and sizes to match, change nothing; powers of two not even a bit."""
    given = drawn(data)
    factor = data.draw(st.sampled_from((0.125, 0.5, 2.0, 4.0)) | st.floats(0.2, 5))
    exact = bool(np.log2(factor).is_integer())
    assert_same(pruner(**scaled(given, factor)), pruner(**given), pruner.decision, 0 if exact else ROUNDING)


def check_copy(data: st.DataObject, pruner: ananet.Pruner) -> None:
    """A match and its copy have the same answer; the others keep theirs, as far as it is about them alone."""
    given = drawn(data)
    count = len(given["points0"])
    number = data.draw(st.integers(0, count - 1))
    before, after = pruner(**given), pruner(**with_copy(given, number))
    others = np.arange(count) != number
    if pruner.name in BY_THEMSELVES:
        assert_same(part(after, slice(count)), before, pruner.decision, 0)
    elif pruner.name == "ananet-small" and count >= MANY:
        assert_few_differ(after.mask[:count][others], before.mask[others], CHANGED)
    # The smooth motion of lmf is a sum over eigenvectors, which copies make degenerate.
    assert_same(part(after, [-1]), part(after, [number]), pruner.decision, 0.5 if pruner.name == "lmf" else ROUNDING)


def check_far_match(data: st.DataObject, pruner: ananet.Pruner) -> None:
    """A match at a place that no photo has changes no other, not even by a bit."""
    # Of one match and a far one, either may be the far one.
    given = drawn(data, COUNTS[1:])
    count = len(given["points0"])
    farther = with_copy(given, data.draw(st.integers(0, count - 1)))
    side = data.draw(st.sampled_from(("points0", "points1")))
    farther[side][-1] = data.draw(st.sampled_from((-1, 1))) * 10 ** data.draw(st.floats(7, 30))
    found = pruner(**farther)
    assert_same(part(found, slice(count)), pruner(**given), pruner.decision, 0)
    assert pruner.name in BY_THEMSELVES or not found.mask[-1], "a match at infinity was kept"


def check_batch(data: st.DataObject, pruner: ananet.Pruner) -> None:
    """Pairs together have the answers that each has alone."""
    pairs = [Correspondences(**drawn(data)) for _ in range(data.draw(st.integers(1, 4)))]
    for found, pair in zip(pruner.batch(pairs), pairs, strict=True):
        assert_same(found, pruner(pair), pruner.decision)


target("order")(of_pruners(PRUNERS, check_order))
target("swapped photos")(of_pruners((NETWORK, *SYMMETRIC), check_swap))
target("other pixels")(of_pruners(PRUNERS, check_pixels))
target("a copy")(of_pruners(PRUNERS, check_copy))
target("a far match")(of_pruners(PRUNERS, check_far_match))
target("together")(of_pruners(PRUNERS, check_batch))


def turned_by(first: np.ndarray, second: np.ndarray) -> float:
    """Degrees between two rotations."""
    return float(np.degrees(np.arccos(np.clip((np.trace(first.T @ second) - 1) / 2, -1, 1))))


@target("poses")
def prepare_poses(_: Path) -> Case:
    """The pose of matches in another order, in other pixels, or from the second photo to the first."""
    estimators = [load_estimator(name) for name in ("poselib", "magsac")]

    def case(data: st.DataObject) -> None:
        estimator = data.draw(st.sampled_from(estimators))
        seed = data.draw(st.integers(0, 2**32))
        problem = make_problem(inliers=200, outliers=data.draw(st.sampled_from((0, 50, 100))), noise=0.1, seed=seed)
        named = (*PER_MATCH, "K0", "K1")
        given = {name: getattr(problem.matches, name) for name in named if getattr(problem.matches, name) is not None}
        R, t = np.asarray(problem.R), np.asarray(problem.t)
        change = data.draw(st.sampled_from(("none", "order", "pixels", "swap")))
        if change == "order":
            given = chosen(given, np.random.default_rng(seed).permutation(len(problem.matches)))
        elif change == "pixels":
            # The threshold stays as it is, in pixels.
            given = scaled(given, data.draw(st.floats(0.7, 1.4)))
        elif change == "swap":
            given, R, t = swapped(given), R.T, -R.T @ t
        pose = estimator.pose(Correspondences(**given))
        assert pose is not None
        assert turned_by(np.asarray(pose.R), R) < ANGLE
        assert np.degrees(np.arccos(np.clip(np.asarray(pose.t) @ t, -1, 1))) < 5 * ANGLE

    return case
