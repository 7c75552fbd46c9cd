"""The data type that travels the whole road: putative correspondences between two images.

It is checked once, here, and it owns normalisation, so that nobody normalises twice.
Pixel coordinates follow OpenCV: the centre of the first pixel is (0, 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet.errors import InputError

# What the arguments may be: numpy arrays, torch tensors or nested lists.
Array = np.ndarray | Tensor | Sequence[Any]
Size = tuple[float, float] | Array

# Without intrinsics the authors of ANA-Net divide by 0.7 x the longest side, about the focal length of
# an ordinary lens: it maps the image into [-1, 1] and keeps the scale that calibrated points have.
FOCAL_GUESS = 0.7


class Correspondences:
    """N putative matches between two images.

    Args:
        points0: [N x 2] pixel coordinates (x, y) in the first image.
        points1: [N x 2] pixel coordinates of the same matches in the second image.
        K0, K1: [3 x 3] camera matrices. Given both, the matches are calibrated.
        size0, size1: (width, height) of the images in pixels; used where there are no camera matrices.
        ratio: [N] descriptor distance to the nearest over that to the second nearest neighbour, in [0, 1].
        mutual: [N] whether the match is nearest in both directions.
        scores: [N] the matcher's own confidence, higher is better, on any scale.

    numpy arrays, torch tensors (on any device) and lists are taken. Points keep float64 if they have it,
    everything else becomes float32. Points must be finite; N may be 0.

    >>> matches = Correspondences([[10, 20], [30, 40]], [[12, 20], [33, 41]], size0=(64, 48), size1=(64, 48))
    >>> len(matches), matches.calibrated
    (2, False)
    >>> matches.normalized()[0]
    tensor([-0.4911, -0.0893, -0.4464, -0.0893])
    """

    points0: Tensor
    points1: Tensor
    K0: Tensor | None
    K1: Tensor | None
    size0: tuple[float, float] | None
    size1: tuple[float, float] | None
    ratio: Tensor | None
    mutual: Tensor | None
    scores: Tensor | None
    # Answers come back as what the points came as.
    given_as_numpy: bool

    def __init__(
        self,
        points0: Array,
        points1: Array,
        *,
        K0: Array | None = None,
        K1: Array | None = None,
        size0: Size | None = None,
        size1: Size | None = None,
        ratio: Array | None = None,
        mutual: Array | None = None,
        scores: Array | None = None,
    ) -> None:
        self.given_as_numpy = not isinstance(points0, Tensor)
        self.points0 = _points("points0", points0)
        self.points1 = _points("points1", points1)
        if len(self.points0) != len(self.points1):
            raise InputError(
                f"points0 and points1: expected the same number of rows, "
                f"got {len(self.points0)} and {len(self.points1)}"
            )
        if self.points0.dtype != self.points1.dtype:
            self.points0, self.points1 = self.points0.double(), self.points1.double()
        self.points1 = self.points1.to(self.points0.device)

        _both_or_neither("K0", K0, "K1", K1)
        _both_or_neither("size0", size0, "size1", size1)
        self.K0 = None if K0 is None else _camera("K0", K0, self.points0)
        self.K1 = None if K1 is None else _camera("K1", K1, self.points0)
        self.size0 = None if size0 is None else _size("size0", size0)
        self.size1 = None if size1 is None else _size("size1", size1)

        self.ratio = None if ratio is None else self._per_match("ratio", ratio)
        if self.ratio is not None and ((self.ratio < 0) | (self.ratio > 1)).any():
            raise InputError(
                f"ratio: expected values in [0, 1], got {float(self.ratio.min()):g} to {float(self.ratio.max()):g}"
            )
        self.mutual = None if mutual is None else self._per_match("mutual", mutual)
        if self.mutual is not None:
            if ((self.mutual != 0) & (self.mutual != 1)).any():
                raise InputError("mutual: expected True/False or 0/1, got other values")
            self.mutual = self.mutual.bool()
        self.scores = None if scores is None else self._per_match("scores", scores)

    def _per_match(self, name: str, values: Array) -> Tensor:
        tensor = _tensor(name, values).to(self.points0.device, torch.float32)
        if tensor.shape != (len(self),):
            raise InputError(f"{name}: expected shape ({len(self)},), got {tuple(tensor.shape)}")
        return _finite(name, tensor)

    def __len__(self) -> int:
        return len(self.points0)

    def __repr__(self) -> str:
        given = [n for n in ("K0", "size0", "ratio", "mutual", "scores") if getattr(self, n) is not None]
        return f"Correspondences({len(self)} matches" + "".join(f", {n.rstrip('0')}" for n in given) + ")"

    @property
    def calibrated(self) -> bool:
        return self.K0 is not None

    def normalized(self) -> Tensor:
        """[N x 4] rows (x0, y0, x1, y1): `K^-1 p` if calibrated, otherwise scaled by the image size."""
        if self.K0 is not None and self.K1 is not None:
            return torch.cat([calibrate(self.points0, self.K0), calibrate(self.points1, self.K1)], dim=1)
        if self.size0 is not None and self.size1 is not None:
            return torch.cat([scale_by_size(self.points0, self.size0), scale_by_size(self.points1, self.size1)], dim=1)
        raise InputError("expected camera matrices (K0, K1) or image sizes (size0, size1), got neither")

    def __getitem__(self, which: Tensor | np.ndarray | slice | Sequence[int]) -> Correspondences:
        """The matches that a mask, an index array or a slice picks."""
        if not isinstance(which, slice):
            which = torch.as_tensor(which, device=self.points0.device)
            if which.numel() == 0:
                which = which.long()

        def pick(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[which]

        chosen = Correspondences(
            self.points0[which],
            self.points1[which],
            K0=self.K0,
            K1=self.K1,
            size0=self.size0,
            size1=self.size1,
            ratio=pick(self.ratio),
            mutual=pick(self.mutual),
            scores=pick(self.scores),
        )
        chosen.given_as_numpy = self.given_as_numpy
        return chosen

    def with_scores(self, scores: Array) -> Correspondences:
        """The same matches with scores, such as a pruner's, for estimators that draw the best ones first."""
        scored = self.to(self.points0.device)
        scored.scores = self._per_match("scores", scores)
        return scored

    def to(self, device: str | torch.device) -> Correspondences:
        """The same matches on another device."""
        moved = object.__new__(Correspondences)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device) if isinstance(value, Tensor) else value)
        return moved

    def numpy_points(self) -> tuple[np.ndarray, np.ndarray]:
        """Both point sets as float64 arrays on the host, for libraries that want them so."""
        return (
            self.points0.detach().cpu().numpy().astype(np.float64),
            self.points1.detach().cpu().numpy().astype(np.float64),
        )


