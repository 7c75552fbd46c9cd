"""`ananet match`: photos in, pruned matches, pictures and poses out: one pair, or many."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ananet._util.checks import check_positive, check_probability, check_whole_number
from ananet._util.defaults import ESTIMATOR, THRESHOLD_PIXELS
from ananet.cli.arguments import (
    add_cameras,
    add_candidates,
    add_detector,
    add_json,
    add_matcher,
    add_pruner,
    check_cameras,
    detector_name,
    matcher_name,
    print_json,
    read_camera,
)
from ananet.errors import InputError
from ananet.io.files import atomic_path, check_output, save_arrays
from ananet.io.pairs import read_pairs

if TYPE_CHECKING:
    import numpy as np

    from ananet.estimators import Estimator
    from ananet.features import Detector, Features, Matcher
    from ananet.pruners import Pruner
    from ananet.twoview.drawing import Panel
    from ananet.twoview.matcher import PhotoMatches
    from ananet.twoview.motions import Motions

NO_OVERLAP, UNREADABLE = 1, 2
PICTURE, FOLDER = Path("matches.png"), Path("matches")
SAVED_AS = (".npz", ".csv")
COLUMNS = ("x0", "y0", "x1", "y1", "kept", "score", "ratio", "mutual", "index0", "index1")


@dataclass(frozen=True)
class Pair:
    """Two photos, and where the outputs about them go."""

    image0: Path
    image1: Path
    picture: Path
    saved: Path | None

    @property
    def photos(self) -> list[str]:
        return [str(self.image0), str(self.image1)]


@dataclass(frozen=True, eq=False)
class Photo:
    """What pairs need of a photo; the photo itself would fill the memory where there are many."""

    features: Features
    panel: Panel
    exif_focal: float | None


@dataclass(eq=False)
class Photos:
    """Reads photos and finds their keypoints once each, and forgets them after their last pair."""

    detector: Detector
    use_exif: bool
    uses: Counter[Path]
    _kept: dict[Path, Photo | InputError] = field(default_factory=dict)
    _started: dict[Path, Future[tuple[Photo, float]]] = field(default_factory=dict)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.detector.threads)

    def start(self, pair: Pair) -> None:
        """Begin to read the photos of a pair, if the detector works in threads; `take` waits for them."""
        # Imported in this thread: two threads must not import modules that need each other.
        import ananet.twoview.drawing
        import ananet.twoview.matcher  # noqa: F401

        for path in (pair.image0, pair.image1) if self.detector.threads > 1 else ():
            if path not in self._kept and path not in self._started:
                self._started[path] = self._pool.submit(self._read, path)

    def take(self, path: Path) -> tuple[Photo, float]:
        """One photo, and how many milliseconds it took to find its keypoints now. Raises what reading it raised."""
        milliseconds = 0.0
        if path not in self._kept:
            try:
                started = self._started.pop(path, None)
                self._kept[path], milliseconds = self._read(path) if started is None else started.result()
            except InputError as error:
                self._kept[path] = error
        photo = self._kept[path]
        self.uses[path] -= 1
        if self.uses[path] <= 0:
            del self._kept[path]
        if isinstance(photo, InputError):
            raise photo
        return photo, milliseconds

    def _read(self, path: Path) -> tuple[Photo, float]:
        from ananet._util.stopwatch import Stopwatch
        from ananet.io.images import exif_focal, read_image
        from ananet.twoview.drawing import make_panel
        from ananet.twoview.matcher import find_features

        image = read_image(path)
        watch = Stopwatch()
        features = find_features(self.detector, image, str(path), path)
        watch.lap("detect")
        focal = exif_focal(path) if self.use_exif else None
        return Photo(features, make_panel(image), focal), watch.milliseconds["detect"]


@dataclass(frozen=True, eq=False)
class Cameras:
    """Camera matrices of a pair, and where they come from: "given", "exif" or None."""

    source: str | None = None
    K0: np.ndarray | None = None
    K1: np.ndarray | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "photos", type=Path, nargs="*", metavar="PHOTO", help="two photos; with more, every pair is matched"
    )
    parser.add_argument("--pairs", type=Path, metavar="LIST", help="text file with two photo names per line")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="where the photos of --pairs are (default: here)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help=f"picture (default: {PICTURE}), or folder for the pictures of many pairs (default: {FOLDER})",
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="also save the matches, .npz or .csv; for many pairs a folder of .npz files",
    )
    cameras = add_cameras(
        parser,
        "cameras, for a pose",
        "They belong to the photo as viewers show it: EXIF orientation is applied on reading. Where none are given and "
        "both photos tell their focal lengths in EXIF, those are used.",
    )
    cameras.add_argument("--no-exif", action="store_true", help="ignore focal lengths in EXIF")
    add_detector(parser)
    add_candidates(parser)
    add_matcher(parser)
    parser.add_argument(
        "--estimator",
        default=ESTIMATOR,
        metavar="NAME",
        help="pose estimator: poselib (the most accurate), ransac or magsac; NAME@option=value sets an option, "
        f"such as poselib@match_selection=all for a pose of all kept matches (default: {ESTIMATOR})",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="PX",
        help=f"inlier threshold of the estimator (default: 0.75 for poselib, {THRESHOLD_PIXELS:g} for the others)",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="C",
        help="confidence at which the estimator stops (default: 0.99999, PoseLib's own)",
    )
    parser.add_argument(
        "--refine",
        action="store_true",
        help="subpixel refinement: second points of kept matches move by fractions of a pixel to where "
        "both photos agree best",
    )
    parser.add_argument(
        "--motions",
        action="store_true",
        help="find which kept matches move together, and draw each motion in its own colour",
    )
    add_pruner(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    check_cameras(arguments)
    check_whole_number("--candidates", arguments.candidates, 1)
    if arguments.threshold is not None:
        check_positive("--threshold", arguments.threshold, " of pixels")
    if arguments.confidence is not None:
        check_probability("--confidence", arguments.confidence)
    many = arguments.pairs is not None or len(arguments.photos) > 2
    pairs = _many_pairs(arguments) if many else [_one_pair(arguments)]

    # They bring torch, which takes seconds.
    from ananet.estimators import load_estimator
    from ananet.features import load_detector, load_matcher
    from ananet.pruners import load

    given = {"threshold": arguments.threshold, "confidence": arguments.confidence}
    estimator = load_estimator(arguments.estimator, **{k: v for k, v in given.items() if v is not None})
    detector = load_detector(detector_name(arguments), device=arguments.device, max_keypoints=arguments.max_keypoints)
    matcher = load_matcher(
        matcher_name(arguments), detector=detector.name, device=arguments.device, neighbours=arguments.candidates
    )
    choose_cameras = _camera_chooser(arguments)
    uses = Counter(path for pair in pairs for path in (pair.image0, pair.image1))
    photos = Photos(detector, use_exif=not arguments.no_exif, uses=uses)
    photos.start(pairs[0])
    pruner = load(arguments.pruner, device=arguments.device)
    # Only now that nothing is wrong with the arguments.
    for path in (path for pair in pairs for path in (pair.picture, pair.saved) if path is not None):
        path.parent.mkdir(parents=True, exist_ok=True)
    match_pair = PairMatcher(
        photos,
        matcher,
        choose_cameras,
        pruner,
        estimator,
        arguments.refine,
        arguments.motions,
        arguments.candidates,
        arguments.device,
    )
    if many:
        return _report_many(match_pair, pairs, arguments.json)
    return _report_one(match_pair, pairs[0], arguments.json)


@dataclass(frozen=True, eq=False)
class PairMatcher:
    """All that is loaded once; each pair is one call."""

    photos: Photos
    matcher: Matcher
    choose_cameras: Callable[[Photo, Photo], Cameras]
    pruner: Pruner
    estimator: Estimator
    refine: bool
    motions: bool
    neighbours: int
    device: str

    def __call__(self, pair: Pair) -> dict[str, Any]:
        """Match one pair and write what was asked for; the result is what `--json` prints.

        Raises `InputError` where one of the photos cannot be used.
        """
        from ananet._util.stopwatch import Stopwatch
        from ananet.io.images import read_image, save_picture
        from ananet.pruners.progress import progress_bar
        from ananet.twoview.drawing import draw_matches, draw_motions
        from ananet.twoview.matcher import match_photos
        from ananet.twoview.motions import group_motions

        taken: list[tuple[Photo, float]] = []
        errors = []
        # Both, so that each is counted as used.
        for path in (pair.image0, pair.image1):
            try:
                taken.append(self.photos.take(path))
            except InputError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        (photo0, milliseconds0), (photo1, milliseconds1) = taken
        cameras = self.choose_cameras(photo0, photo1)
        with progress_bar(self.pruner, len(photo0.features) * self.neighbours):
            found = match_photos(
                photo0.features,
                photo1.features,
                detector=self.photos.detector,
                matcher=self.matcher,
                pruner=self.pruner,
                estimator=self.estimator,
                K0=cameras.K0,
                K1=cameras.K1,
                device=self.device,
                names=(str(pair.image0), str(pair.image1)),
                refine=self.refine,
                photos=(read_image(pair.image0), read_image(pair.image1)) if self.refine else None,
            )
        side_by_side = self.photos.detector.threads > 1
        found.milliseconds["detect"] = (
            max(milliseconds0, milliseconds1) if side_by_side else milliseconds0 + milliseconds1
        )
        motions = None
        if self.motions and found.overlap.found:
            watch = Stopwatch()
            motions = group_motions(found.matches, found.kept)
            watch.lap("motions")
            found.milliseconds.update(watch.milliseconds)
        if found.overlap.found:
            count = int(found.kept.mask.sum())
            detector = found.detector.partition("@")[0].upper()
            caption = f"{found.pruner}: kept {count} of {len(found.matches)} {detector} matches"
            points = found.matches.numpy_points()
            if motions is None:
                picture = draw_matches(photo0.panel, photo1.panel, *points, found.kept.mask, caption)
            else:
                caption += f", motions: {len(motions)}"
                picture = draw_motions(photo0.panel, photo1.panel, *points, motions.labels, caption)
            save_picture(pair.picture, picture)
            if pair.saved is not None:
                save_matches(pair.saved, found, motions)
        return as_json(found, pair, cameras, self.estimator, motions)


def as_json(
    found: PhotoMatches, pair: Pair, cameras: Cameras, estimator: Estimator, motions: Motions | None
) -> dict[str, Any]:
    overlap, pose = found.overlap, found.pose
    return {
        "photos": pair.photos,
        "pruner": found.pruner,
        "keypoints": [len(found.features0), len(found.features1)],
        "matches": len(found.matches),
        "kept": int(found.kept.mask.sum()),
        "refined": None if found.refined is None else int(found.refined.aligned.sum()),
        "overlap": overlap.found,
        "consistent": overlap.consistent,
        "tested": overlap.tested,
        "log10_false_alarms": overlap.log10_nfa if math.isfinite(overlap.log10_nfa) else None,
        "cameras": {
            "source": cameras.source,
            "K0": None if cameras.K0 is None else cameras.K0.tolist(),
            "K1": None if cameras.K1 is None else cameras.K1.tolist(),
            "doubt": found.camera_doubt,
        },
        "pose": None
        if pose is None
        else {
            "R": pose.R.tolist(),
            "t": pose.t.tolist(),
            "inliers": int(pose.inliers.sum()),
            "parallax_degrees": found.parallax,
            "rotation_only": found.rotation_only,
            "estimator": found.estimator,
            "threshold_pixels": estimator.threshold,
            "match_selection": estimator.match_selection,
        },
        "motions": None if motions is None else motions.to_dict(),
        "picture": str(pair.picture) if overlap.found else None,
        "saved": str(pair.saved) if overlap.found and pair.saved is not None else None,
        "milliseconds": found.milliseconds,
    }


def save_matches(path: Path, found: PhotoMatches, motions: Motions | None = None) -> None:
    """Write matches with the pruner's answer, as .npz with all there is, or as .csv."""
    import numpy as np

    from ananet.core.correspondences import PER_MATCH

    matches, kept = found.matches, found.kept
    arrays: dict[str, Any] = {
        name: values.cpu().numpy()
        for name in (*PER_MATCH, "K0", "K1")
        if (values := getattr(matches, name)) is not None
    }
    arrays |= {"image_size0": np.array(matches.image_size0), "image_size1": np.array(matches.image_size1)}
    arrays |= {"mask": kept.mask, "scores": kept.scores, "logits": kept.logits}
    if found.refined is not None:
        # How alike the photos are around both points of a kept match, NaN for the others.
        arrays["correlation"] = np.full(len(matches), np.nan, np.float32)
        arrays["correlation"][kept.mask] = found.refined.correlation
    if found.pose is not None:
        arrays |= {"R": found.pose.R, "t": found.pose.t}
    if motions is not None:
        arrays["motions"] = motions.labels
    if path.suffix.lower() == ".npz":
        save_arrays(path, arrays)
        return
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        # A trained matcher tells neither ratio nor mutual flag.
        unknown = np.full(len(matches), np.nan)
        names = ("points0", "points1", "mask", "scores", "ratio", "mutual", "indices")
        columns = [arrays.get(name, unknown) for name in names]
        # Nine digits give a float32 back.
        formats = ["%.9g"] * 4 + ["%d", "%.9g", "%.9g", "%.9g", "%d", "%d"]
        table = np.column_stack([column.astype(np.float64) for column in columns])
        np.savetxt(file, table, fmt=formats, delimiter=",", header=",".join(COLUMNS), comments="")


