"""`ananet evaluate`: pruners on pairs with known truth."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ananet.cli.arguments import add_json, print_json
from ananet.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        type=Path,
        help="a scene (images/ beside sparse/, and pairs.txt) or a folder of scenes, training shards, an OANet dump, "
        "MULTI cases, a pair list, or a folder with views.txt",
    )
    parser.add_argument(
        "--pruner", required=True, metavar="A,B,...", help="names or .safetensors files, as in 'ananet match'"
    )
    parser.add_argument(
        "--estimator", default="ransac", metavar="A,B,...", help="ransac, magsac, poselib (default: ransac)"
    )
    parser.add_argument(
        "--protocol",
        choices=("plain", "yfcc", "sun3d"),
        default="plain",
        help="plain: 1 px at original size. yfcc: 1 px at longest side 1600, confidence 0.99999. "
        "sun3d: 0.001 in calibrated coordinates, confidence 0.99 (default: plain)",
    )
    parser.add_argument("--threshold", type=float, metavar="T", help="of the estimator, in place of the protocol's")
    parser.add_argument(
        "--confidence", type=float, metavar="C", help="at which the estimator stops drawing, in place of the protocol's"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="estimate every pose so often, print means (default: 1)"
    )
    parser.add_argument("--longest-side", type=int, metavar="PX", help="of the photos, in place of the protocol's")
    parser.add_argument("--features", choices=("sift", "orb"), default="sift", help="for photos (default: sift)")
    parser.add_argument("--max-keypoints", type=int, default=2000, metavar="N", help="in a photo (default: 2000)")
    parser.add_argument("--images", type=Path, metavar="DIR", help="photos of a pair list (default: beside it)")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many pairs of a source, evenly spread")
    parser.add_argument(
        "--outlier-share",
        type=float,
        metavar="S",
        help="leave out wrong matches at random until at most this share of a pair's is wrong",
    )
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="DIR",
        help="score the predictions found here; make the others and keep them here",
    )
    parser.add_argument("--scores", type=Path, metavar="FILE", help="write the scores of every pair as JSON")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write plots here")
    parser.add_argument("--table", type=int, choices=(1, 3, 4, 5, 6), help="print this table of the paper alone")
    parser.add_argument("--by-scene", action="store_true", help="add a table by scene")
    parser.add_argument(
        "--neighbours",
        action="store_true",
        help="add the ratio of inliers among neighbours in feature space, block by block (Fig. 7)",
    )
    parser.add_argument("--style", choices=("text", "markdown"), default="text", help="of tables (default: text)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    parser.add_argument("--device", default="auto", help="of learned pruners: auto, cpu, cuda (default: auto)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from ananet.drawing import import_matplotlib, save_picture
    from ananet.evaluation import reports
    from ananet.evaluation.evaluate import evaluate, write_scores
    from ananet.evaluation.scoring import PROTOCOLS
    from ananet.evaluation.sources import MatchSettings, open_source

    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers: expected at least 1, got {arguments.workers}")
    if len({source.resolve().stem for source in arguments.sources}) < len(arguments.sources):
        raise InputError("SOURCE: expected sources of different names, got one twice")
    if arguments.scores is not None and not arguments.scores.parent.is_dir():
        raise InputError(f"--scores: the folder {arguments.scores.parent} does not exist")
    protocol = PROTOCOLS[arguments.protocol]
    pose_settings = replace(protocol.pose, estimators=tuple(arguments.estimator.split(",")), repeats=arguments.repeats)
    for name in ("threshold", "confidence"):
        if getattr(arguments, name) is not None:
            pose_settings = replace(pose_settings, **{name: getattr(arguments, name)})
    match_settings = MatchSettings(
        arguments.features,
        arguments.max_keypoints,
        arguments.longest_side if arguments.longest_side is not None else protocol.longest_side,
        arguments.limit,
        arguments.outlier_share,
    )
    if arguments.plots:
        import_matplotlib()
        arguments.plots.mkdir(parents=True, exist_ok=True)

    for source in arguments.sources if arguments.table in reports.WITH_POSE else ():
        if not open_source(source, match_settings, image_folder=arguments.images).has_poses:
            raise InputError(f"--table: {arguments.table} needs poses, {source} has none; expected table 3")

    several = len(arguments.sources) > 1
    evaluations = []
    for source in arguments.sources:
        folder: Path | None = arguments.predictions
        if folder is not None and several:
            folder = folder / source.resolve().stem
        evaluation = evaluate(
            source,
            arguments.pruner.split(","),
            match_settings,
            pose_settings,
            image_folder=arguments.images,
            prediction_folder=folder,
            neighbours=arguments.neighbours,
            device=arguments.device,
            workers=arguments.workers,
            progress=sys.stderr.isatty(),
        )
        evaluations.append(evaluation)
        if arguments.plots:
            from ananet.evaluation.plots import evaluation_plots

            for name, picture in evaluation_plots(evaluation).items():
                prefix = f"{evaluation.source}-" if several else ""
                save_picture(arguments.plots / f"{prefix}{name}.png", picture)
    if arguments.scores:
        write_scores(arguments.scores, evaluations)
    if arguments.json:
        print_json(reports.as_json(evaluations, arguments.table))
    elif arguments.table:
        print(reports.paper_table(arguments.table, evaluations, arguments.style))
    else:
        print("\n\n".join(reports.report(e, arguments.style, arguments.by_scene) for e in evaluations))
    return 0
