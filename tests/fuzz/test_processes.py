"""Pruners in threads and other processes, and over many calls."""

import copy
import multiprocessing
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import ananet
from tests.conftest import make_problem

NAMES = ("ananet-small", "ananet", "gms+ananet-small", "lpm", "lmf", "code", "ratio", "magsac")
PAIRS = [make_problem(inliers=40 + 7 * n, outliers=20, seed=n).matches for n in range(4)]


def logits(pruner, pairs=PAIRS):
    return [np.asarray(pruner(pair).logits) for pair in pairs]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.fixture(scope="module")
def pruners():
    return {name: ananet.load(name, device="cpu") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_one_pruner_serves_many_threads(name, pruners):
    pruner = pruners[name]
    expected = logits(pruner)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda pair: np.asarray(pruner(pair).logits), PAIRS * 4))
    assert_same(found, expected * 4)


@pytest.mark.parametrize("name", NAMES)
def test_pruners_can_be_pickled_and_copied(name, pruners):
    pruner = pruners[name]
    expected = logits(pruner)
    for other in (pickle.loads(pickle.dumps(pruner)), copy.deepcopy(pruner)):
        assert other.name == pruner.name
        assert_same(logits(other), expected)


def test_pruners_and_matches_go_to_other_processes(pruners):
    chosen = [pruners[name] for name in ("ananet-small", "lpm", "magsac")]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        found = list(processes.map(logits, chosen, [PAIRS] * len(chosen)))
    for pruner, answer in zip(chosen, found, strict=True):
        assert_same(answer, logits(pruner))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is told as on Linux")
def test_memory_and_time_do_not_grow_with_calls(pruners):
    from tests.fuzz.growth import measure

    found = measure(pruners["ananet-small"], calls=250)
    assert found.megabytes < 20
    assert found.seconds_after < 3 * found.seconds_before
