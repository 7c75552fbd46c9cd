"""Matches in .npz files: names, types and sizes are checked before data is read, and nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ananet.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from ananet.core.correspondences import Correspondences

REQUIRED = ("points0", "points1")
OPTIONAL = (
    "K0",
    "K1",
    "image_size0",
    "image_size1",
    "ratio",
    "mutual",
    "scores",
    "keypoint_sizes0",
    "keypoint_sizes1",
    "angles0",
    "angles1",
    "indices",
)
# Answers that commands write beside the matches: none of a pruner's business.
IGNORED = ("mask", "logits", "R", "t", "correlation", "motions")
# Arrays of one number of numbers, whatever the number of matches.
FIXED = {"K0": 9, "K1": 9, "image_size0": 2, "image_size1": 2, "image_size": 2}
# A small file can unpack to more than a machine holds. No pair of photos has nearly as many matches, or keypoints.
MAX_MATCHES = 50_000_000
MAX_BYTES = 4 * 2**30
# What numpy writes; others need libraries of their own, or a password.
PLAIN_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_matches(path: Path) -> Correspondences:
    """`Correspondences` from an .npz file. Nothing is unpickled."""
    arrays = read_arrays(path)

    from ananet.core.correspondences import Correspondences

    return Correspondences(**arrays)


def check_is_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: expected an .npz file, got a directory")
    if not path.is_file():
        raise InputError(f"{path}: " + ("expected an .npz file, got none" if path.exists() else "no such file"))


def read_arrays(path: Path, more: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of an .npz file that belong to matches.

    Args:
        more: arrays beside those of `Correspondences` that must be there; then all others are left alone.
    """
    return _read(path, lambda archive: entries_of(path, archive, (*REQUIRED, *more)))


def read_some(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an .npz file has, read with the same care."""
    return _read(path, lambda archive: _plain_entries(path, archive, names))


def _read(path: Path, choose: Callable[[zipfile.ZipFile], dict[str, zipfile.ZipInfo]]) -> dict[str, np.ndarray]:
    check_is_file(path)
    with path.open("rb") as file:
        try:
            if file.read(6) == b"\x93NUMPY":
                raise InputError(f"{path}: expected an .npz file, got a single array")
            with zipfile.ZipFile(file) as archive:
                entries = choose(archive)
                return {name: read_array(f"{path}: {name}", archive, entry) for name, entry in entries.items()}
        except InputError:
            raise
        except Exception:
            # A damaged file raises whatever the library that meets the damage likes to raise; none of their words, some
            # of them about pickles, are the user's business.
            raise InputError(f"{path}: not a readable .npz file of plain arrays") from None


def entries_of(path: Path, archive: zipfile.ZipFile, required: Sequence[str]) -> dict[str, zipfile.ZipInfo]:
    """The entries to be read, by name of the array."""
    names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
    missing = [name for name in required if name not in names]
    unknown = set(names) - {*required, *OPTIONAL, *IGNORED} if tuple(required) == REQUIRED else set()
    if missing or unknown:
        raise InputError(
            f"{path}: expected arrays {', '.join(required)} and optionally {', '.join(OPTIONAL)}, "
            f"got {_shortened(names)}"
        )
    return _plain_entries(path, archive, (*required, *OPTIONAL))


def _plain_entries(path: Path, archive: zipfile.ZipFile, wanted: Sequence[str]) -> dict[str, zipfile.ZipInfo]:
    """The wanted entries by name of the array: each once, as numpy writes them, and not too large."""
    names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}: expected every array once, got {', '.join(twice)} more than once")
    entries = {name: info for name, info in zip(names, archive.infolist(), strict=True) if name in wanted}
    for name, info in entries.items():
        if info.flag_bits & 1:
            raise InputError(f"{path}: {name}: expected a plain array, got an encrypted one")
        if info.compress_type not in PLAIN_COMPRESSIONS:
            raise InputError(f"{path}: {name}: expected compression as numpy's, got type {info.compress_type}")
    size = sum(info.file_size for info in entries.values())
    if size > MAX_BYTES:
        raise InputError(f"{path}: expected at most {MAX_BYTES:,} bytes of arrays, got {size:,}")
    return entries


def _shortened(names: list[str]) -> str:
    """Names as one may print them: a damaged file may hold any signs, and any number of them."""
    shown = [name if name.isprintable() else ascii(name) for name in names[:20]]
    return ", ".join(name[:40] for name in shown) + (", ..." if len(names) > 20 else "") or "none"


def read_array(label: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    import numpy as np

    with archive.open(info) as entry:
        shape, in_columns, kind = _read_header(entry)
        if kind.hasobject:
            raise InputError(f"{label}: expected real numbers, got an array of Python objects")
        if kind.kind not in "biuf":
            raise InputError(f"{label}: expected real numbers, got an array of {str(kind)[:60]}")
        if any(length < 0 for length in shape):
            raise InputError(f"{label}: expected a shape, got {_shape(shape)}")
        most = FIXED.get(info.filename.removesuffix(".npy"))
        if most is not None and math.prod(shape) > most:
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
    return np.frombuffer(data, kind).reshape(shape, order="F" if in_columns else "C")


def _read_header(entry: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and type of the array that follows."""
    from numpy.lib import format as npy

    version = npy.read_magic(entry)
    if version == (1, 0):
        return npy.read_array_header_1_0(entry)
    if version == (2, 0):
        return npy.read_array_header_2_0(entry)
    # Version 3 is for names of fields, which plain arrays have none of.
    raise ValueError(f"version {version}")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(f'{length:,}' for length in shape[:4])}{', ...' if len(shape) > 4 else ''})"
