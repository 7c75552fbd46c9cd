"""The pairs of a source as an evaluation sees them: matched, limited, rescaled, labelled.

They are opened anew in every worker process, so opening is cheap; a pair is made when it is asked for.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ananet._util.checks import Settings, check_whole_number
from ananet._util.defaults import DETECTOR, MAX_KEYPOINTS
from ananet.core.cameras import pixel_scaling
from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair, PosedImage, PosedPair
from ananet.datasets.photos import PhotoFeatures, photo_features
from ananet.datasets.sources import PosedPhotos, Source, StoredPairs
from ananet.errors import InputError
from ananet.features import Detector, Matcher, load_detector, load_matcher
from ananet.features.stored import read_features, save_features


@dataclass(frozen=True)
class MatchSettings(Settings):
    """How matches are made. The defaults are the paper's."""

    detector: str = DETECTOR
    """A name, perhaps with options."""
    max_keypoints: int = MAX_KEYPOINTS
    longest_side: int | None = None
    """Photos are scaled to it; for stored matches, only the pixels of the threshold are. None for the original size."""
    limit: int | None = None
    """Largest number of pairs, evenly spread over the source; None for all."""
    outlier_share: float | None = None
    """Wrong matches are removed at random until at most this share of a pair's matches is wrong; None keeps all."""
    neighbours: int = 1
    """Number of nearest neighbours per keypoint that are its putative matches."""
    matcher: str = "nearest"
    """A name, perhaps with options."""

    def check(self) -> None:
        for name in ("longest_side", "limit"):
            if getattr(self, name) is not None:
                check_whole_number(name, getattr(self, name), 1)
        self.load_detector("cpu")
        self.load_matcher("cpu")
        if self.outlier_share is not None and not 0 <= self.outlier_share < 1:
            raise InputError(f"outlier_share: expected a number from 0 to below 1, got {self.outlier_share}")

    def load_detector(self, device: str) -> Detector:
        return load_detector(self.detector, device=device, max_keypoints=self.max_keypoints)

    def load_matcher(self, device: str) -> Matcher:
        return load_matcher(self.matcher, detector=self.detector, device=device, neighbours=self.neighbours)

    @property
    def scale(self) -> str:
        return "original size" if self.longest_side is None else f"longest side {self.longest_side}"

    @property
    def thinning(self) -> str:
        return "" if self.outlier_share is None else f", at most {self.outlier_share:.0%} of a pair's matches wrong"


