"""The data type that the whole package passes on: putative correspondences between two images.

Values are checked and normalised here and nowhere else.
Pixel coordinates follow OpenCV: the centre of the first pixel is (0, 0).
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet.core.cameras import FOCAL_GUESS, calibrate, implausible, scale_by_size
from ananet.errors import InputError

# What the arguments may be: numpy arrays, torch tensors or nested lists.
Array = np.ndarray | Tensor | Sequence[Any]
Size = tuple[float, float] | Array

# Radians, with a margin for rounding. Larger angles are in degrees.
MAX_ANGLE = 2 * math.pi + 0.01
# What there is of every match: a selection of matches selects in each of these.
_KEYPOINTS = ("keypoint_sizes0", "keypoint_sizes1", "angles0", "angles1")
PER_MATCH = ("points0", "points1", "ratio", "mutual", "scores", *_KEYPOINTS, "indices")
_NUMBERS = [name for name in PER_MATCH if name not in ("mutual", "indices")]
_SIZES = ("image_size0", "image_size1")
_OPTIONAL = ("K0", "K1", *_SIZES, *PER_MATCH[2:])
_READ_BY_NETWORKS = {*_OPTIONAL} - {"scores", "indices"}

# Units of fewer points are not judged.
MIN_POINTS = 8
# Coordinates all below the first number are hardly pixels of a photo with sides above the second.
MAX_NORMALIZED, MIN_SIDE = 1.5, 32
# Shares of points outside the image above which x and y are probably swapped, or the resolution is another.
MAX_OUTSIDE, MAX_OUTSIDE_UNSWAPPED = 0.05, 0.5
# The tangent of the angle to the optical axis that the median of the points hardly exceeds (79 degrees).
MAX_TANGENT = 5.0
PACKAGE = str(Path(__file__).parents[1])


class _Values:
    """An attribute stored as a tensor: shown as numpy if the matches came as numpy."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.stored = f"_{name}"

    # Any, since the type follows the caller's input: a union would ask every caller for a cast.
    def __get__(self, matches: Any, owner: type) -> Any:
        if matches is None:
            return self
        values = vars(matches)[self.stored]
        convert = values is not None and matches.given_as_numpy and not matches._shows_tensors
        return values.numpy(force=True) if convert else values


