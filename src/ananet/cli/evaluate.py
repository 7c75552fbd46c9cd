"""`ananet evaluate`: score pruners on pairs with known truth."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ananet._util.defaults import REPORTED_ESTIMATORS
from ananet._util.tables import format_table
from ananet.cli import arguments as shared
from ananet.errors import InputError

# What applies to a pair set as a whole.
OF_PAIR_SETS = (
    *("sources", "pruner", "predictions", "limit", "workers", "style", "json", "device"),
    *("command", "debug"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = (
        "a scene (images/ beside sparse/, and pairs.txt) or a folder of scenes, training pairs, an OANet dump, "
        "MULTI cases, labelled matches (matches.npz), photos with homographies (Oxford, HPatches), matches of planes "
        "(EVD), a pair list, or a folder with views.txt; 'validation', the pair set of the repository, or a part of it "
        "such as 'validation/hard'"
    )
    add("sources", nargs="+", metavar="SOURCE", type=Path, help=text)
    names = "names or .safetensors files, as in 'ananet match'; name=FILE names a file"
    names += " (default for a pair set: those of the documentation's tables)"
    add("--pruner", metavar="A,B,...", help=names)
    text = (
        "what estimators look for. fundamental: pruners and estimators know no cameras, the pose is scored with the "
        "true ones. homography: scored by mean corner error (default: essential where poses are known, homography "
        "where homographies are)"
    )
    add("--model", choices=("essential", "fundamental", "homography"), help=text)
    estimators = ",".join(REPORTED_ESTIMATORS)
    text = (
        "ransac, magsac, poselib, eight-point; NAME@option=value sets an option, such as poselib@match_selection=all "
        f"(default: {estimators})"
    )
    add("--estimator", default=estimators, metavar="A,B,...", help=text)
    text = (
        "plain: each estimator's own threshold at original size. yfcc: 1 px at longest side 1600, confidence 0.99999. "
        "sun3d: 0.001 in calibrated coordinates, confidence 0.99 (default: plain)"
    )
    add("--protocol", choices=("plain", "yfcc", "sun3d"), default="plain", help=text)
    own = "(default: the protocol's)"
    add("--pose-threshold", type=float, metavar="T", help=f"inlier threshold of the estimator {own}")
    add("--confidence", type=float, metavar="C", help=f"confidence of the estimator {own}")
    add("--repeats", type=int, default=1, metavar="N", help="estimate every pose N times, print means (default: 1)")
    add("--longest-side", type=int, metavar="PX", help=f"scale photos to this longest side {own}")
    shared.add_detector(parser, default=None)
    shared.add_candidates(parser)
    shared.add_matcher(parser)
    add("--images", type=Path, metavar="DIR", help="photos of a pair list (default: beside it)")
    add("--limit", type=int, metavar="N", help="at most N pairs of each source, evenly spread")
    add("--scenes", metavar="A,B,...", help="only pairs of these scenes (default: all)")
    fewer = "remove wrong matches at random until at most this share of a pair is wrong"
    add("--outlier-share", type=float, metavar="S", help=fewer)
    add("--predictions", type=Path, metavar="DIR", help="reuse predictions stored here, add missing ones")
    add("--scores", type=Path, metavar="FILE", help="write the scores of every pair as JSON")
    add("--plots", type=Path, metavar="DIR", help="write plots here")
    add("--table", type=int, choices=(1, 3, 4, 5, 6), help="print only this table of the paper")
    add("--by-scene", action="store_true", help="add a table by scene")
    near = "add the ratio of inliers among neighbours in feature space, block by block (Fig. 7)"
    add("--neighbours", action="store_true", help=near)
    text = (
        "score the grouping of kept matches into motions, for folders with labelled matches, or for 'synthetic', "
        "problems with one to five motions; --repeats is the number of seeds"
    )
    add("--motions", action="store_true", help=text)
    add("--style", choices=("text", "markdown"), default="text", help="style of tables (default: text)")
    add("--workers", type=int, metavar="N", help="processes (default: one per core)")
    shared.add_device(parser)
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.scores is not None and not arguments.scores.parent.is_dir():
        raise InputError(f"--scores: the folder {arguments.scores.parent} does not exist")
    detectors = _detectors(arguments)

    from ananet._util.devices import choose_device
    from ananet._util.plots import import_matplotlib
    from ananet.datasets.sources import open_source
    from ananet.evaluation import reports
    from ananet.evaluation.runner import evaluate

    choose_device(arguments.device)
    if (pair_set := _pair_set(arguments)) is not None:
        return _print_tables(arguments, pair_set)
    if arguments.motions:
        return _motions(arguments)
    if arguments.plots:
        import_matplotlib()
        arguments.plots.mkdir(parents=True, exist_ok=True)
    sources = [open_source(path, image_folder=arguments.images) for path in arguments.sources]
    for source in sources:
        if arguments.table in reports.WITH_POSE and not source.has_poses:
            raise InputError(f"--table: {arguments.table} needs poses, {source.path} has none; expected table 3")
    posing = ("model", "protocol", "pose_threshold", "confidence", "repeats", "neighbours", "device", "workers")
    matching = ("max_keypoints", "longest_side", "candidates", "limit", "outlier_share")
    evaluations = evaluate(
        sources,
        arguments.pruner.split(","),
        estimators=arguments.estimator.split(","),
        detectors=detectors,
        matcher=shared.matcher_name(arguments),
        scenes=None if arguments.scenes is None else arguments.scenes.split(","),
        prediction_folder=arguments.predictions,
        progress=sys.stderr.isatty(),
        **{name: getattr(arguments, name) for name in (*posing, *matching)},
    )
    if arguments.plots:
        from ananet.evaluation.plots import evaluation_plots
        from ananet.io.images import save_picture

        for evaluation in evaluations:
            prefix = f"{evaluation.source}-" if len(evaluations) > 1 else ""
            for name, picture in evaluation_plots(evaluation).items():
                save_picture(arguments.plots / f"{prefix}{name}.png", picture)
    if arguments.scores:
        reports.write_scores(arguments.scores, evaluations)
    if arguments.json:
        shared.print_json(reports.reports_as_json(evaluations, arguments.table))
    elif arguments.table:
        print(reports.paper_table(arguments.table, evaluations, arguments.style))
    else:
        print("\n\n".join(reports.report(e, arguments.style, arguments.by_scene) for e in evaluations))
    return 0


def _pair_set(arguments: argparse.Namespace) -> Path | None:
    """The folder of the pair set that was given as a whole, if one was."""
    from ananet.datasets.sources import find_source, parts_of_pair_set

    if len(arguments.sources) == 1 and parts_of_pair_set(path := find_source(arguments.sources[0])):
        return path
    if arguments.pruner is None:
        raise InputError("--pruner: expected names such as ratio,ananet, got none")
    return None


def _print_tables(arguments: argparse.Namespace, pair_set: Path) -> int:
    """The documentation's tables, of their pruners or of the given ones."""
    from ananet.evaluation.pair_sets import Measurements, documented_tables

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, value in vars(arguments).items():
        if name not in OF_PAIR_SETS and value != parser.get_default(name):
            part = f"the tables of a pair set have settings of their own; expected a part, such as {pair_set.name}/hard"
            raise InputError(f"--{name.replace('_', '-')}: {part}")
    given = {name: getattr(arguments, name) for name in ("predictions", "limit", "workers")}
    pruners = None if arguments.pruner is None else arguments.pruner.split(",")
    tables = documented_tables(Measurements(pair_set, progress=sys.stderr.isatty(), **given), pruners)
    text = (f"{title}\n\n{format_table(rows, arguments.style)}" for title, rows in tables.items())
    return shared.print_result(arguments, tables, "\n\n".join(text))


