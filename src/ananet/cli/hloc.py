"""`ananet hloc`: prune the matches of hloc."""

import argparse
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from ananet.cli.arguments import add_json, add_pruner, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("features", type=Path, help="hloc's features.h5")
    parser.add_argument("matches", type=Path, help="hloc's matches.h5")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the pruned matches, as hloc stores them")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="features of images missing in FEATURES")
    words = "for nearest neighbours: compute ratio and mutual flag from the descriptors, for better results"
    parser.add_argument("--descriptors", action="store_true", help=words)
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
        summary = prune_matches(
            arguments.features,
            arguments.matches,
            arguments.output,
            reference=arguments.reference,
            pruner=arguments.pruner,
            device=arguments.device,
            descriptors=arguments.descriptors,
            progress=sys.stderr.isatty(),
        )
    for text in dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning):
        print(f"ananet hloc: {text}", file=sys.stderr)
    if arguments.json:
        print_json({**asdict(summary), "output": str(arguments.output)})
    else:
        print(
            f"{summary.pairs} pairs: kept {summary.kept} of {summary.matches} matches, {summary.empty} pairs have none "
            f"left, written to {arguments.output}"
        )
    return 0
