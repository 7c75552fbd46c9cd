"""Which matches blocks attend to first: those that look right before any block has seen them.

Right matches lie close together in the four dimensions x0 y0 x1 y1, since neighbours move alike; wrong ones are
scattered. Neighbours are looked for along a space-filling curve, in O(N log N).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ananet.networks.input import MAX_COORDINATE, SIDE_INPUT

# Levels of the curve; with four bits each they fill the 52 of double precision. The finest cells are half a pixel.
LEVELS = 13
# Neighbours before and after a match on the curve.
NEIGHBOURS = 4
# Squared distance at which a neighbour counts one half: some twenty pixels of a photo.
CLOSE = 1e-3


@torch.no_grad()
def first_scores(matches: Tensor, side: Sequence[str], mask: Tensor | None = None) -> Tensor:
    """[B x N]: how crowded it is around a match, 1 - ratio and the mutual flag, added up; what is not known counts 0.

    Args:
        matches: [B x N x channels], coordinates and the side input named by `side`.
        mask: [B x N], True where a match is real.
    """
    scores, channel = crowding(matches[..., :4], mask), 4
    for name in side:
        if name in ("ratio", "mutual"):
            scores = scores + matches[..., channel]
        channel += SIDE_INPUT[name]
    return scores


def crowding(points: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B x N] in (0, 1]: mean of 1 / (1 + d^2 / CLOSE) over the neighbours on the curve, d being their distance.

    The curve is closed: its ends are neighbours. Points are [B x N x 4]; what padding gets means nothing.
    """
    place = place_on_curve(points)
    if mask is not None:
        place = place.masked_fill(~mask, torch.inf)
    order = place.sort(dim=1, stable=True).indices
    ordered = points.gather(1, order[..., None].expand_as(points))
    here = torch.arange(points.shape[1], device=points.device)
    length = here.new_full((1, 1), points.shape[1]) if mask is None else mask.sum(1, keepdim=True).clamp_min(1)
    total = torch.zeros_like(ordered[..., 0])
    for step in (*range(-NEIGHBOURS, 0), *range(1, NEIGHBOURS + 1)):
        there = ((here + step) % length).expand_as(order)
        distance = (ordered - ordered.gather(1, there[..., None].expand_as(points))).square().sum(-1)
        total = total + 1 / (1 + distance / CLOSE)
    return torch.zeros_like(total).scatter(1, order, total / (2 * NEIGHBOURS))


def place_on_curve(points: Tensor) -> Tensor:
    """[B x N] place on the Z-order curve through four dimensions: one bit of each coordinate in turn, highest first."""
    rest = ((points.double() / MAX_COORDINATE + 1) / 2).clamp(0, 1 - 0.5 ** (LEVELS + 1))
    place = torch.zeros_like(rest[..., 0])
    for _ in range(LEVELS):
        bits = (2 * rest).floor()
        rest = 2 * rest - bits
        x0, y0, x1, y1 = bits.unbind(-1)
        place = 16 * place + (8 * x0 + 4 * y0 + 2 * x1 + y1)
    return place
