"""The pairs of a source for evaluation: matched, limited, rescaled, labelled. Each is made on access."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import Settings, check_whole_number
from ananet._util.defaults import DETECTOR
from ananet.core.cameras import pixel_scaling
from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair, PosedImage, PosedPair
from ananet.datasets.sources import HomographyPhotos, PosedPhotos, Source, StoredPairs
from ananet.errors import InputError
from ananet.features import Detector, Matcher, load_matcher
from ananet.features.stored import read_features, save_features
from ananet.io.images import read_image

if TYPE_CHECKING:
    from ananet.datasets.photos import PhotoFeatures


@dataclass(frozen=True)
class MatchSettings(Settings):
    """Settings of the matches. The defaults are those of `match_photos`; protocols of the paper have their own."""

    detector: str = DETECTOR
    """A name, with options if needed."""
    max_keypoints: int | None = None
    """None leaves it to the detector."""
    longest_side: int | None = None
    """Photos are scaled to it; of stored matches, the pixel coordinates are. None for the original size."""
    limit: int | None = None
    """At most this many pairs, evenly spread over the source; None for all."""
    scenes: tuple[str, ...] | None = None
    """Only pairs of these; None for all."""
    outlier_share: float | None = None
    """Remove wrong matches at random until at most this share of a pair is wrong; None keeps all."""
    neighbours: int = 1
    """Putative matches per keypoint: its nearest neighbours."""
    matcher: str = "nearest"
    """A name, with options if needed."""
    hide_cameras: bool = False
    """Leave out the camera matrices: pruners and estimators know the sizes of the images only."""

    def check(self) -> None:
        for name in ("longest_side", "limit"):
            if getattr(self, name) is not None:
                check_whole_number(name, getattr(self, name), 1)
        self.load_detector("cpu")
        self.load_matcher("cpu")
        if self.outlier_share is not None and not 0 <= self.outlier_share < 1:
            raise InputError(f"outlier_share: expected a number from 0 to below 1, got {self.outlier_share}")

    def load_detector(self, device: str) -> Detector:
        from ananet.datasets.photos import load_photo_detector

        return load_photo_detector(self.detector, self.max_keypoints, device)

    def load_matcher(self, device: str) -> Matcher:
        return load_matcher(self.matcher, detector=self.detector, device=device, neighbours=self.neighbours)

    @property
    def scale(self) -> str:
        return "original size" if self.longest_side is None else f"longest side {self.longest_side}"

    @property
    def words(self) -> str:
        """What else is special about the matches."""
        chosen = "" if self.scenes is None else f", of {', '.join(self.scenes)}"
        thinned = "" if self.outlier_share is None else f", at most {self.outlier_share:.0%} of a pair's matches wrong"
        return chosen + thinned + (", cameras hidden" if self.hide_cameras else "")


class Pairs(ABC):
    """Labelled pairs by number."""

    photos = 0
    """Number of photos with features to compute before pairs are read."""

    def __init__(self, source: Source, settings: MatchSettings, available: int) -> None:
        self.settings = settings
        self.title, self.kind, self.models = source.title, source.name, source.models
        numbers: Sequence[int] = range(available)
        if settings.scenes is not None:
            scene_of_pairs = self.scene_of_pairs()
            unknown = sorted(set(settings.scenes) - set(scene_of_pairs))
            if unknown:
                known = ", ".join(sorted(set(scene_of_pairs))) or "no scene"
                raise InputError(f"scenes: expected some of {known}, got {', '.join(unknown)}")
            numbers = [number for number in numbers if scene_of_pairs[number] in settings.scenes]
        self.available = len(numbers)
        """Number of pairs of the chosen scenes, without the limit."""
        count = self.available if settings.limit is None else min(settings.limit, self.available)
        self.chosen = [numbers[number * self.available // count] for number in range(count)]
        """Numbers of these pairs within the limit."""

    @abstractmethod
    def scene_of_pairs(self) -> Sequence[str]:
        """The scene of every pair of the source."""

    @abstractmethod
    def read(self, number: int) -> LabelledPair:
        """One of the source's pairs."""

    @abstractmethod
    def matching(self) -> str:
        """Describe in words how matches are made."""

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, number: int) -> LabelledPair:
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number} of {len(self)}")
        number = self.chosen[number]
        pair, share = self.read(number), self.settings.outlier_share
        if share is not None:
            pair = with_fewer_outliers(pair, share, seed=number)
        return with_hidden_cameras(pair) if self.settings.hide_cameras else pair


