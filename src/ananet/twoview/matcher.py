"""Two photos to kept matches, an overlap test and a pose."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import torch

from ananet._util.checks import check_probability, shown
from ananet._util.defaults import DETECTOR, ESTIMATOR
from ananet._util.stopwatch import Stopwatch
from ananet.core.cameras import centred_camera, pixel_scaling
from ananet.core.correspondences import Array, Correspondences
from ananet.core.geometry import normalized_homography
from ananet.errors import InputError
from ananet.estimators import Estimator, find_focal, load_estimator
from ananet.features import Detector, Features, Matcher, load_detector, load_matcher, match
from ananet.io.images import as_photo
from ananet.pruners import LearnedPruner, Pruner, load
from ananet.twoview.cameras import Cameras, choose_cameras
from ananet.twoview.drawing import Panel, make_panel
from ananet.twoview.models import NEEDS_CAMERAS, ModelOption, Models, check_model, find_models
from ananet.twoview.motions import group_motions
from ananet.twoview.overlap import judge_overlap, measure_parallax
from ananet.twoview.refinement import refine as refine_matches
from ananet.twoview.result import PhotoMatches


@dataclass(frozen=True, eq=False, repr=False)
class PreparedPhoto:
    """What pairs need of a photo: its keypoints, a small copy to draw on, and its focal length."""

    name: str
    """Its path, or image0 or image1; used in messages."""
    features: Features
    """In pixels of the photo as it was scaled down."""
    size: tuple[int, int]
    """(width, height) of the photo as given."""
    panel: Panel | None = None
    """None if features were given instead of a photo."""
    exif_focal: float | None = None
    """In pixels of the photo as given."""
    source: Any = None
    """What the photo was read from."""
    milliseconds: float = 0.0
    """Time to detect the keypoints."""

    def __repr__(self) -> str:
        return f"PreparedPhoto({self.name}, {self.size[0]} x {self.size[1]} pixels, {len(self.features)} keypoints)"

    @property
    def scaling(self) -> np.ndarray:
        """[3 x 3] from pixels of the photo as given to those of `features`."""
        width, height = self.features.image_size
        return pixel_scaling(width / self.size[0], height / self.size[1])


class PhotoMatcher:
    """Matches pairs of photos. Everything is loaded once, so use one of these for many pairs.

    Args:
        detector, matcher, pruner, estimator: names with options, as `load_detector`, `load_matcher`, `load` and
            `load_estimator` take them, or what these return.
        threshold: probability above which a network keeps a match; None for 0.4.
        longest_side: larger photos are scaled down to this before keypoints are detected; points come back in the
            photo's own pixels. "auto" is the detector's own, 1600 unless told otherwise; None keeps full size.
            Thresholds of the overlap test and of the estimator are in pixels of the scaled photo.
        neighbours: how many nearest neighbours of a keypoint are its putative matches, if `matcher` is a name.
        refine: subpixel refinement, which moves the second points of kept matches to where both photos agree best.
            Points become more precise; a pose hardly changes.
        motions: find which kept matches move together.
        model: the geometry to estimate: "essential" (a pose, which needs cameras), "fundamental" or "homography";
            "auto" estimates epipolar geometry and a homography, and chooses by the evidence.
        use_exif: take focal lengths from EXIF where no cameras are given.
        device: for what is loaded by name.
    """

    def __init__(
        self,
        *,
        detector: str | Detector = DETECTOR,
        matcher: str | Matcher = "nearest",
        pruner: str | Path | Pruner | None = None,
        estimator: str | Estimator = ESTIMATOR,
        threshold: float | None = None,
        longest_side: int | Literal["auto"] | None = "auto",
        neighbours: int = 1,
        refine: bool = False,
        motions: bool = False,
        model: ModelOption = "auto",
        use_exif: bool = True,
        device: str | torch.device = "auto",
    ) -> None:
        side: dict[str, Any] = {} if longest_side == "auto" else {"longest_side": longest_side}
        self.detector: Detector = _load("detector", detector, Detector, load_detector, device=device, **side)
        self.estimator: Estimator = _load("estimator", estimator, Estimator, load_estimator)
        options = {"detector": self.detector.name, "device": device, "neighbours": neighbours}
        self.matcher: Matcher = _load("matcher", matcher, Matcher, load_matcher, **options)
        self.pruner = load_pruner_at(pruner, threshold, device)
        self.longest_side = self.detector.longest_side if longest_side == "auto" else longest_side
        self.model = check_model(model)
        self.refine, self.motions, self.use_exif, self.device = refine, motions, use_exif, device

    def __call__(
        self,
        image0: Any,
        image1: Any,
        *,
        K0: Array | None = None,
        K1: Array | None = None,
        focal: float | Literal["auto"] | None = None,
        names: Sequence[str] | None = None,
    ) -> PhotoMatches:
        """Match two photos: arguments as for `match_photos`, or what `prepare` returns."""
        images = (image0, image1)
        names = names or [str(x) if isinstance(x, str | Path) else f"image{n}" for n, x in enumerate(images)]
        (found,) = self._stream([images], dict(zip(map(_key, images), names, strict=True)), K0=K0, K1=K1, focal=focal)
        if isinstance(found, InputError):
            raise found
        return found

    def match_pairs(
        self,
        pairs: Iterable[tuple[Any, Any]],
        *,
        K0: Array | None = None,
        K1: Array | None = None,
        focal: float | Literal["auto"] | None = None,
    ) -> Iterator[PhotoMatches | InputError]:
        """Match many pairs, in order: for each the result, or the error if one of its photos cannot be used.

        Keypoints of a photo are detected once, and forgotten after its last pair. Cameras are those of every pair.
        """
        return self._stream([tuple(pair) for pair in pairs], {}, K0=K0, K1=K1, focal=focal)

    def prepare(self, image: Any, name: str | None = None) -> PreparedPhoto:
        """Read a photo and detect its keypoints, to match it with several others.

        Raises `InputError` if it cannot be read or has no keypoints.
        """
        if isinstance(image, PreparedPhoto):
            return image
        path = Path(image) if isinstance(image, str | Path) else None
        name = name or ("image" if path is None else str(image))
        if isinstance(image, Features):
            return PreparedPhoto(name, _check_keypoints(image, name), image.image_size)
        photo = as_photo(image, longest_side=self.longest_side, name=name)
        watch = Stopwatch()
        features = find_features(self.detector, photo.pixels, name, path, photo.size)
        watch.lap("detect")
        panel = make_panel(photo.pixels, size=photo.size)
        return PreparedPhoto(name, features, photo.size, panel, photo.exif_focal, image, watch.milliseconds["detect"])

    def _stream(
        self, pairs: list[tuple[Any, ...]], names: dict[Hashable, str], **cameras: Any
    ) -> Iterator[PhotoMatches | InputError]:
        uses = Counter(map(_key, chain(*pairs)))
        photos: dict[Hashable, Future[PreparedPhoto]] = {}
        threads = self.detector.threads
        with ThreadPoolExecutor(threads) as pool:
            for number, pair in enumerate(pairs):
                # With several threads, the next photos are read while this pair is matched.
                for image in chain(*pairs[number : number + 1 + (threads > 1)]):
                    key = _key(image)
                    if key not in photos:
                        photos[key] = pool.submit(self.prepare, image, names.get(key))
                keys = [_key(image) for image in pair]
                under_way = [photos[key] for key in keys]
                for key in keys:
                    uses[key] -= 1
                    if not uses[key]:
                        del photos[key]
                try:
                    yield self._match(under_way[0].result(), under_way[1].result(), **cameras)
                except InputError as error:
                    yield error

    def _match(
        self,
        photo0: PreparedPhoto,
        photo1: PreparedPhoto,
        K0: Array | None,
        K1: Array | None,
        focal: float | Literal["auto"] | None,
    ) -> PhotoMatches:
        photos = (photo0, photo1)
        exif = {f"exif_focal{n}": photo.exif_focal for n, photo in enumerate(photos) if self.use_exif}
        cameras = choose_cameras(photo0.size, photo1.size, K0=K0, K1=K1, focal=focal, **exif)
        if self.model == "essential" and cameras.source is None and focal != "auto":
            unknown = "" if cameras.missing is None else f" of {photos[cameras.missing].name} (no EXIF)"
            raise InputError(f"{NEEDS_CAMERAS}{unknown}")
        sources = [photo.source for photo in photos if photo.source is not None]
        if self.refine and len(sources) < 2:
            raise InputError("refine: needs the photos, expected image0 and image1, got Features")
        spent = [photo.milliseconds for photo in photos]
        watch = Stopwatch()
        watch.milliseconds["detect"] = max(spent) if self.detector.threads > 1 else sum(spent)
        # All thresholds are in pixels of the scaled photos.
        matches = self.matcher(photo0.features, photo1.features, **_scaled_cameras(cameras, photos))
        devices = [source.device for source in sources if isinstance(source, torch.Tensor)]
        if devices:
            matches = matches.to(devices[0])
        watch.lap("match")
        kept = self.pruner(matches)
        watch.lap("prune")
        nearest = match(photo0.features, photo1.features) if matches.mutual is None else None
        overlap = judge_overlap(matches, kept, photo0.features.points, photo1.features.points, nearest)
        watch.lap("verify")
        refined = None
        if self.refine:
            pixels = [as_photo(source, longest_side=self.longest_side).pixels for source in sources]
            refined = refine_matches(pixels[0], pixels[1], matches[kept.mask], device=self.device)
            points1 = torch.as_tensor(matches.points1).clone()
            points1[torch.as_tensor(kept.mask)] = torch.as_tensor(refined.matches.points1)
            matches = matches.replace(points1=points1)
            refined = replace(refined, matches=_in_own_pixels(refined.matches, photos))
            watch.lap("refine")
        parallax = motions = None
        if focal == "auto" and not matches.calibrated:
            ratio = find_focal(matches, self.estimator, kept)
            if ratio is not None:
                K0, K1 = (centred_camera(ratio * max(photo.size), photo.size) for photo in photos)
                cameras = Cameras("found", K0, K1)
                matches = matches.replace(**_scaled_cameras(cameras, photos))
            watch.lap("focal")
        # Too few matches to find the focal length are too few for a pose: a verdict, not a wrong argument.
        lost = self.model == "essential" and not matches.calibrated
        models = Models() if lost else find_models(matches, kept, self.estimator, self.model)
        if models.pose is not None:
            inliers = models.pose.inliers
            parallax = measure_parallax(matches[inliers], models.pose.R, self.estimator.ray_threshold(matches))
        watch.lap("geometry")
        models, matches = _models_in_own_pixels(models, photos), _in_own_pixels(matches, photos)
        if self.motions:
            motions = group_motions(matches, kept)
            watch.lap("motions")
        return PhotoMatches(
            features0=photo0.features.in_pixels_of(photo0.size),
            features1=photo1.features.in_pixels_of(photo1.size),
            matches=matches,
            kept=kept,
            overlap=overlap,
            cameras=cameras,
            pose=models.pose,
            model=models.model,
            fundamental=models.fundamental,
            homography=models.homography,
            criterion=models.criterion,
            names=(photo0.name, photo1.name),
            detector=self.detector.name,
            pruner=kept.pruner,
            threshold=1 / (1 + math.exp(-self.pruner.decision)),
            estimator=self.estimator.name,
            pose_threshold=self.estimator.settings("essential").threshold,
            match_selection=self.estimator.settings("essential").match_selection,
            milliseconds=watch.milliseconds,
            parallax=parallax,
            refined=refined,
            motions=motions,
            panels=(photo0.panel, photo1.panel),
        )

    def __repr__(self) -> str:
        parts = (self.detector, self.matcher, self.pruner, self.estimator)
        return f"PhotoMatcher({', '.join(part.name for part in parts)})"


def match_photos(
    image0: Any,
    image1: Any,
    *,
    detector: str | Detector = DETECTOR,
    matcher: str | Matcher = "nearest",
    pruner: str | Path | Pruner | None = None,
    estimator: str | Estimator = ESTIMATOR,
    threshold: float | None = None,
    K0: Array | None = None,
    K1: Array | None = None,
    focal: float | Literal["auto"] | None = None,
    use_exif: bool = True,
    longest_side: int | Literal["auto"] | None = "auto",
    neighbours: int = 1,
    refine: bool = False,
    motions: bool = False,
    model: ModelOption = "auto",
    device: str | torch.device = "auto",
    names: Sequence[str] | None = None,
) -> PhotoMatches:
    """Match two photos, prune the matches, and estimate their geometry: a pose if the cameras are known.

    To match many pairs, make a `PhotoMatcher` once.

    Args:
        image0, image1: files, whose EXIF orientation is applied; numpy arrays [H x W] or [H x W x 3] (BGR, as OpenCV
            reads them), uint8, uint16 or float in 0..1; PIL images; torch tensors [C x H x W] (RGB), uint8 or float
            in 0..1; or the photos' `Features`.
        K0, K1: [3 x 3] camera matrices of the upright photos.
        focal: focal length of both photos in pixels, instead of K0 and K1; "auto" finds it from the matches where EXIF
            has none.
        use_exif: take focal lengths from EXIF where no cameras are given. Without cameras there is no pose.
        names: of the photos in messages; their paths by default.
        detector, matcher, pruner, estimator, threshold, longest_side, neighbours, refine, motions, model, device: as
            for `PhotoMatcher`.

    Results are numpy arrays. If a photo is a tensor, matches, the pruner's result, pose, refinement and motions are
    tensors on its device; features and cameras are numpy arrays always.
    """
    loaded = PhotoMatcher(
        detector=detector,
        matcher=matcher,
        pruner=pruner,
        estimator=estimator,
        threshold=threshold,
        longest_side=longest_side,
        neighbours=neighbours,
        refine=refine,
        motions=motions,
        model=model,
        use_exif=use_exif,
        device=device,
    )
    return loaded(image0, image1, K0=K0, K1=K1, focal=focal, names=names)


def load_pruner_at(
    pruner: str | Path | Pruner | None, threshold: float | None, device: str | torch.device = "auto"
) -> Pruner:
    """A pruner, at another probability threshold if one is given; only networks have probabilities."""
    if threshold is None:
        return pruner if isinstance(pruner, Pruner) else load(pruner, device=device)
    if isinstance(pruner, Pruner):
        raise InputError(f"threshold: expected together with the name of a pruner, got the loaded {pruner.name}")
    loaded = load(pruner, device=device, threshold=check_probability("threshold", threshold))
    if not isinstance(loaded, LearnedPruner):
        own = f"for that of {pruner}, use {pruner}@threshold=..."
        raise InputError(f"threshold: only networks have a probability threshold; {own}")
    return loaded


def find_features(
    detector: Detector, image: np.ndarray, name: str, path: Path | None, size: tuple[int, int]
) -> Features:
    """At least one keypoint of an image, a photo's pixels at any size; `size` is the (width, height) in its file."""
    try:
        return _check_keypoints(detector.detect(image, path, size), name)
    except (cv2.error, MemoryError, torch.OutOfMemoryError) as error:
        # Too many pixels for OpenCV, or for the memory of the machine or of its GPU.
        reason = getattr(error, "err", "") or str(error) or "out of memory"
        found = f"{image.shape[1]} x {image.shape[0]} pixels ({reason})"
        raise InputError(f"{name}: expected a photo that the detector can work on, got {found}") from None


