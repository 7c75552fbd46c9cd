"""Pruners that look at each match by itself: keep all, mutual, and the ratio test."""

import torch
from torch import Tensor

from ananet._util.checks import is_number
from ananet._util.defaults import DISTINCTIVE_RATIO
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.pruners.base import MAX_LOGIT, Pruner


class KeepAll(Pruner):
    """Keeps every match: what a pruner has to beat."""

    name = "all"

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.full_like(matches.points0[:, 0], MAX_LOGIT)


class Mutual(Pruner):
    """Keeps matches that are nearest neighbours in both directions."""

    name = "mutual"

    def logits(self, matches: Correspondences) -> Tensor:
        if matches.mutual is None:
            raise InputError(f"mutual: the pruner {self.name!r} needs the mutual flag of every match, got none")
        return torch.where(matches.mutual, MAX_LOGIT, -MAX_LOGIT)


class Ratio(Pruner):
    """Lowe's ratio test on mutual matches: what most systems use today.

    Without a mutual flag the ratio decides alone.
    """

    name = "ratio"

    def __init__(self, threshold: float = DISTINCTIVE_RATIO) -> None:
        if not is_number(threshold) or not 0 < threshold < 1:
            raise InputError(f"threshold: expected a ratio between 0 and 1, got {threshold!r}")
        self.threshold = threshold

    def logits(self, matches: Correspondences) -> Tensor:
        if matches.ratio is None:
            raise InputError(f"ratio: the pruner {self.name!r} needs the ratio of every match, got none")
        # Log-odds of the ratio, shifted to be 0 at the threshold.
        tiny = torch.finfo(matches.ratio.dtype).tiny
        odds = (1 - matches.ratio).clamp_min(tiny) / matches.ratio.clamp_min(tiny)
        logits = (odds * self.threshold / (1 - self.threshold)).log().clamp(-MAX_LOGIT, MAX_LOGIT)
        return logits if matches.mutual is None else logits.where(matches.mutual, -MAX_LOGIT)