def _one_pair(arguments: argparse.Namespace) -> Pair:
    from ananet.io.images import check_image_file, check_picture

    if arguments.images is not None:
        raise InputError(f"--images: expected together with --pairs, got {arguments.images} alone")
    if len(arguments.photos) != 2:
        raise InputError(f"photos: expected two or more, or --pairs LIST, got {len(arguments.photos)}")
    image0, image1 = arguments.photos
    picture, saved = arguments.output or PICTURE, arguments.save
    check_picture(picture, image0, image1)
    if saved is not None:
        if saved.suffix.lower() not in SAVED_AS:
            raise InputError(f"--save: expected a file that ends in {' or '.join(SAVED_AS)}, got {str(saved)!r}")
        try:
            check_output(saved, image0, image1)
        except InputError as error:
            raise InputError(f"--save: {str(error).removeprefix('output: ')}") from None
    for path in (image0, image1):
        check_image_file(path)
    return Pair(image0, image1, picture, saved)


def _many_pairs(arguments: argparse.Namespace) -> list[Pair]:
    if arguments.pairs is None:
        if arguments.images is not None:
            raise InputError(f"--images: expected together with --pairs, got {arguments.images} alone")
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
    names = short_names([path for pair in listed for path in pair])
    inputs = {path.resolve() for path in names} | ({arguments.pairs.resolve()} if arguments.pairs else set())
    folders = {"output": arguments.output or FOLDER, "--save": arguments.save}
    pairs: dict[str, Pair] = {}
    for image0, image1 in listed:
        name = f"{names[image0]}-{names[image1]}"
        if name in pairs:
            raise InputError(
                f"{' and '.join(pairs[name].photos)}: {name} would also be the output of {image0} and {image1}"
            )
        saved = None if arguments.save is None else arguments.save / f"{name}.npz"
        pairs[name] = Pair(image0, image1, folders["output"] / f"{name}.png", saved)
        if pairs[name].picture.resolve() in inputs:
            raise InputError(f"output: {pairs[name].picture} is an input and would be overwritten")
    for option, folder in folders.items():
        if folder is None:
            continue
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{option}: expected a folder for the results of many pairs, got the file {folder}")
    return list(pairs.values())


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """What to call each photo in the names of outputs: as short as tells all of them apart.

    >>> list(short_names([Path("photos/a.jpg"), Path("photos/b.jpg")]).values())
    ['a', 'b']
    >>> list(short_names([Path("left/1.jpg"), Path("right/1.jpg")]).values())
    ['left_1', 'right_1']
    """

    def joined(path: Path) -> str:
        # Roots and drives cannot be part of a file's name.
        return "_".join(filter(None, (part.strip("/\\:.") for part in path.parts)))

    different = list(dict.fromkeys(paths))
    ways: tuple[Callable[[Path], str], ...] = (
        lambda path: path.stem,
        lambda path: path.name,
        lambda path: joined(path.with_suffix("")),
        joined,
    )
    for way in ways:
        names = {path: way(path) for path in different}
        if len(set(names.values())) == len(different):
            return names
    return {path: f"{number}_{path.name}" for number, path in enumerate(different)}