class Correspondences:
    """N putative matches between two images.

    Args:
        points0: [N x 2] pixel coordinates (x, y) in the first image.
        points1: [N x 2] pixel coordinates of the same matches in the second image.
        K0, K1: [3 x 3] camera matrices. Given both, the matches are calibrated.
        image_size0, image_size1: (width, height) of the images in pixels; used where there are no camera matrices.
        ratio: [N] descriptor distance to the nearest over that to the second nearest neighbour, in [0, 1]; of
            distances, not of their squares.
        mutual: [N] whether the match is nearest in both directions.
        scores: [N] the matcher's own confidence, higher is better, on any scale.
        keypoint_sizes0, keypoint_sizes1: [N] diameters of the keypoints in pixels, as OpenCV's `KeyPoint.size`, not
            radii.
        angles0, angles1: [N] orientations of the keypoints in radians, from the x axis towards the y axis.
        indices: [N x 2] which keypoint of each image a match joins.

    numpy arrays, torch tensors (on any device) and lists are accepted. Attributes are numpy arrays, unless points0 is a
    tensor: then all are tensors on its device. Points keep float64 if they have it, everything else becomes float32.
    Points must be finite; N may be 0. What can be seen from the numbers to be in another unit is an `InputError`, or a
    `UserWarning` where it is only likely: points that are normalised, outside the image or with x and y swapped, camera
    matrices in millimetres.

    >>> size = (64, 48)
    >>> matches = Correspondences([[10, 20], [30, 40]], [[12, 20], [33, 41]], image_size0=size, image_size1=size)
    >>> len(matches), matches.calibrated
    (2, False)
    >>> matches.normalized()[0]
    array([-0.49107143, -0.08928572, -0.44642857, -0.08928572], dtype=float32)
    """

    points0 = _Values()
    points1 = _Values()
    K0 = _Values()
    K1 = _Values()
    ratio = _Values()
    mutual = _Values()
    scores = _Values()
    keypoint_sizes0 = _Values()
    keypoint_sizes1 = _Values()
    angles0 = _Values()
    angles1 = _Values()
    indices = _Values()
    image_size0: tuple[float, float] | None
    image_size1: tuple[float, float] | None
    given_as_numpy: bool
    """Whether attributes and results are numpy arrays."""
    _points0: Tensor
    _points1: Tensor
    _K0: Tensor | None
    _K1: Tensor | None
    _ratio: Tensor | None
    _keypoint_sizes0: Tensor | None
    _keypoint_sizes1: Tensor | None
    _angles0: Tensor | None
    _angles1: Tensor | None
    _indices: Tensor | None
    _shows_tensors: bool
    _values_are_checked: bool

    def __init__(
        self,
        points0: Array,
        points1: Array,
        *,
        K0: Array | None = None,
        K1: Array | None = None,
        image_size0: Size | None = None,
        image_size1: Size | None = None,
        ratio: Array | None = None,
        mutual: Array | None = None,
        scores: Array | None = None,
        keypoint_sizes0: Array | None = None,
        keypoint_sizes1: Array | None = None,
        angles0: Array | None = None,
        angles1: Array | None = None,
        indices: Array | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "points0", "points1")}
        self._take(points0, points1, given, copy_points=True)
        self._check_values()

    @classmethod
    def _unchecked(cls, points0: Array, points1: Array, **given: Any) -> Correspondences:
        """Matches of which shapes and types are checked, values not yet: on a GPU, the kernel that reads them does.

        The caller must call `_check_values`. Points may share the caller's memory: use them for one call only.
        """
        if not given.keys() <= _READ_BY_NETWORKS:
            return cls(points0, points1, **given)
        pair = object.__new__(cls)
        pair._take(points0, points1, given, copy_points=False)
        return pair

    def _take(self, points0: Array, points1: Array, given: dict[str, Any], *, copy_points: bool) -> None:
        """Store everything; check shapes and types, not values."""
        self._values_are_checked = self._shows_tensors = False
        self.given_as_numpy = not isinstance(points0, Tensor)
        first, second = _points("points0", points0, copy_points), _points("points1", points1, copy_points)
        if len(first) != len(second):
            numbers = f"{len(first)} and {len(second)}"
            raise InputError(f"points0 and points1: expected the same number of rows, got {numbers}")
        if first.dtype != second.dtype:
            first, second = first.double(), second.double()
        self._points0, self._points1 = first, second if first.device == second.device else second.to(first.device)
        for name in ("K", "image_size", "keypoint_sizes", "angles"):
            missing = [both for both in (f"{name}0", f"{name}1") if given.get(both) is None]
            if len(missing) == 1:
                raise InputError(f"{name}0 and {name}1: expected both or neither, {missing[0]} is missing")
        for name in _OPTIONAL:
            value = given.get(name)
            if value is not None:
                value = self._stored(name, value)
            vars(self)[name if name in _SIZES else f"_{name}"] = value

    def _stored(self, name: str, value: Any) -> Any:
        if name in _SIZES:
            return _size(name, value)
        if name in ("K0", "K1"):
            return _camera(name, value, self._points0)
        return {"mutual": self._flags, "indices": self._keypoints}.get(name, self._per_match)(name, value)

    def _check_values(self) -> None:
        """Raise for values that no match has. On a GPU this waits for the device."""
        for name in _NUMBERS:
            if (values := vars(self)[f"_{name}"]) is not None:
                _check_finite(name, values)
        for name, K in (("K0", self._K0), ("K1", self._K1)):
            if K is not None:
                _check_camera(name, K)
        ratio = self._ratio
        if ratio is not None and ((ratio < 0) | (ratio > 1)).any():
            raise InputError(
                f"ratio: expected values in [0, 1], got {float(ratio.min()):g} to {float(ratio.max()):g}; "
                "it is the distance to the nearest descriptor over that to the second nearest"
            )
        for name, angles in (("angles0", self._angles0), ("angles1", self._angles1)):
            if angles is not None and (angles.abs() > MAX_ANGLE).any():
                raise InputError(
                    f"{name}: expected radians from -2 pi to 2 pi, got {float(angles.min()):g} to "
                    f"{float(angles.max()):g}; convert degrees, as in OpenCV's KeyPoint.angle, by np.deg2rad"
                )
        for name, sizes in (("keypoint_sizes0", self._keypoint_sizes0), ("keypoint_sizes1", self._keypoint_sizes1)):
            if sizes is not None and (sizes <= 0).any():
                raise InputError(f"{name}: expected positive numbers of pixels, got {float(sizes.min()):g}")
        if self._indices is not None and (self._indices < 0).any():
            raise InputError(f"indices: expected whole numbers of at least 0, got {int(self._indices.min())}")
        self._values_are_checked = True
        if self._points0.device.type == "cpu":
            self._warn_of_units()

    def _warn_of_units(self) -> None:
        sides = ((self._points0, self._K0, self.image_size0), (self._points1, self._K1, self.image_size1))
        for number, (points, K, image_size) in enumerate(sides):
            doubt = unit_doubt(number, points.numpy(), None if K is None else K.numpy(), image_size)
            if doubt is not None:
                _warn_caller(doubt)

    def _per_match(self, name: str, values: Array) -> Tensor:
        tensor = _real(name, _tensor(name, values)).to(self._points0.device, torch.float32)
        if tensor.shape != (len(self),):
            raise InputError(f"{name}: expected shape ({len(self)},), got {tuple(tensor.shape)}")
        return tensor

    def _flags(self, name: str, values: Array) -> Tensor:
        given = _tensor(name, values)
        if given.dtype == torch.bool and given.shape == (len(self),):
            return given.to(self._points0.device)
        tensor = self._per_match(name, given)
        _check_finite(name, tensor)
        if ((tensor != 0) & (tensor != 1)).any():
            wrong = tensor[(tensor != 0) & (tensor != 1)]
            raise InputError(f"{name}: expected True/False or 0/1, got {float(wrong[0]):g}")
        return tensor.bool()

    def _keypoints(self, name: str, values: Array) -> Tensor:
        tensor = _tensor(name, values)
        if tensor.dim() in (1, 2) and len(tensor) == 0:
            tensor = tensor.reshape(0, 2).long()
        if tensor.shape != (len(self), 2):
            raise InputError(f"{name}: expected shape ({len(self)}, 2), got {tuple(tensor.shape)}")
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
            raise InputError(f"{name}: expected whole numbers of at least 0, got {tensor.dtype}")
        return tensor.to(self._points0.device, torch.int64)

    def __len__(self) -> int:
        return self._points0.shape[0]  # in a third of the time of len()

    def __repr__(self) -> str:
        known = ("K0", "image_size0", *(name for name in PER_MATCH[2:] if not name.endswith("1")))
        given = [name.rstrip("0") for name in known if getattr(self, name) is not None]
        return f"Correspondences({', '.join([f'{len(self)} matches', *given])})"

    @property
    def calibrated(self) -> bool:
        """Whether there are camera matrices."""
        return self._K0 is not None

    def _as_tensors(self) -> Correspondences:
        """The same matches with tensors as attributes; results still come as `_as_given` gives them."""
        return self if self._shows_tensors else self.replace(_shows_tensors=True)

    def _as_given(self, values: Tensor) -> Any:
        """A result as numpy if the matches came as numpy, else as a tensor on the points' device."""
        return values.numpy(force=True) if self.given_as_numpy else values.to(self._points0.device)

    def normalized(self) -> Any:
        """[N x 4] rows (x0, y0, x1, y1): `K^-1 p` if calibrated, otherwise scaled by the image size."""
        both = self._points0, self._points1
        if self._K0 is not None and self._K1 is not None:
            rows = [calibrate(points, K) for points, K in zip(both, (self._K0, self._K1), strict=True)]
        else:
            sizes = self._sizes_for_cameras()
            rows = [scale_by_size(points, points.new_tensor(size)) for points, size in zip(both, sizes, strict=True)]
        return self._shown(torch.cat(rows, dim=1))

    def _shown(self, values: Tensor) -> Any:
        return values if self._shows_tensors else self._as_given(values)

    def _sizes_for_cameras(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Sizes of both images, where they stand in for camera matrices."""
        if self.image_size0 is None or self.image_size1 is None:
            raise InputError("expected camera matrices (K0, K1) or image sizes (image_size0, image_size1), got neither")
        return self.image_size0, self.image_size1

    def normalized_sizes(self) -> Any:
        """[N x 2] keypoint sizes in the scale of `normalized`, or None where they are not known."""
        if self._keypoint_sizes0 is None or self._keypoint_sizes1 is None:
            return None
        focals: list[Any]
        if self._K0 is not None and self._K1 is not None:
            # The mean of two tensors, not of two numbers, which would wait for a device.
            focals = [(K[0, 0] + K[1, 1]) / 2 for K in (self._K0, self._K1)]
        else:
            focals = [FOCAL_GUESS * max(size) for size in self._sizes_for_cameras()]
        both = [self._keypoint_sizes0 / focals[0], self._keypoint_sizes1 / focals[1]]
        return self._shown(torch.stack(both, dim=1))

    def angles(self) -> Any:
        """[N x 2] keypoint orientations in both images, or None where they are not known."""
        if self._angles0 is None or self._angles1 is None:
            return None
        return self._shown(torch.stack([self._angles0, self._angles1], dim=1))

    def __getitem__(self, which: Array | slice) -> Correspondences:
        """The matches that a mask, an index array or a slice picks; they were checked, and are not checked again."""
        chosen = self._chosen(which)
        stored = {name: vars(self)[f"_{name}"] for name in PER_MATCH}
        return self.replace(**{name: values[chosen] for name, values in stored.items() if values is not None})

    def _chosen(self, which: Array | slice) -> Tensor | slice:
        """What tensors can be indexed with."""
        count, device = len(self), self._points0.device
        if isinstance(which, slice):
            if which.step is None or which.step > 0:
                return which
            return torch.arange(*which.indices(count), device=device)  # tensors take no negative steps
        chosen = _tensor("which", which).to(device)
        if chosen.dim() != 1:
            raise InputError(f"which: expected a mask, indices or a slice, got shape {tuple(chosen.shape)}")
        if chosen.dtype == torch.bool:
            if len(chosen) != count:
                raise InputError(f"which: expected a mask of {count} matches, got one of {len(chosen)}")
            return chosen
        if len(chosen) == 0:
            return chosen.long()
        if chosen.dtype.is_floating_point or chosen.dtype.is_complex:
            raise InputError(f"which: expected a mask, indices or a slice, got numbers of {chosen.dtype}")
        chosen = chosen.long()
        if (chosen < -count).any() or (chosen >= count).any():
            raise InputError(f"which: expected indices below {count}, got {int(chosen.min())} to {int(chosen.max())}")
        return chosen

    def replace(self, **values: Any) -> Correspondences:
        """A copy with some attributes replaced. They are not checked: use it for values made from checked ones."""
        copy = object.__new__(Correspondences)
        state = vars(copy)
        state.update(vars(self))
        for name, value in values.items():
            stored = name if name in state else f"_{name}"
            if stored not in state:
                raise TypeError(f"Correspondences has no attribute {name!r}")
            state[stored] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        return copy

    def with_scores(self, scores: Array) -> Correspondences:
        """The same matches with scores, such as a pruner's, for estimators that sample the best ones first."""
        values = self._per_match("scores", scores)
        _check_finite("scores", values)
        return self.replace(scores=values)

    def to(self, device: str | torch.device) -> Correspondences:
        """The same matches as tensors on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return self.replace(**moved, given_as_numpy=False)

    def _in_double(self) -> Correspondences:
        """The same matches with points and cameras in double precision."""
        given = {name: vars(self)[name] for name in ("_points0", "_points1", "_K0", "_K1")}
        return self.replace(**{name: value.double() for name, value in given.items() if value is not None})

    def numpy_points(self) -> tuple[np.ndarray, np.ndarray]:
        """Both point sets as float64 arrays on the host."""
        return self._points0.numpy(force=True).astype(np.float64), self._points1.numpy(force=True).astype(np.float64)


def _tensor(name: str, values: Array, copy: bool = True) -> Tensor:
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_quantized or values.device.type == "meta":
            kind = "meta" if values.device.type == "meta" else "quantised" if values.is_quantized else "sparse"
            raise InputError(f"{name}: expected a plain tensor, got a {kind} one")
        return values.detach() if values.requires_grad else values
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise InputError(f"{name}: expected an array without gaps, got a masked one; leave out the masked matches")
    try:
        array = np.asarray(values)
        # Torch knows neither foreign byte orders nor long doubles, and little of unsigned numbers.
        if array.dtype.kind == "u" and array.size and array.max() >= 2**63:
            raise InputError(f"{name}: expected numbers below 2**63, got {array.max()}")
        common = {"f": np.float64 if array.itemsize > 4 else np.float32, "i": np.int64, "u": np.int64}
        dtype = np.dtype(common.get(array.dtype.kind, array.dtype))
        # A copy, so that checked values cannot change. Torch warns of memory that it may not write to.
        if copy or array.dtype != dtype or not (array.flags.c_contiguous and array.flags.writeable):
            array = np.array(array, dtype, order="C", copy=True)
        return torch.from_numpy(array)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None


def _real(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype.is_complex:
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor


def _check_finite(name: str, tensor: Tensor) -> None:
    # numpy takes a fifth of torch's time for arrays of this size.
    finite = np.isfinite(tensor.numpy(force=True)) if tensor.device.type == "cpu" else torch.isfinite(tensor)
    if not finite.all():
        rows = (~torch.as_tensor(finite)).reshape(len(tensor), -1).any(dim=1)
        wrong = f"NaN or infinity in {int(rows.sum())} of {len(tensor)} rows (first: row {int(rows.nonzero()[0, 0])})"
        raise InputError(f"{name}: expected finite numbers, got {wrong}")


def _points(name: str, values: Array, copy: bool) -> Tensor:
    tensor = _tensor(name, values, copy)
    # An empty list, or rows of whatever length. Rows without coordinates are no matches that were left out.
    if tensor.dim() in (1, 2) and len(tensor) == 0:
        tensor = tensor.reshape(0, 2)
    if tensor.dim() != 2 or tensor.shape[1] != 2:
        raise InputError(f"{name}: expected shape (N, 2), got {tuple(tensor.shape)}")
    if _real(name, tensor).dtype == torch.bool:
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _camera(name: str, values: Array, like: Tensor) -> Tensor:
    K = _real(name, _tensor(name, values))
    if K.shape != (3, 3):
        raise InputError(f"{name}: expected shape (3, 3), got {tuple(K.shape)}")
    if K.dtype == like.dtype and K.device == like.device:
        return K
    # Without waiting for the GPU: the source does not change during the copy.
    return K.to(like.device, like.dtype, non_blocking=K.device.type == "cpu")


def _check_camera(name: str, K: Tensor) -> None:
    _check_finite(name, K)
    rows = K.tolist()
    (fx, _, _), (below, fy, _), last = rows
    if fx <= 0 or fy <= 0:
        raise InputError(f"{name}: expected positive focal lengths, got fx={fx:g}, fy={fy:g}")
    if last != [0.0, 0.0, 1.0] or below != 0:
        raise InputError(f"{name}: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]], got {rows}")


def _size(name: str, values: Size) -> tuple[float, float]:
    size = _real(name, _tensor(name, values)).double().flatten().tolist()
    if len(size) != 2 or not all(np.isfinite(size)) or min(size) <= 0:
        raise InputError(f"{name}: expected (width, height) in pixels, got {values!r}")
    return size[0], size[1]


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
            if outside > MAX_OUTSIDE and right <= height and bottom <= width:
                return f"points{number}: points lie outside the image; are x and y (or width and height) swapped?"
            if outside > MAX_OUTSIDE_UNSWAPPED:
                image = f"the image of image_size{number}"
                return f"points{number}: most are outside {image}; are they of another resolution?"
        doubt = None if K is None else implausible(K, image_size)
        return None if doubt is None else f"K{number}: {doubt}; expected pixels of the image, not millimetres"
    if K is not None:
        tangent = np.abs((points - K[:2, 2]) / (K[0, 0], K[1, 1])).max(axis=1)
        if np.median(tangent) > MAX_TANGENT:
            focal = f"with a focal length of {K[0, 0]:g}, most points are more than 79 degrees off the optical axis"
            return f"K{number}: {focal}; expected pixels of the image, not millimetres"
    return None


def _warn_caller(message: str) -> None:
    """Issue a UserWarning at the line outside this package that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level + 1)
