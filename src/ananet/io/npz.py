"""Matches in .npz files: names, types and sizes are checked before data is read, and nothing is unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ananet._util.checks import like
from ananet.errors import InputError
from ananet.io.files import check_file

if TYPE_CHECKING:
    import numpy as np

    from ananet.core.correspondences import Correspondences

REQUIRED = ("points0", "points1")
OPTIONAL = (
    "K0", "K1", "image_size0", "image_size1", "ratio", "mutual", "scores", "keypoint_sizes0", "keypoint_sizes1",
    "angles0", "angles1", "indices",
)  # fmt: skip
# Results that commands write beside the matches; ignored on reading.
IGNORED = ("mask", "logits", "R", "t", "F", "H", "model", "inliers", "correlation", "motions", "overlap")
# Number of elements of arrays that do not grow with the number of matches.
FIXED = {"K0": 9, "K1": 9, "image_size0": 2, "image_size1": 2, "image_size": 2}
# A small file can unpack to more than fits into memory. No pair of photos has nearly as many matches or keypoints.
MAX_MATCHES = 50_000_000
MAX_BYTES = 4 * 2**30
# The compressions that numpy writes.
PLAIN_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Names of 0.2, which files may still have.
RENAMED = {"size0": "image_size0", "size1": "image_size1", "sizes0": "keypoint_sizes0", "sizes1": "keypoint_sizes1"}


def read_matches(path: Path) -> Correspondences:
    """Read `Correspondences` from an .npz file. Nothing is unpickled."""
    arrays = read_arrays(path)

    from ananet.core.correspondences import Correspondences

    return Correspondences(**arrays)


def read_arrays(
    path: Path, more: Sequence[str] = (), *, data: bytes | None = None, max_bytes: int = MAX_BYTES
) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file that `Correspondences` takes, by name.

    Args:
        more: other arrays that must be there; with any, unknown arrays are ignored instead of refused.
        data: content of the file, if it is not on disk; `path` is then only a name for error messages.
        max_bytes: refuse files that unpack to more.
    """
    required = (*REQUIRED, *more)

    def check(names: Sequence[str]) -> None:
        expected = f"expected arrays {', '.join(required)} and optionally {', '.join(OPTIONAL)}"
        if not set(required) <= set(names):
            raise InputError(f"{path}: {expected}, got {_shortened(names)}")
        known = (*required, *OPTIONAL, *IGNORED)
        if not more and (unknown := [name for name in names if name not in known]):
            raise InputError(f"{path}: unknown array {_shortened(unknown)}: {expected}{like(unknown[0], known)}")

    return read_some(path, (*required, *OPTIONAL), data, max_bytes, check)


def read_some(
    path: Path,
    names: Sequence[str],
    data: bytes | None = None,
    max_bytes: int = MAX_BYTES,
    check: Callable[[Sequence[str]], None] | None = None,
) -> dict[str, np.ndarray]:
    """Return those of the named arrays that an .npz file has; `check` is called with the names of all."""
    if data is None:
        check_file(path)
    with path.open("rb") if data is None else io.BytesIO(data) as file:
        try:
            if file.read(6) == b"\x93NUMPY":
                raise InputError(f"{path}: expected an .npz file, got a single array")
            with zipfile.ZipFile(file) as archive:
                entries = _entries(path, archive)
                if check is not None:
                    check(list(entries))
                chosen = {name: info for name, info in entries.items() if name in names}
                _check_entries(path, chosen, max_bytes)
                return {name: _read_array(path, name, archive, info) for name, info in chosen.items()}
        except InputError:
            raise
        except Exception:
            # Libraries raise many types on damaged files, with messages about pickles that would mislead.
            raise InputError(f"{path}: not a readable .npz file of plain arrays") from None


def _entries(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """All entries by name of the array; names of 0.2 are replaced."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        stored = info.filename.removesuffix(".npy")
        name = RENAMED.get(stored, stored)
        if name in entries:
            raise InputError(f"{path}: expected every array once, got {_shortened([name])} more than once")
        entries[name] = info
    return entries


def _check_entries(path: Path, entries: dict[str, zipfile.ZipInfo], max_bytes: int) -> None:
    """Raise unless entries are stored as numpy does and are not too large."""
    for name, info in entries.items():
        if info.flag_bits & 1:
            raise InputError(f"{path}: {name}: expected a plain array, got an encrypted one")
        if info.compress_type not in PLAIN_COMPRESSIONS:
            raise InputError(f"{path}: {name}: expected compression as numpy's, got type {info.compress_type}")
    size = sum(info.file_size for info in entries.values())
    if size > max_bytes:
        raise InputError(f"{path}: expected at most {max_bytes:,} bytes of arrays, got {size:,}")


def _shortened(names: Sequence[str]) -> str:
    """Names for a message: a damaged file may have any number of them, with any characters."""
    shown = [name if name.isprintable() else ascii(name) for name in names[:20]]
    return ", ".join(name[:40] for name in shown) + (", ..." if len(names) > 20 else "") or "none"


def _read_array(path: Path, name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    import numpy as np

    label = f"{path}: {name}"
    with archive.open(info) as entry:
        shape, in_columns, kind = _read_header(entry)
        if kind.kind not in "biuf":
            got = "Python objects" if kind.hasobject else str(kind)[:60]
            raise InputError(f"{label}: expected real numbers, got an array of {got}")
        if any(length < 0 for length in shape):
            raise InputError(f"{label}: expected a shape, got {_shape(shape)}")
        if math.prod(shape) > (most := FIXED.get(name, math.inf)):
            raise InputError(f"{label}: expected {most} numbers, got an array of shape {_shape(shape)}")
        if shape and shape[0] > MAX_MATCHES:
            raise InputError(f"{label}: expected at most {MAX_MATCHES:,} rows, got shape {_shape(shape)}")
        size = math.prod(shape) * kind.itemsize
        if size > info.file_size:
            raise InputError(f"{label}: expected data for shape {_shape(shape)}, got {info.file_size:,} bytes")
        data = entry.read(size)
        # The checksum is compared once the end is reached.
        if len(data) != size or entry.read(1):
            raise InputError(f"{label}: expected {size:,} bytes of data, got {'fewer' if len(data) < size else 'more'}")
    # A bytearray is writable, as torch wants it.
    return np.frombuffer(bytearray(data), kind).reshape(shape, order="F" if in_columns else "C")


def _read_header(entry: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether the order is Fortran's, and type of the array that follows."""
    from numpy.lib import format as npy

    # Version 3 is for structured arrays: a KeyError.
    return {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(entry)](entry)


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(f'{length:,}' for length in shape[:4])}{', ...' if len(shape) > 4 else ''})"
