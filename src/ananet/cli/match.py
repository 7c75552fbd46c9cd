"""`ananet match`: two photos in, pruned matches, a picture and a pose out."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ananet.checks import check_positive, check_probability
from ananet.cli.arguments import (
    add_cameras,
    add_detector,
    add_json,
    add_pruner,
    check_cameras,
    print_json,
    read_cameras,
)
from ananet.defaults import ESTIMATOR, THRESHOLD_PIXELS

if TYPE_CHECKING:
    from ananet.pipeline import PhotoMatches

NO_OVERLAP = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image0", type=Path, help="first photo")
    parser.add_argument("image1", type=Path, help="second photo")
    parser.add_argument("-o", "--output", type=Path, default=Path("matches.png"), help="picture (default: matches.png)")
    add_cameras(
        parser,
        "cameras, for a pose",
        "They belong to the photo as viewers show it: EXIF orientation is applied on reading.",
    )
    add_detector(parser)
    parser.add_argument(
        "--estimator",
        default=ESTIMATOR,
        metavar="NAME",
        help="of the pose: ransac, magsac, or poselib, which is the most accurate and an extra; NAME@option=value sets "
        f"an option (default: {ESTIMATOR})",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="PX",
        help=f"of the estimator (default: {THRESHOLD_PIXELS:g})",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="C",
        help="at which the estimator stops drawing (default: 0.99999, PoseLib's own)",
    )
    add_pruner(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    check_cameras(arguments)
    if arguments.threshold is not None:
        check_positive("--threshold", arguments.threshold, " of pixels")
    if arguments.confidence is not None:
        check_probability("--confidence", arguments.confidence)

    from ananet.drawing import check_picture, draw_matches, save_picture
    from ananet.estimators import load_estimator
    from ananet.features import load_detector
    from ananet.images import read_image
    from ananet.pipeline import match_photos
    from ananet.pruners import load

    check_picture(arguments.output, arguments.image0, arguments.image1)
    given = {"threshold": arguments.threshold, "confidence": arguments.confidence}
    estimator = load_estimator(arguments.estimator, **{k: v for k, v in given.items() if v is not None})
    detector = load_detector(arguments.detector, device=arguments.device, max_keypoints=arguments.max_keypoints)
    pruner = load(arguments.pruner, device=arguments.device)
    image0, image1 = read_image(arguments.image0), read_image(arguments.image1)
    K0, K1 = read_cameras(arguments, image0, image1)
    found = match_photos(
        image0,
        image1,
        detector=detector,
        pruner=pruner,
        estimator=estimator,
        K0=K0,
        K1=K1,
        names=(str(arguments.image0), str(arguments.image1)),
    )
    if found.overlap.found:
        count = int(found.kept.mask.sum())
        caption = f"{found.pruner}: kept {count} of {len(found.matches)} {found.detector.upper()} matches"
        picture = draw_matches(image0, image1, *found.matches.numpy_points(), found.kept.mask, caption)
        save_picture(arguments.output, picture)
    result = as_json(found, arguments.output, estimator.threshold)
    if arguments.json:
        print_json(result)
    elif found.overlap.found:
        _report(result, calibrated=K0 is not None)
    if found.overlap.found:
        return 0
    print(
        f"{arguments.image0} and {arguments.image1} do not seem to show the same scene: "
        f"{found.overlap.consistent} of {found.overlap.tested} mutual matches agree on a common geometry, as many as "
        "chance brings. No picture written.",
        file=sys.stderr,
    )
    return NO_OVERLAP


def as_json(found: PhotoMatches, picture: Path, threshold: float) -> dict[str, Any]:
    overlap, pose = found.overlap, found.pose
    return {
        "pruner": found.pruner,
        "keypoints": [len(found.features0), len(found.features1)],
        "matches": len(found.matches),
        "kept": int(found.kept.mask.sum()),
        "overlap": overlap.found,
        "log10_false_alarms": overlap.log10_nfa if math.isfinite(overlap.log10_nfa) else None,
        "pose": None
        if pose is None
        else {
            "R": pose.R.tolist(),
            "t": pose.t.tolist(),
            "inliers": int(pose.inliers.sum()),
            "estimator": found.estimator,
            "threshold_pixels": threshold,
        },
        "picture": str(picture) if overlap.found else None,
        "milliseconds": found.milliseconds,
    }


def _report(result: dict[str, Any], calibrated: bool) -> None:
    import numpy as np

    print(f"keypoints  {result['keypoints'][0]} and {result['keypoints'][1]}")
    print(f"matches    {result['matches']} putative, {result['kept']} kept by {result['pruner']}")
    pose = result["pose"]
    if pose:
        print(f"pose       {pose['estimator']} at {pose['threshold_pixels']:g} px, {pose['inliers']} inliers")
        print("  R  " + np.array2string(np.array(pose["R"]), precision=5, suppress_small=True, prefix="  R  "))
        print("  t  " + np.array2string(np.array(pose["t"]), precision=5, suppress_small=True))
    elif calibrated:
        print("pose       none found")
    else:
        print("pose       not estimated: give --k0 and --k1, or --focal")
    print("time       " + ", ".join(f"{step} {ms:.0f} ms" for step, ms in result["milliseconds"].items()))
    print(f"picture    {result['picture']} (green kept, red removed)")
