"""Results as the service sends them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ananet.core import geometry
from ananet.core.conflicts import penalize_conflicts
from ananet.estimators import estimate_fundamental
from ananet.pruners import Pruned
from ananet.twoview import PhotoMatches


def prune_result(kept: Pruned, decision: float) -> dict[str, Any]:
    return {
        "pruner": kept.pruner,
        "threshold": 1 / (1 + math.exp(-decision)),
        "mask": kept.mask.tolist(),
        "scores": kept.scores.tolist(),
    }


def match_result(found: PhotoMatches) -> dict[str, Any]:
    """`PhotoMatches.to_dict` with all matches, and what the page needs to show conflicts and epipolar lines."""
    F = fundamental(found)
    more = {"conflicting": conflicting(found).tolist(), "fundamental": None if F is None else F.tolist()}
    return found.to_dict(matches=True) | more


def conflicting(found: PhotoMatches) -> np.ndarray:
    """[N] bool: matches that share a point with a better match and end elsewhere in the other photo."""
    logits = torch.as_tensor(found.kept.logits)[None]
    # Conflicts lower the logits of all but the best match.
    lowered = penalize_conflicts(logits, found.matches._as_tensors().normalized().float()[None], math.e)
    return (lowered < logits)[0].numpy()


def fundamental(found: PhotoMatches) -> np.ndarray | None:
    """[3 x 3] F of norm 1 with p1^T F p0 = 0 in pixels, from the pose or else from the kept matches."""
    matches = found.matches._as_tensors()
    F: np.ndarray | torch.Tensor | None
    if found.pose is not None and matches.K0 is not None and matches.K1 is not None:
        E = geometry.essential_from_pose(torch.as_tensor(found.pose.R), torch.as_tensor(found.pose.t))
        F = geometry.fundamental_from_essential(E, matches.K0.double(), matches.K1.double())
    else:
        F = estimate_fundamental(matches[found.kept.mask])
    return None if F is None else np.asarray(F) / np.linalg.norm(F)
