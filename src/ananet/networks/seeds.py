"""The groups of matches that attention through seeds starts from: neighbours on a space-filling curve.

Matches that lie close together in the four dimensions x0 y0 x1 y1 have similar features, and mostly follow each other
on the curve, which takes O(N log N).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ananet.attention import Seeds
from ananet.networks.input import MAX_COORDINATE

# Bits of each coordinate: cells of half a pixel.
BITS = 13
# Steps of k-means before the first block, since what lies together on the curve is not always close; then one a block.
FIRST_STEPS = 3
# Moves the bits of a number of at most 16 bits four places apart: shifts, and what stays of the number and its shift.
SPREAD = ((24, 0x000000FF000000FF), (12, 0x000F000F000F000F), (6, 0x0303030303030303), (3, 0x1111111111111111))


@torch.no_grad()
def first_seeds(matches: Tensor, count: int, mask: Tensor | None = None) -> Seeds:
    """At most `count` groups of equal size, each of neighbours on the curve; one match each if there are no more.

    Args:
        matches: [B x N x channels], coordinates and side input.
        mask: [B x N], True where a match is real; None if all are. Padding may hold anything.
    """
    place = place_on_curve(matches[..., :4])
    length = matches.shape[1]
    if mask is None:
        real = torch.full((1, 1), length, device=matches.device)
    else:
        place, real = place.masked_fill(~mask, torch.iinfo(place.dtype).max), mask.sum(1, keepdim=True)
    # Matches of one cell, such as two orientations of a keypoint, follow each other in whatever order they are given.
    order = matches.sum(-1).sort(dim=1, stable=True).indices
    order = order.gather(1, place.gather(1, order).sort(dim=1, stable=True).indices)
    count = torch.sym_min(count, length)
    rank = torch.arange(length, device=matches.device)
    along = torch.where(real > count, rank * count // real.clamp_min(1), rank).clamp(max=count - 1)
    group = torch.zeros_like(order).scatter(1, order, along.expand_as(order))
    members = torch.ones_like(matches[..., 0], dtype=torch.float32) if mask is None else mask.float()
    weights = members.new_zeros(matches.shape[0], count).scatter_add(1, group, members)
    return Seeds(group, weights)


def place_on_curve(points: Tensor) -> Tensor:
    """[B x N] place on the Z-order curve through four dimensions: one bit of each coordinate in turn, highest first."""
    cells = ((points.double() / MAX_COORDINATE + 1) * 2 ** (BITS - 1)).clamp(0, 2**BITS - 1).long()
    for shift, kept in SPREAD:
        cells = (cells + cells * 2**shift) & kept
    x0, y0, x1, y1 = cells.unbind(-1)
    return 8 * x0 + 4 * y0 + 2 * x1 + y1
