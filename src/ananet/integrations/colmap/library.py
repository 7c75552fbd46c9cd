"""pycolmap (an extra), imported where it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ananet.errors import MissingExtraError


def import_pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError:
        raise MissingExtraError("pycolmap", "colmap") from None
    return pycolmap


@contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """Log only COLMAP's errors: its messages on stderr break progress bars."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.Level.ERROR.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before
