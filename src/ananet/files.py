"""Writing files so that a failed run never leaves half of one, nor destroys the one that was there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ananet.errors import InputError


def check_output(path: str | Path, *inputs: Path) -> Path:
    """Where an output will really go, links followed; an error if that cannot or should not be written.

    Commands call it before the work starts; `inputs` are files that must not be overwritten.
    """
    target = Path(path).resolve()
    if target.is_dir():
        raise InputError(f"output: expected a file name, got the directory {path}")
    if target.exists() and not target.is_file():
        raise InputError(f"output: expected a file, {path} is none")
    if not target.parent.is_dir():
        raise InputError(f"output: the folder {Path(path).parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"output: no permission to write to {Path(path).parent}")
    for given in inputs:
        if target.exists() and given.exists() and target.samefile(given):
            raise InputError(f"output: {path} is an input and would be overwritten")
    return target


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends without an error.

    The temporary name keeps the suffix, since writers such as OpenCV choose the format by it.
    """
    path = check_output(path)
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
