"""What can be evaluated on: photos with known cameras, and matches that are stored with their labels.

A source is recognised by looking at it. It is opened anew in every worker process, so opening is cheap; a pair is
made when it is asked for.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ananet.correspondences import Correspondences
from ananet.datasets.base import LabelledPair, PosedImage
from ananet.datasets.build import find_scenes
from ananet.datasets.colmap import read_posed_scene
from ananet.datasets.multi import find_cases, read_case
from ananet.datasets.oanet import OANetDump
from ananet.datasets.pairlists import PosedPair, read_megadepth, read_pair_list, upright_features
from ananet.datasets.shards import INDEX, read_pairs
from ananet.errors import InputError
from ananet.features import DETECTORS, Features, match
from ananet.files import atomic_path

# Without a baseline there is no epipolar geometry to label matches by; OANet drops such pairs too.
LEAST_BASELINE = 1e-5


@dataclass(frozen=True)
class MatchSettings:
    """How matches come about. The defaults are the paper's."""

    detector: str = "sift"
    max_keypoints: int = 2000
    longest_side: int | None = None
    """Photos are scaled to it; in stored matches, pixels are counted as if they had been. None leaves all as it is."""
    limit: int | None = None
    """At most so many pairs, evenly spread over the source; None for all."""
    outlier_share: float | None = None
    """Wrong matches are left out at random until at most this share of a pair's matches is wrong; None leaves all."""

    def __post_init__(self) -> None:
        if self.detector not in DETECTORS:
            raise InputError(f"detector: expected one of {', '.join(DETECTORS)}, got {self.detector!r}")
        for name in ("max_keypoints", "longest_side", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: expected at least 1, got {value}")
        if self.outlier_share is not None and not 0 <= self.outlier_share < 1:
            raise InputError(f"outlier_share: expected a number from 0 to below 1, got {self.outlier_share}")

    @property
    def scale(self) -> str:
        return "original size" if self.longest_side is None else f"longest side {self.longest_side}"

    @property
    def thinning(self) -> str:
        return "" if self.outlier_share is None else f", at most {self.outlier_share:.0%} of a pair's matches wrong"


class Source(ABC):
    """Pairs by number, each with its label."""

    kind: str
    """What it is, in words."""
    has_poses = True
    """Whether the true pose of every pair is known."""

    def __init__(self, path: Path, settings: MatchSettings) -> None:
        self.path, self.settings = path, settings

    @property
    def name(self) -> str:
        return self.path.resolve().stem

    @property
    @abstractmethod
    def available(self) -> int:
        """How many pairs there are, whatever the limit."""

    @abstractmethod
    def read(self, number: int) -> LabelledPair:
        """One of the available pairs."""

    def __len__(self) -> int:
        limit = self.settings.limit
        return self.available if limit is None else min(limit, self.available)

    def __getitem__(self, number: int) -> LabelledPair:
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number} of {len(self)}")
        number = number * self.available // len(self)
        pair, share = self.read(number), self.settings.outlier_share
        return pair if share is None else with_fewer_outliers(pair, share, seed=number)

    @property
    def photos(self) -> int:
        """How many photos have features to be computed before pairs are read."""
        return 0

    def prepare(self, number: int) -> None:
        """Computes and keeps the features of one photo."""
        raise NotImplementedError

    def matching(self) -> str:
        """How matches came about, in words."""
        return f"stored matches, pixels at {self.settings.scale}"


class StoredMatches(Source):
    """Pairs whose matches and labels lie in files."""

    def __init__(
        self, path: Path, settings: MatchSettings, kind: str, available: int, read: Callable[[int], LabelledPair]
    ) -> None:
        super().__init__(path, settings)
        self.kind, self._available, self._read = kind, available, read
        self.has_poses = kind != "MULTI"

    @property
    def available(self) -> int:
        return self._available

    def read(self, number: int) -> LabelledPair:
        pair = self._read(number)
        if self.settings.longest_side is None:
            return pair
        matches = rescaled(pair.matches, self.settings.longest_side)
        return LabelledPair(
            pair.name, matches, pair.inlier, pair.distance, pair.R, pair.t, scene=pair.scene, paths=pair.paths
        )


