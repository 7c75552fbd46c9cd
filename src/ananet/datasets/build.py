"""Training pairs from posed photos: features once per image, pairs by evidence of overlap, written as shards.

Finished scenes are kept in OUT/.scenes until all are done, so that a killed run can resume. Shards and index appear
under their final names only when they are complete.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet._util.checks import Settings, check_positive, check_whole_number
from ananet._util.defaults import DETECTOR, INLIER_DISTANCE, MAX_KEYPOINTS
from ananet._util.tables import count
from ananet.core import geometry
from ananet.datasets.base import PairTable, PosedImage, PosedPair, PosedScene, join, table_from_arrays
from ananet.datasets.formats.shards import KEYPOINT_LIMIT, nbytes, read_index, read_table, write_index, write_table
from ananet.datasets.photos import PhotoFeatures, load_photo_detector, photo_features
from ananet.datasets.sources import open_posed_photos
from ananet.errors import InputError
from ananet.features import Detector, NearestNeighbours, nearest_neighbours
from ananet.io.files import only_process, read_json, remove_temporaries, write_json

STAGING = ".scenes"
# Stricter than the paper's label, as evidence of overlap: about 3 px at common focal lengths.
PRECISE_DISTANCE = 1e-5
# Share of the keypoints that shows whether two images overlap, at a sixteenth of the cost.
GLANCE = 0.25


@dataclass(frozen=True)
class BuildSettings(Settings):
    """How pairs are selected. The same settings and photos give the same pairs."""

    detector: str = DETECTOR
    """A name, with options if needed."""
    max_keypoints: int = MAX_KEYPOINTS
    neighbours: int = 1
    """Putative matches per keypoint: its nearest neighbours."""
    scales: tuple[float, ...] = (1.0,)
    """Scales at which each photo is used, each with its own keypoints and pairs; points are in original pixels."""
    pairs_per_scene: int = 1000
    """Maximum per scene and scale, if no list prescribes the pairs; a pair and its reverse count as two."""
    candidates_per_scene: int = 20_000
    """Maximum number of pairs that are tried, those of the nearest cameras first."""
    min_consistent: int = 20
    """Mutual matches that agree with the true pose; photos without overlap have up to about 8 by chance."""
    min_parallax: float = 1.0
    """Degrees, median over consistent matches; below, the baseline is too short to define inliers."""
    shard_mib: float = 56.0
    seed: int = 0

    def check(self) -> None:
        check_whole_number("neighbours", self.neighbours, 1)
        check_whole_number("max_keypoints", self.max_keypoints, 8, (KEYPOINT_LIMIT - 1) // self.neighbours)
        detector = self.load_detector()
        different = len(set(self.scales)) == len(self.scales) > 0
        if not different or not all(0 < scale < float("inf") for scale in self.scales):
            raise InputError(f"scales: expected different positive numbers, got {self.scales}")
        if self.scales != (1.0,) and detector.needs_path:
            raise InputError(f"scales: expected 1 with stored features, got {self.scales}")
        for name in ("pairs_per_scene", "candidates_per_scene", "min_consistent", "shard_mib"):
            check_positive(name, getattr(self, name))
        check_whole_number("seed", self.seed, 0, 2**63 - 1)

    def load_detector(self) -> Detector:
        return load_photo_detector(self.detector, self.max_keypoints)


@dataclass(frozen=True, eq=False)
class CandidatePair:
    """A matched pair of images with evidence of overlap."""

    images: tuple[int, int]
    neighbours: NearestNeighbours
    R: np.ndarray
    t: np.ndarray
    consistent: int
    """Mutual matches that agree precisely with the true pose."""
    parallax: float
    """Their median angle between rays, in degrees."""
    inlier_ratio: float


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
    scenes = {scene.name or opened.title: scene for scene in opened.scenes()}
    out = Path(out)
    made_of = {
        "settings": {**settings.to_dict(), "scales": list(settings.scales)},
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


def _build_scene(
    name: str, scene: PosedScene, staging: Path, number: int, settings: BuildSettings, workers: int, progress: bool
) -> None:
    views = _views(scene)
    folder = Path(os.path.commonpath([image.path.resolve().parent for image, _ in views.values()]))
    tables, names, ratios = list[PairTable](), list[str](), list[float]()
    unreadable: dict[str, str] = {}
    bar = tqdm(desc=name, unit="pair", disable=not progress, leave=False)
    # OpenCV and torch would start threads of their own in each of ours.
    opencv_threads, torch_threads = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            for scale in settings.scales:
                extract = partial(_features, detector=settings.load_detector(), scale=scale)
                found = dict(zip(views, pool.map(extract, views.values()), strict=True))
                readable = {key: one for key, one in found.items() if isinstance(one, PhotoFeatures)}
                unreadable |= {views[key][0].path.name: one for key, one in found.items() if isinstance(one, str)}
                pairs = _pairs(scene, readable, settings, pool, bar)
                tables.append(_table(list(readable.values()), pairs, settings.neighbours))
                names += [views[key][0].path.resolve().relative_to(folder).as_posix() for key in readable]
                ratios += [pair.inlier_ratio for pair in pairs]
    finally:
        cv2.setNumThreads(opencv_threads)
        torch.set_num_threads(torch_threads)
        bar.close()
    table = join(tables)
    write_table(_staged(staging, number, ".safetensors"), table)
    facts = {
        "name": name,
        "source": str(folder),
        "images": names,
        "pairs": len(ratios),
        "unreadable": unreadable,
        "matches": int(table.pair_start[-1]),
        "mean_inlier_ratio": round(float(np.mean(ratios)), 4) if ratios else None,
    }
    # Written last, as a sign that the scene is complete.
    write_json(_staged(staging, number, ".json"), facts)


View = tuple[PosedImage, int]
"""A photo and its quarter turns."""


def _views(scene: PosedScene) -> dict[Any, View]:
    """Photos that pairs may use, each once, by a key: a photo may be listed with several poses, or cameras."""
    if scene.pairs is None:
        listed = [(scene.images[name], 0) for name in sorted(scene.images)]
    else:
        listed = [view for pair in scene.pairs for view in _views_of(pair)]
    return {_view_key(view): view for view in listed}


def _views_of(pair: PosedPair) -> tuple[View, View]:
    return (pair.image0, pair.rotations[0]), (pair.image1, pair.rotations[1])


def _view_key(view: View) -> tuple[Any, ...]:
    image, turns = view
    return (image.path, image.K.tobytes(), image.distortion, turns)


def _features(view: View, detector: Detector, scale: float) -> PhotoFeatures | str:
    """Features of a photo, or why it could not be read."""
    try:
        return photo_features(view[0], detector, turns=view[1], scale=scale, original_pixels=True)
    except (InputError, OSError, cv2.error) as error:
        return str(error)


def _pairs(
    scene: PosedScene, features: dict[Any, PhotoFeatures], settings: BuildSettings, pool: ThreadPoolExecutor, bar: Any
) -> list[CandidatePair]:
    """Pairs of readable photos that are worth training on; images are numbered in the order of the features."""
    number = {key: n for n, key in enumerate(features)}

    def examined(pairs: list[PosedPair], share: float = 1.0) -> Iterator[CandidatePair]:
        def attempt(pair: PosedPair) -> CandidatePair | None:
            first, second = map(_view_key, _views_of(pair))
            images = (number[first], number[second])
            candidate = examine(features[first], features[second], pair, images, share, settings.neighbours)
            bar.update()
            return candidate

        bar.reset(len(pairs))
        return (found for found in pool.map(attempt, pairs) if found is not None)

    if scene.pairs is not None:
        # All pairs of a protocol are used.
        return list(examined([pair for pair in scene.pairs if features.keys() >= set(map(_view_key, _views_of(pair)))]))

    images = [image for image in scene.images.values() if _view_key((image, 0)) in features]
    images.sort(key=lambda image: number[_view_key((image, 0))])
    candidates = [PosedPair(images[a], images[b]) for a, b in _near_first(images, settings.candidates_per_scene)]
    promising = [pair for pair in examined(candidates, GLANCE) if _usable(pair, settings, GLANCE)]
    chosen = spread_over_difficulty(promising, max(1, settings.pairs_per_scene // 2), settings.seed)
    both_ways = [PosedPair(images[a], images[b]) for pair in chosen for a, b in (pair.images, pair.images[::-1])]
    return [pair for pair in examined(both_ways) if _usable(pair, settings)]


def _usable(pair: CandidatePair, settings: BuildSettings, share: float = 1.0) -> bool:
    return pair.consistent >= settings.min_consistent * share and pair.parallax >= settings.min_parallax


def examine(
    first: PhotoFeatures,
    second: PhotoFeatures,
    pair: PosedPair,
    images: tuple[int, int],
    share: float = 1.0,
    neighbours: int = 1,
) -> CandidatePair | None:
    """Match the strongest keypoints, this share, and count matches that fit the pose; None without a baseline."""
    if not pair.has_baseline or len(first.features) == 0 or len(second.features) < 2:
        return None
    first, second = first.strongest(share), second.strongest(share)
    R, t = pair.relative_pose()
    t = t / t.norm()
    found = nearest_neighbours(first.features.descriptors, second.features.descriptors, neighbours)
    of_first = np.arange(len(found.index)) % len(first.features)
    rays0, rays1 = torch.from_numpy(first.rays()[of_first]), torch.from_numpy(second.rays()[found.index])
    E = geometry.essential_from_pose(R, t)
    distance = geometry.symmetric_epipolar_distance_squared(rays0, rays1, E)
    depth0, depth1 = geometry.depths(rays0, rays1, R, t)
    agrees = torch.from_numpy(found.mutual) & (distance < PRECISE_DISTANCE) & (depth0 > 0) & (depth1 > 0)
    turned, seen = geometry.homogeneous(rays0[agrees]) @ R.T, geometry.homogeneous(rays1[agrees])
    angle = torch.atan2(torch.linalg.cross(turned, seen).norm(dim=1), (turned * seen).sum(1)).rad2deg()
    return CandidatePair(
        images,
        found,
        R.numpy(),
        t.numpy(),
        consistent=int(agrees.sum()),
        parallax=float(angle.median()) if agrees.any() else 0.0,
        inlier_ratio=float((distance < INLIER_DISTANCE).double().mean()),
    )


def spread_over_difficulty(pairs: list[CandidatePair], most: int, seed: int) -> list[CandidatePair]:
    """Choose at most so many pairs, spread evenly from hard ones (few consistent matches) to easy ones."""
    if len(pairs) <= most:
        return pairs
    rng = np.random.default_rng(seed)
    # One level per doubling of consistent matches; levels draw in turn.
    levels: dict[int, list[int]] = {}
    for number in rng.permutation(len(pairs)).tolist():
        levels.setdefault(int(np.log2(max(1, pairs[number].consistent))), []).append(number)
    turns = itertools.zip_longest(*(levels[level] for level in sorted(levels)))
    drawn = [number for turn in turns for number in turn if number is not None][:most]
    return [pairs[number] for number in sorted(drawn)]


def _near_first(images: list[PosedImage], most: int) -> list[tuple[int, int]]:
    """Return all pairs, or those with the most similar camera poses if that is too many."""
    pairs = np.array(list(itertools.combinations(range(len(images)), 2)), dtype=np.int64).reshape(-1, 2)
    if len(pairs) > most:
        centre = np.stack([-image.R.T @ image.t for image in images])
        facing = np.stack([image.R[2] for image in images])
        a, b = pairs.T
        step = np.linalg.norm(centre[a] - centre[b], axis=1)
        cost = step / np.median(step) + np.arccos(np.clip((facing[a] * facing[b]).sum(1), -1, 1))
        pairs = pairs[np.sort(np.argsort(cost, kind="stable")[:most])]
    return [(int(a), int(b)) for a, b in pairs]


def _table(images: list[PhotoFeatures], pairs: list[CandidatePair], neighbours: int) -> PairTable:
    """Make the table of a scene; match k is of keypoint k, so those with several matches are repeated in order."""

    def repeated(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else np.concatenate([values] * neighbours)

    of_images = [
        {name: repeated(getattr(image.features, name)) for name in ("points", "sizes", "angles")}
        | {"K": image.K, "image_size": np.array(image.features.image_size)}
        for image in images
    ]
    of_pairs = [{"images": np.array(pair.images), "R": pair.R, "t": pair.t, **vars(pair.neighbours)} for pair in pairs]
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
    line = f"{facts['name']}: {len(set(facts['images']))} photos, {count(facts['pairs'], 'pair')}"
    if facts["mean_inlier_ratio"] is not None:
        line += f", {facts['mean_inlier_ratio']:.1%} inliers"
    if facts["unreadable"]:
        line += f"; {len(facts['unreadable'])} photos skipped: " + "; ".join(facts["unreadable"].values())
    return line
