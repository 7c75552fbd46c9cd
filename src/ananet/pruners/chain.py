"""Pruners one after another."""

from collections.abc import Sequence

from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.pruners.base import Pruner


class Chain(Pruner):
    """Each pruner sees what the one before it kept; what one drops keeps its verdict, the rest is up to the next."""

    def __init__(self, pruners: Sequence[Pruner]) -> None:
        self.pruners = list(pruners)
        self.name = "+".join(pruner.name for pruner in self.pruners)

    def logits(self, matches: Correspondences) -> Tensor:
        first, *others = self.pruners
        logits = first.logits(matches)
        for pruner in others:
            kept = (logits > 0).nonzero()[:, 0]
            if len(kept):
                verdict = pruner.logits(matches[kept.to(matches.points0.device)])
                logits = logits.index_copy(0, kept, verdict.to(logits))
        return logits
