"""`ananet colmap`: prune the matches of a COLMAP database."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ananet._util.defaults import COLMAP_MIN_MATCHES, RECONSTRUCTION_PRUNER
from ananet.cli.arguments import add_json, add_pruner, print_json
from ananet.errors import InputError

if TYPE_CHECKING:
    from ananet.integrations.colmap import Summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("database", type=Path, help="a COLMAP database; it is changed in one transaction")
    parser.add_argument("-o", "--output", type=Path, help="write a pruned copy here and do not change the database")
    parser.add_argument("--dry-run", action="store_true", help="only count; write nothing")
    parser.add_argument(
        "--min-matches",
        type=int,
        default=COLMAP_MIN_MATCHES,
        metavar="N",
        help=f"a pair with fewer kept matches gets none (default: {COLMAP_MIN_MATCHES}, as in COLMAP)",
    )
    parser.add_argument("--match", action="store_true", help="first match the descriptors in the database")
    parser.add_argument(
        "--pairs",
        metavar="WHICH",
        help="with --match: all (the default), existing (pairs that have matches), or a text file with two image names "
        "per line",
    )
    parser.add_argument(
        "--verify", action="store_true", help="also write two-view geometries with pycolmap, ready for the mapper"
    )
    add_pruner(parser, RECONSTRUCTION_PRUNER)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.pairs is not None and not arguments.match:
        raise InputError("--pairs: expected together with --match, got it alone")
    _check_paths(arguments)

    from ananet.integrations.colmap import match_database, prune_database

    options: dict[str, Any] = {
        "output": arguments.output,
        "min_matches": arguments.min_matches,
        "verify": arguments.verify,
        "dry_run": arguments.dry_run,
        "device": arguments.device,
        "progress": sys.stderr.isatty(),
    }
    if arguments.match:
        pairs = arguments.pairs or "all"
        summary = match_database(arguments.database, arguments.pruner, pairs=pairs, **options)
    else:
        summary = prune_database(arguments.database, arguments.pruner, **options)
    written = None if arguments.dry_run else str(arguments.output or arguments.database)
    if arguments.json:
        print_json(_facts(summary) | {"output": written})
    else:
        print(_sentence(summary) + (f", written to {written}" if written else ", nothing written"))
        if not summary.pairs:
            print("no pairs with matches in the database" + ("" if arguments.match else "; --match makes matches"))
        if written and summary.geometries_removed and not arguments.verify:
            print(
                f"{summary.geometries_removed} two-view geometries of old matches removed: the mapper needs new ones, "
                "from --verify or COLMAP"
            )
    return 0


def _check_paths(arguments: argparse.Namespace) -> None:
    """What can be wrong is told before torch is imported, which takes seconds."""
    from ananet.io.files import check_file, check_output

    check_file(arguments.database)
    if arguments.output is not None:
        check_output(arguments.output, arguments.database)


def _facts(summary: Summary) -> dict[str, Any]:
    return {
        "pruner": summary.pruner,
        "used": summary.used,
        "pairs": summary.pairs,
        "pairs_skipped": summary.skipped,
        "pairs_dropped": summary.dropped,
        "pairs_verified": summary.verified,
        "geometries_removed": summary.geometries_removed,
        "matches_before": summary.before,
        "matches_after": summary.after,
        "matches_out_of_view": summary.unseen,
        "pairs_per_second": round(summary.pairs_per_second, 2),
        "seconds": {step: round(seconds, 3) for step, seconds in summary.seconds.items()},
    }


def _sentence(summary: Summary) -> str:
    took = ", ".join(name for name in summary.used if name != summary.pruner)
    parts = [summary.pruner + (f" (took {took})" if took else "") + f": {summary.pairs} pairs"]
    parts.append(f"{summary.before} matches before and {summary.after} after")
    parts.append(f"{summary.dropped} pairs dropped")
    if summary.skipped:
        parts.append(f"{summary.skipped} pairs were pruned before")
    if summary.unseen:
        parts.append(f"{summary.unseen} matches out of view")
    if summary.verified is not None:
        parts.append(f"{summary.verified} pairs with a verified geometry")
    return ", ".join(parts) + f", {summary.pairs_per_second:.1f} pairs/s"
