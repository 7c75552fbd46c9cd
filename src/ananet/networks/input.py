"""What a network reads of a set of matches."""

import torch
from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.networks.ananet import ANANetSettings


def network_input(matches: Correspondences, settings: ANANetSettings) -> Tensor:
    """[N x 4] normalised points, or [N x 6] with side input, float32 on the matches' device."""
    points = matches.normalized().float()
    if settings.side_channels == 0:
        return points
    return torch.cat([points, side_input(points[:, 0], matches.ratio, matches.mutual)], dim=-1)


def side_input(like: Tensor, ratio: Tensor | None, mutual: Tensor | None) -> Tensor:
    """[... x N x 2] how distinctive each match is, 1 - ratio, and whether it is mutual, 1 or -1; 0 where not known."""
    distinctive = torch.zeros_like(like) if ratio is None else 1 - ratio.to(like.dtype)
    both_ways = torch.zeros_like(like) if mutual is None else mutual.to(like.dtype) * 2 - 1
    return torch.stack([distinctive, both_ways], dim=-1)
