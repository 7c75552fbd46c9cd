"""Arguments that several commands share, and how their values are read."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from ananet.errors import InputError


def add_pruner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pruner",
        metavar="NAME",
        help="a name from 'ananet list' or a .safetensors file; NAME@option=value sets an option, A+B runs B on what A "
        "keeps",
    )
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda (default: auto)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def print_json(result: Any) -> None:
    """Strict JSON: other languages know neither NaN nor Infinity."""
    print(json.dumps(result, allow_nan=False))


def numbers(name: str, text: str, kind: type[int] | type[float], expected: str) -> list[Any]:
    """Positive numbers with commas between them."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not min(found) > 0:
        raise InputError(f"{name}: expected {expected}, got {text!r}")
    return found


def camera_matrix(name: str, text: str) -> np.ndarray:
    """A camera matrix from `fx,fy,cx,cy`, or from a text file that holds these four or all nine numbers."""
    source = Path(text)
    if text and source.is_file():
        try:
            text = source.read_text()
        except UnicodeDecodeError:
            raise InputError(f"{name}: expected a text file with 4 or 9 numbers, got {source}") from None
    try:
        numbers = [float(number) for number in text.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if len(numbers) == 9:
        return np.array(numbers).reshape(3, 3)
    if len(numbers) == 4:
        fx, fy, cx, cy = numbers
        return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    given = str(source) if source.is_file() else repr(text)
    raise InputError(f"{name}: expected fx,fy,cx,cy or a text file with 4 or 9 numbers, got {given}")


def centred_camera(focal: float, size: tuple[int, int]) -> np.ndarray:
    """The camera matrix of a lens that looks through the middle of the image."""
    if not focal > 0:
        raise InputError(f"--focal: expected a positive number of pixels, got {focal:g}")
    return np.array([[focal, 0, (size[0] - 1) / 2], [0, focal, (size[1] - 1) / 2], [0, 0, 1]])