class StoredMatches(Pairs):
    """Pairs with stored matches and labels."""

    def __init__(self, source: StoredPairs, settings: MatchSettings) -> None:
        self.source = source
        super().__init__(source, settings, len(source))

    def scene_of_pairs(self) -> Sequence[str]:
        return self.source.scene_of_pairs()

    def read(self, number: int) -> LabelledPair:
        pair, longest_side = self.source[number], self.settings.longest_side
        return pair if longest_side is None else replace(pair, matches=rescaled(pair.matches, longest_side))

    def matching(self) -> str:
        return f"stored matches, pixels at {self.settings.scale}{self.settings.words}"


class PhotoPairs(Pairs):
    """Pairs of photos to be matched. Features are computed once per photo and stored in a folder."""

    def __init__(
        self, source: Source, settings: MatchSettings, available: int, feature_folder: Path | None, device: str
    ) -> None:
        super().__init__(source, settings, available)
        self.feature_folder, self.device = feature_folder, device
        # Different photos that the pairs within the limit use.
        views = [view for number in self.chosen for view in self.views_of(number)]
        self.views = list({self.key(view): view for view in views}.values())
        self.photos = 0 if feature_folder is None else len(self.views)

    @abstractmethod
    def views_of(self, number: int) -> Sequence[Any]:
        """Both photos of one of the source's pairs."""

    @abstractmethod
    def key(self, view: Any) -> str:
        """A name for the features of a photo."""

    @abstractmethod
    def detect(self, view: Any) -> PhotoFeatures:
        """Compute the features of a photo."""

    @cached_property
    def detector(self) -> Detector:
        return self.settings.load_detector(self.device)

    @cached_property
    def matcher(self) -> Matcher:
        return self.settings.load_matcher(self.device)

    def prepare(self, number: int) -> None:
        """Compute and store the features of one photo."""
        self.features(self.views[number])

    def features(self, view: Any) -> PhotoFeatures:
        """The features of a photo, computed unless they are stored."""
        from ananet.datasets.photos import PhotoFeatures

        path = None if self.feature_folder is None else self.feature_folder / f"{self.key(view)}.npz"
        if path is not None and path.exists():
            features, more = read_features(path, ("K",))
            return PhotoFeatures(features, more["K"])
        found = self.detect(view)
        if path is not None:
            save_features(path, found.features, K=found.K)
        return found

    def matching(self) -> str:
        settings = self.settings
        # Options may hold paths, which keep their case.
        name, at, options = settings.detector.partition("@")
        number = "the default number of" if settings.max_keypoints is None else settings.max_keypoints
        keypoints = f"{name.upper()}{at}{options}, {number} keypoints"
        if settings.neighbours > 1:
            keypoints += f", {settings.neighbours} neighbours of each"
        elif settings.matcher != "nearest":
            keypoints += f", matched by {settings.matcher}"
        return f"{keypoints}, photos at {settings.scale}{settings.words}"


class PosedPhotoPairs(PhotoPairs):
    """Pairs of photos with known cameras."""

    def __init__(
        self, source: PosedPhotos, settings: MatchSettings, feature_folder: Path | None, device: str = "auto"
    ) -> None:
        listed = [(scene.name, pair) for scene in source.scenes() for pair in scene.all_pairs()]
        self.pairs: list[tuple[str, PosedPair]] = [(scene, pair) for scene, pair in listed if pair.has_baseline]
        """Name of the scene, and the two photos."""
        super().__init__(source, settings, len(self.pairs), feature_folder, device)

    def scene_of_pairs(self) -> Sequence[str]:
        return [scene for scene, _ in self.pairs]

    def read(self, number: int) -> LabelledPair:
        scene, pair = self.pairs[number]
        first, second = map(self.features, self.views_of(number))
        matches = self.matcher(first.features, second.features, K0=first.K, K1=second.K)
        name = f"{scene}/{pair.name}" if scene and not pair.name.startswith(f"{scene}/") else pair.name
        paths = (pair.image0.path, pair.image1.path)
        return LabelledPair.from_pose(name, matches, *pair.relative_pose(), scene, paths=paths)

    def views_of(self, number: int) -> Sequence[tuple[PosedImage, int]]:
        """Both photos with their quarter turns."""
        _, pair = self.pairs[number]
        return list(zip((pair.image0, pair.image1), pair.rotations, strict=True))

    def key(self, view: tuple[PosedImage, int]) -> str:
        image, turns = view
        # One photo may be listed with several cameras; the camera matrix is stored with the features.
        return _hash(str(image.path.resolve()), image.K.tolist(), image.distortion, turns)

    def detect(self, view: tuple[PosedImage, int]) -> PhotoFeatures:
        from ananet.datasets.photos import photo_features

        image, turns = view
        return photo_features(image, self.detector, turns=turns, longest_side=self.settings.longest_side)


