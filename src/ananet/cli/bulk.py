"""`ananet bulk`: prune millions of pairs, on Ray."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from ananet._util.checks import check_positive, check_share
from ananet._util.defaults import ESTIMATOR, PAIRS_PER_PART, RECONSTRUCTION_PRUNER
from ananet.cli.arguments import (
    add_detector,
    add_json,
    add_min_matches,
    add_min_overlap,
    add_pruner,
    detector_name,
    print_json,
)
from ananet.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "COLMAP databases (.db), hloc files (.h5), matches (.npz, .parquet) or photos"
    add = parser.add_argument
    add("input", type=Path, metavar="INPUT", help=f"a folder of {kinds}; or one file")
    add("output", type=Path, metavar="OUTPUT", help="a folder; a second run writes what is missing in it")
    add("--pairs", type=Path, metavar="LIST", help="for photos: a text file with two names per line")
    add("--databases", action="store_true", help="also write pruned copies of COLMAP databases, to OUTPUT/databases")
    add_min_matches(parser, "with --databases: pairs that keep fewer lose all")
    add_min_overlap(parser, "pairs lose all matches, with --databases")
    add("--retry-failed", action="store_true", help="repeat parts with failed pairs")
    words = f"estimates poses if both cameras are known (default: {ESTIMATOR})"
    add("--estimator", default=ESTIMATOR, metavar="NAME", help=words)
    add = parser.add_argument_group("where it runs").add_argument
    add("--address", help="a Ray cluster, such as auto or ray://HOST:10001 (default: this machine)")
    words = "processes that prune; 0 for a plain loop without Ray (default: one per GPU, or per CPU)"
    add("--workers", type=int, metavar="N", help=words)
    words = f"pairs that are read, pruned and written together (default: {PAIRS_PER_PART})"
    add("--pairs-per-part", type=int, default=PAIRS_PER_PART, metavar="N", help=words)
    add = parser.add_argument_group("photos, with --pairs").add_argument
    add("--focal", type=float, help="focal length of all photos in pixels, instead of EXIF")
    add("--no-exif", action="store_true", help="no focal lengths from EXIF")
    add_detector(parser)
    add_pruner(parser, f"auto, and {RECONSTRUCTION_PRUNER} for COLMAP databases")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.input.exists():
        raise InputError(f"INPUT: {arguments.input}: no such file or folder")
    if arguments.output.exists() and not arguments.output.is_dir():
        raise InputError(f"OUTPUT: expected a folder, got the file {arguments.output}")
    check_share("--min-overlap", arguments.min_overlap)
    if arguments.focal is not None:
        check_positive("--focal", arguments.focal, " of pixels")

    # Importing torch takes seconds: check everything else first.
    from ananet.bulk import prune_in_bulk

    same = "pairs pruner estimator max_keypoints focal databases min_matches min_overlap pairs_per_part"
    summary = prune_in_bulk(
        arguments.input,
        arguments.output,
        detector=detector_name(arguments),
        use_exif=not arguments.no_exif,
        progress=sys.stderr.isatty(),
        **{name: getattr(arguments, name) for name in (*same.split(), "retry_failed", "workers", "address", "device")},
    )
    counts = summary.counts
    if arguments.json:
        parts = {"parts": summary.parts, "parts_skipped": summary.skipped}
        print_json({**parts, **asdict(counts), "output": str(arguments.output)})
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
    return int(0 < counts.failed == counts.pairs)
