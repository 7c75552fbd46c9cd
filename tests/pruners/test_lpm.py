import time

import numpy as np
import pytest

import ananet
from ananet import InputError
from tests.conftest import make_problem


def test_lpm_agrees_with_a_literal_evaluation():
    problem = make_problem(inliers=60, outliers=40)
    lpm = ananet.load("lpm", neighbours=(4,))
    p0, p1 = problem.matches.numpy_points()
    motion = p1 - p0

    def costs(candidates):
        result = np.zeros(len(p0))
        for i in range(len(p0)):
            others = [j for j in candidates if j != i]
            near0 = sorted(others, key=lambda j: np.linalg.norm(p0[j] - p0[i]))[:4]
            near1 = sorted(others, key=lambda j: np.linalg.norm(p1[j] - p1[i]))[:4]
            good = 0
            for j in set(near0) & set(near1):
                a, b = np.linalg.norm(motion[i]), np.linalg.norm(motion[j])
                good += min(a, b) / max(a, b) * (motion[i] @ motion[j]) / (a * b) >= 0.2
            result[i] = 1 - good / 4
        return result

    likely = np.flatnonzero(costs(range(len(p0))) < 0.8)
    expected = costs(likely) < 0.5
    np.testing.assert_array_equal(lpm(problem.matches).mask, expected)


def test_lpm_is_fast_enough():
    many = make_problem(inliers=2500, outliers=2500).matches
    lpm = ananet.load("lpm")
    start = time.process_time()
    lpm(many)
    assert time.process_time() - start < 10


def test_lpm_does_not_depend_on_the_origin(problem):
    p0, p1 = (p.astype(np.float32).round() for p in problem.matches.numpy_points())
    lpm = ananet.load("lpm")
    np.testing.assert_array_equal(lpm(p0, p1).mask, lpm(p0 + 8192, p1 + 8192).mask)


def test_options_come_with_the_name(problem):
    one = ananet.load("lpm@neighbours=4")
    assert one.neighbours == (4,) and one.name == "lpm@neighbours=4"
    two = ananet.load("lpm@neighbours=4/6@limits=0.7/0.4")
    assert two.neighbours == (4, 6) and two.limits == (0.7, 0.4)
    assert two.name == "lpm@neighbours=4/6@limits=0.7/0.4"
    assert ananet.load("lpm@neighbours=4,6").neighbours == (4, 6)
    same = ananet.load("lpm", neighbours=[4, 6], limits=(0.7, 0.4))
    assert same.name == two.name
    np.testing.assert_array_equal(same(problem.matches).logits, two(problem.matches).logits)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"neighbours": ()}, r"neighbours: expected sizes of at least 1, got \(\)"),
        ({"neighbours": (0, 4)}, "neighbours: expected sizes of at least 1"),
        ({"neighbours": 4}, "neighbours: expected a list of whole numbers, got 4"),
        ({"neighbours": ("a",)}, "neighbours: expected a whole number, got 'a'"),
        ({"limits": (0.5,)}, "limits: expected 2 numbers, got"),
        ({"limits": (0, 2)}, r"limits: expected two numbers in \(0, 1\]"),
        ({"agreement": "much"}, "agreement: expected a number, got 'much'"),
    ],
)
def test_wrong_options_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        ananet.load("lpm", **wrong)


def test_wrong_options_in_the_name_are_named():
    for wrong, message in (
        ("lpm@neighbours=4/many", "neighbours: expected a whole number, got 'many'"),
        ("lpm@neighbours=4/", "neighbours: expected a whole number, got ''"),
        ("lpm@limits=0.5", "limits: expected 2 numbers, got '0.5'"),
    ):
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)
