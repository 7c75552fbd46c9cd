"""Subpixel refinement of keypoints that many pairs share, as structure from motion needs it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from ananet._util.checks import check_whole_number
from ananet._util.devices import choose_device
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.twoview.refinement import Alignment, check_input

# Alignments of lower correlation are ignored. Staying in place has the weight of 0.2 alignments, an alignment that
# differs from the others by 1 pixel half of its weight, and a keypoint that would move by more than 4 pixels stays.
MIN_CORRELATION, STAYING, DISAGREEMENT, MAX_SHIFT = 0.8, 0.2, 1.0, 4.0
ROUNDS = 40


class KeypointRefinement:
    """Moves each keypoint once for all its pairs.

    `add_pair` aligns a pair in both directions. `shifts` then moves every keypoint to the place on which the alignments
    of all its pairs agree, while the other keypoints move too.

    Args:
        counts: number of keypoints of each photo.
        device: where patches are aligned.

    >>> collection = KeypointRefinement([100, 80], device="cpu")
    >>> [shifts.shape for shifts in collection.shifts()]
    [(100, 2), (80, 2)]
    """

    def __init__(self, counts: Sequence[int], *, device: str | torch.device = "auto") -> None:
        self.counts = [check_whole_number(f"counts[{number}]", count, 0) for number, count in enumerate(counts)]
        self.device = choose_device(device)
        self._starts = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        self._constraints: list[tuple[np.ndarray, ...]] = []

    @torch.no_grad()
    def add_pair(
        self, photo0: int, photo1: int, image0: np.ndarray, image1: np.ndarray, matches: Correspondences
    ) -> np.ndarray:
        """Align a pair; returns the better of both correlations of each match, [N] float32.

        Args:
            photo0, photo1: numbers of the photos.
            image0, image1: the photos, [H x W] or [H x W x 3] (BGR) uint8.
            matches: kept ones, with the `indices` of their keypoints.
        """
        check_input(image0, image1, matches)
        numbers0, numbers1 = self._numbers(photo0, photo1, matches)
        here = matches.to(self.device)
        names = ("points", "keypoint_sizes", "angles")
        swapped = here.replace(**{f"{name}{n}": getattr(here, f"{name}{1 - n}") for name in names for n in (0, 1)})
        forward, backward = Alignment(image0, image1, here), Alignment(image1, image0, swapped)
        self._constraints += [_constraints(forward, numbers0, numbers1), _constraints(backward, numbers1, numbers0)]
        return torch.maximum(forward.correlation, backward.correlation).cpu().numpy()

    def _numbers(self, photo0: int, photo1: int, matches: Correspondences) -> list[np.ndarray]:
        """Numbers of both keypoints of every match, counted over all photos."""
        if matches.indices is None:
            raise InputError("matches: expected the indices of their keypoints, got none")
        indices = matches._as_tensors().indices.cpu().numpy()
        numbers = []
        for name, photo, of_photo in (("photo0", photo0, indices[:, 0]), ("photo1", photo1, indices[:, 1])):
            photo = check_whole_number(name, photo, 0, len(self.counts) - 1)
            if len(of_photo) and of_photo.max() >= self.counts[photo]:
                raise InputError(
                    f"matches: expected indices below {self.counts[photo]}, the number of keypoints of photo {photo}, "
                    f"got {of_photo.max()}"
                )
            numbers.append(self._starts[photo] + of_photo)
        return numbers

    def shifts(self) -> list[np.ndarray]:
        """[N x 2] float32 shift in pixels of the keypoints of each photo; zeros for those without a match."""
        shifts = np.zeros((self._starts[-1], 2))
        if self._constraints:
            source, target, shift, motion = (np.concatenate(parts) for parts in zip(*self._constraints, strict=True))
            for number in range(ROUNDS):
                wanted = shift + np.einsum("mij,mj->mi", motion, shifts[source])
                difference = np.linalg.norm(wanted - shifts[target], axis=1)
                weights = np.ones_like(difference) if number == 0 else 1 / (1 + (difference / DISAGREEMENT) ** 2)
                total = STAYING + np.bincount(target, weights, minlength=len(shifts))
                sums = [np.bincount(target, weights * wanted[:, axis], minlength=len(shifts)) for axis in (0, 1)]
                # Half a step, or two keypoints that should swap places would oscillate.
                shifts = (shifts + np.stack(sums, axis=1) / total[:, None]) / 2
            shifts[np.linalg.norm(shifts, axis=1) > MAX_SHIFT] = 0
        return [shifts[start:end].astype(np.float32) for start, end in pairwise(self._starts)]


def _constraints(found: Alignment, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, ...]:
    """Constraints between keypoints from an alignment of [N] source to [N] target keypoints.

    [M] source and [M] target numbers, [M x 2] shifts of targets if sources stay, [M x 2 x 2] how they follow sources.
    """
    sure = (found.aligned & (found.correlation > MIN_CORRELATION)).cpu().numpy()
    shift, motion = (values.double().cpu().numpy()[sure] for values in (found.shift, found.motion))
    back = np.linalg.inv(motion)
    # In both directions: if only targets moved, forward and backward alignments that contradict each other would push
    # both keypoints the same way without end.
    source, target, shift_back = source[sure], target[sure], -np.einsum("mij,mj->mi", back, shift)
    both = ((source, target), (target, source), (shift, shift_back), (motion, back))
    return tuple(np.concatenate(parts) for parts in both)
