"""Matches as arrays, checked as `ananet.Correspondences` checks them, with the same messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# Radians, with a margin for rounding. Larger angles are in degrees.
MAX_ANGLE = 2 * math.pi + 0.01
CAMERAS, IMAGE_SIZES = ("K0", "K1"), ("image_size0", "image_size1")
PER_MATCH = ("ratio", "mutual", "keypoint_sizes0", "keypoint_sizes1", "angles0", "angles1")
OPTIONAL = (*CAMERAS, *IMAGE_SIZES, *PER_MATCH)


class InputError(ValueError):
    """An argument is wrong. The message names it, what was expected and what was given."""


def checked(points0: Any, points1: Any, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """All that is known of matches, by name; raises for what no match has."""
    unknown = [name for name in given if name not in OPTIONAL]
    if unknown:
        raise InputError(f"expected some of {', '.join(OPTIONAL)}, got {', '.join(unknown)}")
    if points0 is None or points1 is None:
        raise InputError(f"points{int(points0 is not None)}: expected an array of shape (N, 2), got nothing")
    arrays = {"points0": _points("points0", points0), "points1": _points("points1", points1)}
    count, other = len(arrays["points0"]), len(arrays["points1"])
    if count != other:
        raise InputError(f"points0 and points1: expected the same number of rows, got {count} and {other}")
    for name in ("K", "image_size", "keypoint_sizes", "angles"):
        missing = [both for both in (f"{name}0", f"{name}1") if given.get(both) is None]
        if len(missing) == 1:
            raise InputError(f"{name}0 and {name}1: expected both or neither, {missing[0]} is missing")
    exact = np.result_type(arrays["points0"], arrays["points1"])
    for name, value in given.items():
        if value is None:
            continue
        if name in CAMERAS:
            # Rounded as the points are.
            arrays[name] = _camera(name, value).astype(exact)
        elif name in IMAGE_SIZES:
            arrays[name] = _size(name, value)
        else:
            arrays[name] = _per_match(name, value, count)
    _check_values(arrays)
    if count and not {"K0", "image_size0"} & arrays.keys():
        raise InputError("expected camera matrices (K0, K1) or image sizes (image_size0, image_size1), got neither")
    return arrays


def _check_values(arrays: dict[str, np.ndarray]) -> None:
    for name, values in arrays.items():
        _check_finite(name, values)
    ratio = arrays.get("ratio")
    if ratio is not None and ((ratio < 0) | (ratio > 1)).any():
        raise InputError(
            f"ratio: expected values in [0, 1], got {ratio.min():g} to {ratio.max():g}; "
            "it is the distance to the nearest descriptor over that to the second nearest"
        )
    for name in ("angles0", "angles1"):
        if name in arrays and (abs(arrays[name]) > MAX_ANGLE).any():
            raise InputError(
                f"{name}: expected radians from -2 pi to 2 pi, got {arrays[name].min():g} to {arrays[name].max():g}; "
                "convert degrees, as in OpenCV's KeyPoint.angle, by np.deg2rad"
            )
    for name in ("keypoint_sizes0", "keypoint_sizes1"):
        if name in arrays and (arrays[name] <= 0).any():
            raise InputError(f"{name}: expected positive numbers of pixels, got {arrays[name].min():g}")
    for name in CAMERAS:
        if name in arrays:
            _check_camera(name, arrays[name])


def _array(name: str, values: Any) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise InputError(f"{name}: expected an array without gaps, got a masked one; leave out the masked matches")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise InputError(f"{name}: expected real numbers, got {array.dtype}")
        if array.dtype.kind not in "biuf":
            raise TypeError(f"can't convert np.ndarray of type {array.dtype}")
        return array
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None


def _points(name: str, values: Any) -> np.ndarray:
    array = _array(name, values)
    if array.size == 0 and array.ndim <= 2:
        array = array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise InputError(f"{name}: expected shape (N, 2), got {array.shape}")
    if array.dtype == bool:
        raise InputError(f"{name}: expected real numbers, got bool")
    return array.astype(np.float64 if array.dtype.itemsize > 4 and array.dtype.kind == "f" else np.float32)


def _per_match(name: str, values: Any, count: int) -> np.ndarray:
    array = _array(name, values).astype(np.float32)
    if array.shape != (count,):
        raise InputError(f"{name}: expected shape ({count},), got {array.shape}")
    if name == "mutual":
        _check_finite(name, array)
        wrong = array[(array != 0) & (array != 1)]
        if len(wrong):
            raise InputError(f"{name}: expected True/False or 0/1, got {wrong[0]:g}")
    return array


def _camera(name: str, values: Any) -> np.ndarray:
    K = _array(name, values)
    if K.shape != (3, 3):
        raise InputError(f"{name}: expected shape (3, 3), got {K.shape}")
    return K


def _check_camera(name: str, K: np.ndarray) -> None:
    rows = K.tolist()
    (fx, _, _), (below, fy, _), last = rows
    if fx <= 0 or fy <= 0:
        raise InputError(f"{name}: expected positive focal lengths, got fx={fx:g}, fy={fy:g}")
    if last != [0.0, 0.0, 1.0] or below != 0:
        raise InputError(f"{name}: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]], got {rows}")


def _size(name: str, values: Any) -> np.ndarray:
    size = _array(name, values).astype(np.float64).ravel()
    if len(size) != 2 or not np.isfinite(size).all() or size.min() <= 0:
        raise InputError(f"{name}: expected (width, height) in pixels, got {values!r}")
    return size


def _check_finite(name: str, values: np.ndarray) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        rows = ~finite.reshape(len(values), -1).all(axis=1)
        wrong = f"NaN or infinity in {rows.sum()} of {len(values)} rows (first: row {rows.argmax()})"
        raise InputError(f"{name}: expected finite numbers, got {wrong}")
