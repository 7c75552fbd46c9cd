"""`ananet match`: two photos in, pruned matches, a picture and a pose out."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ananet.cli.arguments import add_json, add_pruner, camera_matrix, centred_camera, print_json
from ananet.errors import InputError, check_probability

if TYPE_CHECKING:
    from ananet.pose import Pose

NO_OVERLAP = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image0", type=Path, help="first photo")
    parser.add_argument("image1", type=Path, help="second photo")
    parser.add_argument("-o", "--output", type=Path, default=Path("matches.png"), help="picture (default: matches.png)")
    cameras = parser.add_argument_group(
        "cameras, for a pose",
        "They belong to the photo as viewers show it: EXIF orientation is applied on reading.",
    )
    cameras.add_argument("--k0", metavar="K", help="camera matrix of the first photo: fx,fy,cx,cy or a text file")
    cameras.add_argument("--k1", metavar="K", help="camera matrix of the second photo (default: that of the first)")
    cameras.add_argument("--focal", type=float, help="focal length of both in pixels, instead of --k0 and --k1")
    parser.add_argument("--features", choices=("sift", "orb"), default="sift", help="(default: sift)")
    parser.add_argument("--max-keypoints", type=int, default=2000, metavar="N", help="in each photo (default: 2000)")
    parser.add_argument(
        "--estimator",
        choices=("ransac", "magsac", "poselib"),
        default="ransac",
        help="of the pose; poselib is the most accurate and an extra (default: ransac)",
    )
    parser.add_argument("--threshold", type=float, default=1.0, metavar="PX", help="of the estimator (default: 1)")
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="C",
        help="at which the estimator stops drawing (default: 0.99999, PoseLib's own)",
    )
    add_pruner(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.drawing import draw_matches, save_picture
    from ananet.features import detect, match, read_image
    from ananet.files import check_output
    from ananet.overlap import check_overlap
    from ananet.pose import estimate_pose
    from ananet.pruners import load
    from ananet.stopwatch import Stopwatch

    check_output(arguments.output, arguments.image0, arguments.image1)
    if arguments.focal is not None and (arguments.k0 is not None or arguments.k1 is not None):
        raise InputError("--focal: expected either --focal or --k0 and --k1, got both")
    if arguments.k1 is not None and arguments.k0 is None:
        raise InputError("--k1: expected together with --k0, got it alone")
    if not 0 < arguments.threshold < math.inf:
        raise InputError(f"--threshold: expected a positive number of pixels, got {arguments.threshold:g}")
    if arguments.confidence is not None:
        check_probability("--confidence", arguments.confidence)
    pruner = load(arguments.pruner, device=arguments.device)
    watch = Stopwatch()
    image0, image1 = read_image(arguments.image0), read_image(arguments.image1)
    watch.lap("read")
    features0, features1 = (detect(image, arguments.features, arguments.max_keypoints) for image in (image0, image1))
    watch.lap("detect")
    for path, features in ((arguments.image0, features0), (arguments.image1, features1)):
        if len(features) == 0:
            raise InputError(
                f"{path}: no keypoints found in this image of {features.size[0]} x {features.size[1]} pixels"
            )
    K0 = K1 = None
    if arguments.focal is not None:
        K0, K1 = (centred_camera(arguments.focal, features.size) for features in (features0, features1))
    elif arguments.k0 is not None:
        K0 = camera_matrix("--k0", arguments.k0)
        K1 = K0 if arguments.k1 is None else camera_matrix("--k1", arguments.k1)
    matches = match(features0, features1, K0=K0, K1=K1)
    watch.lap("match")
    kept = pruner(matches)
    watch.lap("prune")
    overlap = check_overlap(matches, kept.mask)
    watch.lap("verify")

    pose: Pose | None = None
    if overlap.found:
        if K0 is not None:
            pose = estimate_pose(
                matches[kept.mask],
                arguments.estimator,
                threshold=arguments.threshold,
                confidence=arguments.confidence,
            )
            watch.lap("pose")
        caption = f"{pruner.name}: kept {kept.mask.sum()} of {len(matches)} {arguments.features.upper()} matches"
        picture = draw_matches(image0, image1, *matches.numpy_points(), kept.mask, caption)
        save_picture(arguments.output, picture)
        watch.lap("draw")

    result: dict[str, Any] = {
        "pruner": pruner.name,
        "keypoints": [len(features0), len(features1)],
        "matches": len(matches),
        "kept": int(kept.mask.sum()),
        "overlap": overlap.found,
        "log10_false_alarms": overlap.log10_nfa if math.isfinite(overlap.log10_nfa) else None,
        "pose": None,
        "picture": str(arguments.output) if overlap.found else None,
        "milliseconds": watch.milliseconds,
    }
    if pose is not None:
        result["pose"] = {
            "R": pose.R.tolist(),
            "t": pose.t.tolist(),
            "inliers": int(pose.inliers.sum()),
            "estimator": arguments.estimator,
            "threshold_pixels": arguments.threshold,
        }
    if arguments.json:
        print_json(result)
    elif overlap.found:
        _report(result, calibrated=K0 is not None)
    if not overlap.found:
        print(
            f"{arguments.image0} and {arguments.image1} do not seem to show the same scene: "
            f"{overlap.consistent} of {overlap.tested} mutual matches agree on a common geometry, as many as chance "
            f"brings. No picture written.",
            file=sys.stderr,
        )
        return NO_OVERLAP
    return 0


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
