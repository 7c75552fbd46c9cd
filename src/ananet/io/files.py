"""Atomic writing, locks and small readers of files."""

import errno
import glob
import hashlib
import io
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ananet.errors import InputError

# Temporary files older than this many seconds were left by a killed run.
STALE_AFTER = 3600.0
# No space is left, of the disk, of a file, or of a user.
DISK_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def check_output(path: str | Path, *inputs: Path, suffix: str = "") -> Path:
    """Return the path of an output with links resolved; raise if it cannot or should not be written.

    Commands call it before the work starts. `inputs` must not be overwritten; a `suffix` protects files of other kinds.
    """
    if "\0" in str(path):
        raise InputError(f"output: expected a file name, got {str(path)!r}")
    if not str(path).endswith(suffix):
        raise InputError(f"output: expected a file that ends in {suffix}, got {path}")
    target = Path(path).resolve()
    if target.is_dir():
        raise InputError(f"output: expected a file name, got the directory {path}")
    if target.exists() and not target.is_file():
        raise InputError(f"output: expected a regular file, got {path}")
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

    The temporary name keeps the suffix, since writers such as OpenCV choose the format by it. The file is synced before
    it is renamed, so that a crash leaves the old file or the new one.
    """
    path = check_output(path)
    _remove_stale(path)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    # Created here for the default permissions, which some writers would restrict.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    permissions = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(permissions)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # A full disk, as the system tells of it, has no name.
        if error.filename is None and error.errno in DISK_FULL:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove temporary files of the same output that a killed run left."""
    pattern = f".{glob.escape(path.stem)}-" + "[0-9a-f]" * 8 + glob.escape(path.suffix)
    for left in path.parent.glob(pattern):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_AFTER:
                left.unlink()


def remove_temporaries(folder: Path) -> None:
    """Remove all temporary files of a folder that no other process writes to."""
    for left in folder.glob(".*-" + "[0-9a-f]" * 8 + ".*"):
        left.unlink(missing_ok=True)


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder; the system releases it when the process ends."""
    path = folder / ".lock"
    with _locked(path) as file:
        if file is None:
            raise InputError(f"{folder}: another process is writing here; wait for it, or choose another folder")
        try:
            yield
        finally:
            # Before unlocking: afterwards it may belong to the next process.
            with suppress(PermissionError):
                path.unlink(missing_ok=True)
    if os.name == "nt":
        # Windows cannot remove open files.
        with suppress(PermissionError):
            path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[IO[str] | None]:
    """Yield the locked file at a path; None if another process holds the lock."""
    while True:
        with path.open("a+") as file:
            if not _lock(file):
                yield None
                return
            # The previous holder may have removed the file, and the lock on it is worthless.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    yield file
                    return


def _lock(file: IO[str]) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def save_arrays(path: str | Path, arrays: Mapping[str, Any], compressed: bool = True) -> None:
    """Write an .npz file atomically."""
    import numpy as np

    # Through memory: before numpy 2.2, a full disk leads to a traceback when the archive is closed.
    content = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(content, **arrays)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def save_tensors(path: str | Path, tensors: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with atomic_path(path) as temporary:
        try:
            save_file(dict(tensors), temporary, metadata)
        except SafetensorError as error:
            # A full disk raises this, not OSError.
            raise OSError(f"could not write {path}: {error}") from None


def is_file(path: Path) -> bool:
    """Return whether a file exists; False for invalid names, as from a damaged list."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def check_file(path: Path) -> None:
    """Raise unless the file exists."""
    if not is_file(path):
        raise InputError(f"{path}: expected a file, got a folder" if os.path.isdir(path) else f"{path}: no such file")


def file_sha256(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a UTF-8 text file without surrounding whitespace; a byte-order mark is accepted."""
    path = Path(path)
    check_file(path)
    try:
        # Not splitlines(), which also splits at characters that a file name may contain.
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected a text file in UTF-8 ({error})") from None


def read_rows(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield ("FILE, line NUMBER", line) for every line that is neither empty nor a comment ("#")."""
    for number, line in enumerate(read_lines(path), start=1):
        if line and not line.startswith("#"):
            yield f"{path}, line {number}", line


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file ({error})") from None


def write_json(path: str | Path, value: Any, indent: int | None = None) -> None:
    """Write strict JSON, without NaN and Infinity."""
    text = json.dumps(value, indent=indent, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
