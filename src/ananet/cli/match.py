"""`ananet match`: photos in, pruned matches, pictures and poses out: one pair, or many."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ananet._util.checks import check_positive, check_probability, check_whole_number
from ananet._util.defaults import ESTIMATOR, MATCH_FILES, MAX_KEYPOINTS, THRESHOLD_PIXELS
from ananet._util.tables import count
from ananet.cli import arguments as shared
from ananet.errors import InputError
from ananet.io.files import check_output
from ananet.io.pairs import read_pairs

if TYPE_CHECKING:
    from ananet.twoview import PhotoMatcher, PhotoMatches

NO_OVERLAP, UNMATCHED = 1, 2
MODELS = ("auto", "essential", "fundamental", "homography")
PICTURE, FOLDER = Path("matches.png"), Path("matches")


class Pair(NamedTuple):
    """Two photos, and the files to write."""

    image0: Path
    image1: Path
    picture: Path
    saved: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("photos", type=Path, nargs="*", metavar="PHOTO", help="two photos; with more, every pair is matched")
    add("--pairs", type=Path, metavar="LIST", help="text file with two photo names per line")
    add("--images", type=Path, metavar="FOLDER", help="folder of the photos in --pairs (default: current folder)")
    where = f"picture (default: {PICTURE}), or folder for the pictures of many pairs (default: {FOLDER})"
    add("-o", "--output", type=Path, help=where)
    add("--save", type=Path, metavar="FILE", help="save the matches, .npz or .csv; for many pairs a folder of .npz")
    add("--show-removed", action="store_true", help="draw removed matches too, in red")
    text = "Cameras belong to the photo as viewers show it: EXIF orientation is applied on reading. By default, focal "
    text += "lengths are read from EXIF if both photos have them."
    cameras = shared.add_cameras(parser, "cameras, for a pose", text, auto=True)
    cameras.add_argument("--no-exif", action="store_true", help="ignore focal lengths in EXIF")
    text = "geometry to estimate: a pose (essential, needs cameras), fundamental, homography, or auto, which chooses "
    text += "between epipolar geometry and a homography by the evidence (default: auto)"
    add("--model", choices=MODELS, default="auto", help=text)
    add("--warp", type=Path, metavar="FILE", help="picture of the first photo warped onto the second by the homography")
    add("--epipolar", type=Path, metavar="FILE", help="picture of a few matches and their epipolar lines")
    shared.add_detector(parser)
    shared.add_longest_side(parser)
    shared.add_candidates(parser)
    shared.add_matcher(parser)
    shared.add_pruner(parser)
    shared.add_threshold(parser)
    text = "estimator of the geometry: poselib (the most accurate), ransac, magsac or eight-point; "
    text += "NAME@option=value sets an option, "
    text += f"such as poselib@match_selection=all for a pose of all kept matches (default: {ESTIMATOR})"
    add("--estimator", default=ESTIMATOR, metavar="NAME", help=text)
    thresholds = f"for a pose 0.75 with poselib, {THRESHOLD_PIXELS:g} with the others; see docs/geometry.md"
    add("--pose-threshold", type=float, metavar="PX", help=f"the estimator's inlier threshold (default: {thresholds})")
    add("--confidence", type=float, metavar="C", help="confidence at which the estimator stops (default: 0.99999)")
    add("--refine", action="store_true", help="subpixel refinement of the second points of kept matches")
    add("--motions", action="store_true", help="find which kept matches move together, and colour them by motion")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    shared.check_cameras(arguments)
    check_whole_number("--candidates", arguments.candidates, 1)
    if arguments.pose_threshold is not None:
        check_positive("--pose-threshold", arguments.pose_threshold, " of pixels")
    for name in ("threshold", "confidence"):
        if (value := getattr(arguments, name)) is not None:
            check_probability(f"--{name}", value)
    side = shared.read_longest_side(arguments)
    if arguments.images is not None and arguments.pairs is None:
        raise InputError(f"--images: expected together with --pairs, got {arguments.images} alone")
    many = arguments.pairs is not None or len(arguments.photos) > 2
    if many and (arguments.warp or arguments.epipolar):
        option = "--warp" if arguments.warp else "--epipolar"
        raise InputError(f"{option}: expected two photos, got a list of pairs")
    for option, models in (("warp", ("auto", "homography")), ("epipolar", ("auto", "essential", "fundamental"))):
        if getattr(arguments, option) is not None and arguments.model not in models:
            raise InputError(f"--{option}: expected --model {' or '.join(models)}, got {arguments.model}")
    pairs = _many_pairs(arguments) if many else [_one_pair(arguments)]

    # Importing torch takes seconds, so arguments are checked first.
    from ananet.estimators import load_estimator
    from ananet.features import load_detector
    from ananet.pruners.progress import progress_bar
    from ananet.twoview import PhotoMatcher

    given = {"threshold": arguments.pose_threshold, "confidence": arguments.confidence}
    options = {"device": arguments.device, "max_keypoints": arguments.max_keypoints, **side}
    matcher = PhotoMatcher(
        detector=load_detector(shared.detector_name(arguments), **options),
        matcher=shared.matcher_name(arguments),
        estimator=load_estimator(arguments.estimator, **{k: v for k, v in given.items() if v is not None}),
        neighbours=arguments.candidates,
        use_exif=not arguments.no_exif,
        **{name: getattr(arguments, name) for name in ("pruner", "threshold", "refine", "motions", "model", "device")},
    )
    cameras = shared.read_cameras(arguments)
    for path in {path.parent for pair in pairs for path in (pair.picture, pair.saved) if path is not None}:
        path.mkdir(parents=True, exist_ok=True)
    with progress_bar(matcher.pruner, (arguments.max_keypoints or MAX_KEYPOINTS) * arguments.candidates):
        if many:
            return _match_many(matcher, pairs, cameras, arguments)
        found = matcher(pairs[0].image0, pairs[0].image1, **cameras)
    result = _write(found, pairs[0], arguments.show_removed)
    drawn = _draw_geometry(found, arguments)
    result |= {option: None if path is None else str(path) for option, path in drawn.items()}
    if arguments.json:
        shared.print_json(result)
    else:
        print(found.summary())
        print(f"picture    {result['picture']}" + (f"\nsaved      {result['saved']}" if result["saved"] else ""))
        for option, drawing in drawn.items():
            if getattr(arguments, option) is not None:
                print(f"{option:10} {drawing or f'none: {found.model_summary}'}{_doubt(found, option)}")
    return 0 if found.overlap.found else NO_OVERLAP


def _write(found: PhotoMatches, pair: Pair, show_removed: bool) -> dict[str, Any]:
    """Write picture and matches; return what `--json` prints."""
    found.draw(pair.picture, show_removed=show_removed)
    if pair.saved is not None:
        found.save(pair.saved)
    saved = None if pair.saved is None else str(pair.saved)
    return {**found.to_dict(), "picture": str(pair.picture), "saved": saved}


def _draw_geometry(found: PhotoMatches, arguments: argparse.Namespace) -> dict[str, Path | None]:
    """Write the pictures of the geometry that were asked for and that there are; return their paths by option."""
    warp = arguments.warp if found.homography is not None else None
    epipolar = arguments.epipolar if found.epipolar_matrix is not None else None
    if warp is not None:
        found.warp(warp)
    if epipolar is not None:
        found.draw_epipolar_lines(epipolar)
    return {"warp": warp, "epipolar": epipolar}


def _doubt(found: PhotoMatches, option: str) -> str:
    """What to say of a warped photo if the two photos differ by more than a homography."""
    if option != "warp" or found.homography is None or found.model == "homography":
        return ""
    return f" (a scene with depth: right for one plane only, {int(found.homography.inliers.sum())} matches)"


def _one_pair(arguments: argparse.Namespace) -> Pair:
    from ananet.io.images import check_image_file, check_picture

    photos: list[Path] = arguments.photos
    if len(photos) != 2:
        raise InputError(f"photos: expected two or more, or --pairs LIST, got {len(photos)}")
    picture, saved = arguments.output or PICTURE, arguments.save
    outputs = {"output": picture, "--warp": arguments.warp, "--epipolar": arguments.epipolar}
    written: dict[Path, str] = {}
    for option, file in outputs.items():
        if file is None:
            continue
        try:
            check_picture(file, *photos)
        except InputError as error:
            raise InputError(f"{option}: {str(error).removeprefix('output: ')}") from None
        other = written.setdefault(file.resolve(), option)
        if other != option:
            raise InputError(f"{option}: {file} is the picture of {other} too, expected different files")
    if saved is not None:
        if saved.suffix.lower() not in MATCH_FILES:
            raise InputError(f"--save: expected a file that ends in {' or '.join(MATCH_FILES)}, got {str(saved)!r}")
        try:
            check_output(saved, *photos)
        except InputError as error:
            raise InputError(f"--save: {str(error).removeprefix('output: ')}") from None
    return Pair(check_image_file(photos[0]), check_image_file(photos[1]), picture, saved)


def _many_pairs(arguments: argparse.Namespace) -> list[Pair]:
    if arguments.pairs is None:
        listed = list(combinations(dict.fromkeys(arguments.photos), 2))
    else:
        if arguments.photos:
            raise InputError(f"photos: expected either photos or --pairs, got both ({len(arguments.photos)} photos)")
        if arguments.images is not None and not arguments.images.is_dir():
            raise InputError(f"--images: expected a folder, got {arguments.images}")
        folder = arguments.images or Path()
        listed = list(dict.fromkeys((folder / a, folder / b) for _, (a, b) in read_pairs(arguments.pairs)))
    if not listed:
        raise InputError(f"{arguments.pairs or 'photos'}: expected at least one pair of photos, got none")
    output, saved = arguments.output or FOLDER, arguments.save
    for option, folder in (("output", output), ("--save", saved)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise InputError(f"{option}: expected a folder for the results of many pairs, got the file {folder}")
    names = short_names([path for pair in listed for path in pair])
    inputs = {path.resolve() for path in names} | ({arguments.pairs.resolve()} if arguments.pairs else set())
    pairs: dict[str, Pair] = {}
    for one in listed:
        name = "-".join(names[path] for path in one)
        if name in pairs:
            first = f"{pairs[name].image0} and {pairs[name].image1}"
            raise InputError(f"{first}: {name} would also be the output of {one[0]} and {one[1]}")
        pairs[name] = Pair(*one, output / f"{name}.png", None if saved is None else saved / f"{name}.npz")
        if pairs[name].picture.resolve() in inputs:
            raise InputError(f"output: {pairs[name].picture} is an input and would be overwritten")
    return list(pairs.values())


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """A distinct name of each photo for output files, as short as possible.

    >>> list(short_names([Path("photos/a.jpg"), Path("photos/b.jpg")]).values())
    ['a', 'b']
    >>> list(short_names([Path("left/1.jpg"), Path("right/1.jpg")]).values())
    ['left_1', 'right_1']
    """

    def joined(path: Path) -> str:
        # Roots and drives cannot be part of a file name.
        return "_".join(filter(None, (part.strip("/\\:.") for part in path.parts)))

    different = list(dict.fromkeys(paths))
    candidates = ((path.stem, path.name, joined(path.with_suffix("")), joined(path)) for path in different)
    for names in zip(*candidates, strict=True):
        if len(set(names)) == len(different):
            return dict(zip(different, names, strict=True))
    return {path: f"{number}_{path.name}" for number, path in enumerate(different)}


def _match_many(
    matcher: PhotoMatcher, pairs: list[Pair], cameras: dict[str, Any], arguments: argparse.Namespace
) -> int:
    from tqdm import tqdm

    results: list[dict[str, Any]] = []
    unmatched = apart = 0
    bar = tqdm(pairs, desc="match", unit="pair", disable=not sys.stderr.isatty(), leave=False)
    for pair, found in zip(bar, matcher.match_pairs([pair[:2] for pair in pairs], **cameras), strict=True):
        names = [str(path) for path in pair[:2]]
        if isinstance(found, InputError):
            unmatched += 1
            results.append({"photos": [{"name": name} for name in names], "error": str(found)})
            line = f"not matched: {found}"
        else:
            apart += not found.overlap.found
            results.append({**_write(found, pair, arguments.show_removed), "error": None})
            line = ", ".join(filter(None, [found.one_line(), results[-1]["picture"], results[-1]["saved"]]))
        if not arguments.json:
            with bar.external_write_mode(file=sys.stdout):
                # Flushed, so that a pipe gets it at once.
                print(" ".join(names) + "  " + line, flush=True)
    if arguments.json:
        shared.print_json(results)
    if unmatched or apart:
        print(f"{count(len(pairs), 'pair')}: {apart} without overlap, {unmatched} not matched", file=sys.stderr)
    return UNMATCHED if unmatched else NO_OVERLAP if apart else 0
