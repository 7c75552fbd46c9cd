"""Arguments that several commands share, and how their values are read."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ananet._util.checks import check_positive
from ananet._util.defaults import DETECTOR, MAX_KEYPOINTS, PRUNER
from ananet.errors import InputError


def add_pruner(parser: argparse.ArgumentParser, default: str = PRUNER) -> None:
    parser.add_argument(
        "--pruner",
        metavar="NAME",
        help="a name from 'ananet list' or a .safetensors file; NAME@option=value sets an option, A+B runs A, then B "
        f"(default: {default})",
    )
    add_device(parser)


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
    if not found or not all(0 < number < math.inf for number in found):
        raise InputError(f"{name}: expected {expected}, got {text!r}")
    return found


def read_camera(name: str, text: str) -> np.ndarray:
    """A camera matrix from `fx,fy,cx,cy`, or from a text file that holds these four or all nine numbers."""
    from ananet.core.cameras import camera_matrix

    source = Path(text)
    if text and source.is_file():
        try:
            text = source.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{name}: expected a text file with 4 or 9 numbers, got {source}") from None
    try:
        found = [float(number) for number in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if len(found) == 9:
        return np.array(found).reshape(3, 3)
    if len(found) == 4:
        return camera_matrix(*found)
    given = str(source) if source.is_file() else repr(text)
    raise InputError(f"{name}: expected fx,fy,cx,cy or a text file with 4 or 9 numbers, got {given}")


def add_cameras(parser: argparse.ArgumentParser, title: str, description: str) -> Any:
    """Options for the cameras of two photos; returns their group."""
    group = parser.add_argument_group(title, description)
    group.add_argument("--k0", metavar="K", help="camera matrix of the first photo: fx,fy,cx,cy or a text file")
    group.add_argument("--k1", metavar="K", help="camera matrix of the second photo (default: that of the first)")
    group.add_argument("--focal", type=float, help="focal length of both in pixels, instead of --k0 and --k1")
    return group


def check_cameras(arguments: argparse.Namespace) -> None:
    """Raises where the options for cameras contradict each other: before the work starts."""
    if arguments.focal is not None:
        if arguments.k0 is not None or arguments.k1 is not None:
            raise InputError("--focal: expected either --focal or --k0 and --k1, got both")
        check_positive("--focal", arguments.focal, " of pixels")
    if arguments.k1 is not None and arguments.k0 is None:
        raise InputError("--k1: expected together with --k0, got it alone")


def read_cameras(
    arguments: argparse.Namespace, image0: np.ndarray, image1: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Camera matrices of two photos, or none."""
    from ananet.core.cameras import centred_camera

    if arguments.focal is not None:
        sizes = ((image.shape[1], image.shape[0]) for image in (image0, image1))
        first, second = (centred_camera(arguments.focal, size) for size in sizes)
        return first, second
    if arguments.k0 is None:
        return None, None
    K0 = read_camera("--k0", arguments.k0)
    return K0, K0 if arguments.k1 is None else read_camera("--k1", arguments.k1)


def add_detector(parser: argparse.ArgumentParser, several: bool = False) -> None:
    parser.add_argument(
        "--detector",
        default=DETECTOR,
        metavar="A,B,..." if several else "NAME",
        help="keypoint detector: sift, orb, aliked, disk, xfeat, or superpoint (its weights are for non-commercial "
        f"research only); NAME@option=value sets an option (default: {DETECTOR})",
    )
    parser.add_argument(
        "--detector-weights",
        type=Path,
        metavar="FILE",
        help="weights of aliked, disk, xfeat or superpoint, .safetensors or .pth (default: from the folder "
        "ANANET_WEIGHTS, else downloaded)",
    )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="PATH",
        help="your own features instead of a detector: a folder of .npz files or hloc's .h5 (see docs/keypoints.md)",
    )
    parser.add_argument(
        "--max-keypoints",
        type=int,
        default=MAX_KEYPOINTS,
        metavar="N",
        help=f"keypoints per photo (default: {MAX_KEYPOINTS})",
    )


def add_candidates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--candidates",
        type=int,
        default=1,
        metavar="N",
        help="putative matches per keypoint: its N nearest neighbours (default: 1)",
    )


def add_matcher(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--matcher",
        default="nearest",
        metavar="NAME",
        help="nearest (neighbours by descriptor), lightglue (for aliked and disk) or lighterglue (for xfeat); "
        "NAME@option=value sets an option (default: nearest)",
    )
    parser.add_argument(
        "--matcher-weights",
        type=Path,
        metavar="FILE",
        help="weights of lightglue or lighterglue, .safetensors or .pth (default: from the folder ANANET_WEIGHTS, else "
        "downloaded)",
    )


def matcher_name(arguments: argparse.Namespace) -> str:
    """The matcher that was asked for, with the file of its weights."""
    weights: Path | None = arguments.matcher_weights
    return arguments.matcher if weights is None else f"{arguments.matcher}@weights={weights}"


def detector_name(arguments: argparse.Namespace) -> str:
    """The detector that was asked for, with the file of its weights, or what stands in its place."""
    weights: Path | None = arguments.detector_weights
    features: Path | None = arguments.features
    if features is not None:
        if weights is not None:
            raise InputError("--features: expected either --features or --detector-weights, got both")
        return f"stored@path={features}"
    return arguments.detector if weights is None else f"{arguments.detector}@weights={weights}"


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda (default: auto)")
