"""Trained weights that come with the package: safetensors files, and an index with their checksums."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from ananet.errors import InputError
from ananet.io.files import file_sha256, is_file, read_json

FOLDER = Path(str(files(__package__)))
INDEX = FOLDER / "index.json"


def bundled() -> dict[str, dict[str, Any]]:
    """What the index says of each weight file, by name: `summary` and `sha256`."""
    return read_json(INDEX)


def bundled_path(name: str) -> Path:
    """The file of bundled weights, its checksum verified."""
    path = FOLDER / f"{name}.safetensors"
    found = file_sha256(path)
    expected = bundled()[name]["sha256"]
    if found != expected:
        raise InputError(f"weights: {path} is damaged: expected sha256 {expected}, got {found}; install ananet again")
    return path


def weight_file(name: str) -> Path | None:
    """Bundled weights by their name, or any file by its path; None if there is neither."""
    path = bundled_path(name) if name in bundled() else Path(name)
    return path if is_file(path) else None