def _detectors(arguments: argparse.Namespace) -> list[str] | None:
    """The detectors that the user named; None leaves it to the protocol."""
    if arguments.detector is arguments.detector_weights is arguments.features is None:
        return None
    detectors: list[str] = [] if arguments.detector is None else arguments.detector.split(",")
    if len(detectors) < 2:
        return [shared.detector_name(arguments)]
    for option in ("detector_weights", "features", "matcher_weights"):
        if getattr(arguments, option) is not None:
            raise InputError(f"--detector: expected one with --{option.replace('_', '-')}, got several")
    return detectors


def _motions(arguments: argparse.Namespace) -> int:
    from ananet.evaluation.motions import evaluate_motions, motion_report, motion_rows
    from ananet.pruners import load

    reports: list[str] = []
    results: list[dict[str, Any]] = []
    for source in arguments.sources:
        for name in arguments.pruner.split(","):
            pruner = load(name, device=arguments.device)
            scores = evaluate_motions(source, pruner, arguments.repeats, arguments.limit, sys.stderr.isatty())
            reports.append(motion_report(source, pruner.name, arguments.repeats, scores, arguments.style))
            results.append({"source": str(source), "pruner": pruner.name, "rows": motion_rows(scores)})
    return shared.print_result(arguments, results, "\n\n".join(reports))
