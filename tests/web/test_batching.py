import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ananet
from ananet import Correspondences, InputError
from ananet.pruners import Pruner
from ananet.web.batching import Batcher, SharedPruner
from tests.conftest import make_problem


class Recorder(Pruner):
    """Notes its batches, and can be held up."""

    name = "recorder"

    def __init__(self):
        self.inner = ananet.load("ratio")
        self.batches = []
        self.may_go = threading.Event()
        self.may_go.set()

    def logits(self, matches):
        raise NotImplementedError

    def batch(self, pairs):
        self.batches.append([len(pair) for pair in pairs])
        assert self.may_go.wait(20)
        return self.inner.batch(pairs)


@pytest.fixture
def batcher():
    made = Batcher(max_wait=0.02)
    yield made
    made.close()


def pair_of(count, seed=0):
    rng = np.random.default_rng(seed)
    return Correspondences(rng.random((count, 2)), rng.random((count, 2)), ratio=rng.random(count))


def held_up(batcher, pruner):
    """Keeps the thread busy with a pair of one match until the pruner may go on."""
    pruner.may_go.clear()
    first = batcher.submit(pruner, pair_of(1))
    while not pruner.batches:
        time.sleep(0.001)
    return first


def test_many_threads_get_the_answers_of_the_pruner_itself(batcher):
    pruner = ananet.load("ananet", device="cpu")
    pairs = [make_problem(60 + 10 * number, 40, seed=number).matches for number in range(8)]
    expected = [pruner(pair) for pair in pairs]
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda pair: batcher.submit(pruner, pair).result(60), pairs * 3))
    for found, alone in zip(answers, expected * 3, strict=True):
        # Padding to the longest of a batch rounds otherwise.
        np.testing.assert_allclose(found.logits, alone.logits, atol=2e-3)
        clear = np.abs(alone.logits - pruner.decision) > 0.01
        assert (found.mask == alone.mask)[clear].all()
    assert batcher.pairs == 24 and batcher.batches < 24
    assert batcher.matches == 3 * sum(map(len, pairs))


def test_batches_are_bounded_and_keep_the_order():
    pruner = Recorder()
    batcher = Batcher(max_pairs=4, max_matches=100)
    first = held_up(batcher, pruner)
    answers = [batcher.submit(pruner, pair_of(count)) for count in (2, 3, 4, 5, 6, 60, 50, 300, 7)]
    pruner.may_go.set()
    assert [len(answer.result(20).mask) for answer in (first, *answers)] == [1, 2, 3, 4, 5, 6, 60, 50, 300, 7]
    # At most four pairs, at most a hundred matches; a larger pair goes alone.
    assert pruner.batches == [[1], [2, 3, 4, 5], [6, 60], [50], [300], [7]]
    batcher.close()


def test_a_lonely_pair_waits_no_longer_than_it_must():
    batcher, pruner = Batcher(max_wait=0.05), Recorder()
    start = time.monotonic()
    batcher.submit(pruner, pair_of(3)).result(20)
    assert 0.045 < time.monotonic() - start < 10
    batcher.close()


def test_whoever_cancels_is_left_out(batcher):
    pruner = Recorder()
    held_up(batcher, pruner)
    gone, stays = batcher.submit(pruner, pair_of(2)), batcher.submit(pruner, pair_of(3))
    assert gone.cancel()
    pruner.may_go.set()
    assert len(stays.result(20).mask) == 3
    assert pruner.batches == [[1], [3]]


def test_all_of_a_batch_may_have_gone(batcher):
    pruner = Recorder()
    held_up(batcher, pruner)
    assert batcher.submit(pruner, pair_of(2)).cancel()
    pruner.may_go.set()
    assert len(batcher.submit(pruner, pair_of(4)).result(20).mask) == 4


def test_a_pair_that_cannot_be_pruned_fails_alone(batcher):
    pruner = ananet.load("ananet", device="cpu")
    good, bad = make_problem(50, 20).matches, pair_of(9)
    answers = [batcher.submit(pruner, pair) for pair in (good, bad, good)]
    assert len(answers[0].result(60).mask) == len(answers[2].result(60).mask) == 70
    with pytest.raises(InputError, match="expected camera matrices"):
        answers[1].result(60)


def test_pruners_are_not_mixed(batcher):
    ratio, everything = ananet.load("ratio"), ananet.load("all")
    pair = Correspondences([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, 0.9])
    answers = [batcher.submit(pruner, pair) for pruner in (ratio, everything, ratio)]
    assert [answer.result(20).mask.tolist() for answer in answers] == [[True, False], [True, True], [True, False]]


def test_closing_finishes_what_waits():
    batcher, pruner = Batcher(max_wait=5.0), Recorder()
    answers = [batcher.submit(pruner, pair_of(2)) for _ in range(3)]
    batcher.close()
    assert all(answer.done() for answer in answers)
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(pruner, pair_of(2))


def test_a_shared_pruner_is_a_pruner(batcher, problem):
    pruner = ananet.load("ratio")
    shared = SharedPruner(pruner, batcher)
    assert (shared(problem.matches).mask == pruner(problem.matches).mask).all()
    assert (shared.logits(problem.matches).numpy() == pruner(problem.matches).logits).all()
    assert batcher.pairs == 2


@pytest.mark.parametrize("wrong", [{"max_wait": 0}, {"max_pairs": 0}, {"max_matches": 0.5}])
def test_wrong_bounds(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Batcher(**wrong)
