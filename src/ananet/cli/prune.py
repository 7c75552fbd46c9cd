"""`ananet prune`: prune matches stored in an .npz file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ananet.cli.arguments import add_json, add_pruner, add_threshold, print_json
from ananet.io.files import check_file, check_output, save_arrays
from ananet.io.npz import OPTIONAL, REQUIRED, read_arrays


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"an .npz with {', '.join(REQUIRED)} and optionally {', '.join(OPTIONAL)}"
    parser.add_argument("file", type=Path, help=text)
    text = "where to write mask, scores and logits, .npz (default: FILE.pruned.npz)"
    parser.add_argument("-o", "--output", type=Path, help=text)
    text = "also find which kept matches move together; writes `motions`: 0, 1, ... by size, -1 for none"
    parser.add_argument("--motions", action="store_true", help=text)
    add_pruner(parser)
    add_threshold(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    check_file(arguments.file)
    output = arguments.output or arguments.file.with_suffix(".pruned.npz")
    check_output(output, arguments.file, suffix=".npz")
    arrays = read_arrays(arguments.file)

    # Importing torch takes seconds, so arguments are checked first.
    from ananet.core.correspondences import Correspondences
    from ananet.pruners.progress import progress_bar
    from ananet.twoview.matcher import load_pruner_at
    from ananet.twoview.motions import group_motions, in_words

    matches = Correspondences(**arrays)
    pruner = load_pruner_at(arguments.pruner, arguments.threshold, arguments.device)
    with progress_bar(pruner, len(matches)):
        kept = pruner(matches)
    result_arrays = {"mask": kept.mask, "scores": kept.scores, "logits": kept.logits}
    motions = group_motions(matches, kept) if arguments.motions else None
    if motions is not None:
        result_arrays["motions"] = motions.labels
    save_arrays(output, result_arrays)
    count = int(kept.mask.sum())
    if arguments.json:
        result = {"pruner": kept.pruner, "matches": len(matches), "kept": count, "output": str(output)}
        print_json(result if motions is None else result | {"motions": motions.to_dict()})
        return 0
    print(f"{kept.pruner}: kept {count} of {len(matches)} matches, written to {output}")
    if motions is not None:
        print(f"motions  {in_words(motions.to_dict())}")
    return 0
