"""Features in files: a folder of .npz files, or hloc's .h5.

An .npz file has `points` (or `keypoints`) [N x 2], `descriptors` [N x D] and optionally `scores`, `sizes`, `angles` and
`image_size` (width, height). hloc's file has a group per image with `keypoints` [N x 2], `descriptors` [D x N],
`image_size` and `scores`. Both go by the photo's name: for "scene/images/a.jpg" a, a.jpg, images/a, scene/images/a.jpg
and so on; the longest name that exists is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ananet._util.defaults import MAX_KEYPOINTS
from ananet.errors import InputError
from ananet.features.base import Detector, Features, check_image_size
from ananet.io.files import is_file, save_arrays
from ananet.io.hdf5 import hdf5_errors, open_hdf5, read_dataset
from ananet.io.npz import read_some

ARRAYS = ("points", "keypoints", "descriptors", "scores", "sizes", "angles", "image_size")


class StoredFeatures(Detector):
    """Reads the features of a photo from a file.

    Args:
        max_keypoints: number of keypoints to keep: the strongest, or the first ones if there are no scores. None for
            8000, whatever the photo's size.
        path: a folder of .npz files, or hloc's .h5.
    """

    name = "stored"
    needs_path = True

    def __init__(self, max_keypoints: int | None = None, path: Path | None = None) -> None:
        super().__init__(MAX_KEYPOINTS if max_keypoints is None else max_keypoints)
        if path is None or not (path.is_dir() or (path.suffix == ".h5" and is_file(path))):
            raise InputError(f"features: expected a folder of .npz files or hloc's .h5, got {path}")
        self.path = path
        self._photo_of: dict[str, Path] = {}

    def detect(self, image: np.ndarray, path: Path | None = None, size: tuple[int, int] | None = None) -> Features:
        """Return the stored features of a photo, in pixels of the image."""
        if path is None:
            raise InputError("features: stored ones go by file name, expected photos as files, got pixels")
        height, width = image.shape[:2]
        name, arrays = self._read(path)
        photo = self._photo_of.setdefault(name, path)
        if photo != path:
            raise InputError(f"{self.path}: {name} would be the features of both {photo} and {path}")
        try:
            features = _features_of(arrays, size or (width, height))
        except InputError as error:
            raise InputError(f"{self.path}, {name}: {error}") from None
        own = features.image_size
        # Sides are whole pixels, so the aspect ratio of a scaled photo is not exact.
        if abs(own[0] * height / own[1] - width) > 1 + width / height:
            raise InputError(f"{self.path}, {name}: is for {own[0]} x {own[1]} pixels, {path} has {width} x {height}")
        features = features.in_pixels_of((width, height))
        if features.scores is not None:
            features = features[np.argsort(-features.scores, kind="stable")]
        return features[: self.max_keypoints]

    def _read(self, photo: Path) -> tuple[str, dict[str, np.ndarray]]:
        """Return the name under which a photo's features are stored, and their arrays."""
        if self.path.suffix == ".h5":
            with open_hdf5(self.path) as file, hdf5_errors(self.path):
                for name in _names(photo):
                    group = file.get(name)
                    if hasattr(group, "keys") and "keypoints" in group:
                        arrays = {key: read_dataset(self.path, group, key) for key in ARRAYS if key in group}
                        if "descriptors" in arrays:
                            arrays["descriptors"] = arrays["descriptors"].T
                        return name, arrays
        else:
            for name in _names(photo):
                path = self.path / f"{name}.npz"
                if is_file(path):
                    return f"{name}.npz", read_some(path, ARRAYS)
        raise InputError(f"{photo}: no features of it in {self.path}")


def _names(photo: Path) -> Iterator[str]:
    """Yield names that the features of a photo may have, the longest first."""
    parts = photo.resolve().parts[1:]
    for start in range(len(parts)):
        name = Path(*parts[start:])
        yield name.as_posix()
        yield name.with_suffix("").as_posix()


def save_features(path: str | Path, features: Features, **more: Any) -> None:
    """Write features to an .npz file, uncompressed, with the arrays in `more` beside them."""
    arrays = {name: values for name, values in vars(features).items() if values is not None}
    save_arrays(path, arrays | more, compressed=False)


def read_features(path: Path, more: Sequence[str] = ()) -> tuple[Features, dict[str, np.ndarray]]:
    """Read what `save_features` wrote: the features, and those arrays of `more` that the file has."""
    arrays = read_some(path, (*ARRAYS, *more))
    try:
        return _features_of(arrays), {name: arrays[name] for name in more if name in arrays}
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _features_of(arrays: dict[str, np.ndarray], image_size: tuple[int, int] | None = None) -> Features:
    """Features from arrays by name; `image_size` is used if the arrays lack it."""
    points = arrays.get("points", arrays.get("keypoints"))
    if points is None or "descriptors" not in arrays:
        raise InputError(f"expected points and descriptors, got {', '.join(arrays) or 'nothing'}")
    size = arrays.get("image_size", image_size)
    if size is None:
        raise InputError("expected image_size (width, height), got none")
    optional = {name: arrays.get(name) for name in ("sizes", "angles", "scores")}
    return Features(points, arrays["descriptors"], check_image_size(size), **optional)
