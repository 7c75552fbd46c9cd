"""`ananet bulk`: prune pairs by the million, on Ray."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from ananet._util.checks import check_positive
from ananet._util.defaults import COLMAP_MIN_MATCHES, ESTIMATOR, RECONSTRUCTION_PRUNER
from ananet.cli.arguments import add_detector, add_json, add_pruner, detector_name, print_json
from ananet.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        type=Path,
        metavar="INPUT",
        help="a folder of COLMAP databases (.db), hloc files (.h5), matches (.npz, .parquet) or photos; or one file",
    )
    parser.add_argument(
        "output", type=Path, metavar="OUTPUT", help="a folder; a second run writes what is missing in it"
    )
    parser.add_argument(
        "--pairs", type=Path, metavar="LIST", help="for photos: a text file with two names in each line"
    )
    parser.add_argument(
        "--databases", action="store_true", help="write pruned copies of COLMAP databases too, to OUTPUT/databases"
    )
    parser.add_argument(
        "--min-matches",
        type=int,
        default=COLMAP_MIN_MATCHES,
        metavar="N",
        help=f"with --databases: a pair that keeps fewer gets none (default: {COLMAP_MIN_MATCHES}, as in COLMAP)",
    )
    parser.add_argument("--retry-failed", action="store_true", help="repeat parts with failed pairs")
    parser.add_argument(
        "--estimator",
        default=ESTIMATOR,
        metavar="NAME",
        help=f"estimates poses if both cameras are known (default: {ESTIMATOR})",
    )
    cluster = parser.add_argument_group("where it runs")
    cluster.add_argument("--address", help="a Ray cluster, such as auto or ray://HOST:10001 (default: this machine)")
    cluster.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that prune; 0 for a plain loop without Ray (default: one on each GPU, or on each CPU)",
    )
    cluster.add_argument(
        "--pairs-per-part",
        type=int,
        metavar="N",
        help="pairs that are read, pruned and written together (default: 512)",
    )
    photos = parser.add_argument_group("photos, with --pairs")
    photos.add_argument("--focal", type=float, help="focal length of all photos in pixels, instead of EXIF")
    photos.add_argument("--no-exif", action="store_true", help="no focal lengths from EXIF")
    add_detector(parser)
    add_pruner(parser, f"auto, and {RECONSTRUCTION_PRUNER} for COLMAP databases")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.input.exists():
        raise InputError(f"INPUT: {arguments.input}: no such file or folder")
    if arguments.output.exists() and not arguments.output.is_dir():
        raise InputError(f"OUTPUT: expected a folder, got the file {arguments.output}")
    if arguments.focal is not None:
        check_positive("--focal", arguments.focal, " of pixels")

    # Torch takes seconds to import, and so comes after what can be wrong without it.
    from ananet.bulk import prune_in_bulk
    from ananet.bulk.run import PAIRS_PER_PART

    summary = prune_in_bulk(
        arguments.input,
        arguments.output,
        pairs=arguments.pairs,
        pruner=arguments.pruner,
        estimator=arguments.estimator,
        detector=detector_name(arguments),
        max_keypoints=arguments.max_keypoints,
        focal=arguments.focal,
        use_exif=not arguments.no_exif,
        databases=arguments.databases,
        min_matches=arguments.min_matches,
        pairs_per_part=PAIRS_PER_PART if arguments.pairs_per_part is None else arguments.pairs_per_part,
        retry_failed=arguments.retry_failed,
        workers=arguments.workers,
        address=arguments.address,
        device=arguments.device,
        progress=sys.stderr.isatty(),
    )
    counts = summary.counts
    if arguments.json:
        facts = {"parts": summary.parts, "parts_skipped": summary.skipped, **asdict(counts)}
        print_json(facts | {"output": str(arguments.output)})
    else:
        print(
            f"{counts.pairs} pairs, {counts.failed} of them failed: kept {counts.kept} of {counts.matches} matches, "
            f"{counts.poses} poses; parts: {summary.parts}, {summary.skipped} of them done before, "
            f"in {arguments.output}"
        )
        if arguments.databases:
            print("pairs that lost matches have no two-view geometry: the mapper needs new ones from COLMAP")
    if counts.failed:
        print("ananet bulk: the column 'error' of the output says why pairs failed", file=sys.stderr)
    # No answer at all is no success.
    return int(0 < counts.failed == counts.pairs)
