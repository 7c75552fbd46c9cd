"""What is known about two photos after matching: matches, verdict, cameras, pose; as numbers, file or picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from ananet._util.checks import check_whole_number
from ananet._util.defaults import MATCH_FILES
from ananet.core.cameras import implausible
from ananet.core.correspondences import PER_MATCH, Correspondences
from ananet.core.geometry import essential_from_pose
from ananet.errors import InputError
from ananet.estimators import Fundamental, Homography, Pose
from ananet.estimators.base import IN_WORDS, Model
from ananet.features import Features
from ananet.io.files import atomic_path, is_file, save_arrays
from ananet.io.images import as_photo, check_picture, save_picture
from ananet.pruners import Pruned
from ananet.twoview.cameras import Cameras
from ananet.twoview.drawing import (
    Panel,
    draw_epipolar_lines,
    draw_matches,
    draw_motions,
    make_panel,
    without_far_side,
)
from ananet.twoview.models import epipolar_matrix
from ananet.twoview.motions import Motions, in_words
from ananet.twoview.overlap import Overlap
from ananet.twoview.refinement import Refined

# Degrees. Below, the direction of the movement is dominated by noise.
MIN_PARALLAX = 0.5
# Components of a unit vector below this are not mentioned.
MIN_COMPONENT = 0.35
# Share of a photo below which inliers say little of the rest of it.
MIN_COVERED = 0.05
# Fewer inliers hardly tell one geometry from another.
MIN_SURE = 15
MODEL_IN_WORDS: dict[Model, str] = {
    "essential": "epipolar geometry of known cameras",
    "fundamental": "epipolar geometry of unknown cameras",
    "homography": "homography",
}
# Decimals in JSON.
PIXEL_DIGITS, SCORE_DIGITS = 4, 6
COLUMNS = ("x0", "y0", "x1", "y1", "kept", "score", "ratio", "mutual", "index0", "index1")


@dataclass(frozen=True, eq=False, repr=False)
class PhotoMatches:
    """Matches of two photos, which of them are kept, and the pose. All coordinates are in the photos' own pixels."""

    features0: Features
    """Keypoints of the first photo."""
    features1: Features
    """Keypoints of the second photo."""
    matches: Correspondences
    """All putative matches; their `indices` point into the features."""
    kept: Pruned
    """The pruner's result: mask, scores and logits of all matches."""
    overlap: Overlap
    """Whether the photos show the same scene."""
    cameras: Cameras
    """Camera matrices: given, from EXIF, or found from the matches."""
    pose: Pose | None
    """Estimated from the kept matches; its `inliers` are among them. None without cameras, or if none was found.
    Do not trust it if `overlap.found` is False."""
    names: tuple[str, str]
    """Of the photos: their paths, or image0 and image1."""
    detector: str
    """Its name."""
    pruner: str
    """Name of the pruner; of `auto`, the network that it chose."""
    threshold: float
    """Probability above which the pruner keeps a match."""
    estimator: str
    """Its name."""
    pose_threshold: float
    """The estimator's inlier threshold, in pixels of the photos as they were worked on (see `longest_side`)."""
    match_selection: str
    """Which kept matches the estimator uses: "all" or "one-to-one"."""
    milliseconds: dict[str, float]
    """Time of each step."""
    model: Model | None = None
    """The geometry that the kept matches have, chosen by the evidence unless one was named; None if none was found."""
    fundamental: Fundamental | None = None
    """Without cameras, the fundamental matrix of the kept matches; of a plane it is arbitrary (`epipolar_matrix`)."""
    homography: Homography | None = None
    """The homography with most of the kept matches; if it is not the `model`, it holds for one plane of the scene."""
    criterion: dict[Model, float] = field(default_factory=dict)
    """GRIC of the models that were compared, lower is better (`ananet.twoview.models`); empty if one was named."""
    parallax: float | None = None
    """Degrees, median over the pose's inliers: how much the camera's movement shows. None without a pose."""
    refined: Refined | None = None
    """Result of the refinement, for kept matches only; `matches` has the moved points. None without refinement."""
    motions: Motions | None = None
    """Which kept matches move together, if asked for."""
    panels: tuple[Panel | None, Panel | None] = (None, None)
    """The photos at the size of a picture, for `draw`; None if features were given instead of photos."""

    def __repr__(self) -> str:
        pose = "no pose" if self.pose is None else f"pose with {self._inliers} inliers"
        if self.pose is None and self.model is not None and self.inliers is not None:
            pose = f"{self.model} with {int(self.inliers.sum())} inliers"
        overlap = "" if self.overlap.found else ", no overlap"
        camera = "" if self.camera_doubt is None else ", camera doubtful"
        return f"PhotoMatches({self.count} of {len(self.matches)} kept by {self.pruner}{overlap}, {pose}{camera})"

    @property
    def count(self) -> int:
        """Number of kept matches."""
        return int(self.kept.mask.sum())

    @property
    def _inliers(self) -> int:
        return 0 if self.pose is None else int(self.pose.inliers.sum())

    @property
    def inliers(self) -> np.ndarray | torch.Tensor | None:
        """[N] bool: kept matches that agree with the model; None if there is none."""
        found = {"essential": self.pose, "fundamental": self.fundamental, "homography": self.homography}
        chosen = None if self.model is None else found[self.model]
        return None if chosen is None else chosen.inliers

    @property
    def epipolar_matrix(self) -> np.ndarray | None:
        """[3 x 3] F of norm 1 with p1^T F p0 = 0, of the pose or of unknown cameras.

        None if the camera only turned, or if the cameras are not given and a homography explains the matches: then any
        epipolar geometry does.
        """
        unknown = self.pose is None or self.cameras.source == "found"
        if self.rotation_only or (self.model == "homography" and unknown):
            return None
        F = epipolar_matrix(self.matches, self.pose, self.fundamental)
        return None if F is None else F.numpy()

    @property
    def covered(self) -> float:
        """Share of a photo that the model's inliers span, of the photo where it is smaller."""
        if self.inliers is None:
            return 0.0
        points = (points[_numpy(self.inliers)].astype(np.float32) for points in self.matches.numpy_points())
        sizes = (self.features0.image_size, self.features1.image_size)
        spans = (cv2.contourArea(cv2.convexHull(part)) if len(part) > 2 else 0.0 for part in points)
        return float(min(span / (width * height) for span, (width, height) in zip(spans, sizes, strict=True)))

    @property
    def camera_doubt(self) -> str | None:
        """Why a camera matrix is implausible for its photo, in words; None if both are plausible."""
        cameras = ((self.cameras.K0, self.features0), (self.cameras.K1, self.features1))
        doubts = (implausible(K, features.image_size) for K, features in cameras if K is not None)
        return next(filter(None, doubts), None)

    @property
    def _unknown_focal(self) -> str:
        """Which photo lacks a focal length, if only one does."""
        missing = self.cameras.missing
        return "" if missing is None else f" of {self.names[missing]} (no EXIF)"

    @property
    def rotation_only(self) -> bool:
        """Whether the camera hardly moved, so that only the pose's rotation can be trusted."""
        return self.parallax is not None and self.parallax < MIN_PARALLAX

    @property
    def pose_summary(self) -> str:
        """How the camera moved between the photos, in words; without a pose, why there is none."""
        if not self.count:
            return "No pose: nothing was kept."
        if self.cameras.source is None:
            missing = f"the focal length{self._unknown_focal} is not known"
            return f"No pose: {missing}. Give it (auto finds it from the matches) or the camera matrices."
        if self.pose is None:
            return "No pose was found." if self.model is None else f"No pose: {self._only_model}."
        R, t = (_numpy(part) for part in (self.pose.R, self.pose.t))
        angle = math.degrees(math.acos(min(1.0, max(-1.0, (float(np.trace(R)) - 1) / 2))))
        turned = f"The camera turned by {angle:.1f} degrees"
        doubt = "" if self.overlap.found else " Do not trust this: the photos do not seem to show the same scene."
        if self.cameras.source == "found":
            doubt = f" Focal length found from the matches: {self._focal_lengths} px.{doubt}"
        if self.rotation_only:
            return f"{turned} and hardly moved, so only the rotation can be trusted.{doubt}"
        # Axes of the first camera: x to the right, y down, z forward.
        directions = zip(-R.T @ t, ("right", "down", "forward"), ("left", "up", "backward"), strict=True)
        words = [plus if value > 0 else minus for value, plus, minus in directions if abs(value) >= MIN_COMPONENT]
        return f"{turned} and moved {' and '.join(words)}. {self._inliers} matches agree with this.{doubt}"

    @property
    def _focal_lengths(self) -> str:
        """Of both cameras, one number if they are the same."""
        focals = (f"{K[0, 0]:.0f}" for K in (self.cameras.K0, self.cameras.K1) if K is not None)
        return " and ".join(dict.fromkeys(focals))

    @property
    def _only_model(self) -> str:
        """What there is instead of a pose though the cameras are known: it was named, or no pose was found."""
        return f"only a {'homography' if self.model == 'homography' else 'fundamental matrix'} was estimated"

    @property
    def model_summary(self) -> str:
        """Which geometry the two photos have, in words, and what to expect of it."""
        if self.model is None or self.inliers is None:
            return "No geometry was found: too few matches agree on one."
        number = int(self.inliers.sum())
        if not self.overlap.found:
            words = "Do not trust this geometry: the photos do not seem to show the same scene."
        elif not self.criterion and not self.rotation_only:
            # It was named, or the other one was not found: nothing says that the photos have this geometry.
            if self.model == "homography":
                words = "A homography was estimated, nothing else: it holds for a plane, or a camera that only turned."
                if 2 * number < self.count:
                    words += " Most kept matches disagree with it, as in a scene with depth."
            else:
                words = "Epipolar geometry was estimated, nothing else: it gives a point's line in the other photo."
                if self.model == "fundamental":
                    words += " Of a plane, or a camera that only turned, it is arbitrary."
        elif self.model == "homography":
            one = "a plane, or a camera that only turned; without focal lengths the two cannot be told apart"
            if self.pose is not None and self.cameras.source != "found":
                one = "a camera that only turned" if self.rotation_only else "a plane"
            words = f"A homography explains the matches: {one}."
            if self.cameras.source == "found":
                words += " It says little of the focal length, so do not rely on the one that was found."
        elif self.rotation_only:
            words = "The camera hardly moved: the direction of its movement cannot be seen."
        else:
            words = "The scene has depth: a point of one photo lies on a line in the other."
        agree = f"{number} of {self.count} kept matches agree"
        words += f" {agree}." if number >= MIN_SURE else f" Only {agree}: it may be wrong."
        if self.covered < MIN_COVERED:
            words += f" They span only {100 * self.covered:.1f} % of a photo: do not trust the geometry elsewhere."
        return words

    def one_line(self) -> str:
        """Kept matches and inliers of the pose, for lists of many pairs."""
        words = [] if self.overlap.found else ["no overlap"]
        words.append(f"{self.count} of {len(self.matches)} kept" if self.count else "nothing kept")
        if self.pose is not None:
            words.append(f"pose with {self._inliers} inliers{', rotation only' if self.rotation_only else ''}")
        elif self.model is not None and self.inliers is not None:
            words.append(f"{self.model} with {int(self.inliers.sum())} inliers")
        return ", ".join(words)

    def summary(self) -> str:
        """Everything that is known about the two photos, in lines of text."""
        kept = f"{self.count} kept" if self.count else "nothing kept"
        lines = [
            f"keypoints  {len(self.features0)} and {len(self.features1)}",
            f"matches    {len(self.matches)} putative, {kept} by {self.pruner}",
            f"overlap    {self.overlap.summary}",
        ]
        if self.refined is not None:
            lines.append(f"refined    {int(self.refined.aligned.sum())} of {self.count} kept matches")
        if self.cameras.source in ("exif", "found"):
            source = "from EXIF" if self.cameras.source == "exif" else "found from the matches"
            doubt = "" if self.overlap.found or self.cameras.source == "exif" else ", not to be trusted"
            several = "s" if " and " in self._focal_lengths else ""
            lines.append(f"camera     focal length{several} {self._focal_lengths} px, {source}{doubt}")
        if self.camera_doubt:
            lines.append(f"camera     doubtful: {self.camera_doubt}")
        lines += self._geometry_lines()
        if self.motions is not None:
            lines.append("motions    " + in_words(self.motions.to_dict()))
        times = ", ".join(f"{step} {taken:.0f} ms" for step, taken in self.milliseconds.items())
        return "\n".join([*lines, f"time       {times}"])

    def _geometry_lines(self) -> list[str]:
        lines: list[str] = []
        if self.model is None and self.count:
            lines.append(f"geometry   none: {self.model_summary}")
        elif self.model is not None and self.inliers is not None:
            lines.append(f"geometry   {MODEL_IN_WORDS[self.model]}: {int(self.inliers.sum())} inliers")
            lines.append(f"           {self.model_summary}")
            if self.model == "homography" and self.homography is not None:
                lines.append(_matrix_in_words("H", self.homography.H))
            elif self.model == "fundamental" and self.fundamental is not None:
                lines.append(_matrix_in_words("F", self.fundamental.F))
        if self.pose is not None:
            used = f"{self.pose_threshold:g} px, {IN_WORDS[self.match_selection]}"
            lines.append(f"pose       {self.estimator}, {used}: {self._inliers} inliers")
            if not self.overlap.found:
                lines.append("           not to be trusted: the photos do not seem to show the same scene")
            if self.rotation_only:
                lines.append("           only the rotation can be trusted: the camera hardly moved")
            for name, value in (("R", self.pose.R), ("t", self.pose.t)):
                lines.append(_matrix_in_words(name, value, suppress_small=True))
        elif not self.count:
            advice = "check the camera" if self.camera_doubt else "another pruner may keep more"
            lines.append(f"pose       none: nothing was kept; {advice}")
        elif self.cameras.source is None:
            missing = f"the focal length{self._unknown_focal} is not known"
            advice = "give it (auto finds it from the matches) or the camera matrices"
            lines.append(f"pose       not estimated: {missing}, {advice}")
        else:
            lines.append("pose       none found" if self.model is None else f"pose       none: {self._only_model}")
        return lines

    def to_dict(self, *, matches: bool = False) -> dict[str, Any]:
        """Plain numbers, lists and strings, for JSON.

        Args:
            matches: whether to include arrays with an entry for every match.
        """
        photos = zip(self.names, (self.features0, self.features1), strict=True)
        pose: dict[str, Any] | None = None
        if self.pose is not None:
            E = essential_from_pose(torch.as_tensor(self.pose.R), torch.as_tensor(self.pose.t))
            pose = {"R": self.pose.R.tolist(), "t": self.pose.t.tolist(), "E": E.tolist(), "inliers": self._inliers}
            pose |= {"parallax_degrees": self.parallax}
            pose |= {
                name: getattr(self, name)
                for name in ("rotation_only", "estimator", "pose_threshold", "match_selection")
            }
        result: dict[str, Any] = {
            "photos": [
                {"name": name, "width": found.image_size[0], "height": found.image_size[1], "keypoints": len(found)}
                for name, found in photos
            ],
            **{name: getattr(self, name) for name in ("detector", "pruner", "threshold")},
            "matches": len(self.matches),
            "kept": self.count,
            "refined": None if self.refined is None else int(self.refined.aligned.sum()),
            "overlap": self.overlap.to_dict(),
            "cameras": {**self.cameras.to_dict(), "doubt": self.camera_doubt},
            "pose": pose,
            "pose_summary": self.pose_summary,
            "model": self.model,
            "model_inliers": 0 if self.inliers is None else int(self.inliers.sum()),
            "model_summary": self.model_summary,
            "criterion": {name: round(value, 1) for name, value in self.criterion.items()},
            "fundamental": None if self.epipolar_matrix is None else self.epipolar_matrix.tolist(),
            "homography": None if self.homography is None else self.homography.H.tolist(),
            "motions": None if self.motions is None else self.motions.to_dict(),
            "milliseconds": {step: round(taken, 1) for step, taken in self.milliseconds.items()},
        }
        if matches:
            arrays = self._arrays()
            arrays["motion_labels"] = arrays.pop("motions", None)
            for name in (*PER_MATCH, "mask", "motion_labels"):
                values, digits = arrays.get(name), SCORE_DIGITS if name in ("ratio", "scores") else PIXEL_DIGITS
                if values is not None and values.dtype.kind == "f":
                    values = values.astype(np.float64).round(digits)
                result[name] = None if values is None else values.tolist()
        return result

    def _arrays(self) -> dict[str, Any]:
        """Everything there is of the matches, by the names of an .npz file."""
        arrays = {
            name: _numpy(values)
            for name in (*PER_MATCH, "K0", "K1", "image_size0", "image_size1")
            if (values := getattr(self.matches, name)) is not None
        }
        arrays |= {name: _numpy(getattr(self.kept, name)) for name in ("mask", "scores", "logits")}
        arrays["overlap"] = np.array(self.overlap.found)
        if self.refined is not None:
            # How alike the photos are around both points of a kept match, NaN for the others.
            arrays["correlation"] = np.full(len(self.matches), np.nan, np.float32)
            arrays["correlation"][arrays["mask"]] = _numpy(self.refined.correlation)
        if self.pose is not None:
            arrays |= {"R": _numpy(self.pose.R), "t": _numpy(self.pose.t)}
        if self.model is not None and self.inliers is not None:
            arrays |= {"model": np.array(self.model), "inliers": _numpy(self.inliers)}
        if self.epipolar_matrix is not None:
            arrays["F"] = self.epipolar_matrix
        if self.homography is not None:
            arrays["H"] = _numpy(self.homography.H)
        if self.motions is not None:
            arrays["motions"] = _numpy(self.motions.labels)
        return arrays

    def save(self, path: str | Path) -> None:
        """Write the matches and the pruner's result: .npz with everything, or .csv with a row per match."""
        suffix = Path(path).suffix.lower()
        if suffix not in MATCH_FILES:
            raise InputError(f"path: expected a file that ends in {' or '.join(MATCH_FILES)}, got {str(path)!r}")
        arrays = self._arrays()
        if suffix == ".npz":
            save_arrays(path, arrays)
            return
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            # A trained matcher gives neither ratio nor mutual flag.
            unknown = np.full(len(self.matches), np.nan)
            names = ("points0", "points1", "mask", "scores", "ratio", "mutual", "indices")
            table = np.column_stack([arrays.get(name, unknown).astype(np.float64) for name in names])
            # Nine digits restore a float32.
            formats = ["%.9g"] * 4 + ["%d", "%.9g", "%.9g", "%.9g", "%d", "%d"]
            np.savetxt(file, table, fmt=formats, delimiter=",", header=",".join(COLUMNS), comments="")

    def draw(
        self, path: str | Path | None = None, *, show_removed: bool = False, images: tuple[Any, Any] | None = None
    ) -> np.ndarray:
        """Draw all kept matches between the two photos; if motions were asked for, each in its colour.

        The caption says so if the photos do not seem to show the same scene.

        Args:
            path: picture file to write.
            show_removed: draw removed matches too, beneath the kept ones.
            images: the photos, if the matches were made from `Features`.

        Returns:
            [H x W x 3] uint8 BGR.
        """
        self._check_picture(path)
        shown = (*self._shown_panels(images), *self.matches.numpy_points())
        detector = self.detector.partition("@")[0].upper()
        verdict = "" if self.overlap.found else "NO OVERLAP; "
        caption = f"{verdict}{self.pruner}: kept {self.count} of {len(self.matches)} {detector} matches"
        if self.motions is not None:
            labels = _numpy(self.motions.labels)
            picture = draw_motions(*shown, labels, f"{caption}, motions: {len(self.motions)}")
        else:
            inliers = self.inliers if self.pose is None else self.pose.inliers
            agree = None if inliers is None else _numpy(inliers)
            picture = draw_matches(*shown, _numpy(self.kept.mask), caption, inliers=agree, show_removed=show_removed)
        if path is not None:
            save_picture(path, picture)
        return picture

    def draw_epipolar_lines(
        self, path: str | Path | None = None, *, count: int = 12, images: tuple[Any, Any] | None = None
    ) -> np.ndarray:
        """Draw a few inliers in both photos, and the line on which each must lie by its point in the other photo.

        Args:
            path: picture file to write.
            count: how many matches at most; they are spread over the photo.
            images: the photos, if the matches were made from `Features`.

        Returns:
            [H x W x 3] uint8 BGR.
        """
        self._check_picture(path)
        check_whole_number("count", count, 1)
        F = self.epipolar_matrix
        if F is None:
            raise InputError(f"model: epipolar lines need epipolar geometry, got none. {self.model_summary}")
        inliers = self.pose.inliers if self.pose is not None else self.fundamental.inliers if self.fundamental else None
        assert inliers is not None
        chosen = np.flatnonzero(_numpy(inliers))
        points0, points1 = self.matches.numpy_points()
        caption = f"epipolar lines of {min(count, len(chosen))} of {len(chosen)} matches that agree"
        panels = self._shown_panels(images)
        picture = draw_epipolar_lines(*panels, points0[chosen], points1[chosen], F, caption, count=count)
        if path is not None:
            save_picture(path, picture)
        return picture

    def warp(self, path: str | Path | None = None, *, images: tuple[Any, Any] | None = None) -> np.ndarray:
        """The first photo warped onto the second by the homography: of the second's size, black where nothing is.

        Args:
            path: picture file to write.
            images: the photos; needed if they were not given as files.

        Returns:
            [H x W x 3] uint8 BGR.
        """
        self._check_picture(path)
        if self.homography is None:
            raise InputError(f"model: a warped photo needs a homography, got none. {self.model_summary}")
        if images is None and not all(is_file(Path(name)) for name in self.names):
            raise InputError("images: expected both photos, since they were not given as files, got none")
        first = as_photo(self.names[0] if images is None else images[0], longest_side=None).pixels
        width, height = (round(side) for side in self.features1.image_size)
        H, inliers = _numpy(self.homography.H), _numpy(self.homography.inliers)
        first = without_far_side(first, H, self.matches.numpy_points()[0][inliers])
        picture = cv2.warpPerspective(first, H, (width, height), flags=cv2.INTER_LINEAR)
        picture = picture if picture.ndim == 3 else cv2.cvtColor(picture, cv2.COLOR_GRAY2BGR)
        if path is not None:
            save_picture(path, picture)
        return picture

    def _check_picture(self, path: str | Path | None) -> None:
        """Raise if a picture cannot be written there, or would replace one of the photos."""
        if path is not None:
            check_picture(path, *filter(is_file, map(Path, self.names)))

    def _shown_panels(self, images: tuple[Any, Any] | None) -> tuple[Panel, Panel]:
        first, second = self.panels if images is None else (make_panel(as_photo(image).pixels) for image in images)
        if first is None or second is None:
            raise InputError("images: expected both photos, since the matches were made from Features, got none")
        return first, second


def _matrix_in_words(name: str, values: Any, **options: Any) -> str:
    return f"  {name}  {np.array2string(_numpy(values), precision=5, prefix='  R  ', **options)}"


def _numpy(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
