"""Training pairs from posed photos, written as shards.

Features are detected once per photo. The depth of keypoints, from all photos of a scene, tells which photos show the
same things, and which matches of a pair are right. Finished scenes are kept in OUT/.scenes until all are done, so that
a killed run can resume. Shards and index appear under their final names only when they are complete.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet._util.checks import Settings, check_positive, check_share, check_whole_number
from ananet._util.defaults import DETECTOR, DISTINCTIVE_RATIO, INLIER_DISTANCE
from ananet._util.tables import count
from ananet.core import geometry
from ananet.core.cameras import rotate_axes
from ananet.core.correspondences import Correspondences
from ananet.datasets.base import MIN_BASELINE, PairTable, PosedImage, PosedPair, PosedScene, join, table_from_arrays
from ananet.datasets.depth import (
    Depths,
    KeypointDepths,
    View,
    common_view,
    label_matches,
    tracks_of,
)
from ananet.datasets.formats.colmap import with_listed_pairs
from ananet.datasets.formats.shards import KEYPOINT_LIMIT, nbytes, read_index, read_table, write_index, write_table
from ananet.datasets.photos import PhotoFeatures, load_photo_detector, photo_features, read_posed_image
from ananet.datasets.scene_depth import in_pool, scene_depths
from ananet.datasets.sources import open_posed_photos
from ananet.errors import InputError
from ananet.estimators import estimate_fundamental
from ananet.features import Detector, NearestNeighbours, nearest_neighbours
from ananet.io.files import only_process, read_json, remove_temporaries, write_json
from ananet.io.images import to_grey

STAGING = ".scenes"
# Points of a photo that are looked for in others, about, and points needed to say that two have nothing in common.
POINTS_IN_VIEW, MIN_POINTS_IN_VIEW = 500, 50
# Photos show nothing in common if no point of one could be seen in the other even at this angle and ratio of sizes.
EMPTY_ANGLE, EMPTY_ZOOM = 90.0, 10.0
# As a check, at most this many matches of such photos may fit the poses. A few fit by chance.
MAX_CONSISTENT = 12
# Candidates for each pair with nothing in common that is wanted; look-alikes are chosen among them.
EMPTY_CANDIDATES = 4
LOOKALIKE_PIXELS = 3.0


@dataclass(frozen=True)
class BuildSettings(Settings):
    """How pairs are selected. The same settings and photos give the same pairs."""

    detector: str = DETECTOR
    """A name, with options if needed."""
    max_keypoints: int | None = None
    """None for the detector's default, which depends on the size of the photo."""
    neighbours: int = 1
    """Putative matches per keypoint: its nearest neighbours."""
    scales: tuple[float, ...] = (1.0,)
    """Scales at which each photo is used, each with its own keypoints and pairs; points are in original pixels."""
    pairs_per_scene: int = 1000
    """Maximum per scene and scale, if no list prescribes the pairs; a pair and its reverse count as two. Pairs with
    nothing in common come on top."""
    candidates_per_scene: int = 20_000
    """Maximum number of pairs that are compared at a glance to find depth, those with the most similar poses first."""
    shares: tuple[tuple[float, float], ...] = ((0.1, 1.0), (0.3, 1.0), (0.6, 1.0))
    """Levels of common view: the smallest share of each, and how many pairs it gets relative to the other levels."""
    empty_pairs: float = 0.1
    """Pairs with nothing in common, relative to the number of others; half of them are those that look most alike."""
    min_parallax: float = 1.0
    """Degrees, median over points in common view; below, the baseline is too short to define inliers."""
    pair_lists: str | None = None
    """Folder with lists of pairs SCENE.txt; scenes without are left out. None for the scenes' own lists, where they
    have one; "none" to ignore these."""
    shard_mib: float = 56.0
    seed: int = 0

    def check(self) -> None:
        check_whole_number("neighbours", self.neighbours, 1)
        if self.max_keypoints is not None:
            check_whole_number("max_keypoints", self.max_keypoints, 8, (KEYPOINT_LIMIT - 1) // self.neighbours)
        detector = self.load_detector()
        different = len(set(self.scales)) == len(self.scales) > 0
        if not different or not all(0 < scale < float("inf") for scale in self.scales):
            raise InputError(f"scales: expected different positive numbers, got {self.scales}")
        if self.scales != (1.0,) and detector.needs_path:
            raise InputError(f"scales: expected 1 with stored features, got {self.scales}")
        starts = [start for start, _ in self.shares]
        if not starts or starts != sorted(set(starts)) or not all(0 < s < 1 and w > 0 for s, w in self.shares):
            expected = "levels such as ((0.1, 1), (0.5, 1)), from low to high, with shares between 0 and 1"
            raise InputError(f"shares: expected {expected}, got {self.shares}")
        check_share("empty_pairs", self.empty_pairs)
        if self.pair_lists not in (None, "none") and not Path(self.pair_lists).is_dir():
            raise InputError(f"pair_lists: expected a folder with lists of pairs, got {self.pair_lists}")
        for name in ("pairs_per_scene", "candidates_per_scene", "shard_mib"):
            check_positive(name, getattr(self, name))
        check_whole_number("seed", self.seed, 0, 2**63 - 1)

    def load_detector(self) -> Detector:
        return load_photo_detector(self.detector, self.max_keypoints)


@dataclass(frozen=True, eq=False)
class MatchedPair:
    """A pair of photos with its matches and what is known of them."""

    images: tuple[int, int]
    neighbours: NearestNeighbours
    R: np.ndarray
    t: np.ndarray
    near_line: np.ndarray
    """[S] bool: inliers by epipolar distance."""
    known: np.ndarray
    right: np.ndarray
    share: float


def build_pairs(
    source: str | Path,
    out: str | Path,
    settings: BuildSettings | None = None,
    *,
    workers: int | None = None,
    progress: bool = True,
    log: Callable[[str], Any] = str,
) -> dict[str, Any]:
    """Build the training pairs of all scenes at `source` into the folder `out`; return the index.

    Args:
        source: photos with known cameras, in any form that `open_source` reads.
        workers: threads; None for one per core.
        progress: show a bar for each scene.
        log: called with each line of information, such as `print`.
    """
    settings = settings or BuildSettings()
    opened = open_posed_photos(source)
    listed = _listed(opened.scenes(), settings.pair_lists)
    scenes = {scene.name or opened.title: scene for scene in listed}
    if len(scenes) < len(listed):
        raise InputError(f"source: expected scenes of different names, got {', '.join(scene.name for scene in listed)}")
    out = Path(out)
    if out.resolve() == Path(source).resolve():
        raise InputError(f"out: expected another folder than that of the photos, got {out} for both")
    made_of = {
        "settings": json.loads(json.dumps(settings.to_dict())),
        "source": str(Path(source).resolve()),
        "scene_names": list(scenes),
    }
    out.mkdir(parents=True, exist_ok=True)
    with only_process(out):
        remove_temporaries(out)
        finished = read_index(out)
        if finished is not None:
            if {key: finished.get(key) for key in made_of} != made_of:
                raise InputError(f"{out}: holds pairs of other scenes or settings; choose another folder or remove it")
            log(f"{out} is complete already")
            return finished
        staging = out / STAGING
        staging.mkdir(exist_ok=True)
        note = staging / "made-of.json"
        if note.exists() and read_json(note) != made_of:
            raise InputError(f"{staging}: an unfinished build with other scenes or settings is here; remove it first")
        write_json(note, made_of)
        for number, (name, scene) in enumerate(scenes.items()):
            facts = _staged(staging, number, ".json")
            if not facts.exists():
                _build_scene(name, scene, staging, number, settings, workers or os.cpu_count() or 1, progress)
            log(_summary(read_json(facts)))
        index = {**made_of, **_assemble(out, staging, len(scenes), settings)}
        write_index(out, index)
        shutil.rmtree(staging)
    return index


def _staged(staging: Path, number: int, suffix: str) -> Path:
    return staging / f"{number:05d}{suffix}"


def _listed(scenes: list[PosedScene], lists: str | None) -> list[PosedScene]:
    """The scenes with the pairs that the setting `pair_lists` names; scenes without a list are left out."""
    if lists is None:
        return scenes
    if lists == "none":
        return [replace(scene, pairs=None) for scene in scenes]
    paths = [Path(lists) / f"{scene.name}.txt" for scene in scenes]
    if not any(path.is_file() for path in paths):
        raise InputError(f"pair_lists: expected a list for at least one scene, such as {paths[0]}; there is none")
    return [with_listed_pairs(scene, path) for scene, path in zip(scenes, paths, strict=True) if path.is_file()]


def _build_scene(
    name: str, scene: PosedScene, staging: Path, number: int, settings: BuildSettings, workers: int, progress: bool
) -> None:
    photos = scene_photos(scene)
    folder = Path(os.path.commonpath([image.path.resolve().parent for image, _ in photos.values()]))
    tables, names, pairs = list[PairTable](), list[str](), list[MatchedPair]()
    unreadable: dict[str, str] = {}
    bar = tqdm(desc=name, disable=not progress, leave=False)
    # OpenCV and torch would start threads of their own in each of ours.
    opencv_threads, torch_threads = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            run = in_pool(pool, bar)
            for scale in settings.scales:
                read = partial(read_photo, detector=settings.load_detector(), scale=scale)
                found = dict(zip(photos, run("photos", read, photos.values()), strict=True))
                readable = {key: one for key, one in found.items() if not isinstance(one, str)}
                unreadable |= {photos[key][0].path.name: one for key, one in found.items() if isinstance(one, str)}
                made = ScenePairs(list(readable.values()), settings, run)
                own = made.chosen() if scene.pairs is None else made.prescribed(_numbered(scene.pairs, list(readable)))
                used = sorted({image for pair in own for image in pair.images})
                keys = list(readable)
                tables.append(_table({image: readable[keys[image]][0] for image in used}, own, settings.neighbours))
                names += [photos[keys[image]][0].path.resolve().relative_to(folder).as_posix() for image in used]
                pairs += own
    finally:
        cv2.setNumThreads(opencv_threads)
        torch.set_num_threads(torch_threads)
        bar.close()
    table = join(tables)
    write_table(_staged(staging, number, ".safetensors"), table)
    facts = {"name": name, "source": str(folder), "images": names, "photos": len(photos), "unreadable": unreadable}
    # Written last, as a sign that the scene is complete.
    write_json(_staged(staging, number, ".json"), facts | _facts(pairs, table, settings))


def _facts(pairs: list[MatchedPair], table: PairTable, settings: BuildSettings) -> dict[str, Any]:
    """Counts of a scene: pairs, matches, those near the line, and how many of these are known, and accidental."""
    usual = [pair for pair in pairs if pair.share]
    near = sum(int(pair.near_line.sum()) for pair in usual)
    known = sum(int((pair.near_line & pair.known).sum()) for pair in usual)
    accidental = sum(int((pair.near_line & pair.known & ~pair.right).sum()) for pair in usual)
    shares = np.array([pair.share for pair in usual])
    bounds = [*(start for start, _ in settings.shares), np.inf]
    return {
        "pairs": len(pairs),
        "empty_pairs": len(pairs) - len(usual),
        "pairs_by_share": [int(((shares >= a) & (shares < b)).sum()) for a, b in itertools.pairwise(bounds)],
        "matches": int(table.pair_start[-1]),
        "near_line": near,
        "known": known,
        "accidental": accidental,
        "mean_inlier_ratio": round(float(np.mean([pair.near_line.mean() for pair in usual])), 4) if usual else None,
    }


Photo = tuple[PosedImage, int]
"""A photo and its quarter turns."""


def scene_photos(scene: PosedScene) -> dict[Any, Photo]:
    """Photos of the scene, each once, by a key: a photo may be listed with several poses, or cameras."""
    listed = [photo for pair in scene.pairs or () for photo in _photos_of(pair)]
    turned = {image.path for image, turns in listed if turns}
    # Photos that are in no pair still help to find depth.
    others = [(scene.images[name], 0) for name in sorted(scene.images) if scene.images[name].path not in turned]
    return {_photo_key(photo): photo for photo in (*listed, *others)}


def _photos_of(pair: PosedPair) -> tuple[Photo, Photo]:
    return (pair.image0, pair.rotations[0]), (pair.image1, pair.rotations[1])


def _photo_key(photo: Photo) -> tuple[Any, ...]:
    image, turns = photo
    return (image.path, image.K.tobytes(), image.distortion, turns)


def _numbered(pairs: list[PosedPair], keys: list[Any]) -> list[tuple[int, int]]:
    """The pairs of a list whose photos could be read, as numbers of photos."""
    number = {key: n for n, key in enumerate(keys)}
    found = [tuple(number.get(_photo_key(photo)) for photo in _photos_of(pair)) for pair in pairs]
    return [(a, b) for a, b in found if a is not None and b is not None]


def read_photo(photo: Photo, detector: Detector, scale: float) -> tuple[PhotoFeatures, View] | str:
    """Features and view of a photo, or why it could not be read."""
    image, turns = photo
    try:
        pixels = read_posed_image(image)
        found = photo_features(image, detector, turns=turns, scale=scale, original_pixels=True, pixels=pixels)
    except (InputError, OSError, cv2.error) as error:
        return str(error)
    picture = None if image.distortion else np.ascontiguousarray(np.rot90(to_grey(pixels), turns))
    features, axes = found.features, rotate_axes(turns)
    pose = axes @ image.R, axes @ image.t
    return found, View(features.points, features.descriptors, found.K, *pose, features.image_size, picture)


class ScenePairs:
    """The photos of a scene with the depths of their keypoints, and pairs of them."""

    def __init__(
        self,
        photos: list[tuple[PhotoFeatures, View]],
        settings: BuildSettings,
        run: Callable[..., list[Any]],
    ) -> None:
        self.settings, self.run = settings, run
        self.views = [view for _, view in photos]
        self.depths: list[KeypointDepths] = scene_depths(self.views, settings.candidates_per_scene, run)
        # Some of the points are enough to compare many photos, and their depth need not be confirmed by a second photo.
        self.sampled = [_sampled(replace(depths, surroundings=None).without(agreeing=1)) for depths in self.depths]

    def prescribed(self, pairs: list[tuple[int, int]]) -> list[MatchedPair]:
        """Match the pairs of a list."""

        def match(pair: tuple[int, int]) -> MatchedPair | None:
            shares, _ = self.common_view(*pair)
            # A share of 0 would call all matches wrong. Few points may be known here, too few to prove that.
            return self.match(*pair, max(min(shares), 1e-3))

        return [pair for pair in self.run("pairs", match, pairs) if pair is not None]

    def chosen(self) -> list[MatchedPair]:
        """Choose pairs by their common view, and some with nothing in common, and match them in both directions."""
        rng = np.random.default_rng(self.settings.seed)
        views = {pair: self.common_view(*pair) for pair in itertools.combinations(range(len(self.views)), 2)}
        parallax = self.settings.min_parallax
        usable = {pair: min(shares) for pair, (shares, angle) in views.items() if angle >= parallax}
        usual = spread_over_shares(usable, self.settings.shares, max(1, self.settings.pairs_per_scene // 2), rng)
        wanted = round(self.settings.empty_pairs * len(usual))
        empty = self._empty_pairs([pair for pair, (shares, _) in views.items() if not any(shares)], wanted, rng)
        both_ways = [(a, b, min(views[pair][0])) for pair in (*usual, *empty) for a, b in (pair, pair[::-1])]
        return [pair for pair in self.run("pairs", lambda each: self.match(*each), both_ways) if pair is not None]

    def common_view(self, a: int, b: int, *limits: float) -> tuple[tuple[float, float], float]:
        """Share of each of two photos that the other sees too, and the angle between rays.

        A wide photo and a close-up of a part of it have different shares; the smaller one is that of the pair.
        """
        found = [common_view(self.views[m], self.views[n], self.sampled[m], *limits) for m, n in ((a, b), (b, a))]
        (share0, angle0), (share1, angle1) = found
        return (float(np.nan_to_num(share0)), float(np.nan_to_num(share1))), min(angle0, angle1)

    def _empty_pairs(
        self, candidates: list[tuple[int, int]], wanted: int, rng: np.random.Generator
    ) -> list[tuple[int, int]]:
        """Choose pairs of photos that have nothing in common, half of them those that look most alike."""
        enough = [np.isfinite(depths.inverse).sum() >= MIN_POINTS_IN_VIEW for depths in self.sampled]
        shuffled = (candidates[n] for n in rng.permutation(len(candidates)))
        known = ((a, b) for a, b in shuffled if enough[a] and enough[b])
        empty = (pair for pair in known if not any(self.common_view(*pair, EMPTY_ANGLE, EMPTY_ZOOM)[0]))
        far = list(itertools.islice(empty, EMPTY_CANDIDATES * wanted))
        alike = dict(zip(far, self.run("look-alikes", self._agreeing_without_depth, far), strict=True))
        # Those with matches that fit the poses do have something in common.
        far = [pair for pair in far if alike[pair] is not None]
        ranked = sorted(far, key=lambda pair: -(alike[pair] or 0))
        lookalikes = ranked[: wanted // 2]
        return lookalikes + [pair for pair in far if pair not in lookalikes][: wanted - len(lookalikes)]

    def _agreeing_without_depth(self, pair: tuple[int, int]) -> int | None:
        """How many distinctive matches agree on some geometry; None if too many fit the true one."""
        first, second = (self.views[n] for n in pair)
        found = nearest_neighbours(first.descriptors, second.descriptors)
        if len(tracks_of(first, second, found)[0][0]) > MAX_CONSISTENT:
            return None
        good = np.flatnonzero(found.mutual & (found.ratio < DISTINCTIVE_RATIO))
        points0, points1 = first.points[good], second.points[found.index[good]]
        agreed = estimate_fundamental(Correspondences(points0, points1), "magsac", threshold=LOOKALIKE_PIXELS)
        if agreed is None:
            return 0
        as_tensors = torch.from_numpy(points0).double(), torch.from_numpy(points1).double()
        distance = geometry.epipolar_distance(*as_tensors, torch.as_tensor(agreed.F))
        return int((distance < LOOKALIKE_PIXELS).sum())

    def match(self, a: int, b: int, share: float) -> MatchedPair | None:
        """Match two photos and label the matches; None without a baseline or keypoints."""
        first, second = self.views[a], self.views[b]
        R, t = first.pose_of(second)
        baseline = np.linalg.norm(t)
        if baseline <= MIN_BASELINE or len(first.points) == 0 or len(second.points) < 2:
            return None
        found = nearest_neighbours(first.descriptors, second.descriptors, self.settings.neighbours)
        index = np.stack([np.arange(len(found.index)) % len(first.points), found.index], axis=1)
        t = t / baseline
        rays0, rays1 = (torch.from_numpy(v.rays(i)[:, :2]) for v, i in zip((first, second), index.T, strict=True))
        E = geometry.essential_from_pose(torch.from_numpy(R), torch.from_numpy(t))
        near_line = (geometry.symmetric_epipolar_distance_squared(rays0, rays1, E) < INLIER_DISTANCE).numpy()
        if share:
            depths = (self.depths[m].without(n).within_range() for m, n in ((a, b), (b, a)))
            known, right = label_matches(first, second, index, *depths)
        else:
            known, right = np.ones(len(index), bool), np.zeros(len(index), bool)
        return MatchedPair((a, b), found, R, t, near_line, known, right, share)


def _sampled(depths: Depths) -> Depths:
    """Every n-th of the known depths."""
    known = np.flatnonzero(np.isfinite(depths.inverse))
    some = known[:: max(1, len(known) // POINTS_IN_VIEW)]
    inverse = np.full_like(depths.inverse, np.nan)
    inverse[some] = depths.inverse[some]
    return Depths(inverse, depths.deviation)


def spread_over_shares(
    shares: dict[tuple[int, int], float],
    levels: tuple[tuple[float, float], ...],
    most: int,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Choose at most `most` pairs; each level of common view gets its part, as far as it has pairs."""
    starts, parts = np.array(levels).T
    pairs, values = list(shares), np.array(list(shares.values()))
    level = np.searchsorted(starts, values, side="right") - 1
    order = np.concatenate(
        [np.zeros(0), *((rng.permutation((level == n).sum()) + 0.5) / part for n, part in enumerate(parts))]
    )
    numbers = np.concatenate([np.zeros(0, np.int64), *(np.flatnonzero(level == n) for n in range(len(parts)))])
    return [pairs[n] for n in sorted(numbers[np.argsort(order, kind="stable")[:most]])]


def _table(images: dict[int, PhotoFeatures], pairs: list[MatchedPair], neighbours: int) -> PairTable:
    """Make the table of a scene; match k is of keypoint k, so those with several matches are repeated in order."""

    def repeated(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else np.concatenate([values] * neighbours)

    of_images = [
        {name: repeated(getattr(image.features, name)) for name in ("points", "sizes", "angles")}
        | {"K": image.K, "image_size": np.array(image.features.image_size)}
        for image in images.values()
    ]
    place = {number: n for n, number in enumerate(images)}
    of_pairs = [
        {name: getattr(pair, name) for name in ("R", "t", "known", "right")}
        | {"images": np.array([place[n] for n in pair.images]), "share": np.array(pair.share)}
        | vars(pair.neighbours)
        for pair in pairs
    ]
    return table_from_arrays(of_images, of_pairs)


def _assemble(out: Path, staging: Path, scenes: int, settings: BuildSettings) -> dict[str, Any]:
    """Join scenes to shards below the size limit, in order; return their part of the index."""
    limit = settings.shard_mib * 2**20
    groups: list[list[PairTable]] = [[]]
    for number in range(scenes):
        table = read_table(_staged(staging, number, ".safetensors"))
        if groups[-1] and sum(map(nbytes, groups[-1])) + nbytes(table) > limit:
            groups.append([])
        groups[-1].append(table)
    shards = []
    for number, group in enumerate(groups):
        shards.append(f"pairs-{number:03d}.safetensors")
        write_table(out / shards[-1], join(group))
    facts = [read_json(_staged(staging, number, ".json")) for number in range(scenes)]
    return {
        "versions": {name: version(name) for name in ("ananet", "numpy", "torch")} | {"opencv": cv2.__version__},
        "shards": shards,
        "images": sum(len(set(scene["images"])) for scene in facts),
        "pairs": sum(scene["pairs"] for scene in facts),
        "scenes": facts,
    }


def _summary(facts: dict[str, Any]) -> str:
    line = f"{facts['name']}: {count(facts['photos'], 'photo')}, {count(facts['pairs'], 'pair')}"
    if facts["empty_pairs"]:
        line += f" ({facts['empty_pairs']} without common view)"
    if facts["mean_inlier_ratio"] is not None:
        line += f", {facts['mean_inlier_ratio']:.1%} of the matches near the epipolar line"
    if facts["known"]:
        known, wrong = facts["known"] / facts["near_line"], facts["accidental"] / facts["known"]
        line += f"; depth knows {known:.0%} of these, and calls {wrong:.1%} of the known ones accidental"
    elif facts["near_line"]:
        line += "; depth unknown: too few photos see the same (at least 4 are needed)"
    if facts["unreadable"]:
        line += f"; {count(len(facts['unreadable']), 'photo')} skipped: " + "; ".join(facts["unreadable"].values())
    return line
