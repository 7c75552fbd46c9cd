"""Posed photos to training pairs: features once an image, pairs by evidence of overlap, shards at the end.

A scene that is finished is kept aside in OUT/.scenes until all are, so that a run that was killed goes on where it
stopped. The shards and the index appear under their final names only when they are complete.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet import geometry
from ananet.datasets.base import INLIER_DISTANCE, PosedImage, PosedScene
from ananet.datasets.colmap import read_posed_scene, undistort_points
from ananet.datasets.photos import read_posed_image, resize
from ananet.datasets.shards import (
    MOST_KEYPOINTS,
    PairTable,
    join,
    read_index,
    read_table,
    write_index,
    write_table,
)
from ananet.errors import InputError
from ananet.features import DETECTORS, Features, NearestNeighbours, detect, nearest_neighbours

STAGING = ".scenes"
# Evidence of overlap must be better than the paper's loose label: about 3 px at common focal lengths.
PRECISE_DISTANCE = 1e-5
# Share of the keypoints that is enough to see whether two images overlap at all, at a sixteenth of the cost.
GLANCE = 0.25


@dataclass(frozen=True)
class BuildSettings:
    """What decides which pairs are made. The same settings and photos give the same pairs."""

    detector: str = "sift"
    max_keypoints: int = 2000
    scales: tuple[float, ...] = (1.0,)
    """Sizes, as parts of a photo's own, at which it is used: other keypoints are found at each, and other pairs chosen.
    Points are stored in the pixels of the photo as it is."""
    pairs_per_scene: int = 1000
    """At most so many at each scale; a pair and its reverse count as two."""
    candidates_per_scene: int = 20_000
    """At most so many pairs are tried, those of cameras near each other first."""
    least_consistent: int = 20
    """Mutual matches that must agree with the true pose. Photos that do not overlap have up to about 8 by chance."""
    least_parallax: float = 1.0
    """Degrees, median over consistent matches; below it the baseline is too short to say what an inlier is."""
    shard_mib: float = 56.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.detector not in DETECTORS:
            raise InputError(f"detector: expected one of {', '.join(DETECTORS)}, got {self.detector!r}")
        if not 8 <= self.max_keypoints < MOST_KEYPOINTS:
            raise InputError(f"max_keypoints: expected 8 to {MOST_KEYPOINTS - 1}, got {self.max_keypoints}")
        different = len(set(self.scales)) == len(self.scales) > 0
        if not different or not all(0 < scale < float("inf") for scale in self.scales):
            raise InputError(f"scales: expected different positive numbers, got {self.scales}")
        for name in ("pairs_per_scene", "candidates_per_scene", "least_consistent", "shard_mib"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name}: expected a positive number, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What one photo brings into its pairs."""

    image: PosedImage
    features: Features
    points: np.ndarray
    """[N x 2] keypoints free of lens distortion."""

    def strongest(self, share: float) -> ImageFeatures:
        if share == 1:
            return self
        count = round(share * len(self.points))
        features = Features(self.features.points[:count], self.features.descriptors[:count], self.features.size)
        return ImageFeatures(self.image, features, self.points[:count])


@dataclass(frozen=True, eq=False)
class CandidatePair:
    """A pair of images that was matched, and what speaks for it."""

    images: tuple[int, int]
    matches: NearestNeighbours
    R: np.ndarray
    t: np.ndarray
    consistent: int
    """How many mutual matches agree precisely with the true pose."""
    parallax: float
    """Median angle between the rays of these, in degrees."""
    inlier_ratio: float


def find_scenes(source: str | Path) -> list[Path]:
    """The folder itself if it is a scene, and the scenes in it, by name."""
    source = Path(source)
    if not source.is_dir():
        raise InputError(f"scenes: expected a folder, got {source}")
    scenes = [folder for folder in (source, *sorted(source.iterdir())) if (folder / "sparse").is_dir()]
    if not scenes:
        raise InputError(f"scenes: expected {source} or folders in it to hold images/ and sparse/, found none")
    return scenes


