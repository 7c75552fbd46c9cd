"""A matcher for kornia: nearest neighbours, pruned. It is called as kornia's matchers that take frames.

kornia's local affine frames (LAFs) are [1 x N x 2 x 3] tensors [A | centre]. kornia itself is not imported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.features import nearest_neighbours
from ananet.pruners import Pruner, load

# The scale of kornia's frames is six standard deviations of a keypoint; our size, a diameter, is two.
FRAME_PER_SIZE = 3.0
# Columns that `WithFrames` adds to descriptors: a frame, then height and width of the image.
FRAME_CHANNELS, SIZE_CHANNELS = 6, 2


class PrunedMatcher(nn.Module):
    """Match descriptors with their nearest neighbours and prune the matches.

    Args:
        pruner: a name that `ananet.load` takes, or a pruner; None for the best one. A name is loaded on the device of
            the first descriptors.
        frame_per_size: how much larger the scale of a frame is than the diameter of its keypoint.
    """

    def __init__(self, pruner: str | Pruner | None = None, frame_per_size: float = FRAME_PER_SIZE) -> None:
        super().__init__()
        self.pruner = pruner
        self.frame_per_size = frame_per_size
        self._loaded: dict[torch.device, Pruner] = {}

    def forward(
        self,
        desc1: Tensor,
        desc2: Tensor,
        lafs1: Tensor | None = None,
        lafs2: Tensor | None = None,
        hw1: tuple[int, int] | None = None,
        hw2: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Kept matches, as kornia's matchers return them.

        Args:
            desc1, desc2: [N1 x D] and [N2 x D].
            lafs1, lafs2: [1 x N x 2 x 3]; not needed for descriptors of `WithFrames`.
            hw1, hw2: (height, width) of both images; without them, how far the keypoints reach.

        Returns:
            [N3 x 1] "distances", which are 1 - probability, and [N3 x 2] indices into both sets.
        """
        if lafs1 is None or lafs2 is None:
            desc1, lafs1, hw1 = _split(desc1)
            desc2, lafs2, hw2 = _split(desc2)
        if len(desc1) == 0 or len(desc2) == 0:
            return desc1.new_zeros(0, 1), torch.zeros(0, 2, dtype=torch.long, device=desc1.device)
        found = nearest_neighbours(desc1, desc2)
        indices = torch.stack([torch.arange(len(desc1), device=desc1.device), found.index], dim=1)
        frames1, frames2 = lafs1[0].float()[indices[:, 0]], lafs2[0].float()[indices[:, 1]]
        known = {"ratio": found.ratio, "mutual": found.mutual, "indices": indices}
        for name, values1, values2 in (
            ("keypoint_sizes", _scales(lafs1) / self.frame_per_size, _scales(lafs2) / self.frame_per_size),
            ("angles", _orientations(lafs1), _orientations(lafs2)),
        ):
            # Values that are the same for all keypoints were not measured.
            if not any(len(values) > 1 and bool((values == values[0]).all()) for values in (values1, values2)):
                known |= {f"{name}0": values1[indices[:, 0]], f"{name}1": values2[indices[:, 1]]}
        sizes = {"image_size0": _size(lafs1, hw1), "image_size1": _size(lafs2, hw2)}
        matches = Correspondences(frames1[:, :, 2], frames2[:, :, 2], **sizes, **known)
        kept = self._pruner_on(desc1.device)(matches)
        return (1 - kept.scores[kept.mask])[:, None].to(desc1.dtype), indices[kept.mask]

    def _pruner_on(self, device: torch.device) -> Pruner:
        if isinstance(self.pruner, Pruner):
            return self.pruner
        if device not in self._loaded:
            self._loaded[device] = load(self.pruner, device=device)
        return self._loaded[device]


class WithFrames(nn.Module):
    """A local feature that appends frames to its descriptors.

    `kornia.feature.LocalFeatureMatcher` gives its matcher only descriptors. Wrap its local feature in this and use
    `PrunedMatcher` as its matcher.
    """

    def __init__(self, local_feature: nn.Module) -> None:
        super().__init__()
        self.local_feature = local_feature

    def forward(self, image: Tensor, *more: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Frames [B x N x 2 x 3], responses, and descriptors [B x N x (D + 8)]."""
        lafs, responses, descriptors = self.local_feature(image, *more, **options)
        # In single precision, since half precision would round coordinates.
        frames = lafs.flatten(2).float()
        size = frames.new_tensor(image.shape[-2:]).expand(*frames.shape[:2], SIZE_CHANNELS)
        return lafs, responses, torch.cat([descriptors.float(), frames, size], dim=-1)


def _split(descriptors: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Descriptors, frames and image size from descriptors of `WithFrames`."""
    if descriptors.dim() != 2 or descriptors.shape[1] <= FRAME_CHANNELS + SIZE_CHANNELS:
        shape = tuple(descriptors.shape)
        raise InputError(f"desc1 and desc2: expected frames, or descriptors of WithFrames, got {shape}")
    own = descriptors.shape[1] - FRAME_CHANNELS - SIZE_CHANNELS
    plain, frames, sizes = descriptors.split([own, FRAME_CHANNELS, SIZE_CHANNELS], dim=1)
    if len(sizes) == 0:
        return plain, frames.unflatten(1, (2, 3))[None], (1, 1)
    height, width = sizes[0].tolist()
    same = bool((sizes == sizes[0]).all())
    if not same or not all(side >= 1 and side == int(side) for side in (height, width)):
        raise InputError("lafs1 and lafs2: expected frames, or descriptors of WithFrames, got neither")
    return plain, frames.unflatten(1, (2, 3))[None], (int(height), int(width))


def _scales(lafs: Tensor) -> Tensor:
    """[N] square roots of the frames' areas."""
    A = lafs[0, :, :, :2].float()
    area = (A[:, 0, 0] * A[:, 1, 1] - A[:, 0, 1] * A[:, 1, 0]).abs()
    return area.sqrt().clamp_min(torch.finfo(area.dtype).tiny)


def _orientations(lafs: Tensor) -> Tensor:
    """[N] radians from the x axis towards the y axis; kornia's angles have the other sign."""
    return -torch.atan2(lafs[0, :, 0, 1].float(), lafs[0, :, 0, 0].float())


def _size(lafs: Tensor, hw: tuple[int, int] | None) -> tuple[float, float]:
    """(width, height) of an image."""
    if hw is not None:
        height, width = (float(side) for side in hw)
        return width, height
    x, y = (lafs[0, :, :, 2].float().amax(dim=0) + 1).clamp_min(1).tolist()
    return x, y
