import numpy as np
import pytest

import ananet
from ananet import InputError
from ananet.pruners import gms
from tests.conftest import make_problem


def test_gms_keeps_company_through_rotation_and_scale():
    rng = np.random.default_rng(0)
    points = rng.uniform(200, 600, (1500, 2))
    turned = (points - 400) @ np.array([[0, 1], [-1, 0]]) * 0.5 + 400
    wrong = rng.uniform(0, 800, (500, 2))
    p0, p1 = np.r_[points, rng.uniform(0, 800, (500, 2))], np.r_[turned, wrong]
    size = {"image_size0": (800, 800), "image_size1": (800, 800)}
    kept = ananet.load("gms")(p0, p1, **size).mask
    assert kept[:1500].mean() > 0.8
    assert kept[1500:].mean() < 0.1
    assert ananet.load("gms", rotation=False, scale=False)(p0, p1, **size).mask.sum() < 0.2 * kept.sum()


def test_gms_agrees_with_a_literal_evaluation():
    """One grid, no rotation, no scale: votes and neighbours counted cell by cell."""
    matches = make_problem(inliers=900, outliers=300).matches
    p0, p1 = (p / np.array([640, 480]) * 20 for p in matches.numpy_points())
    expected = np.zeros(len(p0), bool)
    for sx, sy in gms.SHIFTS:
        a = [(int(np.floor(x + sx)), int(np.floor(y + sy))) for x, y in p0]
        b = [(int(np.floor(x)), int(np.floor(y))) for x, y in p1]
        a, b = ([c if 0 <= c[0] < 20 and 0 <= c[1] < 20 else None for c in cells] for cells in (a, b))
        votes: dict = {}
        for ca, cb in zip(a, b, strict=True):
            if ca and cb:
                votes.setdefault(ca, {}).setdefault(cb, 0)
                votes[ca][cb] += 1
        winner = {ca: max(sorted(v, key=lambda c: (c[1], c[0])), key=v.get) for ca, v in votes.items()}
        for i, (ca, cb) in enumerate(zip(a, b, strict=True)):
            if not ca or not cb or winner[ca] != cb:
                continue
            support = crowd = cells = 0
            for dx in (-1, 0, 1):
                for dy in (-1, 0, 1):
                    na, nb = (ca[0] + dx, ca[1] + dy), (cb[0] + dx, cb[1] + dy)
                    if all(0 <= v < 20 for v in (*na, *nb)):
                        support += votes.get(na, {}).get(nb, 0)
                        crowd += sum(votes.get(na, {}).values())
                        cells += 1
            expected[i] |= support >= 6 * np.sqrt(crowd / cells)
    np.testing.assert_array_equal(ananet.load("gms", rotation=False, scale=False)(matches).mask, expected)


def test_options_come_with_the_name(problem):
    still = ananet.load("gms@rotation=false@scale=false")
    assert (len(still.rotations), len(still.scales)) == (1, 1)
    assert (len(ananet.load("gms").rotations), len(ananet.load("gms").scales)) == (8, 5)
    by_value = ananet.load("gms", rotation=False, scale=False)
    assert still.name == by_value.name == "gms@rotation=false@scale=false"
    np.testing.assert_array_equal(still(problem.matches).logits, by_value(problem.matches).logits)
    for wrong, message in (
        ("gms@rotation=maybe", "rotation: expected true or false, got 'maybe'"),
        ("gms@rotation=0", "rotation: expected true or false, got '0'"),
        ("gms@threshold=high", "threshold: expected a number, got 'high'"),
        ("gms@threshold=0", "threshold: expected a positive number, got 0"),
        ("gms@threshold=nan", "threshold: expected a number, got 'nan'"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)
    for wrong in ("high", None, True, [6], 0, -1, np.inf, np.nan):
        with pytest.raises(InputError, match="threshold: expected a (positive )?number, got"):
            ananet.load("gms", threshold=wrong)