def build_pairs(
    source: str | Path,
    out: str | Path,
    settings: BuildSettings | None = None,
    *,
    workers: int | None = None,
    progress: bool = True,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Build the training pairs of all scenes under `source` into the folder `out`; returns the index.

    Args:
        workers: threads; None for one a core.
        progress: whether to show a bar for each scene.
        log: told what is worth knowing, a line at a time.
    """
    settings = settings or BuildSettings()
    folders = find_scenes(source)
    out = Path(out)
    made_of = {
        "settings": {**asdict(settings), "scales": list(settings.scales)},
        "sources": [str(folder.resolve()) for folder in folders],
    }
    finished = read_index(out)
    if finished is not None:
        if {key: finished.get(key) for key in made_of} != made_of:
            raise InputError(f"{out}: holds pairs of other scenes or settings; choose another folder or remove it")
        log(f"{out} is complete already")
        return finished
    staging = out / STAGING
    staging.mkdir(parents=True, exist_ok=True)
    _claim(staging, made_of)
    for folder in folders:
        if not (staging / f"{folder.name}.json").exists():
            _build_scene(folder, staging, settings, workers or os.cpu_count() or 1, progress)
        log(_summary(json.loads((staging / f"{folder.name}.json").read_text())))
    index = _assemble(out, staging, [folder.name for folder in folders], settings)
    index = {**made_of, **index}
    write_index(out, index)
    shutil.rmtree(staging)
    return index


def _claim(staging: Path, made_of: dict[str, Any]) -> None:
    """Scenes kept aside by a run with other settings are not mixed with this one's."""
    note = staging / "made-of.json"
    if note.exists() and json.loads(note.read_text()) != made_of:
        raise InputError(f"{staging}: an unfinished build with other scenes or settings is here; remove it first")
    note.write_text(json.dumps(made_of))


def _build_scene(folder: Path, staging: Path, settings: BuildSettings, workers: int, progress: bool) -> None:
    scene = read_posed_scene(folder)
    tables: list[PairTable] = []
    names: list[str] = []
    ratios: list[float] = []
    bar = tqdm(desc=scene.name, unit="pair", disable=not progress, leave=False)
    # OpenCV and BLAS would each start their own threads under ours.
    opencv_threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            for scale in settings.scales:
                images, unreadable = _features(scene, scale, settings, pool)
                pairs = _pairs(scene, images, settings, pool, bar)
                tables.append(_table(images, pairs))
                names += images
                ratios += [pair.inlier_ratio for pair in pairs]
    finally:
        cv2.setNumThreads(opencv_threads)
        bar.close()
    table = join(tables)
    write_table(staging / f"{folder.name}.safetensors", table)
    facts = {
        "name": folder.name,
        "source": str((folder / "images").resolve()),
        "images": names,
        "pairs": len(ratios),
        "unreadable": unreadable,
        "matches": int(table.pair_start[-1]),
        "mean_inlier_ratio": round(float(np.mean(ratios)), 4) if ratios else None,
    }
    # Written last: its presence says that the scene is complete.
    temporary = staging / f"{folder.name}.json.part"
    temporary.write_text(json.dumps(facts))
    temporary.replace(staging / f"{folder.name}.json")


def _features(
    scene: PosedScene, scale: float, settings: BuildSettings, pool: ThreadPoolExecutor
) -> tuple[dict[str, ImageFeatures], dict[str, str]]:
    """Features of every readable photo by name, and why the others were skipped."""

    def extract(image: PosedImage) -> ImageFeatures | str:
        try:
            features = detect_scaled(read_posed_image(image), scale, settings.detector, settings.max_keypoints)
        except (InputError, OSError, cv2.error) as error:
            return str(error)
        points = undistort_points(features.points, image).astype(np.float32)
        # At the edge of an extreme lens a pinhole camera sees nothing.
        seen = np.isfinite(points).all(axis=1)
        features = Features(features.points[seen], features.descriptors[seen], features.size)
        return ImageFeatures(image, features, points[seen])

    names = sorted(scene.images)
    results = list(pool.map(extract, [scene.images[name] for name in names]))
    readable = {name: result for name, result in zip(names, results, strict=True) if isinstance(result, ImageFeatures)}
    unreadable = {name: result for name, result in zip(names, results, strict=True) if isinstance(result, str)}
    return readable, unreadable


def detect_scaled(image: np.ndarray, scale: float, detector: str, max_keypoints: int) -> Features:
    """The features of a resized photo, in the pixels of the photo as it is."""
    if scale == 1:
        return detect(image, detector, max_keypoints)
    resized, to_resized = resize(image, scale)
    features = detect(resized, detector, max_keypoints)
    points = (features.points - to_resized[:2, 2]) / to_resized[[0, 1], [0, 1]]
    return Features(points.astype(np.float32), features.descriptors, (image.shape[1], image.shape[0]))


def _pairs(
    scene: PosedScene,
    images: dict[str, ImageFeatures],
    settings: BuildSettings,
    pool: ThreadPoolExecutor,
    bar: Any,
) -> list[CandidatePair]:
    names = {name: number for number, name in enumerate(images)}
    features = list(images.values())

    def attempt(pair: tuple[int, int], share: float = 1.0) -> CandidatePair | None:
        candidate = examine(features, pair, share)
        bar.update()
        return candidate

    if scene.pairs is not None:
        # A protocol's own pairs are taken as they are.
        listed = [(names[a], names[b]) for a, b in scene.pairs if a in names and b in names]
        bar.reset(len(listed))
        return [pair for pair in pool.map(attempt, listed) if pair is not None]

    candidates = _near_first([f.image for f in features], settings.candidates_per_scene)
    bar.reset(len(candidates))
    glances = pool.map(lambda pair: attempt(pair, GLANCE), candidates)
    promising = [pair for pair in glances if pair is not None and _usable(pair, settings, GLANCE)]
    chosen = spread_over_difficulty(promising, max(1, settings.pairs_per_scene // 2), settings.seed)
    both_ways = [images for pair in chosen for images in (pair.images, pair.images[::-1])]
    bar.reset(len(both_ways))
    return [pair for pair in pool.map(attempt, both_ways) if pair is not None and _usable(pair, settings)]


def _usable(pair: CandidatePair, settings: BuildSettings, share: float = 1.0) -> bool:
    return pair.consistent >= settings.least_consistent * share and pair.parallax >= settings.least_parallax


def examine(features: list[ImageFeatures], pair: tuple[int, int], share: float = 1.0) -> CandidatePair | None:
    """Match two images and count what agrees with the true pose; None without a baseline or keypoints.

    Args:
        share: how many of the keypoints to use, the strongest first.
    """
    first, second = (features[number].strongest(share) for number in pair)
    R, t = geometry.relative_pose(*(torch.from_numpy(x) for x in _poses(first.image, second.image)))
    if not t.norm() > 1e-5 or len(first.points) == 0 or len(second.points) < 2:
        return None
    t = t / t.norm()
    matches = nearest_neighbours(first.features.descriptors, second.features.descriptors)
    rays0 = torch.from_numpy(_rays(first))
    rays1 = torch.from_numpy(_rays(second)[matches.index])
    E = geometry.essential_from_pose(R, t)
    distance = geometry.symmetric_epipolar_distance_squared(rays0, rays1, E)
    depth0, depth1 = geometry.depths(rays0, rays1, R, t)
    agrees = torch.from_numpy(matches.mutual) & (distance < PRECISE_DISTANCE) & (depth0 > 0) & (depth1 > 0)
    turned, seen = geometry.homogeneous(rays0[agrees]) @ R.T, geometry.homogeneous(rays1[agrees])
    angle = torch.atan2(torch.linalg.cross(turned, seen).norm(dim=1), (turned * seen).sum(1)).rad2deg()
    return CandidatePair(
        pair,
        matches,
        R.numpy(),
        t.numpy(),
        consistent=int(agrees.sum()),
        parallax=float(angle.median()) if agrees.any() else 0.0,
        inlier_ratio=float((distance < INLIER_DISTANCE).double().mean()),
    )


def spread_over_difficulty(pairs: list[CandidatePair], most: int, seed: int) -> list[CandidatePair]:
    """At most so many pairs, as evenly as there are any from hard ones (little agreement) to easy ones."""
    if len(pairs) <= most:
        return pairs
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pairs)).tolist()
    # A level for each doubling of the number of consistent matches; each draws in turn until there are enough.
    levels: dict[int, list[int]] = {}
    for number in order:
        levels.setdefault(int(np.log2(max(1, pairs[number].consistent))), []).append(number)
    turns = itertools.zip_longest(*(levels[level] for level in sorted(levels)))
    drawn = [number for turn in turns for number in turn if number is not None][:most]
    return [pairs[number] for number in sorted(drawn)]


def _near_first(images: list[PosedImage], most: int) -> list[tuple[int, int]]:
    """Pairs to try: all of them, or those whose cameras stand and look most alike if that is too many."""
    pairs = np.array(list(itertools.combinations(range(len(images)), 2)), dtype=np.int64).reshape(-1, 2)
    if len(pairs) > most:
        centre = np.stack([-image.R.T @ image.t for image in images])
        facing = np.stack([image.R[2] for image in images])
        a, b = pairs.T
        step = np.linalg.norm(centre[a] - centre[b], axis=1)
        cost = step / np.median(step) + np.arccos(np.clip((facing[a] * facing[b]).sum(1), -1, 1))
        pairs = pairs[np.sort(np.argsort(cost, kind="stable")[:most])]
    return [(int(a), int(b)) for a, b in pairs]


def _poses(first: PosedImage, second: PosedImage) -> Iterable[np.ndarray]:
    return (np.asarray(x, dtype=np.float64) for x in (first.R, first.t, second.R, second.t))


def _rays(of: ImageFeatures) -> np.ndarray:
    K = of.image.K
    return (of.points.astype(np.float64) - K[:2, 2]) / K[[0, 1], [0, 1]]


def _table(images: dict[str, ImageFeatures], pairs: list[CandidatePair]) -> PairTable:
    """The scene as flat tensors."""

    def starts(lengths: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64))

    def stack(arrays: list[np.ndarray], shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.stack(arrays).astype(dtype) if arrays else np.zeros((0, *shape), dtype))

    def cat(arrays: list[np.ndarray], shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays).astype(dtype) if arrays else np.zeros((0, *shape), dtype))

    features = list(images.values())
    cameras = [f.image.K for f in features]
    return PairTable(
        points=cat([f.points for f in features], (2,), np.float32),
        image_start=starts([len(f.points) for f in features]),
        image_camera=stack([K[[0, 1, 0, 1], [0, 1, 2, 2]] for K in cameras], (4,), np.float32),
        image_size=stack([np.array(f.features.size) for f in features], (2,), np.float32),
        pair_images=stack([np.array(pair.images) for pair in pairs], (2,), np.int64),
        pair_start=starts([len(pair.matches.index) for pair in pairs]),
        pair_rotation=stack([pair.R for pair in pairs], (3, 3), np.float32),
        pair_translation=stack([pair.t for pair in pairs], (3,), np.float32),
        index=cat([pair.matches.index for pair in pairs], (), np.int32),
        ratio=cat([np.round(pair.matches.ratio * 255) for pair in pairs], (), np.uint8),
        mutual=cat([pair.matches.mutual for pair in pairs], (), bool),
    )