def calibrate(points: Tensor, K: Tensor) -> Tensor:
    """[N x 2] pixels to the rays `K^-1 p`, their third coordinate 1 left out."""
    y = (points[:, 1] - K[1, 2]) / K[1, 1]
    x = (points[:, 0] - K[0, 2] - K[0, 1] * y) / K[0, 0]
    return torch.stack([x, y], dim=1)


def scale_by_size(points: Tensor, size: tuple[float, float]) -> Tensor:
    """[N x 2] pixels to coordinates in [-1, 1] around the image centre, the same scale in x and y."""
    centre = points.new_tensor(size) / 2
    return (points - centre) / (FOCAL_GUESS * max(size))


def _tensor(name: str, values: Array) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.array(values)
        # Torch knows neither foreign byte orders nor long doubles, and little of unsigned numbers.
        common = {"f": np.float64 if array.itemsize > 4 else np.float32, "i": np.int64, "u": np.int64}
        return torch.from_numpy(array.astype(common.get(array.dtype.kind, array.dtype)))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None


def _finite(name: str, tensor: Tensor) -> Tensor:
    bad = ~torch.isfinite(tensor)
    if bad.any():
        rows = bad.reshape(len(tensor), -1).any(dim=1)
        first = int(rows.nonzero()[0, 0])
        raise InputError(
            f"{name}: expected finite numbers, got NaN or infinity in {int(rows.sum())} of "
            f"{len(tensor)} rows (first: row {first})"
        )
    return tensor


def _points(name: str, values: Array) -> Tensor:
    tensor = _tensor(name, values)
    if tensor.numel() == 0 and tensor.dim() <= 2:
        tensor = tensor.reshape(0, 2)
    if tensor.dim() != 2 or tensor.shape[1] != 2:
        raise InputError(f"{name}: expected shape (N, 2), got {tuple(tensor.shape)}")
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return _finite(name, tensor if tensor.dtype == torch.float64 else tensor.float())


def _camera(name: str, values: Array, like: Tensor) -> Tensor:
    K = _tensor(name, values)
    if K.dtype.is_complex:
        raise InputError(f"{name}: expected real numbers, got {K.dtype}")
    if K.shape != (3, 3):
        raise InputError(f"{name}: expected shape (3, 3), got {tuple(K.shape)}")
    K = _finite(name, K.to(like.device, like.dtype))
    if K[0, 0] <= 0 or K[1, 1] <= 0:
        raise InputError(f"{name}: expected positive focal lengths, got fx={float(K[0, 0]):g}, fy={float(K[1, 1]):g}")
    expected = torch.tensor([0.0, 0.0, 1.0], dtype=K.dtype, device=K.device)
    if not torch.equal(K[2], expected) or K[1, 0] != 0:
        raise InputError(f"{name}: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]], got {K.tolist()}")
    return K


def _size(name: str, values: Size) -> tuple[float, float]:
    size = _tensor(name, values).double().flatten().tolist()
    if len(size) != 2 or not all(np.isfinite(size)) or min(size) <= 0:
        raise InputError(f"{name}: expected (width, height) in pixels, got {values!r}")
    return size[0], size[1]


def _both_or_neither(name0: str, value0: object, name1: str, value1: object) -> None:
    if (value0 is None) != (value1 is None):
        missing = name0 if value0 is None else name1
        raise InputError(f"{name0} and {name1}: expected both or neither, {missing} is missing")
