"""Several pruners, one after another."""

import numpy as np
import pytest
import torch

import ananet
from ananet import InputError
from ananet.pruners.chain import Chain
from tests.pruners.answers import check_answer


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
