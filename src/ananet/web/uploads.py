"""What clients send, checked before it is used: matches as JSON or .npz, photos, cameras. Nothing is unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.io.images import exif_focal, image_size, reduce
from ananet.io.npz import OPTIONAL, REQUIRED, read_arrays
from ananet.twoview.cameras import Cameras, choose_cameras, parse_camera
from ananet.web.limits import Limits

# What errors call an .npz file that has no name.
NPZ = Path("npz")
# Numbers of 8 bytes that a match has at most, with room for headers.
NUMBERS_OF_A_MATCH, HEADERS_BYTES = 16, 65_536
# A directory of hundreds of thousands of entries takes seconds to read.
MAX_ENTRIES = 64


def matches_from_json(data: bytes, limits: Limits) -> tuple[Correspondences, str | None]:
    """Matches, and the name of the pruner that is asked for."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError("body: expected a JSON object with points0 and points1, got none") from None
    if not isinstance(given, dict):
        raise InputError(f"body: expected a JSON object with points0 and points1, got {type(given).__name__}")
    pruner = given.pop("pruner", None)
    if pruner is not None and not isinstance(pruner, str):
        raise InputError(f"pruner: expected a name, got {type(pruner).__name__}")
    missing = [name for name in REQUIRED if name not in given]
    unknown = sorted(set(given) - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        got = f"no {', '.join(missing)}" if missing else _shown(", ".join(unknown))
        optional = ", ".join((*OPTIONAL, "pruner"))
        raise InputError(f"body: expected {', '.join(REQUIRED)} and optionally {optional}, got {got}")
    for name, values in given.items():
        if values is not None and not isinstance(values, list):
            raise InputError(f"{name}: expected a list of numbers, got {type(values).__name__}")
        _check_count(name, len(values or ()), limits)
    arrays = {name: _array(name, values) for name, values in given.items() if values is not None}
    return Correspondences(**arrays), pruner


def _array(name: str, values: list[Any]) -> np.ndarray:
    try:
        array = np.array(values)
    except ValueError:
        raise InputError(f"{name}: expected lists of the same length, got others") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected a list of numbers, got other values")
    return array


def matches_from_npz(data: bytes, limits: Limits) -> tuple[Correspondences, None]:
    """Matches from an .npz file, which names no pruner. What it would unpack to is checked before it is unpacked."""
    if data.count(b"PK\x01\x02") > MAX_ENTRIES:
        raise InputError(f"{NPZ}: expected at most {MAX_ENTRIES} arrays, got more")
    arrays = read_arrays(NPZ, data=data, max_bytes=8 * NUMBERS_OF_A_MATCH * limits.matches + HEADERS_BYTES)
    for name, values in arrays.items():
        _check_count(name, len(values) if values.ndim else 0, limits)
    return Correspondences(**arrays), None


def _check_count(name: str, count: int, limits: Limits) -> None:
    if count > limits.matches:
        raise InputError(f"{name}: expected at most {limits.matches:,} matches, got {count:,}")


@dataclass(frozen=True, eq=False)
class Photo:
    """A photo as it is worked on, and as it was sent."""

    name: str
    pixels: np.ndarray
    """[H x W x 3] uint8 BGR, upright, and reduced where it was large."""
    scaling: np.ndarray
    """[3 x 3] from pixels of the upright photo that was sent to these."""
    size: tuple[int, int]
    """(width, height) of the upright photo that was sent."""
    exif_focal: float | None
    """In pixels of the photo that was sent."""


def read_photo(name: str, data: bytes, limits: Limits) -> Photo:
    """A photo from the bytes of a JPEG, PNG or WebP file; its size is checked before its pixels are decoded."""
    name = _shown(name) or "photo"
    size = photo_size(data)
    if size is None:
        raise InputError(f"{name}: expected a JPEG, PNG or WebP photo, got a file of another kind")
    width, height = size
    if width * height > limits.pixels:
        raise InputError(
            f"{name}: expected at most {limits.pixels:,} pixels, got {width * height:,} ({width} x {height})"
        )
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except (cv2.error, MemoryError):
        pixels = None
    if pixels is None:
        raise InputError(f"{name}: expected a photo, got a damaged or incomplete file")
    height, width = pixels.shape[:2]
    reduced, scaling = reduce(pixels, limits.longest_side)
    return Photo(name, reduced, scaling, (width, height), exif_focal(data))


def photo_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from the header of a JPEG, PNG or WebP file; None for anything else."""
    return image_size(data) if data[:3] in (b"\xff\xd8\xff", b"\x89PN", b"RIF") else None


def read_cameras(fields: dict[str, str], photo0: Photo, photo1: Photo) -> Cameras:
    """As asked for by K0 and K1 (fx,fy,cx,cy) or by focal, else from EXIF."""
    K0, K1 = (
        parse_camera(name, fields[name], shown=repr(_shown(fields[name]))) if fields.get(name) else None
        for name in ("K0", "K1")
    )
    focal = None
    if fields.get("focal"):
        try:
            focal = float(fields["focal"])
        except ValueError:
            raise InputError(f"focal: expected a number of pixels, got {_shown(fields['focal'])!r}") from None
    return choose_cameras(
        photo0.size,
        photo1.size,
        K0=K0,
        K1=K1,
        focal=focal,
        exif_focal0=photo0.exif_focal,
        exif_focal1=photo1.exif_focal,
    )


def _shown(text: Any) -> str:
    """A client's text as one may print it: short, of signs that can be seen."""
    name = str(text).replace("\\", "/").rpartition("/")[2]
    return "".join(sign for sign in name if sign.isprintable())[:80]
