"""What training takes for right: matches near the true epipolar line, or those that the depth of the scene confirms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ananet._util.defaults import INLIER_DISTANCE
from ananet.datasets.base import enough_known


@dataclass(frozen=True)
class LabelRule:
    """How matches become targets and weights of the loss."""

    inlier_distance: float = INLIER_DISTANCE
    """A match is near the line below this squared symmetric epipolar distance."""
    labels: Literal["line", "depth"] = "line"
    """line: near the line is right. depth: right is what the depth says, in pairs that know it."""
    unknown_weight: float = 0.0
    """With labels by depth, weight of matches near the line whose truth is unknown."""
    accidental_weight: float = 1.0
    """With labels by depth, weight of wrong matches near the line."""
    unknown_target: tuple[float, float] | None = None
    """Targets of unknown matches near the line: not mutual, mutual. None until they are counted in a table."""

    def of_matches(
        self, distance: Tensor, known: Tensor, right: Tensor, mutual: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return targets and weights [B x N] of the matches of B pairs; `share` is [B], the others are [B x N].

        By depth, a right match is also near the line. In pairs that show nothing in common (`share` 0) all matches are
        wrong. Pairs without known depth (`share` NaN, or hardly any match known) have the label by the line.
        """
        near = distance < self.inlier_distance
        line = near.to(distance.dtype)
        if self.labels == "line":
            return line, torch.ones_like(line)
        empty = (share == 0)[:, None]
        no_depth = (share.isnan() | ~enough_known(known, near))[:, None] & ~empty
        right, known = right & near & ~empty, known | empty
        unknown, accidental = near & ~known, near & known & ~right
        of_others, of_mutual = self.unknown_target or (0.5, 0.5)
        target = torch.where(unknown, torch.where(mutual, of_mutual, of_others), right.to(line.dtype))
        weight = torch.where(unknown, self.unknown_weight, torch.where(accidental, self.accidental_weight, 1.0))
        return torch.where(no_depth, line, target), weight.where(~no_depth, torch.ones_like(line))

    def by_line(self, distance: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return targets and weights [B x N] of lying near the line, for a network that tells both.

        Where photos show nothing in common there is no line to find, and those near it have no weight.
        """
        near, empty = distance < self.inlier_distance, (share == 0)[:, None]
        return (near & ~empty).to(distance.dtype), (~(near & empty)).to(distance.dtype)


BY_LINE = LabelRule()
