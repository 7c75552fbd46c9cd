"""A trained ANA-Net behind the same call as every other pruner."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.errors import InputError, check_probability, is_number
from ananet.networks import ANANet, load_network
from ananet.networks.engine import inference_engine
from ananet.networks.input import network_input
from ananet.networks.rivals import doubt_rivals
from ananet.pruners.base import Pruned, Pruner, answer, check_pairs

# Matches that go through the network at once, padding included: enough to fill a GPU, little enough to fit.
MATCHES_AT_ONCE = 65_536


class LearnedPruner(Pruner):
    """ANA-Net with weights from a file.

    Args:
        path: a safetensors file written by `ananet.networks.save_network`.
        device: where the network runs.
        threshold: the probability above which a match is kept.
        rival_odds: of matches that share a point but lie apart in the other image, at most one is right. The odds of
            all but the best are divided by this. 1 leaves the network's verdict as it is, infinity keeps one place
            for every point.
    """

    def __init__(
        self, path: str | Path, device: torch.device, threshold: float = 0.4, rival_odds: float = 30.0
    ) -> None:
        check_probability("threshold", threshold)
        if not is_number(rival_odds) or not rival_odds >= 1:
            raise InputError(f"rival_odds: expected a number of at least 1, got {rival_odds!r}")
        self.name = Path(path).stem
        self.decision = math.log(threshold / (1 - threshold))
        self.rival_odds = rival_odds
        network, self.card = load_network(path)
        self.device = device
        self.network: ANANet = network.to(device)
        self.engine = inference_engine(network, device)
        if network.settings.side_channels not in (0, 2):
            raise InputError(
                f"weights: {path} wants {network.settings.side_channels} side channels; "
                "expected 0, or 2 for ratio and mutual"
            )

    def logits(self, matches: Correspondences) -> Tensor:
        return self._logits([matches])[0]

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        check_pairs(pairs)
        # Where there is nothing to score, cameras or sizes may be missing too.
        empty = {number: pair for number, pair in enumerate(pairs) if len(pair) == 0}
        answers = {number: answer(pair, pair.points0[:, 0], self.decision) for number, pair in empty.items()}
        for group in groups_of_similar_size([len(pair) for pair in pairs], MATCHES_AT_ONCE):
            for index, logits in zip(group, self._logits([pairs[i] for i in group]), strict=True):
                answers[index] = answer(pairs[index], logits, self.decision)
        return [answers[index] for index in range(len(pairs))]

    def _logits(self, pairs: Sequence[Correspondences]) -> list[Tensor]:
        """The logits of several pairs in one pass, padded to the longest."""
        inputs = [network_input(pair, self.network.settings).to(self.device) for pair in pairs]
        if len(inputs) == 1:
            alone = inputs[0][None]
            return list(doubt_rivals(self.engine(alone, None), alone, self.rival_odds))
        lengths = torch.tensor([len(x) for x in inputs], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        mask = torch.arange(padded.shape[1], device=self.device) < lengths[:, None]
        logits = doubt_rivals(self.engine(padded, lengths), padded, self.rival_odds, mask)
        return [row[: len(x)] for row, x in zip(logits, inputs, strict=True)]


def groups_of_similar_size(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices grouped so that a group, padded to its longest member, stays within the limit; empty ones are left out.

    >>> list(groups_of_similar_size([5, 100, 6, 90], limit=200))
    [[1, 3], [2, 0]]
    """
    group: list[int] = []
    for index in sorted((i for i in range(len(lengths)) if lengths[i]), key=lambda i: -lengths[i]):
        if group:
            longest = lengths[group[0]]
            too_large = (len(group) + 1) * longest > limit
            mostly_padding = lengths[index] * 2 < longest
            if too_large or mostly_padding:
                yield group
                group = []
        group.append(index)
    if group:
        yield group
