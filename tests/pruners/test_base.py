import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import ananet
from ananet import Correspondences, InputError, load
from ananet.pruners.base import MAX_LOGIT, Pruned, Pruner, as_result, margin, stream_items
from tests.pruners.answers import check_answer


def test_wrong_calls(problem):
    pruner = ananet.load("all")
    with pytest.raises(InputError, match="points1: expected an array"):
        pruner(np.zeros((3, 2)))
    with pytest.raises(InputError, match="either Correspondences alone"):
        pruner(problem.matches, K0=np.eye(3))
    assert isinstance(pruner(Correspondences([], [])).mask, np.ndarray)
    with pytest.raises(InputError, match=r"pairs\[1\]: expected Correspondences, got tuple"):
        pruner.batch([problem.matches, (1, 2)])
    for wrong in (problem.matches, 3):
        with pytest.raises(InputError, match="pairs: expected a list of Correspondences"):
            pruner.batch(wrong)


class Fixed(Pruner):
    """Says what it was told to say."""

    name = "fixed"

    def __init__(self, logits, decision=0.0):
        self.said, self.decision = torch.as_tensor(logits), decision

    def logits(self, matches):
        return self.said


@pytest.mark.parametrize("decision", [0.0, -0.4054651, 2.2])
def test_what_lies_above_the_decision_is_kept(decision):
    logits = np.array([-50.0, decision - 1e-3, decision, decision + 1e-3, 50.0, np.nan, np.inf, -np.inf], np.float32)
    points = np.zeros((8, 2))
    kept = Fixed(logits, decision)(points, points)
    check_answer(kept, 8, decision)
    assert kept.mask.tolist() == [False, False, False, True, True, False, True, False]
    assert repr(kept) == "Pruned(3 of 8 matches kept by fixed)"


def test_kept_matches_come_best_first():
    points = np.zeros((4, 2))
    for given in (points, torch.zeros(4, 2)):
        kept = Fixed([1.0, -1.0, 3.0, 1.0])(given, given)
        assert kept.indices.tolist() == [2, 0, 3]


def test_answers_come_as_the_points_came():
    pair = Correspondences(np.zeros((2, 2)), np.zeros((2, 2)))
    assert isinstance(as_result(pair, torch.zeros(2), load("all")).mask, np.ndarray)
    pair = Correspondences(torch.zeros(2, 2), torch.zeros(2, 2))
    found = as_result(pair, torch.zeros(2, requires_grad=True), load("all"))
    assert isinstance(found, Pruned) and isinstance(found.mask, torch.Tensor) and not found.logits.requires_grad


def test_margins_stay_within_the_limits():
    cost = torch.tensor([0.0, 0.5, 1.0, 2.0, torch.inf])
    found = margin(1.0, cost)
    assert found[0] == MAX_LOGIT and found[-1] == -MAX_LOGIT
    assert found[2] == 0 and found[1] == -found[3] > 0
    assert repr(ananet.load("ratio@threshold=0.7")) == "<pruner ratio@threshold=0.7>"


FORKED = """
import multiprocessing, os, sys
import numpy as np, torch
import ananet

torch.set_num_threads(2)
pruner = ananet.load(sys.argv[1], device="cpu")
points = np.random.default_rng(0).uniform(0, 640, (600, 2))
given = {"image_size0": (640, 640), "image_size1": (640, 640)}

def alone(_):
    return int(pruner(points, points + 3, **given).mask.sum())

def together(_):
    pair = ananet.Correspondences(points, points + 3, **given)
    return int(pruner.batch([pair, pair])[1].mask.sum())

before = alone(0)
assert torch.get_num_threads() == 2
for call in (alone, together):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(call, range(2)) == [before, before]
assert torch.get_num_threads() == 2
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("name", ["ananet", "lpm", "magsac", "gms+ananet"])
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have(name):
    finished = subprocess.run([sys.executable, "-c", FORKED, name], timeout=120, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


class Counting(Fixed):
    """Keeps track of how many pairs are under way."""

    name = "counting"

    def logits(self, matches):
        return matches.points0[:, 0]


@pytest.mark.parametrize("together", [1, 5, 1000])
def test_a_stream_is_answered_in_order_and_not_read_at_once(together, monkeypatch):
    monkeypatch.setattr(Counting, "_streamed_matches", together)
    asked = answered = most = 0

    def pairs():
        nonlocal asked, most
        for number in range(40):
            asked += 1
            most = max(most, asked - answered)
            yield Correspondences(np.full((number % 3, 2), number), np.zeros((number % 3, 2)))

    for number, kept in enumerate(Counting(0).stream(pairs())):
        answered += 1
        assert kept.logits.tolist() == [number] * (number % 3)
    assert asked == answered == 40
    assert most <= 2 * together + 2
    assert list(Counting(0).stream([])) == []
    with pytest.raises(InputError, match=r"pairs\[1\]: expected Correspondences, got tuple"):
        list(Counting(0).stream([Correspondences([], []), (1, 2)]))
    for wrong in (Correspondences([], []), 3):
        with pytest.raises(InputError, match="pairs: expected an iterable of Correspondences"):
            list(Counting(0).stream(wrong))


def test_things_with_and_without_matches_are_streamed():
    pairs = [(number, Correspondences(np.full((2, 2), number), np.zeros((2, 2)))) for number in range(5)]
    found = list(stream_items(Counting(0), pairs, lambda item: None if item[0] == 2 else item[1]))
    assert [item[0] for item, _ in found] == list(range(5))
    assert [None if kept is None else kept.logits.tolist() for _, kept in found] == [
        [0, 0],
        [1, 1],
        None,
        [3, 3],
        [4, 4],
    ]


def test_there_is_nothing_to_warm_up_on_a_cpu():
    for name in ("ratio", "ananet-small", "mutual+ananet-small"):
        load(name, device="cpu").warm_up([100], progress=lambda done, steps: pytest.fail("nothing to do"))