class Pairs(ABC):
    """Pairs by number, each with its label."""

    def __init__(self, source: Source, settings: MatchSettings) -> None:
        self.settings = settings
        self.title, self.kind, self.has_poses = source.title, source.name, source.has_poses

    @property
    @abstractmethod
    def available(self) -> int:
        """How many pairs there are, whatever the limit."""

    @abstractmethod
    def read(self, number: int) -> LabelledPair:
        """One of the available pairs."""

    @abstractmethod
    def matching(self) -> str:
        """How matches came about, in words."""

    def __len__(self) -> int:
        limit = self.settings.limit
        return self.available if limit is None else min(limit, self.available)

    def chosen(self) -> Iterator[int]:
        """Numbers of the available pairs that the limit leaves."""
        return (number * self.available // len(self) for number in range(len(self)))

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


class StoredMatches(Pairs):
    """Pairs whose matches and labels lie in files."""

    def __init__(self, source: StoredPairs, settings: MatchSettings) -> None:
        super().__init__(source, settings)
        self.source = source

    @property
    def available(self) -> int:
        return len(self.source)

    def read(self, number: int) -> LabelledPair:
        pair, longest_side = self.source[number], self.settings.longest_side
        return pair if longest_side is None else replace(pair, matches=rescaled(pair.matches, longest_side))

    def matching(self) -> str:
        return f"stored matches, pixels at {self.settings.scale}{self.settings.thinning}"


class PhotoPairs(Pairs):
    """Pairs of photos with known cameras. Features are computed once per photo and kept in a folder."""

    def __init__(
        self, source: PosedPhotos, settings: MatchSettings, feature_folder: Path | None, device: str = "auto"
    ) -> None:
        super().__init__(source, settings)
        listed = [(scene.name, pair) for scene in source.scenes() for pair in scene.all_pairs()]
        self.pairs: list[tuple[str, PosedPair]] = [(scene, pair) for scene, pair in listed if pair.has_baseline]
        """Name of the scene, and the two photos."""
        self.feature_folder = feature_folder
        self.detector, self.matcher = settings.load_detector(device), settings.load_matcher(device)

    @property
    def available(self) -> int:
        return len(self.pairs)

    @cached_property
    def _views(self) -> list[tuple[PosedImage, int]]:
        """Photos with quarter turns that the pairs within the limit use, each once."""
        views = {}
        for number in self.chosen():
            pair = self.pairs[number][1]
            for image, turns in zip((pair.image0, pair.image1), pair.rotations, strict=True):
                views[self._key(image, turns)] = (image, turns)
        return list(views.values())

    @property
    def photos(self) -> int:
        return 0 if self.feature_folder is None else len(self._views)

    def prepare(self, number: int) -> None:
        self._features(*self._views[number])

    def read(self, number: int) -> LabelledPair:
        scene, pair = self.pairs[number]
        first = self._features(pair.image0, pair.rotations[0])
        second = self._features(pair.image1, pair.rotations[1])
        matches = self.matcher(first.features, second.features, K0=first.K, K1=second.K)
        name = f"{scene}/{pair.name}" if scene and not pair.name.startswith(f"{scene}/") else pair.name
        paths = (pair.image0.path, pair.image1.path)
        return LabelledPair.from_pose(name, matches, *pair.relative_pose(), scene, paths)

    def matching(self) -> str:
        settings = self.settings
        # Of options, paths keep their case.
        name, at, options = settings.detector.partition("@")
        keypoints = f"{name.upper()}{at}{options}, {settings.max_keypoints} keypoints"
        if settings.neighbours > 1:
            keypoints += f", {settings.neighbours} neighbours of each"
        elif settings.matcher != "nearest":
            keypoints += f", matched by {settings.matcher}"
        return f"{keypoints}, photos at {settings.scale}{settings.thinning}"

    def _features(self, image: PosedImage, turns: int) -> PhotoFeatures:
        longest_side = self.settings.longest_side
        if self.feature_folder is None:
            return photo_features(image, self.detector, turns=turns, longest_side=longest_side)
        stored = self.feature_folder / f"{self._key(image, turns)}.npz"
        if not stored.exists():
            found = photo_features(image, self.detector, turns=turns, longest_side=longest_side)
            save_features(stored, found.features, K=found.K)
        features, more = read_features(stored, ("K",))
        return PhotoFeatures(features, more["K"])

    @staticmethod
    def _key(image: PosedImage, turns: int) -> str:
        # The same photo may be listed with other cameras; its camera matrix is kept with its features.
        parts = (str(image.path.resolve()), image.K.tolist(), image.distortion, turns)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def open_pairs(
    source: Source,
    settings: MatchSettings | None = None,
    feature_folder: Path | None = None,
    device: str = "auto",
) -> Pairs:
    """The pairs of a source that `open_source` gave.

    Args:
        settings: how matches are made.
        feature_folder: where the features of photos are kept; None computes them for every pair anew.
        device: where detector and matcher run.
    """
    settings = settings or MatchSettings()
    if isinstance(source, StoredPairs):
        pairs: Pairs = StoredMatches(source, settings)
    elif isinstance(source, PosedPhotos):
        pairs = PhotoPairs(source, settings, feature_folder, device)
    else:
        raise InputError(f"source: expected StoredPairs or PosedPhotos, got {type(source).__name__}")
    if len(pairs) == 0:
        raise InputError(f"source: expected at least one pair, {source.path} ({source.name}) has none")
    return pairs


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
    scaled: dict[str, Any] = {}
    for n in ("0", "1"):
        K, size, sizes = (getattr(matches, name + n) for name in ("K", "image_size", "keypoint_sizes"))
        if size is not None:
            longest = max(size)
        elif K is not None:
            longest = 2 * float(K[:2, 2].max()) + 1
        else:
            raise InputError("longest_side: expected matches with cameras or image sizes, got neither")
        scale = longest_side / longest
        points: Tensor = getattr(matches, "points" + n)
        transform = torch.from_numpy(pixel_scaling(scale, scale)).to(points)
        scaled |= {
            "points" + n: points * scale + transform[:2, 2],
            "K" + n: None if K is None else transform @ K,
            "image_size" + n: None if size is None else (size[0] * scale, size[1] * scale),
            "keypoint_sizes" + n: None if sizes is None else sizes * scale,
        }
    return matches.replace(**scaled)