def _check_keypoints(found: Features, name: str) -> Features:
    if len(found) == 0:
        raise InputError("{}: no keypoints found in this image of {} x {} pixels".format(name, *found.image_size))
    return found


def _load(name: str, given: Any, kind: Any, load_by_name: Callable[..., Any], **options: Any) -> Any:
    if not isinstance(given, kind | str):
        raise InputError(f"{name}: expected a name or an instance of {kind.__name__}, got {shown(given)}")
    return load_by_name(given, **options) if isinstance(given, str) else given


def _key(image: Any) -> Hashable:
    return str(image) if isinstance(image, str | Path) else id(image)


def _scaled_cameras(cameras: Cameras, photos: Sequence[PreparedPhoto]) -> dict[str, Array]:
    """K0 and K1 in pixels of the scaled photos; nothing if they are not known."""
    matrices = zip(photos, (cameras.K0, cameras.K1), strict=True)
    return {f"K{number}": photo.scaling @ K for number, (photo, K) in enumerate(matrices) if K is not None}


def _models_in_own_pixels(models: Models, photos: Sequence[PreparedPhoto]) -> Models:
    """F and H of scaled photos in pixels of the photos as given."""
    scaling0, scaling1 = (torch.from_numpy(photo.scaling) for photo in photos)
    fundamental, homography = models.fundamental, models.homography
    if fundamental is not None:
        F = scaling1.T @ torch.as_tensor(fundamental.F).cpu() @ scaling0
        fundamental = replace(fundamental, F=_like(F / torch.linalg.matrix_norm(F), fundamental.F))
    if homography is not None:
        H = torch.linalg.solve(scaling1, torch.as_tensor(homography.H).cpu() @ scaling0)
        homography = replace(homography, H=_like(normalized_homography(H), homography.H))
    return replace(models, fundamental=fundamental, homography=homography)


def _like(values: torch.Tensor, given: np.ndarray | torch.Tensor) -> np.ndarray | torch.Tensor:
    return values.to(given.device) if isinstance(given, torch.Tensor) else values.numpy()


def _in_own_pixels(matches: Correspondences, photos: Iterable[PreparedPhoto]) -> Correspondences:
    """Matches of scaled photos in pixels of the photos as given."""
    values: dict[str, Any] = {}
    tensors = matches._as_tensors()
    for number, photo in enumerate(photos):
        if photo.size == photo.features.image_size:
            continue
        back = np.linalg.inv(photo.scaling)
        points, K, sizes = (getattr(tensors, f"{name}{number}") for name in ("points", "K", "keypoint_sizes"))
        matrix = torch.from_numpy(back).to(points)
        values |= {
            f"points{number}": points * matrix[[0, 1], [0, 1]] + matrix[:2, 2],
            f"K{number}": None if K is None else matrix.to(K) @ K,
            f"image_size{number}": (float(photo.size[0]), float(photo.size[1])),
            f"keypoint_sizes{number}": None if sizes is None else sizes * float(np.diag(back)[:2].mean()),
        }
    return matches.replace(**values) if values else matches
