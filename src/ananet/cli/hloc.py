"""`ananet hloc`: prune the matches of hloc."""

import argparse
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from ananet._util.tables import count
from ananet.cli.arguments import add_json, add_min_overlap, add_pruner, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("features", type=Path, help="hloc's features.h5")
    add("matches", type=Path, help="hloc's matches.h5")
    add("-o", "--output", type=Path, required=True, help="the pruned matches, as hloc stores them")
    add("--reference", type=Path, metavar="FILE", help="features of images missing in FEATURES")
    words = "for nearest neighbours: compute ratio and mutual flag from the descriptors, for better results"
    add("--descriptors", action="store_true", help=words)
    words = "write the pairs that have matches left here, two names per line, as hloc reads it"
    add("--pairs", type=Path, metavar="FILE", help=words)
    add_min_overlap(parser, "a pair loses all matches", default=0.0)
    add_pruner(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.io.files import check_file, check_output

    inputs = [path for path in (arguments.features, arguments.matches, arguments.reference) if path is not None]
    for path in inputs:
        check_file(path)
    check_output(arguments.output, *inputs, suffix=".h5")

    # Importing torch takes seconds: check everything else first.
    from ananet.integrations.hloc import prune_matches

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        same = "reference pruner device descriptors min_overlap pairs"
        options = {name: getattr(arguments, name) for name in same.split()}
        files = (arguments.features, arguments.matches, arguments.output)
        summary = prune_matches(*files, **options, progress=sys.stderr.isatty())
    for text in dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning):
        print(f"ananet hloc: {text}", file=sys.stderr)
    if arguments.json:
        print_json({**asdict(summary), "output": str(arguments.output)})
    else:
        kept = f"kept {summary.kept} of {summary.matches} matches, {summary.empty} pairs have none left"
        if summary.doubtful:
            kept += f", {summary.doubtful} of them since they may not show the same place"
        print(f"{count(summary.pairs, 'pair')}: {kept}, written to {arguments.output}")
    return 0
