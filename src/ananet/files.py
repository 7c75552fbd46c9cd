"""Writing files so that a failed run never leaves half of one, nor destroys the one that was there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ananet.errors import InputError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends without an error.

    The temporary name keeps the suffix, since writers such as OpenCV choose the format by it.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"output: expected a file name, got the directory {path}")
    if not path.parent.is_dir():
        raise InputError(f"output: the folder {path.parent} does not exist")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; give the result the permissions any other new file would get.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
