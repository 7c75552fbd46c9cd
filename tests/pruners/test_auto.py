"""`auto`: the best network for what is known of the matches."""

import numpy as np
import pytest
import torch

import ananet
from ananet import InputError
from ananet.pruners import describe_pruners
from ananet.pruners.auto import Auto, Chain
from ananet.pruners.registry import look_up
from tests.conftest import make_problem
from tests.pruners.answers import check_answer


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
    assert [pruner.network.settings.seeds for pruner in ananet.load("auto", device="cpu", seeds=64).networks] == [
        64,
        64,
    ]
    for wrong in ({"threshold": 2}, {"seeds": -1}):
        with pytest.raises(ananet.InputError, match=next(iter(wrong))):
            ananet.load("auto", **wrong)


def test_after_another_pruner():
    n = len(known())
    chain = ananet.load("mutual+auto", device="cpu")
    kept = chain(known(mutual=np.arange(n) % 2 == 0))
    assert chain.name == "mutual+auto" and kept.pruner == "mutual+ananet-ratio" and not kept.mask[1::2].any()


def test_its_weights_are_known():
    assert [path.name for path in look_up("auto")[0].files] == ["ananet.safetensors", "ananet-ratio.safetensors"]


def test_a_chain_keeps_what_its_last_pruner_keeps(weights, problem):
    m = problem.matches
    path = weights / "plain.safetensors"
    alone = ananet.load(path)(m[m.mutual])
    threshold = float(np.quantile(alone.scores, 0.7))
    chained = ananet.load(f"mutual+{path}@threshold={threshold}")(m)
    assert 0 < chained.mask.sum() < alone.mask.size
    tensors = ananet.load(f"mutual+{path}@threshold={threshold}")(m.to("cpu"))
    for name in ("mask", "scores", "logits"):
        np.testing.assert_array_equal(getattr(tensors, name).numpy(), getattr(chained, name))
    np.testing.assert_array_equal(chained.mask[m.mutual], alone.scores > np.float32(threshold))
    assert not chained.mask[~m.mutual].any()


def test_pruners_one_after_another(problem):
    m = problem.matches
    chain, mutual = ananet.load("mutual+lpm"), ananet.load("mutual")(m).mask
    kept = chain(m)
    check_answer(kept, len(m))
    assert chain.name == "mutual+lpm"
    assert not (kept.mask & ~mutual).any()
    assert np.array_equal(kept.mask[mutual], ananet.load("lpm")(m[mutual]).mask)
    assert not chain(m[~torch.as_tensor(mutual)]).mask.any(), "nothing is left for the second"
    together = chain.batch([m, m[:0], m[mutual]])
    assert np.array_equal(together[0].mask, kept.mask) and len(together[1].mask) == 0
    with pytest.raises(InputError, match="expected one of"):
        ananet.load("mutual+nonsense")
    with pytest.raises(InputError, match="threshold: which of 'mutual\\+ratio'"):
        ananet.load("mutual+ratio", threshold=0.7)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize(
    "shape", ["mutual+{}", "ratio+{}", "{}+mutual", "{}+lpm+ratio", "mutual+{}+lpm", "mutual+lpm+{}"]
)
def test_what_lies_above_the_decision_is_kept_exactly(shape, quantile, weights, problem):
    m = problem.matches
    path = weights / "side.safetensors"
    scores = np.clip(np.quantile(ananet.load(path)(m).scores, quantile), 0.01, 0.99)
    chain = ananet.load(shape.format(f"{path}@threshold={float(scores)}"))
    kept = chain(m)
    check_answer(kept, len(m), chain.decision)
    assert chain.decision == chain.pruners[-1].decision
    # What a match went through, one pruner after another.
    left = torch.arange(len(m))
    for pruner in chain.pruners:
        left = left[torch.as_tensor(pruner(m[left]).mask)]
    np.testing.assert_array_equal(np.flatnonzero(kept.mask), left.numpy())
    for together, alone in zip(chain.batch([m, m[:0], m[:40]]), (m, m[:0], m[:40]), strict=True):
        check_answer(together, len(alone), chain.decision)
        np.testing.assert_allclose(together.logits, chain(alone).logits, atol=1e-4, rtol=1e-4)


def test_two_networks_with_decisions_of_their_own(weights, problem):
    m = problem.matches
    first, second = (weights / f"{name}.safetensors" for name in ("plain", "side"))
    chain = ananet.load(f"{first}@threshold=0.02+{second}@threshold=0.97")
    kept = chain(m)
    check_answer(kept, len(m), chain.decision)
    opposite = ananet.load(f"{first}@threshold=0.97+{second}@threshold=0.02+mutual")
    check_answer(opposite(m), len(m), 0.0)
    assert torch.equal(torch.as_tensor(chain(m).logits), torch.as_tensor(chain.logits(m)))


def test_dropped_matches_keep_their_order(problem):
    m = problem.matches
    chain = Chain([ananet.load("ratio"), ananet.load("mutual")])
    dropped = ~ananet.load("ratio")(m).mask
    logits, alone = chain(m).logits[dropped], ananet.load("ratio")(m).logits[dropped]
    np.testing.assert_array_equal(np.argsort(logits, kind="stable"), np.argsort(alone, kind="stable"))
