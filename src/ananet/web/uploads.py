"""Uploads, checked before use: matches as JSON or .npz, photos, cameras. Nothing is unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.io.images import image_size
from ananet.io.npz import OPTIONAL, REQUIRED, read_arrays
from ananet.twoview.cameras import parse_camera
from ananet.web.limits import Limits

# The name of an uploaded .npz file in errors.
NPZ = Path("npz")
# Upper bound of 8-byte numbers per match, with room for headers.
NUMBERS_PER_MATCH, HEADERS_BYTES = 16, 65_536
# An archive directory of hundreds of thousands of entries takes seconds to read.
MAX_ENTRIES = 64
# First bytes of JPEG, PNG and WebP files.
PHOTO_KINDS = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF")


def matches_from_json(data: bytes, limits: Limits) -> tuple[Correspondences, str | None]:
    """Return the matches, and the requested pruner."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError("body: expected a JSON object with points0 and points1, got no valid JSON") from None
    if not isinstance(given, dict):
        raise InputError(f"body: expected a JSON object with points0 and points1, got {type(given).__name__}")
    pruner = given.pop("pruner", None)
    if pruner is not None and not isinstance(pruner, str):
        raise InputError(f"pruner: expected a name, got {type(pruner).__name__}")
    missing = [name for name in REQUIRED if name not in given]
    unknown = sorted(set(given) - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        got = f"no {', '.join(missing)}" if missing else shown(", ".join(unknown))
        optional = ", ".join((*OPTIONAL, "pruner"))
        raise InputError(f"body: expected {', '.join(REQUIRED)} and optionally {optional}, got {got}")
    arrays = {name: _array(name, values, limits) for name, values in given.items() if values is not None}
    return Correspondences(**arrays), pruner


def _array(name: str, values: Any, limits: Limits) -> np.ndarray:
    if not isinstance(values, list):
        raise InputError(f"{name}: expected a list of numbers, got {type(values).__name__}")
    _check_count(name, len(values), limits)
    try:
        array = np.array(values)
    except ValueError:
        raise InputError(f"{name}: expected lists of the same length, got different lengths") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected a list of numbers, got values of type {array.dtype}")
    return array


def matches_from_npz(data: bytes, limits: Limits) -> tuple[Correspondences, None]:
    """Return the matches of an .npz file, which names no pruner. Sizes are checked before unpacking."""
    if data.count(b"PK\x01\x02") > MAX_ENTRIES:
        raise InputError(f"{NPZ}: expected at most {MAX_ENTRIES} arrays, got more")
    arrays = read_arrays(NPZ, data=data, max_bytes=8 * NUMBERS_PER_MATCH * limits.matches + HEADERS_BYTES)
    for name, values in arrays.items():
        _check_count(name, len(values) if values.ndim else 0, limits)
    return Correspondences(**arrays), None


def _check_count(name: str, count: int, limits: Limits) -> None:
    if count > limits.matches:
        raise InputError(f"{name}: expected at most {limits.matches:,} matches, got {count:,}")


def check_photo(name: str, data: bytes, limits: Limits) -> str:
    """Check the kind and the number of pixels of a photo by its header. Return its name, safe to print."""
    name = shown(name) or "photo"
    size = image_size(data) if data.startswith(PHOTO_KINDS) else None
    if size is None:
        raise InputError(f"{name}: expected a JPEG, PNG or WebP photo, got a file of another kind")
    width, height = size
    if width * height > limits.pixels:
        raise InputError(
            f"{name}: expected at most {limits.pixels:,} pixels, got {width * height:,} ({width} x {height})"
        )
    return name


def read_cameras(fields: dict[str, str]) -> dict[str, Any]:
    """Return K0 and K1 (fx,fy,cx,cy) or focal of a form, as `PhotoMatcher` takes them."""
    found: dict[str, Any] = {
        name: parse_camera(name, fields[name], shown=repr(shown(fields[name])))
        for name in ("K0", "K1")
        if fields.get(name)
    }
    if fields.get("focal"):
        try:
            found["focal"] = float(fields["focal"])
        except ValueError:
            raise InputError(f"focal: expected a number of pixels, got {shown(fields['focal'])!r}") from None
    return found


def shown(text: Any) -> str:
    """Return a client's text as it may be printed: short, printable, without folders."""
    name = str(text).replace("\\", "/").rpartition("/")[2]
    return "".join(sign for sign in name if sign.isprintable())[:80]
