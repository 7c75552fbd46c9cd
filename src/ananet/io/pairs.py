"""Lists of image pairs: UTF-8 text with two names per line.

Spaces separate the names, or a tab if names contain spaces. Empty lines and lines that start with "#" are skipped, and
a byte-order mark is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ananet.errors import InputError
from ananet.io.files import read_rows

BOM = b"\xef\xbb\xbf"


def read_pairs(path: str | Path, more_columns: bool = False) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield ("FILE, line NUMBER", (name0, name1)) for every line; `more_columns` ignores those after the second."""
    for where, line in read_rows(path):
        try:
            yield where, pair_of_line(line, more_columns)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def holds_pair(line: bytes) -> bool:
    """Return whether a line of a list is neither empty nor a comment."""
    line = line.removeprefix(BOM).strip()
    return bool(line) and not line.startswith(b"#")


def pair_of_line(line: str | bytes, more_columns: bool = False) -> tuple[str, str]:
    r"""Return the two names in a line.

    >>> pair_of_line("left 1.jpg\tright 1.jpg")
    ('left 1.jpg', 'right 1.jpg')
    """
    if isinstance(line, bytes):
        try:
            line = line.removeprefix(BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"expected text in UTF-8, got {line!r} ({error})") from None
    line = line.strip()
    names = [name.strip() for name in line.split("\t")] if "\t" in line else line.split()
    if len(names) < 2 or not all(names[:2]) or (len(names) > 2 and not more_columns):
        raise InputError(f"expected two names, with a tab between them if they contain spaces, got {line!r}")
    return names[0], names[1]
