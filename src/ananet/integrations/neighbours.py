"""Nearest neighbours of descriptors that are tensors, on their device. `features.matching` is the form for arrays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Rows of the distance matrix that are held at once: 4096 x 8000 floats are 128 MB.
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each descriptor of the first set, its nearest in the second, all [N]."""

    index: Tensor
    """Into the second set."""
    ratio: Tensor
    """Distance to the nearest over that to the second nearest; 1 where there is no second one."""
    mutual: Tensor
    """Whether the match is nearest in both directions."""


def nearest_neighbours(descriptors0: Tensor, descriptors1: Tensor) -> Neighbours:
    """Of every descriptor of the first set, [N x D] and [M x D], by Euclidean distance; M is at least 1."""
    first, second = descriptors0.float(), descriptors1.float()
    index, distances = _two_nearest(first, second)
    back, _ = _two_nearest(second, first)
    ratio = distances[:, 0] / distances[:, 1]
    # Two at distance 0 give NaN: nothing tells them apart, as where there is no second one.
    ratio = torch.where(distances[:, 1].isfinite(), ratio, 1.0).nan_to_num(nan=1.0).clamp(max=1.0)
    return Neighbours(index, ratio, back[index] == torch.arange(len(first), device=first.device))


def _two_nearest(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the nearest of the second set, and [N x 2] distances to the two nearest; infinite where it has only one."""
    squares = second.square().sum(dim=1)
    index, found = [], []
    for rows in first.split(ROWS_AT_ONCE):
        squared = rows.square().sum(dim=1, keepdim=True) + squares - 2 * rows @ second.mT
        nearest = squared.topk(min(2, len(second)), dim=1, largest=False)
        distances = nearest.values.clamp_min(0).sqrt()
        index.append(nearest.indices[:, 0])
        found.append(torch.nn.functional.pad(distances, (0, 2 - distances.shape[1]), value=torch.inf))
    return torch.cat(index), torch.cat(found)
