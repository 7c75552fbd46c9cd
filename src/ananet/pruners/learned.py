"""A trained ANA-Net behind the same call as every other pruner."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.errors import InputError
from ananet.networks import ANANet, load_network
from ananet.pruners.base import Pruned, Pruner, answer

# Matches that go through the network at once, padding included: enough to fill a GPU, little enough to fit.
MATCHES_AT_ONCE = 65_536


class LearnedPruner(Pruner):
    """ANA-Net with weights from a file.

    Args:
        path: a safetensors file written by `ananet.networks.save_network`.
        device: where the network runs.
    """

    def __init__(self, path: str | Path, device: torch.device) -> None:
        self.name = Path(path).stem
        network, self.card = load_network(path)
        self.device = device
        self.network: ANANet = network.to(device)
        if network.settings.side_channels not in (0, 2):
            raise InputError(
                f"weights: {path} wants {network.settings.side_channels} side channels; "
                "expected 0, or 2 for ratio and mutual"
            )

    def logits(self, matches: Correspondences) -> Tensor:
        return self._logits([matches])[0]

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        answers: dict[int, Pruned] = {}
        for group in groups_of_similar_size([len(pair) for pair in pairs], MATCHES_AT_ONCE):
            for index, logits in zip(group, self._logits([pairs[i] for i in group]), strict=True):
                answers[index] = answer(pairs[index], logits)
        return [answers[index] for index in range(len(pairs))]

    @torch.inference_mode()
    def _logits(self, pairs: Sequence[Correspondences]) -> list[Tensor]:
        """The logits of several pairs in one pass, padded to the longest."""
        inputs = [self._network_input(pair) for pair in pairs]
        if len(inputs) == 1:
            return [self.network(inputs[0])]
        lengths = torch.tensor([len(x) for x in inputs], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        mask = torch.arange(padded.shape[1], device=self.device) < lengths[:, None]
        logits = self.network(padded, mask)
        return [row[: len(x)] for row, x in zip(logits, inputs, strict=True)]

    def _network_input(self, pair: Correspondences) -> Tensor:
        matches = pair.normalized().to(self.device, torch.float32)
        if self.network.settings.side_channels == 0:
            return matches
        return torch.cat([matches, side_input(pair).to(self.device)], dim=1)


def side_input(pair: Correspondences) -> Tensor:
    """[N x 2] how distinctive each match is, 1 - ratio, and whether it is mutual, 1 or -1; 0 where unknown."""
    unknown = torch.zeros(len(pair), device=pair.points0.device)
    distinctive = unknown if pair.ratio is None else 1 - pair.ratio
    mutual = unknown if pair.mutual is None else pair.mutual.float() * 2 - 1
    return torch.stack([distinctive, mutual], dim=1)


def groups_of_similar_size(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices grouped so that a group, padded to its longest member, stays within the limit.

    >>> list(groups_of_similar_size([5, 100, 6, 90], limit=200))
    [[1, 3], [2, 0]]
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
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
