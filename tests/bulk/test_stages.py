"""Pruning together gives what pruning alone gives; one bad pair costs the others nothing."""

import numpy as np

import ananet
from ananet.bulk import stages
from ananet.bulk.inputs import Pair
from tests.conftest import make_problem


def make_pairs(count):
    problems = [make_problem(40 + 10 * number, 30, seed=number) for number in range(count)]
    return [Pair(str(number), matches=problem.matches, cameras_known=True) for number, problem in enumerate(problems)]


def test_pruned_together_as_alone():
    pairs = [*make_pairs(4), Pair("failed", error="x")]
    row = stages.Prune("ananet-small", "cpu")({"path": "a", "pairs": np.array(pairs, object)})
    found = row["pairs"]
    assert row["path"] == "a"
    pruner = ananet.load("ananet-small", device="cpu")
    assert [pair.source for pair in found] == ["0", "1", "2", "3", "failed"] and found[4].kept is None
    for pair in found[:4]:
        expected = pruner(pair.matches)
        np.testing.assert_array_equal(pair.kept.mask, expected.mask)
        np.testing.assert_allclose(pair.kept.scores, expected.scores, atol=1e-4)


def test_one_pair_that_breaks_a_batch():
    pairs = make_pairs(3)
    # Neither cameras nor sizes: networks cannot place these points.
    bad = pairs[1].matches.replace(K0=None, K1=None, image_size0=None, image_size1=None)
    pairs[1] = Pair("bad", matches=bad)
    found = stages.Prune("ananet-small", "cpu").prune(pairs)
    assert [pair.error is None for pair in found] == [True, False, True]
    assert "expected camera matrices" in found[1].error and found[1].source == "bad"
    assert [pair.error is None for pair in stages.Verify("poselib")(found)] == [True, False, True]


def test_verified():
    problem = make_problem()
    matches = problem.matches
    kept = ananet.load("ananet-small", device="cpu")(matches)
    pairs = [
        Pair("known", matches=matches, cameras_known=True, kept=kept),
        Pair("guessed", matches=matches, cameras_known=False, kept=kept),
        Pair("no ratios", matches=matches.replace(ratio=None), cameras_known=True, kept=kept),
    ]
    known, guessed, no_ratios = stages.Verify("poselib")(pairs)
    assert known.overlap and np.abs(known.pose.R - problem.R.numpy()).max() < 0.01
    assert guessed.overlap and guessed.pose is None
    assert no_ratios.overlap is None and no_ratios.pose is not None
