"""The hand-over: which of the matches that a pruner keeps an estimator gets.

What makes kept matches complete and what makes a pose precise are two decisions. A pruner keeps every match that is
likely right. An estimator does better without those that share a point with another: they lie along the epipolar line
mostly by chance, and bend the pose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ananet.core.conflicts import penalize_conflicts
from ananet.core.correspondences import Correspondences


class Verdict(Protocol):
    """What a hand-over reads of a pruner's answer."""

    @property
    def mask(self) -> Any: ...

    @property
    def logits(self) -> Any: ...


def one_to_one(matches: Correspondences, kept: Tensor, logits: Tensor) -> Tensor:
    """Of the kept matches the mutual ones; where that is not known, of conflicting ones the best."""
    if matches.mutual is not None:
        return kept & matches.mutual.cpu()
    if matches.K0 is None and matches.image_size0 is None:
        return kept  # apart by how much nobody can say
    ranked = torch.where(kept, logits, -math.inf)
    doubted = penalize_conflicts(ranked[None], matches.normalized().float().cpu()[None], math.inf)[0]
    return kept & (doubted == ranked)


def all_kept(_matches: Correspondences, kept: Tensor, _logits: Tensor) -> Tensor:
    """All kept matches, as the paper does."""
    return kept


MATCH_SELECTIONS: dict[str, Callable[[Correspondences, Tensor, Tensor], Tensor]] = {
    "one-to-one": one_to_one,
    "all": all_kept,
}
IN_WORDS = {"one-to-one": "kept matches that are one to one", "all": "all kept matches"}
# With fewer matches than this one-to-one, an estimator needs every match it can get.
MIN_SELECTED = 30


def select_matches(matches: Correspondences, verdict: Verdict, rule: str) -> Tensor:
    """[N] bool on the CPU: the matches that an estimator gets.

    Args:
        verdict: the pruner's answer on these matches.
        rule: one of `MATCH_SELECTIONS`.

    >>> from types import SimpleNamespace
    >>> matches = Correspondences([[0, 0]] * 40, [[1, 1]] * 40, mutual=[True] * 32 + [False] * 8)
    >>> select_matches(matches, SimpleNamespace(mask=[True] * 36 + [False] * 4, logits=[1.0] * 40), "one-to-one").sum()
    tensor(32)
    """
    kept, logits = torch.as_tensor(verdict.mask).cpu(), torch.as_tensor(verdict.logits).cpu()
    chosen = MATCH_SELECTIONS[rule](matches, kept, logits)
    return chosen if chosen.sum() >= MIN_SELECTED else kept
