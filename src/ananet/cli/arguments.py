"""Arguments that several commands share, and how their values are read."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ananet._util.checks import check_positive
from ananet._util.defaults import (
    COLMAP_MIN_MATCHES,
    DETECTOR,
    LEARNED_KEYPOINTS,
    LONGEST_SIDE,
    MAX_KEYPOINTS,
    MIN_OVERLAP,
    PAPER_DETECTOR,
    PAPER_KEYPOINTS,
    PRUNER,
)
from ananet.errors import InputError

WEIGHTS = ".safetensors or .pth (default: from the folder ANANET_WEIGHTS, else downloaded)"


def add_pruner(parser: argparse.ArgumentParser, default: str = PRUNER) -> None:
    text = "a name from 'ananet list' or a .safetensors file; NAME@option=value sets an option, A+B runs A, then B"
    parser.add_argument("--pruner", metavar="NAME", help=f"{text} (default: {default})")
    add_device(parser)


def add_threshold(parser: argparse.ArgumentParser) -> None:
    text = "probability of being right above which a network keeps a match (default: 0.4)"
    parser.add_argument("--threshold", type=float, metavar="P", help=text)


def add_min_matches(parser: argparse.ArgumentParser, text: str) -> None:
    text = f"{text} (default: {COLMAP_MIN_MATCHES}, as in COLMAP)"
    parser.add_argument("--min-matches", type=int, default=COLMAP_MIN_MATCHES, metavar="N", help=text)


def add_min_overlap(parser: argparse.ArgumentParser, text: str, default: float = MIN_OVERLAP) -> None:
    text = f"probability of showing the same place below which {text}; 0 for none (default: {default:g})"
    parser.add_argument("--min-overlap", type=float, default=default, metavar="P", help=text)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda (default: auto)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def print_json(result: Any) -> None:
    """Strict JSON: other languages know neither NaN nor Infinity."""
    print(json.dumps(result, allow_nan=False))


def print_result(arguments: argparse.Namespace, result: Any, text: str) -> int:
    """Print the result as JSON if that was asked for, else as text; return the exit code."""
    if arguments.json:
        print_json(result)
    else:
        print(text)
    return 0


def numbers(name: str, text: str, kind: type[int] | type[float], expected: str) -> list[Any]:
    """Positive numbers separated by commas."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        raise InputError(f"{name}: expected {expected}, got {text!r}")
    return found


def add_cameras(parser: argparse.ArgumentParser, title: str, description: str, *, auto: bool = False) -> Any:
    """Add options for the cameras of two photos; return their group. With `auto`, a focal length can be found."""
    group = parser.add_argument_group(title, description)
    group.add_argument("--k0", metavar="K", help="camera matrix of the first photo: fx,fy,cx,cy or a text file")
    group.add_argument("--k1", metavar="K", help="camera matrix of the second photo (default: that of the first)")
    text = "focal length of both in pixels, instead of --k0 and --k1"
    if auto:
        text += "; auto finds it from the matches where EXIF has none"
    group.add_argument("--focal", type=_number_or_auto if auto else float, help=text)
    return group


def _number_or_auto(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number of pixels or auto, got {text!r}") from None


def check_cameras(arguments: argparse.Namespace) -> None:
    """Raise if the options for cameras contradict each other, before any work is done."""
    if arguments.focal is not None:
        if arguments.k0 is not None or arguments.k1 is not None:
            raise InputError("--focal: expected either --focal or --k0 and --k1, got both")
        if arguments.focal != "auto":
            check_positive("--focal", arguments.focal, " of pixels")
    if arguments.k1 is not None and arguments.k0 is None:
        raise InputError("--k1: expected together with --k0, got it alone")


def read_cameras(arguments: argparse.Namespace) -> dict[str, Any]:
    """K0, K1 and focal as `match_photos` takes them; the second camera is the first unless it is given."""
    from ananet.twoview.cameras import read_camera

    K0 = None if arguments.k0 is None else read_camera("--k0", arguments.k0)
    K1 = K0 if arguments.k1 is None else read_camera("--k1", arguments.k1)
    return {"K0": K0, "K1": K1, "focal": arguments.focal}


def add_longest_side(parser: argparse.ArgumentParser) -> None:
    text = "scale larger photos down to this before keypoints are detected, or none"
    text += f"; points are in the photo's own pixels (default: {LONGEST_SIDE})"
    parser.add_argument("--longest-side", metavar="N", help=text)


def read_longest_side(arguments: argparse.Namespace) -> dict[str, int | None]:
    """The option as `load_detector` takes it; nothing if it was not given."""
    text: str | None = arguments.longest_side
    if text is None:
        return {}
    if text.lower() != "none" and not text.isdecimal():
        raise InputError(f"--longest-side: expected a number of pixels or none, got {text!r}")
    return {"longest_side": int(text) if text.isdecimal() else None}


def add_detector(parser: argparse.ArgumentParser, default: str | None = DETECTOR) -> None:
    """Options of keypoints; a default of None leaves detector and number of keypoints to a protocol."""
    add = parser.add_argument
    own = f"{MAX_KEYPOINTS} at a megapixel and above, fewer below; learned detectors: {LEARNED_KEYPOINTS}"
    if default is None:
        own += f"; protocols yfcc and sun3d: {PAPER_KEYPOINTS}"
    text = (
        "keypoint detector: sift, orb, aliked, disk, xfeat, or superpoint (its weights are for non-commercial research "
        f"only); NAME@option=value sets an option (default: {DETECTOR}"
    )
    text += f"{'' if default else f', {PAPER_DETECTOR} in the protocols yfcc and sun3d'})"
    add("--detector", default=default, metavar="NAME" if default else "A,B,...", help=text)
    text = f"weights of aliked, disk, xfeat or superpoint, {WEIGHTS}"
    add("--detector-weights", type=Path, metavar="FILE", help=text)
    text = "your own features instead of a detector: a folder of .npz files or hloc's .h5 (see docs/keypoints.md)"
    add("--features", type=Path, metavar="PATH", help=text)
    add("--max-keypoints", type=int, metavar="N", help=f"keypoints per photo (default: {own})")


def add_candidates(parser: argparse.ArgumentParser) -> None:
    text = "putative matches per keypoint: its N nearest neighbours (default: 1)"
    parser.add_argument("--candidates", type=int, default=1, metavar="N", help=text)


def add_matcher(parser: argparse.ArgumentParser) -> None:
    text = (
        "nearest (neighbours by descriptor), lightglue (for aliked and disk) or lighterglue (for xfeat); "
        "NAME@option=value sets an option (default: nearest)"
    )
    parser.add_argument("--matcher", default="nearest", metavar="NAME", help=text)
    text = f"weights of lightglue or lighterglue, {WEIGHTS}"
    parser.add_argument("--matcher-weights", type=Path, metavar="FILE", help=text)


def matcher_name(arguments: argparse.Namespace) -> str:
    """The matcher, with the file of its weights."""
    weights: Path | None = arguments.matcher_weights
    return arguments.matcher if weights is None else f"{arguments.matcher}@weights={weights}"


def detector_name(arguments: argparse.Namespace) -> str:
    """The detector with the file of its weights, or the reader of stored features."""
    weights: Path | None = arguments.detector_weights
    features: Path | None = arguments.features
    if features is not None:
        if weights is not None:
            raise InputError("--features: expected either --features or --detector-weights, got both")
        return f"stored@path={features}"
    detector = DETECTOR if arguments.detector is None else arguments.detector
    return detector if weights is None else f"{detector}@weights={weights}"