def _camera_chooser(arguments: argparse.Namespace) -> Callable[[Photo, Photo], Cameras]:
    """The cameras of two photos, by the arguments, else by EXIF; wrong arguments raise here."""
    from ananet.core.cameras import centred_camera

    K0 = None if arguments.k0 is None else read_camera("--k0", arguments.k0)
    K1 = K0 if arguments.k1 is None else read_camera("--k1", arguments.k1)

    def choose(photo0: Photo, photo1: Photo) -> Cameras:
        if K0 is not None:
            return Cameras("given", K0, K1)
        focal0, focal1 = photo0.exif_focal, photo1.exif_focal
        source = "exif"
        if arguments.focal is not None:
            focal0, focal1, source = arguments.focal, arguments.focal, "given"
        if focal0 is None or focal1 is None:
            return Cameras()
        image_size0, image_size1 = photo0.features.image_size, photo1.features.image_size
        return Cameras(source, centred_camera(focal0, image_size0), centred_camera(focal1, image_size1))

    return choose


def _report_one(match_pair: PairMatcher, pair: Pair, json: bool) -> int:
    result = match_pair(pair)
    if json:
        print_json(result)
    elif result["overlap"]:
        _print(result)
    if result["overlap"]:
        return 0
    print(
        f"{pair.image0} and {pair.image1} do not seem to show the same scene: "
        f"{result['consistent']} of {result['tested']} mutual matches agree on a common geometry, no more than "
        f"chance explains. No picture written.",
        file=sys.stderr,
    )
    return NO_OVERLAP


