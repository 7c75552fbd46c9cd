"""Signs that numbers are not in the unit that is expected: not errors, since each may be right in a rare case."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

from ananet.core.cameras import implausible

# Of fewer points, nothing is said.
MIN_POINTS = 8
# Coordinates all below the first number are hardly pixels of a photo with sides above the second.
MAX_NORMALIZED, MIN_SIDE = 1.5, 32
# The share of points outside their image that is no accident.
MIN_OUTSIDE, MOST_OUTSIDE = 0.05, 0.5
# The tangent of the angle to the optical axis that the median of the points hardly exceeds (79 degrees).
MAX_TANGENT = 5.0
PACKAGE = str(Path(__file__).parents[1])


def unit_doubt(
    number: int, points: np.ndarray, K: np.ndarray | None, image_size: tuple[float, float] | None
) -> str | None:
    """Why pixels hardly belong to their camera or image, in words; None if they may.

    Words do not depend on the points, so that Python shows a warning once for each line that causes it.

    >>> unit_doubt(0, np.linspace(0, 1, 20).reshape(10, 2), None, (640, 480))
    'points0: expected pixels, got coordinates from -1.5 to 1.5 only, as if they were normalised'
    """
    if len(points) < MIN_POINTS:
        return None
    x, y = points[:, 0], points[:, 1]
    low, right, bottom = float(min(x.min(), y.min())), float(x.max()), float(y.max())
    high = max(right, bottom)
    if x.min() == right and y.min() == bottom:
        return None  # all identical
    longest = max(image_size) if image_size is not None else 0.0 if K is None else 2 * float(K[:2, 2].max())
    if longest >= MIN_SIDE and low >= -MAX_NORMALIZED and high <= MAX_NORMALIZED:
        span = f"from {-MAX_NORMALIZED} to {MAX_NORMALIZED} only"
        return f"points{number}: expected pixels, got coordinates {span}, as if they were normalised"
    if image_size is not None:
        width, height = image_size
        if right > width or bottom > height:
            outside = float(((points < -1) | (points > image_size)).any(axis=1).mean())
            if outside > MIN_OUTSIDE and right <= height and bottom <= width:
                return f"points{number}: outside the image, inside if x and y, or width and height, are swapped"
            if outside > MOST_OUTSIDE:
                return (
                    f"points{number}: most are outside the image of image_size{number}; are they of another resolution?"
                )
        doubt = None if K is None else implausible(K, image_size)
        return None if doubt is None else f"K{number}: {doubt}; expected pixels of the image, not millimetres"
    if K is not None:
        tangent = np.abs((points - K[:2, 2]) / (K[0, 0], K[1, 1])).max(axis=1)
        if np.median(tangent) > MAX_TANGENT:
            focal = f"with a focal length of {K[0, 0]:g}, most points are more than 79 degrees off the optical axis"
            return f"K{number}: {focal}; expected pixels of the image, not millimetres"
    return None


def warn_caller(message: str) -> None:
    """Issue a UserWarning at the line outside this package that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level + 1)
