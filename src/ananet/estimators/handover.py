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

from ananet.conflicts import doubt_conflicting
from ananet.correspondences import Correspondences


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
    if matches.K0 is None and matches.size0 is None:
        return kept  # apart by how much nobody can say
    ranked = torch.where(kept, logits, -math.inf)
    doubted = doubt_conflicting(ranked[None], matches.normalized().float().cpu()[None], math.inf)[0]
    return kept & (doubted == ranked)


def all_kept(matches: Correspondences, kept: Tensor, logits: Tensor) -> Tensor:
    """All kept matches, as the paper does."""
    return kept


HAND_OVERS: dict[str, Callable[[Correspondences, Tensor, Tensor], Tensor]] = {
    "one-to-one": one_to_one,
    "kept": all_kept,
}
IN_WORDS = {"one-to-one": "kept matches that are one to one", "kept": "all kept matches"}
# With fewer matches than this one-to-one, an estimator needs every match it can get.
FEWEST_HANDED_OVER = 30


def hand_over(matches: Correspondences, verdict: Verdict, rule: str) -> Tensor:
    """[N] bool on the CPU: the matches that an estimator gets.

    Args:
        verdict: the pruner's answer on these matches.
        rule: one of `HAND_OVERS`.

    >>> from types import SimpleNamespace
    >>> matches = Correspondences([[0, 0]] * 40, [[1, 1]] * 40, mutual=[True] * 32 + [False] * 8)
    >>> hand_over(matches, SimpleNamespace(mask=[True] * 36 + [False] * 4, logits=[1.0] * 40), "one-to-one").sum()
    tensor(32)
    """
    kept, logits = torch.as_tensor(verdict.mask).cpu(), torch.as_tensor(verdict.logits).cpu()
    chosen = HAND_OVERS[rule](matches, kept, logits)
    return chosen if chosen.sum() >= FEWEST_HANDED_OVER else kept
