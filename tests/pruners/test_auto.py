"""`auto`: the best network for what is known of the matches."""

import numpy as np
import pytest

import ananet
from ananet.pruners import describe_pruners
from ananet.pruners.auto import Auto
from ananet.pruners.registry import look_up
from tests.conftest import make_problem


@pytest.fixture(scope="module")
def best() -> Auto:
    return ananet.load(device="cpu")


def test_it_is_the_default(best):
    assert isinstance(best, Auto) and best.name == "auto" and next(iter(describe_pruners())) == "auto"


def known(**more) -> ananet.Correspondences:
    problem = make_problem()
    return ananet.Correspondences(
        problem.matches.points0, problem.matches.points1, K0=problem.matches.K0, K1=problem.matches.K1, **more
    )


def test_coordinates_alone(best):
    matches = known()
    kept = best(matches)
    assert kept.pruner == "ananet" and "kept by ananet" in repr(kept)
    np.testing.assert_array_equal(kept.logits, ananet.load("ananet", device="cpu")(matches).logits)


@pytest.mark.parametrize("name", ["ratio", "mutual"])
def test_what_descriptors_tell(name, best):
    n = len(known())
    matches = known(**{name: np.linspace(0, 1, n) if name == "ratio" else np.arange(n) % 2 == 0})
    kept = best(matches)
    assert kept.pruner == "ananet-ratio"
    np.testing.assert_array_equal(kept.logits, ananet.load("ananet-ratio", device="cpu")(matches).logits)


def test_every_pair_has_its_own(best):
    n = len(known())
    pairs = [known(), known(ratio=np.full(n, 0.5)), known()[:0], known()]
    assert [kept.pruner for kept in best.batch(pairs)] == ["ananet", "ananet-ratio", "ananet", "ananet"]
    assert best.batch([]) == []


def test_options_reach_both():
    strict = ananet.load("auto@threshold=0.9", device="cpu")
    assert strict.name == "auto@threshold=0.9"
    n = len(known())
    for matches in (known(), known(ratio=np.full(n, 0.5))):
        kept = strict(matches)
        np.testing.assert_array_equal(kept.mask, kept.logits > np.float32(np.log(9)))
    with pytest.raises(ananet.InputError, match="threshold"):
        ananet.load("auto", threshold=2)


def test_after_another_pruner():
    n = len(known())
    chain = ananet.load("mutual+auto", device="cpu")
    kept = chain(known(mutual=np.arange(n) % 2 == 0))
    assert chain.name == "mutual+auto" and kept.pruner == "mutual+ananet-ratio" and not kept.mask[1::2].any()


def test_its_weights_are_known():
    assert [path.name for path in look_up("auto")[0].files] == ["ananet.safetensors", "ananet-ratio.safetensors"]
