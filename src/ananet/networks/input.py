"""What a network reads of a set of matches: normalised coordinates, and side input where it was trained with some."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ananet.core.correspondences import Correspondences

# Channels that each kind of side input takes. A kind that is not known is 0 in all of them.
SIDE_INPUT = {"ratio": 1, "mutual": 1, "size": 2, "angle": 2}
# Keypoint sizes are some hundredths of a focal length; their binary logarithm is moved to around 0.
USUAL_LOG_SIZE = -7.0
# What lies farther out than this is no place of the scene: 63 degrees from the optical axis, or half the longest side
# beyond the border of the image. Undistorted corners of wide lenses lie within.
MAX_COORDINATE = 2.0
MAX_MARGIN = 0.5


def side_channels(side: Sequence[str]) -> int:
    return sum(SIDE_INPUT[name] for name in side)


def network_input(matches: Correspondences, side: Sequence[str]) -> Tensor:
    """[N x (4 + side channels)] normalised points, then side input; float32 on the matches' device."""
    matches = matches._as_tensors()
    # In double precision, whatever the points have: what rounds once rounds alike on every device.
    points = matches._in_double().normalized().float()
    if not side:
        return points
    sizes = matches.normalized_sizes() if "size" in side else None
    more = side_input(side, points[:, 0], matches.ratio, matches.mutual, sizes, matches.angles())
    return torch.cat([points, more], dim=-1)


def within_view(matches: Correspondences, points: Tensor) -> Tensor:
    """[N] bool: matches whose points may be seen in their images at all.

    Attention looks at all matches, so one far outside the training data spoils the results of the others: a sentinel of
    65535, a bad keypoint, a corner far off after undistortion. Points are [N x 4], normalised.
    """
    matches = matches._as_tensors()
    inside = (points.abs() <= MAX_COORDINATE).all(dim=1)
    for pixels, size in ((matches.points0, matches.image_size0), (matches.points1, matches.image_size1)):
        if size is not None:
            margin = MAX_MARGIN * max(size)
            inside &= ((pixels >= -margin) & (pixels <= pixels.new_tensor(size) + margin)).all(dim=1)
    return inside


def side_input(
    side: Sequence[str],
    like: Tensor,
    ratio: Tensor | None,
    mutual: Tensor | None,
    sizes: Tensor | None = None,
    angles: Tensor | None = None,
) -> Tensor:
    """[... x N x channels] for the kinds of side input in their order; 0 where something is not known.

    - ratio: how distinctive a match is, 1 - ratio;
    - mutual: 1 or -1;
    - size: log2 of how much larger the second keypoint is, and of the larger of both;
    - angle: cosine and sine of the turn from the first keypoint to the second.

    Args:
        like: [... x N] tensor with the shape, type and device of the result.
        ratio, mutual: [... x N].
        sizes, angles: [... x N x 2] of both keypoints; sizes are normalised as coordinates are. NaN is not known.
    """
    parts = []
    for name in side:
        if name == "ratio":
            part = None if ratio is None else 1 - ratio.to(like.dtype)[..., None]
        elif name == "mutual":
            part = None if mutual is None else mutual.to(like.dtype)[..., None] * 2 - 1
        elif name == "size":
            part = None if sizes is None else _size_channels(sizes.to(like.dtype))
        else:
            part = None if angles is None else _angle_channels(angles.to(like.dtype))
        parts.append(like.new_zeros(*like.shape, SIDE_INPUT[name]) if part is None else part)
    return torch.cat(parts, dim=-1)


def _size_channels(sizes: Tensor) -> Tensor:
    logs = sizes.clamp_min(torch.finfo(sizes.dtype).tiny).log2()
    channels = torch.stack([logs[..., 1] - logs[..., 0], logs.amax(-1) - USUAL_LOG_SIZE], dim=-1)
    return channels.clamp(-8, 8).nan_to_num(nan=0.0)


def _angle_channels(angles: Tensor) -> Tensor:
    turn = angles[..., 1] - angles[..., 0]
    return torch.stack([turn.cos(), turn.sin()], dim=-1).nan_to_num(nan=0.0)
