"""Several pruners, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from ananet.core.correspondences import Correspondences
from ananet.inference import Progress
from ananet.pruners.base import USUAL_MATCHES, Pruned, Pruner, as_result, check_pairs


class Chain(Pruner):
    """Each pruner gets the matches that the previous one kept.

    A removed match keeps the logit of the pruner that removed it, shifted to below the last pruner's decision.
    """

    def __init__(self, pruners: Sequence[Pruner]) -> None:
        self.pruners = list(pruners)
        self.name = "+".join(pruner.name for pruner in self.pruners)
        self.decision = self.pruners[-1].decision

    @property
    def progress(self) -> Progress | None:
        return self.pruners[-1].progress

    @progress.setter
    def progress(self, progress: Progress | None) -> None:
        for pruner in self.pruners:
            pruner.progress = progress

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
        results = first.batch(pairs)
        logits = [torch.as_tensor(result.logits) for result in results]
        masks = [torch.as_tensor(result.mask) for result in results]
        names = [result.pruner for result in results]
        decision = first.decision
        for pruner in others:
            results = pruner.batch([pair[mask] for pair, mask in zip(pairs, masks, strict=True)])
            for n, (result, mask) in enumerate(zip(results, masks, strict=True)):
                names[n] += f"+{result.pruner}"
                dropped = (logits[n] + (pruner.decision - decision)).clamp(max=pruner.decision)
                logits[n] = dropped.masked_scatter(mask, torch.as_tensor(result.logits))
                masks[n] = mask.masked_scatter(mask, torch.as_tensor(result.mask))
            decision = pruner.decision
        results = [as_result(pair, of_pair, self) for pair, of_pair in zip(pairs, logits, strict=True)]
        return [replace(result, pruner=name) for result, name in zip(results, names, strict=True)]