def _report_many(match_pair: PairMatcher, pairs: list[Pair], json: bool) -> int:
    from tqdm import tqdm

    results = []
    bar = tqdm(pairs, desc="match", unit="pair", disable=not sys.stderr.isatty(), leave=False)
    for pair, following in zip(bar, [*pairs[1:], None], strict=True):
        if following is not None:
            match_pair.photos.start(following)
        try:
            result = {**match_pair(pair), "error": None}
        except InputError as error:
            result = {"photos": pair.photos, "error": str(error)}
        results.append(result)
        if not json:
            with bar.external_write_mode(file=sys.stdout):
                # At once, also into a pipe: many pairs take long.
                print(" ".join(pair.photos) + "  " + _summary(result), flush=True)
    if json:
        print_json(results)
    unreadable = sum(result["error"] is not None for result in results)
    apart = sum(result["error"] is None and not result["overlap"] for result in results)
    if unreadable or apart:
        print(
            f"of {len(results)} pairs, {apart} do not seem to show the same scene and {unreadable} could not be used",
            file=sys.stderr,
        )
    return UNREADABLE if unreadable else NO_OVERLAP if apart else 0


def _summary(result: dict[str, Any]) -> str:
    """One pair in one line."""
    if result["error"] is not None:
        return f"not matched: {result['error']}"
    if not result["overlap"]:
        return "no overlap"
    words = [f"{result['kept']} of {result['matches']} kept" if result["kept"] else "nothing kept"]
    pose = result["pose"]
    if pose:
        words.append(f"pose with {pose['inliers']} inliers" + (", rotation only" if pose["rotation_only"] else ""))
    return ", ".join([*words, *filter(None, (result["picture"], result["saved"]))])


