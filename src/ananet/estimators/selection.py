"""Match selection: which of the kept matches an estimator uses.

A pruner keeps every match that is likely right. Matches that share a point with another mostly lie along the epipolar
line by chance and bias the pose, so estimators do better without them.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ananet.core.conflicts import penalize_conflicts
from ananet.core.correspondences import Correspondences

MatchSelection = Literal["one-to-one", "all"]
IN_WORDS = {"one-to-one": "one-to-one matches", "all": "all kept matches"}
# If fewer matches than this are one-to-one, all kept ones are used.
MIN_SELECTED = 30


class PruningResult(Protocol):
    """The part of `ananet.Pruned` that is read here."""

    @property
    def mask(self) -> Any: ...

    @property
    def logits(self) -> Any: ...


def one_to_one(matches: Correspondences, mask: Tensor, logits: Tensor) -> Tensor:
    """[N] bool: the mutual ones among `mask`; where mutuality is unknown, the best of conflicting matches."""
    matches = matches._as_tensors()
    if matches.mutual is not None:
        return mask & matches.mutual.cpu()
    if matches.K0 is None and matches.image_size0 is None:
        return mask  # without a scale, coinciding points cannot be found
    ranked = torch.where(mask, logits, -math.inf)
    penalized = penalize_conflicts(ranked[None], matches.normalized().float().cpu()[None], math.inf)[0]
    return mask & (penalized == ranked)


def select_matches(matches: Correspondences, kept: PruningResult, selection: MatchSelection) -> Tensor:
    """[N] bool on the CPU: the matches that an estimator uses.

    >>> from types import SimpleNamespace
    >>> matches = Correspondences([[0, 0]] * 40, [[1, 1]] * 40, mutual=[True] * 32 + [False] * 8)
    >>> select_matches(matches, SimpleNamespace(mask=[True] * 36 + [False] * 4, logits=[1.0] * 40), "one-to-one").sum()
    tensor(32)
    """
    mask, logits = torch.as_tensor(kept.mask).cpu(), torch.as_tensor(kept.logits).cpu()
    if selection == "all":
        return mask
    selected = one_to_one(matches, mask, logits)
    return selected if selected.sum() >= MIN_SELECTED else mask
