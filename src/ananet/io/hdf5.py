"""HDF5 files: one place that imports h5py, checks sizes and turns its exceptions into `InputError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ananet.errors import InputError, MissingExtraError
from ananet.io.files import check_file

if TYPE_CHECKING:
    import numpy as np

# Largest dataset that is read: 128 numbers for each of four million keypoints.
MAX_NUMBERS = 2**29


def import_h5py() -> ModuleType:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", "h5") from None
    return h5py


@contextmanager
def hdf5_errors(path: Path) -> Iterator[None]:
    """Turn what h5py raises on a damaged file into `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path}: not a readable HDF5 file ({error})") from None
    except MemoryError:
        raise InputError(f"{path}: does not fit into memory") from None


def open_hdf5(path: Path) -> Any:
    """Return a file opened for reading; close it, or use it in a `with` statement."""
    h5py = import_h5py()
    check_file(path)
    with hdf5_errors(path):
        return h5py.File(path, "r")


def read_dataset(path: Path, group: Any, name: str, max_numbers: int = MAX_NUMBERS) -> np.ndarray:
    """Return a dataset of real numbers from a group of an HDF5 file."""
    with hdf5_errors(path):
        where = f"{path}, {group.name.rstrip('/')}/{name}"
        data = group.get(name)
        if not hasattr(data, "dtype") or not hasattr(data, "shape") or data.size is None:
            raise InputError(f"{where}: expected an array, got {data}")
        if data.dtype.kind not in "biuf":
            raise InputError(f"{where}: expected real numbers, got {data.dtype}")
        # A few bytes of a file may claim any size.
        if data.size > max_numbers:
            raise InputError(f"{where}: expected at most {max_numbers:,} numbers, got shape {data.shape}")
        return data[()]