def _print(result: dict[str, Any]) -> None:
    import numpy as np

    from ananet.estimators.selection import IN_WORDS
    from ananet.twoview.motions.grouping import in_words

    print(f"keypoints  {result['keypoints'][0]} and {result['keypoints'][1]}")
    kept = f"{result['kept']} kept" if result["kept"] else "nothing kept"
    print(f"matches    {result['matches']} putative, {kept} by {result['pruner']}")
    if result["refined"] is not None:
        print(f"refined    {result['refined']} of the kept, by fractions of a pixel")
    cameras = result["cameras"]
    if cameras["source"] == "exif":
        focal0, focal1 = (round(cameras[name][0][0]) for name in ("K0", "K1"))
        print(f"camera     focal lengths {focal0} and {focal1} px from EXIF; --focal or --k0 override it")
    if cameras["doubt"]:
        print(f"camera     doubtful: {cameras['doubt']}")
    pose = result["pose"]
    if pose:
        used = IN_WORDS[pose["match_selection"]]
        print(f"pose       {pose['estimator']}, {pose['threshold_pixels']:g} px, {used}: {pose['inliers']} inliers")
        if pose["rotation_only"]:
            print("           only the rotation can be trusted: the camera hardly moved")
        print("  R  " + np.array2string(np.array(pose["R"]), precision=5, suppress_small=True, prefix="  R  "))
        print("  t  " + np.array2string(np.array(pose["t"]), precision=5, suppress_small=True))
    elif not result["kept"]:
        advice = "check the camera" if cameras["doubt"] else "another --pruner may keep more"
        print(f"pose       none: nothing was kept; {advice}")
    elif cameras["source"] is not None:
        print("pose       none found")
    else:
        print("pose       not estimated: give --k0 and --k1, or --focal")
    if result["motions"] is not None:
        print("motions    " + in_words(result["motions"]))
    print("time       " + ", ".join(f"{step} {ms:.0f} ms" for step, ms in result["milliseconds"].items()))
    colours = "green kept, red removed" if result["motions"] is None else "a colour and a shape for each motion"
    print(f"picture    {result['picture']} ({colours})")
    if result["saved"]:
        print(f"saved      {result['saved']}")
