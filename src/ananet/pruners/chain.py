"""Pruners one after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.pruners.base import Pruned, Pruner, answer


class Chain(Pruner):
    """Each pruner sees what the one before it kept; what one drops keeps its verdict, the rest is up to the next."""

    def __init__(self, pruners: Sequence[Pruner]) -> None:
        self.pruners = list(pruners)
        self.name = "+".join(pruner.name for pruner in self.pruners)

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.as_tensor(self.batch([matches])[0].logits)

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        first, *others = self.pruners
        logits = [torch.as_tensor(verdict.logits) for verdict in first.batch(pairs)]
        for pruner in others:
            kept = [(values > 0).nonzero()[:, 0] for values in logits]
            verdicts = pruner.batch([pair[rows] for pair, rows in zip(pairs, kept, strict=True)])
            logits = [
                values.index_copy(0, rows, torch.as_tensor(verdict.logits))
                for values, rows, verdict in zip(logits, kept, verdicts, strict=True)
            ]
        return [answer(pair, values) for pair, values in zip(pairs, logits, strict=True)]