class HomographyPhotoPairs(PhotoPairs):
    """Pairs of photos with known homographies."""

    def __init__(
        self, source: HomographyPhotos, settings: MatchSettings, feature_folder: Path | None, device: str = "auto"
    ) -> None:
        self.pairs = source.pairs()
        super().__init__(source, settings, len(self.pairs), feature_folder, device)

    def scene_of_pairs(self) -> Sequence[str]:
        return [pair.scene for pair in self.pairs]

    def read(self, number: int) -> LabelledPair:
        pair = self.pairs[number]
        first, second = map(self.features, self.views_of(number))
        matches = self.matcher(first.features, second.features)
        H = torch.from_numpy(second.K @ pair.H @ np.linalg.inv(first.K))
        return LabelledPair.from_homography(pair.name, matches, H, pair.scene, paths=(pair.path0, pair.path1))

    def views_of(self, number: int) -> Sequence[Path]:
        return self.pairs[number].path0, self.pairs[number].path1

    def key(self, view: Path) -> str:
        return _hash(str(view.resolve()))

    def detect(self, view: Path) -> PhotoFeatures:
        from ananet.datasets.photos import PhotoFeatures, scaled_features

        # Homographies belong to the pixels as they are stored.
        pixels = read_image(view, upright=False)
        return PhotoFeatures(*scaled_features(pixels, view, self.detector, longest_side=self.settings.longest_side))


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def open_pairs(
    source: Source, settings: MatchSettings | None = None, feature_folder: Path | None = None, device: str = "auto"
) -> Pairs:
    """The pairs of a source; without a folder for features of photos, they are computed for every pair anew."""
    settings = settings or MatchSettings()
    if isinstance(source, StoredPairs):
        pairs: Pairs = StoredMatches(source, settings)
    elif isinstance(source, PosedPhotos):
        pairs = PosedPhotoPairs(source, settings, feature_folder, device)
    elif isinstance(source, HomographyPhotos):
        pairs = HomographyPhotoPairs(source, settings, feature_folder, device)
    else:
        kinds = "StoredPairs, PosedPhotos or HomographyPhotos"
        raise InputError(f"source: expected {kinds}, got {type(source).__name__}")
    if len(pairs) == 0:
        raise InputError(f"source: expected at least one pair, {source.path} ({source.name}) has none")
    return pairs


def with_fewer_outliers(pair: LabelledPair, share: float, seed: int) -> LabelledPair:
    """Remove wrong matches at random until at most this share of the pair is wrong."""
    right = torch.zeros_like(pair.inlier) if pair.is_empty else pair.inlier
    wrong = (~right).nonzero()[:, 0]
    most = int(share / (1 - share) * int(right.sum()))
    left_out = torch.randperm(len(wrong), generator=torch.Generator().manual_seed(seed))[most:]
    mask = torch.ones_like(pair.inlier)
    mask[wrong[left_out]] = False
    labels = {name: getattr(pair, name) for name in ("inlier", "distance", "known", "right")}
    left: dict[str, Any] = {name: None if values is None else values[mask] for name, values in labels.items()}
    return replace(pair, matches=pair.matches[mask], **left)


def with_hidden_cameras(pair: LabelledPair) -> LabelledPair:
    """The pair as those without cameras see it: image sizes only. The true cameras stay, for scores.

    Without a size, the principal point is the centre of the image.
    """
    matches = pair.matches._as_tensors()
    if matches.K0 is None or matches.K1 is None:
        return pair
    sizes = {
        f"image_size{n}": size or tuple((2 * K[:2, 2] + 1).tolist())
        for n, (size, K) in enumerate([(matches.image_size0, matches.K0), (matches.image_size1, matches.K1)])
    }
    return replace(pair, matches=pair.matches.replace(K0=None, K1=None, **sizes), cameras=(matches.K0, matches.K1))


def rescaled(matches: Correspondences, longest_side: int) -> Correspondences:
    """Matches in pixels of images scaled to a longest side; without a size, the principal point is the centre."""
    scaled: dict[str, Any] = {}
    tensors = matches._as_tensors()
    for n in ("0", "1"):
        K, size, sizes = (getattr(tensors, name + n) for name in ("K", "image_size", "keypoint_sizes"))
        if size is None and K is None:
            raise InputError("longest_side: expected matches with cameras or image sizes, got neither")
        scale = longest_side / (2 * float(K[:2, 2].max()) + 1 if size is None else max(size))
        points: Tensor = getattr(tensors, "points" + n)
        transform = torch.from_numpy(pixel_scaling(scale, scale)).to(points)
        scaled |= {
            "points" + n: points * scale + transform[:2, 2],
            "K" + n: None if K is None else transform @ K,
            "image_size" + n: None if size is None else (size[0] * scale, size[1] * scale),
            "keypoint_sizes" + n: None if sizes is None else sizes * scale,
        }
    return matches.replace(**scaled)