@dataclass(frozen=True, eq=False)
class ListedPair:
    """A pair of photos that a source lists."""

    name: str
    scene: str
    posed: PosedPair


class PhotoPairs(Source):
    """Pairs of photos with known cameras. Features are computed once a photo and kept in a folder."""

    def __init__(
        self,
        path: Path,
        settings: MatchSettings,
        kind: str,
        pairs: Sequence[ListedPair],
        feature_folder: Path | None,
    ) -> None:
        super().__init__(path, settings)
        self.kind, self.pairs, self.feature_folder = kind, pairs, feature_folder

    @property
    def available(self) -> int:
        return len(self.pairs)

    @cached_property
    def _views(self) -> list[tuple[PosedImage, int]]:
        """Photos with quarter turns that the pairs within the limit use, each once."""
        views = {}
        for number in range(len(self)):
            posed = self.pairs[number * self.available // len(self)].posed
            for image, turns in zip((posed.image0, posed.image1), posed.rotations, strict=True):
                views[self._key(image, turns)] = (image, turns)
        return list(views.values())

    @property
    def photos(self) -> int:
        return 0 if self.feature_folder is None else len(self._views)

    def prepare(self, number: int) -> None:
        self._features(*self._views[number])

    def read(self, number: int) -> LabelledPair:
        pair = self.pairs[number]
        posed = pair.posed
        features0, K0 = self._features(posed.image0, posed.rotations[0])
        features1, K1 = self._features(posed.image1, posed.rotations[1])
        matches = match(features0, features1, K0=K0, K1=K1)
        paths = (posed.image0.path, posed.image1.path)
        return LabelledPair.from_pose(pair.name, matches, *posed.relative_pose(), pair.scene, paths)

    def matching(self) -> str:
        settings = self.settings
        return f"{settings.detector.upper()}, {settings.max_keypoints} keypoints, photos at {settings.scale}"

    def _features(self, image: PosedImage, turns: int) -> tuple[Features, np.ndarray]:
        settings = self.settings
        if self.feature_folder is None:
            return upright_features(image, turns, settings.detector, settings.max_keypoints, settings.longest_side)
        stored = self.feature_folder / f"{self._key(image, turns)}.npz"
        if not stored.exists():
            features, K = upright_features(
                image, turns, settings.detector, settings.max_keypoints, settings.longest_side
            )
            with atomic_path(stored) as temporary, temporary.open("wb") as file:
                np.savez(file, points=features.points, descriptors=features.descriptors, size=features.size, K=K)
        with np.load(stored, allow_pickle=False) as arrays:
            width, height = arrays["size"].tolist()
            return Features(arrays["points"], arrays["descriptors"], (width, height)), arrays["K"]

    @staticmethod
    def _key(image: PosedImage, turns: int) -> str:
        # The same photo may be listed with other cameras; its camera matrix is kept with its features.
        parts = (str(image.path.resolve()), image.K.tolist(), image.distortion, turns)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def open_source(
    path: str | Path,
    settings: MatchSettings | None = None,
    *,
    image_folder: str | Path | None = None,
    feature_folder: Path | None = None,
) -> Source:
    """The source at a path, recognised by what lies there.

    Args:
        path: a scene (`images/` beside `sparse/`, and `pairs.txt`) or a folder of scenes; a folder of training shards;
            an OANet dump (.h5, .hdf5); a folder of MULTI cases; a pair list (.txt); or a folder with `views.txt`.
        settings: how matches are made.
        image_folder: of a pair list's photos; the list's own folder unless given.
        feature_folder: where the features of photos are kept; None computes them for every pair anew.
    """
    path, settings = Path(path), settings or MatchSettings()
    images = path.parent if image_folder is None else Path(image_folder)
    source = _recognise(path, settings, images, feature_folder)
    if len(source) == 0:
        raise InputError(f"source: expected at least one pair, {path} ({source.kind}) has none")
    return source


def _recognise(path: Path, settings: MatchSettings, images: Path, feature_folder: Path | None) -> Source:
    if path.is_file():
        if path.suffix in (".h5", ".hdf5"):
            dump = OANetDump(path)
            return StoredMatches(path, settings, "OANet dump", len(dump), dump.__getitem__)
        if path.suffix == ".txt":
            listed = _listed(read_pair_list(path, images), images)
            return PhotoPairs(path, settings, "pair list", listed, feature_folder)
    elif path.is_dir():
        if (path / INDEX).is_file():
            shards = read_pairs(path)
            return StoredMatches(path, settings, "training shards", len(shards), shards.__getitem__)
        if (path / "views.txt").is_file():
            listed = _listed(read_megadepth(path), path / "images")
            return PhotoPairs(path, settings, "views and pairs", listed, feature_folder)
        if any((folder / "sparse").is_dir() for folder in (path, *path.iterdir())):
            return PhotoPairs(path, settings, "posed scenes", _pairs_of_scenes(path), feature_folder)
        if cases := find_cases(path):
            return StoredMatches(path, settings, "MULTI", len(cases), lambda number: read_case(cases[number]))
    else:
        raise InputError(f"source: expected a file or folder, there is no {path}")
    raise InputError(
        f"source: expected posed scenes (images/ beside sparse/), training shards ({INDEX}), an OANet dump (.h5, "
        f".hdf5), MULTI cases (match_idx.txt), a pair list (.txt) or views.txt, got {path}, which is none of these"
    )


def _pairs_of_scenes(path: Path) -> list[ListedPair]:
    """The pairs that `pairs.txt` lists, or any two photos of a scene where there is none."""
    found = []
    for folder in find_scenes(path):
        scene = read_posed_scene(folder)
        any_two = itertools.combinations(sorted(scene.images), 2)
        for name0, name1 in any_two if scene.pairs is None else scene.pairs:
            posed = PosedPair(scene.images[name0], scene.images[name1])
            found.append(ListedPair(f"{scene.name}/{name0}-{name1}", scene.name, posed))
    return _with_baseline(found)


def _listed(pairs: list[PosedPair], images: Path) -> list[ListedPair]:
    """Photos in folders of a list's image folder belong to scenes of these names."""
    found = []
    for posed in pairs:
        names = [image.path.relative_to(images).as_posix() for image in (posed.image0, posed.image1)]
        scene = names[0].split("/")[0] if "/" in names[0] else ""
        found.append(ListedPair("-".join(names), scene, posed))
    return _with_baseline(found)


def _with_baseline(pairs: list[ListedPair]) -> list[ListedPair]:
    return [pair for pair in pairs if pair.posed.relative_pose()[1].norm() > LEAST_BASELINE]


def with_fewer_outliers(pair: LabelledPair, share: float, seed: int) -> LabelledPair:
    """The pair without so many of its wrong matches, chosen at random, that at most this share of the rest is wrong."""
    wrong = (~pair.inlier).nonzero()[:, 0]
    most = int(share / (1 - share) * int(pair.inlier.sum()))
    left_out = torch.randperm(len(wrong), generator=torch.Generator().manual_seed(seed))[most:]
    kept = torch.ones_like(pair.inlier)
    kept[wrong[left_out]] = False
    return replace(
        pair,
        matches=pair.matches[kept],
        inlier=pair.inlier[kept],
        distance=None if pair.distance is None else pair.distance[kept],
    )


def rescaled(matches: Correspondences, longest_side: int) -> Correspondences:
    """The matches in pixels of images scaled to a longest side.

    Where the size is not known, the principal point is taken for the middle of the image.
    """
    scaled = []
    for points, K, size in (
        (matches.points0, matches.K0, matches.size0),
        (matches.points1, matches.K1, matches.size1),
    ):
        if size is not None:
            longest = max(size)
        elif K is not None:
            longest = 2 * float(K[:2, 2].max()) + 1
        else:
            raise InputError("longest_side: expected matches with cameras or image sizes, got neither")
        scale = longest_side / longest
        if K is not None:
            K = K.clone()
            K[:2] *= scale
            K[:2, 2] += (scale - 1) / 2
        scaled.append(((points + 0.5) * scale - 0.5, K, None if size is None else (size[0] * scale, size[1] * scale)))
    (points0, K0, size0), (points1, K1, size1) = scaled
    answer = Correspondences(
        points0,
        points1,
        K0=K0,
        K1=K1,
        size0=size0,
        size1=size1,
        ratio=matches.ratio,
        mutual=matches.mutual,
        scores=matches.scores,
    )
    answer.given_as_numpy = matches.given_as_numpy
    return answer
