"""SuperPoint (DeTone, Malisiewicz and Rabinovich 2018)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ananet._util.checks import check_share, check_whole_number
from ananet._util.defaults import LONGEST_SIDE, MAX_KEYPOINTS
from ananet.features.learned import LearnedDetector, inside, tell_once

URL = "https://github.com/magicleap/SuperPointPretrainedNetwork/raw/master/superpoint_v1.pth"
NOTICE = "SuperPoint: the weights of its authors are for non-commercial research only (Magic Leap's licence)"
# Side of the network's cells, in pixels.
CELL = 8
# Keypoints nearer than this to the border are left out, as by the authors.
BORDER = 4


class SuperPointNetwork(nn.Module):
    """An encoder of eight layers that halves the image three times, a head for keypoints and one for descriptors.

    Layers have their authors' names.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 1
        for number, channels in enumerate((64, 64, 128, 128), 1):
            for letter in "ab":
                setattr(self, f"conv{number}{letter}", nn.Conv2d(width, channels, 3, padding=1))
                width = channels
        self.convPa = nn.Conv2d(width, 256, 3, padding=1)
        self.convPb = nn.Conv2d(256, CELL**2 + 1, 1)
        self.convDa = nn.Conv2d(width, 256, 3, padding=1)
        self.convDb = nn.Conv2d(256, 256, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B x 1 x H x W] to probabilities of keypoints [B x H x W] and descriptors [B x 256 x H/8 x W/8]."""
        x = image
        for number in range(1, 5):
            x = x if number == 1 else F.max_pool2d(x, 2)
            for letter in "ab":
                x = F.relu(getattr(self, f"conv{number}{letter}")(x))
        # The last channel is for cells without keypoint.
        in_cells = self.convPb(F.relu(self.convPa(x))).softmax(dim=1)[:, :-1]
        descriptors = self.convDb(F.relu(self.convDa(x)))
        return F.pixel_shuffle(in_cells, CELL)[:, 0], F.normalize(descriptors, dim=1)


class SuperPoint(LearnedDetector):
    """SuperPoint (DeTone et al. 2018): whole pixels, descriptors of 256 numbers.

    Args:
        max_keypoints: number of keypoints to keep, the strongest ones.
        threshold: lowest probability of keypoints.
        radius: of non-maximum suppression, in pixels.
        weights: a file; see `features.learned`.
        longest_side: larger photos are scaled down to it; none leaves all as they are.
    """

    name = "superpoint"
    licence = "non-commercial research only"
    channels = 1

    def __init__(
        self,
        max_keypoints: int = MAX_KEYPOINTS,
        threshold: float = 0.0005,
        radius: int = 4,
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        check_share("threshold", threshold)
        self.threshold, self.radius = threshold, check_whole_number("radius", radius, 0)
        tell_once(NOTICE)
        self.network = self.use(SuperPointNetwork(), "superpoint_v1", weights, _download)

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        probability, descriptors = self.network(image)
        probability = strongest_around(probability, self.radius)[0]
        rows, columns = (probability > self.threshold).nonzero().unbind(1)
        points, scores = torch.stack([columns, rows], dim=1).float(), probability[rows, columns]
        seen = inside(points, size, BORDER)
        points, scores = points[seen], scores[seen]
        return points, sample(descriptors, points), scores


def strongest_around(values: Tensor, radius: int) -> Tensor:
    """[B x H x W] values that are the largest within a radius, 0 elsewhere.

    Suppressed values are removed before the next round, so that a ridge keeps more than its peak.
    """

    def largest(image: Tensor) -> Tensor:
        return F.max_pool2d(image, 2 * radius + 1, stride=1, padding=radius)

    peaks = torch.zeros_like(values, dtype=torch.bool)
    for _ in range(3):
        open_ = values.masked_fill(largest(peaks.float()) > 0, 0)
        peaks |= (open_ == largest(open_)) & (open_ > 0)
    return values.masked_fill(~peaks, 0)


def sample(descriptors: Tensor, points: Tensor) -> Tensor:
    """[N x D] of unit length: descriptors of cells, [1 x D x h x w], interpolated at pixels, [N x 2]."""
    height, width = descriptors.shape[-2:]
    # The centre of the first cell is at 3.5 pixels, that of the last 8 (width - 1) further. Published code divides by
    # this instead, and matchers were trained with it.
    extent = CELL * points.new_tensor([width, height]) - CELL / 2 - 0.5
    grid = (points - (CELL / 2 - 0.5)) / extent * 2 - 1
    sampled = F.grid_sample(descriptors, grid[None, None], align_corners=True)[0, :, 0].T
    return F.normalize(sampled, dim=1)


def _download() -> dict[str, Any]:
    return torch.hub.load_state_dict_from_url(URL, map_location="cpu", weights_only=True)
