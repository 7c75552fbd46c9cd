"""Pruners one after another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from ananet.core.correspondences import Correspondences
from ananet.inference import Progress
from ananet.pruners.base import USUAL_MATCHES, Pruned, Pruner, answer, check_pairs


class Chain(Pruner):
    """Each pruner gets the matches that the previous one kept.

    A removed match keeps the logit of the pruner that removed it, shifted to below the last pruner's decision.
    """

    def __init__(self, pruners: Sequence[Pruner]) -> None:
        self.pruners = list(pruners)
        self.name = "+".join(pruner.name for pruner in self.pruners)
        self.decision = self.pruners[-1].decision

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.as_tensor(self.batch([matches])[0].logits)

    def to(self, device: str | torch.device) -> Self:
        for pruner in self.pruners:
            pruner.to(device)
        return self

    @property
    def _streamed_matches(self) -> int:
        return max(pruner._streamed_matches for pruner in self.pruners)

    def warm_up(self, matches: Sequence[int] = USUAL_MATCHES, progress: Progress | None = None) -> None:
        for pruner in self.pruners:
            pruner.warm_up(matches, progress)

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        pairs = check_pairs(pairs)
        first, *others = self.pruners
        answers = first.batch(pairs)
        logits = [torch.as_tensor(answer.logits) for answer in answers]
        kept = [torch.as_tensor(answer.mask) for answer in answers]
        names = [[answer.pruner] for answer in answers]
        decision = first.decision
        for pruner in others:
            verdicts = pruner.batch([pair[mask] for pair, mask in zip(pairs, kept, strict=True)])
            for number, verdict in enumerate(verdicts):
                names[number].append(verdict.pruner)
                left = kept[number]
                dropped = (logits[number] + (pruner.decision - decision)).clamp(max=pruner.decision)
                logits[number] = dropped.masked_scatter(left, torch.as_tensor(verdict.logits))
                kept[number] = left.masked_scatter(left, torch.as_tensor(verdict.mask))
            decision = pruner.decision
        return [
            replace(answer(pair, of_pair, self), pruner="+".join(asked))
            for pair, of_pair, asked in zip(pairs, logits, names, strict=True)
        ]
