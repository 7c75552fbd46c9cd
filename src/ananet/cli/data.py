"""`ananet data`: from photos to training pairs."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from ananet._util.checks import like
from ananet._util.tables import count, format_table
from ananet.cli.arguments import add_candidates, add_detector, add_json, detector_name, numbers, print_result
from ananet.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add_action(name: str, summary: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")

    build = add_action("build", "make labelled training pairs from photos with known poses")
    text = (
        "photos with known cameras: a scene (images/ beside sparse/, a COLMAP model), a folder of scenes, or any other "
        "form that 'ananet evaluate' reads"
    )
    build.add_argument("source", type=Path, help=text)
    build.add_argument("out", type=Path, help="output folder; an interrupted build continues there")
    add_detector(build)
    add_candidates(build)
    text = "maximum number of pairs per scene and scale, if no pairs.txt or pair list prescribes them (default: 1000)"
    build.add_argument("--pairs-per-scene", type=int, default=1000, metavar="N", help=text)
    text = "scales at which every photo is used, such as 1,0.6 (default: 1)"
    build.add_argument("--scales", default="1", metavar="A,B,...", help=text)
    text = (
        "levels of common view: the smallest share of each, and how many pairs it gets relative to the others "
        "(default: 0.1:1,0.3:1,0.6:1)"
    )
    build.add_argument("--shares", default="0.1:1,0.3:1,0.6:1", metavar="SHARE:PART,...", help=text)
    text = "pairs that have nothing in common, as a share of the others (default: 0.1)"
    build.add_argument("--empty-pairs", type=float, default=0.1, metavar="SHARE", help=text)
    text = (
        "folder with lists of pairs SCENE.txt (scenes without are left out), or 'none' to ignore the scenes' own lists"
    )
    build.add_argument("--pair-lists", metavar="FOLDER", help=text)
    build.add_argument("--seed", type=int, default=0, help="seed for the choice of pairs (default: 0)")
    build.add_argument("--workers", type=int, help="threads (default: one per core)")
    add_json(build)

    pack = add_action("pack", "pack builds of the same photos, to pass them on without the photos")
    pack.add_argument("builds", nargs="+", type=Path, help="folders that 'ananet data build' wrote")
    pack.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the pair set, a new folder")
    add_json(pack)

    sfm = add_action("sfm", "find the poses of photos by structure from motion (needs the extra colmap)")
    sfm.add_argument("photos", type=Path, help="folder of photos")
    sfm.add_argument("out", type=Path, help="folder for the scene")
    add_json(sfm)

    inspect = add_action("inspect", "print a table of training pairs and draw some of them (needs the extra plots)")
    inspect.add_argument("pairs", type=Path, help="folder that 'ananet data build' wrote")
    inspect.add_argument("-o", "--output", type=Path, default=Path("pairs.png"), help="picture (default: pairs.png)")
    inspect.add_argument("--scene", metavar="NAME", help="only the pairs of this scene")
    inspect.add_argument("--seed", type=int, default=0, help="seed for the choice of pairs")
    add_json(inspect)


def run(arguments: argparse.Namespace) -> int:
    return {"build": run_build, "pack": run_pack, "sfm": run_sfm, "inspect": run_inspect}[arguments.action](arguments)


def run_build(arguments: argparse.Namespace) -> int:
    scales = tuple(numbers("--scales", arguments.scales, float, "positive numbers such as 1,0.6"))

    from ananet.datasets.build import BuildSettings, build_pairs

    named = ("max_keypoints", "pairs_per_scene", "empty_pairs", "pair_lists", "seed")
    given = {name: value for name in named if (value := getattr(arguments, name)) is not None}
    given |= {"shares": _levels(arguments.shares)}
    settings = BuildSettings(detector=detector_name(arguments), neighbours=arguments.candidates, scales=scales, **given)
    start = time.perf_counter()
    shown: dict[str, Any] = {"progress": sys.stderr.isatty(), "log": partial(print, file=sys.stderr)}
    index = build_pairs(arguments.source, arguments.out, settings, workers=arguments.workers, **shown)
    size = sum((arguments.out / shard).stat().st_size for shard in index["shards"])
    result = {
        "scenes": len(index["scenes"]),
        "photos": index["images"],
        "skipped_photos": sum(len(scene["unreadable"]) for scene in index["scenes"]),
        "pairs": index["pairs"],
        "bytes": size,
        "seconds": round(time.perf_counter() - start, 1),
        "out": str(arguments.out),
    }
    text = (
        f"{count(result['pairs'], 'pair')} of {result['photos']} photos in {count(result['scenes'], 'scene')} "
        f"({count(result['skipped_photos'], 'photo')} skipped), "
        f"{size / 1e6:.1f} MB in {count(len(index['shards']), 'shard')}, "
        f"{result['seconds']:g} s: {arguments.out}"
    )
    return print_result(arguments, result, text)


def run_pack(arguments: argparse.Namespace) -> int:
    from ananet.datasets.pack import pack_builds

    size = pack_builds(arguments.builds, arguments.output)
    names = [build.resolve().name for build in arguments.builds]
    result = {"builds": names, "bytes": size, "out": str(arguments.output)}
    return print_result(arguments, result, f"{', '.join(names)}: {size / 1e6:.2f} MB in {arguments.output}")


def _levels(text: str) -> tuple[tuple[float, float], ...]:
    """The levels of `--shares`."""
    try:
        levels = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        return tuple((share, part) for share, part in levels)
    except ValueError:
        raise InputError(f"--shares: expected levels such as 0.1:1,0.3:1,0.6:1, got {text!r}") from None


def run_sfm(arguments: argparse.Namespace) -> int:
    from ananet.datasets.sfm import reconstruct

    result = reconstruct(arguments.photos, arguments.out, progress=sys.stderr.isatty())
    names = ("registered", "left_out", "points", "reprojection_error")
    facts = {name: getattr(result, name) for name in names} | {"out": str(arguments.out)}
    left_out = "\nleft out: " + ", ".join(result.left_out) if result.left_out else ""
    return print_result(arguments, facts, result.summary + left_out)


def run_inspect(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from ananet._util.plots import import_matplotlib
    from ananet.errors import InputError
    from ananet.io.images import check_picture, save_picture

    check_picture(arguments.output)
    import_matplotlib()

    # These import torch.
    from ananet.datasets.formats.shards import PairShards
    from ananet.datasets.inspection import depth_by_scene, draw_pair_set, facts_as_json, facts_by_scene, facts_of

    pairs = PairShards(arguments.pairs)
    scene_of = pairs.pair_scene.tolist()
    numbers = list(range(len(pairs)))
    if arguments.scene is not None:
        if arguments.scene not in pairs.scenes:
            known = f"a scene of {arguments.pairs}"
            raise InputError(f"--scene: expected {known}, got {arguments.scene!r}{like(arguments.scene, pairs.scenes)}")
        numbers = [number for number in numbers if pairs.scenes[scene_of[number]] == arguments.scene]
    if not numbers:
        raise InputError(f"{arguments.scene or arguments.pairs}: expected at least one pair, got none")
    bar = tqdm(numbers, desc="pairs", unit="pair", disable=not sys.stderr.isatty(), leave=False)
    facts = [facts_of(pairs[number], scene_of[number], number) for number in bar]
    rows, depth_rows = facts_by_scene(pairs, facts), depth_by_scene(pairs, facts)
    if arguments.scene is not None:
        rows = [row for row in rows if row["scene"] == arguments.scene]
    save_picture(arguments.output, draw_pair_set(pairs, facts, arguments.seed))
    tables = [format_table(rows), *([format_table(depth_rows)] if depth_rows else [])]
    shown = (
        "matches near the line and distinctive ones, green: right, orange: accidental, red: wrong, grey: unknown"
        if depth_rows
        else "distinctive matches, green: right, red: wrong"
    )
    words = f"{count(len(facts), 'pair')}. Picture: {arguments.output} ({shown})"
    result = {**facts_as_json(rows, facts, depth_rows), "picture": str(arguments.output)}
    return print_result(arguments, result, "\n\n".join([*tables, words]))
