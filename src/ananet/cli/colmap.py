"""`ananet colmap`: match the images of a COLMAP database and prune the matches."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ananet._util.checks import check_share
from ananet._util.defaults import RECONSTRUCTION_PRUNER
from ananet._util.tables import count, format_table
from ananet.cli.arguments import add_json, add_min_matches, add_min_overlap, add_pruner, print_json
from ananet.errors import InputError
from ananet.io.files import check_file, check_output

# Rows of the table of dropped pairs.
SHOWN = 20

if TYPE_CHECKING:
    from ananet.integrations.colmap import Doubtful, Summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, mode = parser.add_argument, parser.add_mutually_exclusive_group()
    add("database", type=Path, help="a COLMAP database; it is changed in one transaction")
    text = "match the descriptors in the database, prune, and replace matches of the same pairs"
    mode.add_argument("--match", action="store_true", help=f"{text} (the default for a database without matches)")
    text = "only prune the matches in the database; of little use for COLMAP's own, which passed its ratio test"
    mode.add_argument("--prune", action="store_true", help=text)
    text = "all (the default), auto (the most promising tenth, at least five per image), existing (pairs that have "
    text += "matches), sequential (each image with the next ten by name), or a text file with two image names per line"
    add("--pairs", metavar="WHICH", help=f"which to match: {text}")
    add("-o", "--output", type=Path, help="write a copy here and do not change the database")
    add("--dry-run", action="store_true", help="only count; write nothing")
    add_min_matches(parser, "a pair with fewer kept matches gets none")
    add_min_overlap(parser, "a pair gets no matches")
    text = "also write two-view geometries, ready for the mapper: by PoseLib on all cores, or by COLMAP"
    add("--verify", nargs="?", const="poselib", default=False, type=_method, metavar="poselib|colmap", help=text)
    add_pruner(parser, RECONSTRUCTION_PRUNER)
    add_json(parser)


# As the shell says it of programs that SIGTERM ended.
TERMINATED = 128 + 15


def _method(text: str) -> str:
    if text not in ("poselib", "colmap"):
        raise argparse.ArgumentTypeError(f"expected poselib or colmap, got {text!r}; the database goes before --verify")
    return text


def run(arguments: argparse.Namespace) -> int:
    with _undone_by_sigterm():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    # Before torch is imported, which takes seconds.
    if arguments.pairs is not None and arguments.prune:
        raise InputError(f"--pairs: expected with --match, got --pairs {arguments.pairs} with --prune")
    check_share("--min-overlap", arguments.min_overlap)
    check_file(arguments.database)
    if arguments.output is not None:
        check_output(arguments.output, arguments.database)

    from ananet.integrations.colmap import match_database, prune_database

    _check_database(arguments)
    options = {name: getattr(arguments, name) for name in ("output", "min_matches", "min_overlap", "verify", "dry_run")}
    options["device"] = arguments.device
    options["progress"] = sys.stderr.isatty()
    if arguments.prune:
        summary = prune_database(arguments.database, arguments.pruner, **options)
    else:
        summary = match_database(arguments.database, arguments.pruner, pairs=arguments.pairs or "all", **options)
    written = None if arguments.dry_run else str(arguments.output or arguments.database)
    if arguments.json:
        print_json(_facts(summary) | {"output": written})
        return 0
    print(
        _sentence(summary)
        + (f", written to {written}" if written and (summary.pairs or arguments.output) else ", nothing written")
    )
    if summary.doubtful:
        print(_doubtful_table(summary.doubtful))
    if not summary.pairs:
        print("no pairs with matches in the database" if arguments.prune else "no pairs of images to match")
    if written and summary.geometries_removed and not arguments.verify:
        removed = f"{summary.geometries_removed} two-view geometries of old matches removed"
        print(f"{removed}: the mapper needs new ones, from --verify or COLMAP")
    return 0


@contextmanager
def _undone_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that nothing is left behind."""

    def stop(*_: object) -> None:
        print("terminated", file=sys.stderr)
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_database(arguments: argparse.Namespace) -> None:
    """Raise if there are no images, or if the user has to choose what happens to matches of other programs."""
    from ananet.integrations.colmap.database import open_database
    from ananet.integrations.colmap.pruning import preview_pruning

    path = arguments.database
    with open_database(path) as database:
        if not database.image_names():
            raise InputError(f"{path}: no images in the database: extract features first")
        if arguments.match or arguments.prune or arguments.pairs or not database.has_foreign_matches():
            return
    seen = preview_pruning(path, arguments.pruner, device=arguments.device)
    share = f"{1 - seen.after / max(1, seen.before):.0%} of {seen.before} matches ({count(seen.pairs, 'pair')} tried)"
    raise InputError(
        f"{path}: has matches of another program; choose --prune (only prune what is there: would remove {share}) or "
        "--match (match the descriptors and prune, replacing matches of the same pairs: better reconstructions, above "
        "all if --prune removes little, since such matches passed a ratio test)"
    )


def _facts(summary: Summary) -> dict[str, Any]:
    return {
        "pruner": summary.pruner,
        "pairs": summary.pairs,
        "pairs_skipped": summary.skipped,
        "pairs_dropped": summary.dropped,
        "pairs_doubtful": [_row(pair) for pair in summary.doubtful],
        "pairs_verified": summary.verified,
        "geometries_removed": summary.geometries_removed,
        "matches_before": summary.before,
        "matches_after": summary.after,
        "matches_out_of_view": summary.unseen,
        "pairs_per_second": round(summary.pairs_per_second, 2),
        "seconds": {step: round(seconds, 3) for step, seconds in summary.seconds.items()},
    }


def _doubtful_table(doubtful: list[Doubtful]) -> str:
    """The dropped pairs with the most matches."""
    title = f"{count(len(doubtful), 'pair')} dropped that may not show the same place"
    shown = sorted(doubtful, key=lambda pair: -pair.matches)[:SHOWN]
    if len(shown) < len(doubtful):
        title += f"; the {SHOWN} with the most matches (--json lists all)"
    return f"{title}:\n{format_table([_row(pair) for pair in shown], decimals=2)}"


def _row(pair: Doubtful) -> dict[str, Any]:
    row = {"first": pair.name0, "second": pair.name1, "matches": pair.matches}
    return {**row, "probability": pair.probability, "why": pair.reason}


def _sentence(summary: Summary) -> str:
    parts = [f"{summary.pruner}: {count(summary.pairs, 'pair')}"]
    parts += [f"{summary.before} matches before and {summary.after} after", f"{count(summary.dropped, 'pair')} dropped"]
    if summary.skipped:
        parts.append(f"{count(summary.skipped, 'pair')} pruned before")
    if summary.unseen:
        parts.append(f"{summary.unseen} matches out of view")
    if summary.verified is not None:
        parts.append(f"{summary.verified} pairs with a verified geometry")
    return ", ".join(parts) + f", {summary.pairs_per_second:.1f} pairs/s"
