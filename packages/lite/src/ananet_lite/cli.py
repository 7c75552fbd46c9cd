"""`ananet-lite prune` and `ananet-lite match`."""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ananet_lite.matches import OPTIONAL, InputError
from ananet_lite.pruner import THRESHOLD, Pruned, list_pruners, load


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ananet-lite", description="Prune putative matches, without PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True)
    prune = commands.add_parser("prune", help="prune the matches of an .npz file")
    prune.add_argument("file", type=Path, help=f"points0, points1 and optionally {', '.join(OPTIONAL)}")
    match = commands.add_parser("match", help="match two photos with SIFT (needs OpenCV) and prune the matches")
    match.add_argument("photos", type=Path, nargs=2)
    match.add_argument("--max-keypoints", type=int, default=2000)
    for command in (prune, match):
        command.add_argument("output", type=Path, help="where to write mask, scores and logits, .npz")
        command.add_argument("--pruner", default="ananet", help=f"{', '.join(list_pruners())}, or an ONNX file")
        command.add_argument("--threshold", type=float, default=THRESHOLD, help="matches above it are kept")
        command.add_argument("--threads", type=int)
    arguments = parser.parse_args(words)
    try:
        run(arguments)
    except (InputError, OSError) as error:
        print(f"ananet-lite: {error}", file=sys.stderr)
        return 2
    return 0


def run(arguments: argparse.Namespace) -> None:
    if arguments.output.suffix != ".npz":
        raise InputError(f"output: expected a file that ends in .npz, got {arguments.output}")
    if not arguments.output.absolute().parent.is_dir():
        raise InputError(f"output: the folder {arguments.output.parent} does not exist")
    pruner = load(arguments.pruner, threshold=arguments.threshold, threads=arguments.threads)
    if arguments.command == "prune":
        if arguments.output.exists() and arguments.output.samefile(arguments.file):
            raise InputError(f"output: {arguments.output} is an input and would be overwritten")
        matches, result = read(arguments.file), {}
    else:
        matches = result = detect_and_match(*arguments.photos, arguments.max_keypoints)
    kept: Pruned = pruner(**matches)
    write(arguments.output, {**result, "mask": kept.mask, "scores": kept.scores, "logits": kept.logits})
    print(f"{kept.pruner}: kept {int(kept.mask.sum())} of {len(kept.mask)} matches, written to {arguments.output}")


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file that a pruner takes. Nothing is unpickled."""
    if not path.is_file():
        raise InputError(f"no file {path}")
    names = ("points0", "points1", *OPTIONAL)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in names}
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable .npz file of plain arrays") from error
    if not {"points0", "points1"} <= arrays.keys():
        raise InputError(f"{path}: expected arrays points0 and points1, got {', '.join(arrays) or 'neither'}")
    return arrays


def write(path: Path, arrays: dict[str, Any]) -> None:
    """All or nothing: a temporary file takes the name of the output when it is complete."""
    temporary = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    try:
        np.savez_compressed(temporary, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def detect_and_match(first: Path, second: Path, max_keypoints: int) -> dict[str, Any]:
    """Nearest neighbours of SIFT keypoints with square-rooted descriptors, with all that a network may read of them."""
    try:
        import cv2
    except ImportError:
        raise InputError("match: this needs OpenCV: pip install opencv-python-headless (extra 'match')") from None
    if max_keypoints < 2:
        raise InputError(f"max_keypoints: expected at least 2, got {max_keypoints}")
    found, sizes = [], []
    sift = cv2.SIFT_create(max_keypoints)
    for path in (first, second):
        photo = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) if path.is_file() else None
        if photo is None:
            raise InputError(f"expected a photo, got {path}")
        keypoints, descriptors = sift.detectAndCompute(photo, None)
        if len(keypoints) < 2:
            raise InputError(f"{path}: expected a photo with keypoints, found {len(keypoints)}")
        descriptors /= descriptors.sum(axis=1, keepdims=True)
        found.append((keypoints, np.sqrt(descriptors)))
        sizes.append((photo.shape[1], photo.shape[0]))
    (keypoints0, descriptors0), (keypoints1, descriptors1) = found
    similarity = descriptors0 @ descriptors1.T
    nearest = similarity.argmax(axis=1)
    two = np.partition(similarity, -2, axis=1)[:, -2:]
    # Descriptors have length 1: |a - b|^2 = 2 - 2 a b.
    distances = np.sqrt(np.maximum(2 - 2 * two, 1e-12))
    matched = [keypoints1[i] for i in nearest]
    arrays = {
        "points0": np.array([k.pt for k in keypoints0], np.float32),
        "points1": np.array([k.pt for k in matched], np.float32),
        "image_size0": np.array(sizes[0]),
        "image_size1": np.array(sizes[1]),
        "ratio": distances[:, 1] / distances[:, 0],
        "mutual": similarity.argmax(axis=0)[nearest] == np.arange(len(nearest)),
    }
    for number, keypoints in enumerate((keypoints0, matched)):
        arrays[f"keypoint_sizes{number}"] = np.array([k.size for k in keypoints], np.float32)
        arrays[f"angles{number}"] = np.deg2rad(np.array([k.angle for k in keypoints], np.float32))
    return arrays


if __name__ == "__main__":
    sys.exit(main())
