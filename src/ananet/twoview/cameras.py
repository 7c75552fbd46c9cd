"""The cameras of two photos: given as matrices, as a focal length, or taken from EXIF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from ananet._util.checks import check_positive
from ananet.core.cameras import camera_matrix, centred_camera
from ananet.core.correspondences import Array
from ananet.errors import InputError

# Of a focal length or a principal point: no camera has more, and single precision holds it.
MAX_PIXELS = 1e9


@dataclass(frozen=True, eq=False)
class Cameras:
    """Camera matrices of a pair of photos."""

    source: Literal["given", "exif", "found"] | None = None
    """Where they come from: given, EXIF, or found from the matches; None if they are not known."""
    K0: np.ndarray | None = None
    """[3 x 3] float64 of the first photo."""
    K1: np.ndarray | None = None
    """[3 x 3] float64 of the second photo."""
    missing: Literal[0, 1] | None = None
    """Which photo has no focal length in EXIF, if only one has none."""

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, for JSON."""
        K0, K1 = (None if K is None else K.tolist() for K in (self.K0, self.K1))
        return {"source": self.source, "K0": K0, "K1": K1}


def choose_cameras(
    image_size0: tuple[float, float],
    image_size1: tuple[float, float],
    *,
    K0: Array | None = None,
    K1: Array | None = None,
    focal: float | Literal["auto"] | None = None,
    exif_focal0: float | None = None,
    exif_focal1: float | None = None,
) -> Cameras:
    """Camera matrices of two photos of (width, height): K0 and K1, else `focal` for both, else EXIF's focal lengths.

    With "auto" as focal length, EXIF's come first, and without them the caller finds one from the matches.

    >>> choose_cameras((640, 480), (640, 480), focal=500).K1.tolist()
    [[500.0, 0.0, 319.5], [0.0, 500.0, 239.5], [0.0, 0.0, 1.0]]
    """
    if focal is not None:
        if K0 is not None or K1 is not None:
            raise InputError("focal: expected either focal or K0 and K1, got both")
        if isinstance(focal, str) and focal != "auto":
            raise InputError(f"focal: expected a number of pixels or auto, got {focal!r}")
    if focal is not None and focal != "auto":
        if check_positive("focal", focal, " of pixels") >= MAX_PIXELS:
            raise InputError(f"focal: expected a positive number of pixels below {MAX_PIXELS:g}, got {focal:g}")
        return Cameras("given", centred_camera(focal, image_size0), centred_camera(focal, image_size1))
    if K0 is not None and K1 is not None:
        return Cameras("given", _matrix("K0", K0), _matrix("K1", K1))
    if K0 is not None or K1 is not None:
        raise InputError(f"K0 and K1: expected both or neither, {'K0' if K0 is None else 'K1'} is missing")
    if exif_focal0 is None or exif_focal1 is None:
        only_one = (exif_focal0 is None) != (exif_focal1 is None)
        return Cameras(missing=None if not only_one else 0 if exif_focal0 is None else 1)
    return Cameras("exif", centred_camera(exif_focal0, image_size0), centred_camera(exif_focal1, image_size1))


def _matrix(name: str, K: Array) -> np.ndarray:
    try:
        matrix = np.asarray(K.detach().cpu() if isinstance(K, Tensor) else K, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected a [3 x 3] camera matrix, got {K!r}") from None
    if matrix.shape != (3, 3):
        raise InputError(f"{name}: expected shape (3, 3), got {matrix.shape}")
    return matrix


def parse_camera(name: str, text: str, expected: str = "fx,fy,cx,cy", shown: str | None = None) -> np.ndarray:
    """[3 x 3] from the text of 4 numbers fx, fy, cx, cy or of all 9; `name` is used in error messages.

    >>> parse_camera("K0", "500,510,320,240")[0].tolist()
    [500.0, 0.0, 320.0]
    """
    try:
        found = [float(number) for number in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if len(found) not in (4, 9) or not all(abs(value) < MAX_PIXELS for value in found):
        raise InputError(f"{name}: expected {expected}, got {shown or repr(text)}")
    K = camera_matrix(*found) if len(found) == 4 else np.array(found).reshape(3, 3)
    if K[0, 0] <= 0 or K[1, 1] <= 0:
        raise InputError(f"{name}: expected positive focal lengths, got fx={K[0, 0]:g}, fy={K[1, 1]:g}")
    return K


def read_camera(name: str, text: str) -> np.ndarray:
    """[3 x 3] from `fx,fy,cx,cy`, or from a text file that holds these four or all nine numbers."""
    path, expected = Path(text), "fx,fy,cx,cy or a text file with 4 or 9 numbers"
    if not text or not path.is_file():
        return parse_camera(name, text, expected)
    try:
        return parse_camera(name, path.read_text(encoding="utf-8"), expected, str(path))
    except UnicodeDecodeError:
        raise InputError(f"{name}: expected a text file with 4 or 9 numbers, got {path}") from None
