"""Pruners one after another."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.pruners.base import Pruned, Pruner


class Chain(Pruner):
    """Each pruner sees what the one before it kept; what one drops keeps its verdict, the rest is up to the next."""

    def __init__(self, pruners: Sequence[Pruner]) -> None:
        self.pruners = list(pruners)
        self.name = "+".join(pruner.name for pruner in self.pruners)

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.as_tensor(self.batch([matches])[0].logits)

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        first, *others = self.pruners
        answers = first.batch(pairs)
        for pruner in others:
            verdicts = pruner.batch([pair[answer.mask] for pair, answer in zip(pairs, answers, strict=True)])
            answers = [_updated(answer, verdict) for answer, verdict in zip(answers, verdicts, strict=True)]
        return answers


def _updated(answer: Pruned, verdict: Pruned) -> Pruned:
    """The answer with the verdict on what it kept."""

    def merged(before: Any, after: Any) -> Any:
        merged = before.clone() if isinstance(before, Tensor) else before.copy()
        merged[answer.mask] = after
        return merged

    return Pruned(
        merged(answer.mask, verdict.mask),
        merged(answer.scores, verdict.scores),
        merged(answer.logits, verdict.logits),
    )
