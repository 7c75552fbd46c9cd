"""`ananet sfm`: from a folder of photos to a model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ananet._util.defaults import LONGEST_SIDE, RECONSTRUCTION_KEYPOINTS, RECONSTRUCTION_PRUNER
from ananet._util.tables import count
from ananet.cli.arguments import add_json, add_pruner, print_result

if TYPE_CHECKING:
    from ananet.integrations.colmap import Model

# Names of photos or pairs that are printed; the report has all.
SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("photos", type=Path, help="a folder of photos; subfolders count too")
    text = "folder for the model (sparse/0), its picture, the report and the database; a killed call goes on from there"
    add("-o", "--output", type=Path, required=True, metavar="MODEL", help=text)
    text = "all (the default), auto (the most promising tenth, at least five per photo), sequential (each photo with "
    text += "the next ten by name), or a text file with two names per line"
    add("--pairs", default="all", metavar="WHICH", help=f"which pairs are matched: {text}")
    text = "auto (the default: photos of one size and focal length by EXIF share a camera), one for all photos, or each"
    add("--cameras", default="auto", metavar="HOW", help=f"photos that share a camera: {text}")
    add(
        "--max-keypoints",
        type=int,
        default=RECONSTRUCTION_KEYPOINTS,
        metavar="N",
        help=f"per photo (default: {RECONSTRUCTION_KEYPOINTS})",
    )
    text = f"larger photos are scaled down to this for keypoints (default: {LONGEST_SIDE})"
    add("--longest-side", type=int, default=LONGEST_SIDE, metavar="N", help=text)
    text = "two-view geometries: poselib (the default, on all cores), or colmap for COLMAP's own verification"
    add("--verify", default="poselib", metavar="HOW", help=text)
    add("--mapper", default="incremental", metavar="NAME", help="COLMAP's incremental (the default) or global mapper")
    add_pruner(parser, RECONSTRUCTION_PRUNER)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.integrations.colmap import build_model

    names = ("pairs", "cameras", "max_keypoints", "longest_side", "verify", "mapper", "device")
    options = {name: getattr(arguments, name) for name in names}
    progress = sys.stderr.isatty()
    model = build_model(arguments.photos, arguments.output, arguments.pruner, progress=progress, **options)
    return print_result(arguments, model.to_dict(), _text(model))


def _text(model: Model) -> str:
    lines = [model.summary]
    if model.models > 1:
        lines.append(f"{count(model.models, 'separate model')}; this is the largest, all are in {model.folder}/sparse")
    lines.append(f"{count(model.pairs, 'pair')} matched by {model.pruner}, {model.verified} with a two-view geometry")
    for what, names in (
        ("not registered", model.left_out),
        ("doubtful pairs, not used", [" and ".join(pair) for pair in model.doubtful]),
    ):
        if names:
            more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            lines.append(f"{what}: {', '.join(names[:SHOWN])}{more}")
    lines.append("seconds: " + ", ".join(f"{step} {seconds:.1f}" for step, seconds in model.seconds.items()))
    lines.append(f"model: {model.folder}/sparse/0, picture: {model.folder}/model.png")
    return "\n".join(lines)