def _assemble(out: Path, staging: Path, names: list[str], settings: BuildSettings) -> dict[str, Any]:
    """Join scenes to shards below the size limit, in order, and describe them."""
    limit = settings.shard_mib * 2**20
    groups: list[list[PairTable]] = [[]]
    size = 0
    for name in names:
        table = read_table(staging / f"{name}.safetensors")
        if groups[-1] and size + table.nbytes() > limit:
            groups.append([])
            size = 0
        groups[-1].append(table)
        size += table.nbytes()
    shards = []
    for number, group in enumerate(groups):
        shards.append(f"pairs-{number:03d}.safetensors")
        write_table(out / shards[-1], join(group))
    scenes = [json.loads((staging / f"{name}.json").read_text()) for name in names]
    return {
        "versions": {name: version(name) for name in ("ananet", "numpy", "torch")} | {"opencv": cv2.__version__},
        "shards": shards,
        "images": sum(len(set(scene["images"])) for scene in scenes),
        "pairs": sum(scene["pairs"] for scene in scenes),
        "scenes": scenes,
    }


def _summary(facts: dict[str, Any]) -> str:
    line = f"{facts['name']}: {len(set(facts['images']))} photos, {facts['pairs']} pairs"
    if facts["mean_inlier_ratio"] is not None:
        line += f", {facts['mean_inlier_ratio']:.1%} inliers"
    if facts["unreadable"]:
        line += f"; {len(facts['unreadable'])} photos skipped: " + "; ".join(facts["unreadable"].values())
    return line
