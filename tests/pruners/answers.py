"""What every answer of a pruner must be."""

import numpy as np

from ananet.pruners import Pruned


def check_answer(kept: Pruned, n: int, decision: float = 0.0) -> None:
    assert kept.mask.shape == kept.scores.shape == kept.logits.shape == (n,)
    assert kept.mask.dtype == bool
    assert kept.scores.dtype == kept.logits.dtype == np.float32
    assert np.isfinite(kept.logits).all()
    assert ((kept.scores >= 0) & (kept.scores < 1)).all()
    np.testing.assert_array_equal(kept.mask, kept.logits > np.float32(decision))
