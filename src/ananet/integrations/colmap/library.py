"""pycolmap (an extra): imported where it is used, and kept quiet."""

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
    """COLMAP tells every step on stderr, through the progress bars; only its errors are worth that."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.Level.ERROR.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before
