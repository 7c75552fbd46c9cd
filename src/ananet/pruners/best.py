"""The best network for what is known of the matches, chosen pair by pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.devices import choose_device
from ananet.pruners.base import Pruned, Pruner, check_pairs
from ananet.pruners.learned import CONFLICT_ODDS, THRESHOLD, LearnedPruner, check_odds, decision_at, streamed_on
from ananet.weights import bundled_path

NETWORKS = COORDINATES, SIDE_INPUT = "ananet", "ananet-ratio"


class Best(Pruner):
    """The best network for what is known of the matches: ananet-ratio where descriptors tell something, else ananet.

    Args:
        device: where networks run.
        threshold, conflict_odds: as for every network.
    """

    name = "auto"

    def __init__(
        self,
        device: str | torch.device = "auto",
        threshold: float = THRESHOLD,
        conflict_odds: float = CONFLICT_ODDS,
    ) -> None:
        self.device, self.threshold, self.conflict_odds = choose_device(device), threshold, check_odds(conflict_odds)
        self.decision = decision_at(threshold)
        self._loaded: dict[str, LearnedPruner] = {}

    def chosen(self, matches: Correspondences) -> LearnedPruner:
        """The network for such matches."""
        return self._network(SIDE_INPUT if matches.ratio is not None or matches.mutual is not None else COORDINATES)

    @property
    def networks(self) -> list[LearnedPruner]:
        """All that may be chosen."""
        return [self._network(name) for name in NETWORKS]

    def logits(self, matches: Correspondences) -> Tensor:
        return self.chosen(matches).logits(matches)

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        check_pairs(pairs)
        choices = [self.chosen(pair) for pair in pairs]
        answers: dict[int, Pruned] = {}
        for network in dict.fromkeys(choices):
            numbers = [number for number, choice in enumerate(choices) if choice is network]
            answers |= zip(numbers, network.batch([pairs[number] for number in numbers]), strict=True)
        return [answers[number] for number in range(len(pairs))]

    @property
    def streamed_matches(self) -> int:
        return streamed_on(self.device)

    def _network(self, name: str) -> LearnedPruner:
        if name not in self._loaded:
            self._loaded[name] = LearnedPruner.from_file(
                bundled_path(name), self.device, self.threshold, self.conflict_odds
            )
        return self._loaded[name]
