"""Pruners made of others: the best network for the known input of each pair, and several one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from ananet._util.checks import check_whole_number
from ananet._util.devices import choose_device
from ananet.core.correspondences import Correspondences
from ananet.inference import Progress
from ananet.networks.ananet import MAX_SEEDS
from ananet.pruners.base import USUAL_MATCHES, Pruned, Pruner, as_result, check_pairs
from ananet.pruners.learned import CONFLICT_ODDS, THRESHOLD, LearnedPruner, check_odds, decision_at, streamed_on
from ananet.weights import bundled_path

NETWORKS = COORDINATES, SIDE_INPUT = "ananet", "ananet-ratio"


class Auto(Pruner):
    """The best network for the given input: ananet-ratio if ratio or mutual flag are known, else ananet.

    Args:
        device: where networks run.
        threshold, conflict_odds, seeds: as for every network.
    """

    name = "auto"

    def __init__(
        self,
        device: str | torch.device = "auto",
        threshold: float = THRESHOLD,
        conflict_odds: float = CONFLICT_ODDS,
        seeds: int | None = None,
    ) -> None:
        self.device, self.threshold, self.conflict_odds = choose_device(device), threshold, check_odds(conflict_odds)
        self.decision = decision_at(threshold)
        self.seeds = seeds if seeds is None else check_whole_number("seeds", seeds, 0, MAX_SEEDS)
        self._loaded: dict[str, LearnedPruner] = {}
        self._progress: Progress | None = None

    @property
    def progress(self) -> Progress | None:
        return self._progress

    @progress.setter
    def progress(self, progress: Progress | None) -> None:
        self._progress = progress
        for network in self._loaded.values():
            network.progress = progress

    def chosen(self, matches: Correspondences) -> LearnedPruner:
        """The network for such matches."""
        return self._network(SIDE_INPUT if matches.ratio is not None or matches.mutual is not None else COORDINATES)

    @property
    def networks(self) -> list[LearnedPruner]:
        """All that may be chosen."""
        return [self._network(name) for name in NETWORKS]

    def logits(self, matches: Correspondences) -> Tensor:
        return self.chosen(matches).logits(matches)

    def to(self, device: str | torch.device) -> Self:
        self.device = choose_device(device)
        for network in self._loaded.values():
            network.to(self.device)
        return self

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        return self._start(pairs)()

    @property
    def _streamed_matches(self) -> int:
        return streamed_on(self.device)

    def _start(self, pairs: Sequence[Correspondences], *, alone: bool = False) -> Callable[[], list[Pruned]]:
        pairs = check_pairs(pairs, values=False)
        alone = alone and len(pairs) == 1
        choices = [self.chosen(pair) for pair in pairs]
        waiting = []
        for network in dict.fromkeys(choices):
            numbers = [number for number, choice in enumerate(choices) if choice is network]
            waiting.append((numbers, network._start([pairs[number] for number in numbers], alone=alone)))

        def wait() -> list[Pruned]:
            results = {n: result for numbers, found in waiting for n, result in zip(numbers, found(), strict=True)}
            return [results[number] for number in range(len(pairs))]

        return wait

    def warm_up(self, matches: Sequence[int] = USUAL_MATCHES, progress: Progress | None = None) -> None:
        for network in self.networks:
            network.warm_up(matches, progress)

    def _network(self, name: str) -> LearnedPruner:
        if name not in self._loaded:
            settings = self.device, self.threshold, self.conflict_odds, self.seeds
            self._loaded[name] = LearnedPruner.from_file(bundled_path(name), *settings)
            self._loaded[name].progress = self._progress
        return self._loaded[name]


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
