"""Photos with cameras, labelled pairs, tables of pairs and batches: what all data sources provide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet._util.defaults import INLIER_DISTANCE
from ananet.core import geometry
from ananet.core.cameras import camera_matrices, camera_parameters, rotate_axes
from ananet.core.correspondences import Correspondences
from ananet.core.metrics import PoseError, corner_error
from ananet.errors import InputError
from ananet.estimators.base import Pose

# Without a baseline there is no epipolar geometry to label matches by, as in OANet.
MIN_BASELINE = 1e-5
# A pair is hard if its photos have this share of their view in common, and of the mutual matches with a ratio below the
# limit fewer than so many, or a smaller share, are right.
HARD_MIN_SHARE = 0.2
HARD_RATIO = 0.85
HARD_MAX_RIGHT, HARD_MAX_RIGHT_SHARE = 12, 0.3
# Matches of a plane are right if the homography maps the first point to within so many pixels of the second.
PLANE_PIXELS = 3.0
# Groups of pairs by share of common view: lower end, and upper end, which does not belong to it.
SHARE_GROUPS = {"10 to 30 %": (0.1, 0.3), "30 to 60 %": (0.3, 0.6), "above 60 %": (0.6, math.inf)}


@dataclass(frozen=True, eq=False)
class PosedImage:
    """A photo with known camera. As in OpenCV, the centre of the first pixel is (0, 0)."""

    path: Path
    K: np.ndarray
    """[3 x 3] camera matrix."""
    R: np.ndarray
    """[3 x 3] world-to-camera rotation."""
    t: np.ndarray
    """[3] world-to-camera translation."""
    distortion: tuple[str, tuple[float, ...]] | None = None
    """COLMAP camera model and its distortion coefficients; None for a pinhole."""
    size: tuple[int, int] | None = None
    """(width, height) that the camera was calibrated for, if known."""


@dataclass(frozen=True, eq=False)
class PosedPair:
    """Two photos with known cameras; poses are relative to any common frame."""

    image0: PosedImage
    image1: PosedImage
    name: str = ""
    rotations: tuple[int, int] = (0, 0)
    """Quarter turns counter-clockwise that bring the photos upright. Cameras and poses are those of the stored photos;
    `relative_pose` and `photo_features` apply the turns."""

    def relative_pose(self) -> tuple[Tensor, Tensor]:
        """R [3 x 3] and t [3] from the first camera to the second, with the photos upright; t has any length."""
        poses = [
            torch.from_numpy(np.asarray(array, np.float64))
            for image, turns in zip((self.image0, self.image1), self.rotations, strict=True)
            for array in (rotate_axes(turns) @ image.R, rotate_axes(turns) @ image.t)
        ]
        return geometry.relative_pose(*poses)

    @property
    def has_baseline(self) -> bool:
        """Whether there is an epipolar geometry to label matches by."""
        return bool(self.relative_pose()[1].norm() > MIN_BASELINE)


@dataclass(frozen=True, eq=False)
class PosedScene:
    """Photos of one scene, and which pairs of them are used."""

    name: str
    images: dict[str, PosedImage]
    """By name."""
    pairs: list[PosedPair] | None = None
    """The pairs of a protocol; None if any two photos may be paired."""
    missing: tuple[str, ...] = ()
    """Names of images of the model that have no photo."""

    def all_pairs(self) -> list[PosedPair]:
        """The prescribed pairs, or any two photos."""
        if self.pairs is not None:
            return self.pairs
        names = itertools.combinations(sorted(self.images), 2)
        return [PosedPair(self.images[a], self.images[b], f"{a}-{b}") for a, b in names]


@dataclass(frozen=True, eq=False)
class HomographyPair:
    """Two photos of a plane, or from one place, with the homography between them."""

    path0: Path
    path1: Path
    H: np.ndarray
    """[3 x 3], from pixels of the first photo, as it is stored, to those of the second."""
    name: str = ""
    scene: str = ""


@dataclass(frozen=True, eq=False)
class LabelledPair:
    """Putative matches of one image pair with their labels."""

    name: str
    matches: Correspondences
    inlier: Tensor
    """[N] bool: which matches are right."""
    distance: Tensor | None = None
    """[N] squared symmetric epipolar distance, calibrated; None if there is no single geometry."""
    R: Tensor | None = None
    """[3 x 3] true rotation from the first camera to the second."""
    t: Tensor | None = None
    """[3] true direction of translation, of length 1."""
    scene: str = ""
    paths: tuple[Path, Path] | None = None
    """The two photos, if any."""
    known: Tensor | None = None
    """[N] bool: where the depth of the scene tells whether a match is right; None if no depth is known."""
    right: Tensor | None = None
    """[N] bool: known matches that lie where the depth predicts. Other known ones are wrong, even on the line."""
    share: float | None = None
    """Share of the view that both photos have in common, 0 to 1; 0 if they show different places, None if unknown."""
    hard: bool = False
    """What `is_hard` said of all matches of the pair; it stays when some are left out."""
    H: Tensor | None = None
    """[3 x 3] true homography from the first photo to the second, in pixels of the matches."""
    cameras: tuple[Tensor, Tensor] | None = None
    """True camera matrices, where the matches hide them."""

    @classmethod
    def from_pose(
        cls, name: str, matches: Correspondences, R: Tensor, t: Tensor, scene: str = "", **more: Any
    ) -> LabelledPair:
        """Label calibrated matches by their distance to the true epipolar geometry; `more` are other fields."""
        R, t = R.double(), t.double()
        t = t / t.norm()
        rays = matches._as_tensors().normalized().double()
        distance = geometry.symmetric_epipolar_distance_squared(
            rays[:, :2], rays[:, 2:], geometry.essential_from_pose(R, t)
        ).to(torch.float32)
        pair = cls(name, matches, distance < INLIER_DISTANCE, distance, R, t, scene, **more)
        return replace(pair, hard=True) if is_hard(pair) else pair

    @classmethod
    def from_homography(
        cls,
        name: str,
        matches: Correspondences,
        H: Tensor,
        scene: str = "",
        *,
        pixels: float = PLANE_PIXELS,
        **more: Any,
    ) -> LabelledPair:
        """Call those matches right whose first point H maps to within some pixels of the second; `more` are fields."""
        points = matches._as_tensors()
        mapped = geometry.map_points(points.points0.double(), H.double())
        distance = (mapped - points.points1.double()).norm(dim=1)
        # Points on the horizon have no place, and are near nothing.
        return cls(name, matches, distance <= pixels, scene=scene, H=H.double(), **more)

    @property
    def is_empty(self) -> bool:
        """Whether the photos have nothing in common: all matches are wrong, and there is no pose to find."""
        return self.share == 0

    def truth(self) -> tuple[Tensor, Tensor] | None:
        """[N] bool each: matches known to be right or wrong, and the right ones; None if no depth is known.

        Matches that are not near the line are wrong, whatever depth is known. If hardly any of those near the line are
        known, the others would be all that counts, so that nothing is said.
        """
        if self.known is None or self.right is None or not bool(enough_known(self.known, self.inlier)):
            return None
        return self.known | ~self.inlier, self.right & self.inlier

    def pose_error(self, pose: Pose | None) -> PoseError:
        """Return the error of an estimated pose."""
        assert self.R is not None and self.t is not None
        if pose is None:
            return PoseError.of_failure()
        return PoseError(
            geometry.rotation_error(torch.as_tensor(pose.R).cpu(), self.R.double()).item(),
            geometry.translation_error(torch.as_tensor(pose.t).cpu(), self.t.double()).item(),
        )

    def corner_error(self, H: np.ndarray | Tensor | None) -> float:
        """Return the mean corner error of an estimated homography in pixels, infinite if there is none."""
        assert self.H is not None and self.matches.image_size0 is not None
        return math.inf if H is None else corner_error(np.asarray(H), self.H.numpy(), self.matches.image_size0)


def is_hard(pair: LabelledPair) -> bool:
    """Whether the ratio test finds few right matches although the photos have much of their view in common.

    That is a share of at least 0.2, and of the mutual matches with a ratio below 0.85 fewer than 12 are right, or fewer
    than 30 %. Those near the line with unknown depth count as right here: most are, and a pair should not be hard only
    because little depth is known. False if share, ratios or mutual flags are unknown.
    """
    truth, matches = pair.truth(), pair.matches._as_tensors()
    if pair.share is None or truth is None or matches.ratio is None or matches.mutual is None:
        return False
    known, right = truth
    tested = matches.mutual & (matches.ratio < HARD_RATIO)
    count = int((tested & (right | ~known)).sum())
    few = count < HARD_MAX_RIGHT or count < HARD_MAX_RIGHT_SHARE * int(tested.sum())
    return pair.share >= HARD_MIN_SHARE and few


@dataclass(frozen=True, eq=False)
class Batch:
    """B problems of N matches each, all on one device. Padded matches are zeros, and False in every mask."""

    matches: Tensor
    """[B x N x 4] normalised points (x0, y0, x1, y1)."""
    inlier: Tensor
    """[B x N] bool: which matches are right: `target` above one half."""
    target: Tensor
    """[B x N] probability that a match is right: 0 or 1 where the label is known."""
    weight: Tensor
    """[B x N] of a match in the loss; 0 for padding, and where the label is unknown."""
    distance: Tensor
    """[B x N] squared symmetric epipolar distance, calibrated."""
    ratio: Tensor
    """[B x N] in [0, 1]."""
    mutual: Tensor
    """[B x N] bool."""
    sizes: Tensor
    """[B x N x 2] keypoint sizes, normalised as the points are; NaN if unknown."""
    angles: Tensor
    """[B x N x 2] keypoint orientations in radians; NaN if unknown."""
    mask: Tensor
    """[B x N] bool: which matches exist."""
    R: Tensor
    """[B x 3 x 3] rotation from the first camera to the second."""
    t: Tensor
    """[B x 3] direction of translation, of length 1."""
    E: Tensor
    """[B x 3 x 3] the true geometry of `matches` as they are normalised, p1^T E p0 = 0: [t]x R where they are rays."""
    share: Tensor
    """[B] share of the view that both images have in common; NaN if unknown. At 0 no match is right."""


# Share of the matches near the line that depth must know; below, a pair counts as one without known depth.
MIN_KNOWN = 0.1


def enough_known(known: Tensor, near_line: Tensor) -> Tensor:
    """[...] bool: whether depth knows enough of the matches near the line, [... x N] bool both."""
    return (known & near_line).sum(-1) >= MIN_KNOWN * near_line.sum(-1)


# Ratios are stored as whole numbers up to this.
RATIO_STEPS = 255


@dataclass(frozen=True, eq=False)
class PairTable:
    """Pairs of many scenes as flat tensors, on any device. M images, P pairs, T keypoints and S matches in all.

    Keypoints are stored once per image, a pair as indices into them: match k of a pair joins keypoint k of its first
    image to keypoint `index[k]` of its second. At 2000 keypoints an image takes 24 KB and a pair 6.3 KB. Epipolar
    distances are computed from points and pose.
    """

    points: Tensor
    """[T x 2] float32 keypoints of all images, in pixels, free of lens distortion."""
    sizes: Tensor
    """[T] float16 diameters of the keypoints in pixels; NaN where not known."""
    angles: Tensor
    """[T] float16 orientations in radians; NaN where not known."""
    image_start: Tensor
    """[M + 1] int64: where each image's keypoints start."""
    image_camera: Tensor
    """[M x 4] float32 fx, fy, cx, cy."""
    image_size: Tensor
    """[M x 2] float32 width, height."""
    pair_images: Tensor
    """[P x 2] int64: the two images of each pair."""
    pair_start: Tensor
    """[P + 1] int64: where each pair's matches start."""
    pair_rotation: Tensor
    """[P x 3 x 3] float32, from the first camera to the second."""
    pair_translation: Tensor
    """[P x 3] float32 of length 1."""
    index: Tensor
    """[S] int32: keypoint of the second image."""
    ratio: Tensor
    """[S] uint8: descriptor ratio in 255ths."""
    mutual: Tensor
    """[S] bool."""
    known: Tensor
    """[S] bool: where the depth of the scene tells whether a match is right."""
    right: Tensor
    """[S] bool: known matches that lie where the depth predicts."""
    pair_share: Tensor
    """[P] float32 share of the view that both images have in common, 0 to 1; NaN if unknown."""

    @property
    def images(self) -> int:
        return len(self.image_camera)

    @property
    def pairs(self) -> int:
        return len(self.pair_images)

    def to(self, device: str | torch.device) -> PairTable:
        return PairTable(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def matches(self, number: int) -> Correspondences:
        """Return the matches of one pair."""
        start, end = self.pair_start[number : number + 2].tolist()
        images, count = self.pair_images[number], end - start
        index = torch.stack([torch.arange(count), self.index[start:end].long()], dim=1)
        first, second = (self.image_start[images] + index).unbind(1)
        known = {
            f"{argument}{n}": values[keypoints].float()
            for argument, values in (("keypoint_sizes", self.sizes), ("angles", self.angles))
            # Values that one of the two images lacks are of no use.
            if values[first].isfinite().all() and values[second].isfinite().all()
            for n, keypoints in enumerate((first, second))
        }
        (K0, K1), (image_size0, image_size1) = camera_matrices(self.image_camera[images]), self.image_size[images]
        known |= {"K0": K0, "K1": K1, "image_size0": image_size0, "image_size1": image_size1, "indices": index}
        known |= {"ratio": self.ratio[start:end].float() / RATIO_STEPS, "mutual": self.mutual[start:end]}
        matches = Correspondences(self.points[first], self.points[second], **known)
        return matches.replace(given_as_numpy=True)

    def depth_labels(self, number: int) -> dict[str, Any]:
        """Return `known`, `right` and `share` of one pair, as of `LabelledPair`; nothing if no depth is known."""
        share = float(self.pair_share[number])
        if math.isnan(share):
            return {}
        start, end = self.pair_start[number : number + 2].tolist()
        return {"known": self.known[start:end], "right": self.right[start:end], "share": share}

    def check(self, where: str) -> None:
        """Raise if columns contradict each other, as in a damaged file."""
        check_starts("image_start", self.image_start, len(self.points), where)
        check_starts("pair_start", self.pair_start, len(self.index), where)
        check_counts({field.name: len(getattr(self, field.name)) for field in fields(self)}, where)
        keypoints, matches = self.image_start.diff(), self.pair_start.diff()
        if self.pairs and (self.pair_images.min() < 0 or self.pair_images.max() >= self.images):
            raise InputError(f"{where}: pairs refer to images that are not there")
        first, second = keypoints[self.pair_images].unbind(1)
        if (matches > first).any() or (self.index < 0).any() or (self.index >= second.repeat_interleave(matches)).any():
            raise InputError(f"{where}: matches refer to keypoints that are not there")
        for name in ("points", "image_camera", "image_size", "pair_rotation", "pair_translation"):
            if not getattr(self, name).isfinite().all():
                raise InputError(f"{where}: {name} holds NaN or infinity")
        for name, values in (("focal lengths", self.image_camera[:, :2]), ("image_size", self.image_size)):
            if (values <= 0).any():
                raise InputError(f"{where}: expected positive {name}, got {float(values.min()):g}")
        if not self.pair_translation.any(dim=1).all():
            raise InputError(f"{where}: expected translations of length 1, got 0")
        if ((self.pair_share < 0) | (self.pair_share > 1)).any():
            raise InputError(f"{where}: expected pair_share from 0 to 1, or NaN")
        if (self.right & ~self.known).any():
            raise InputError(f"{where}: matches are called right whose depth is not known")


def check_starts(name: str, start: Tensor, entries: int, where: str) -> None:
    """Raise unless `start` divides the entries: from 0 to their number, never decreasing."""
    # Not diff(), which may overflow.
    if len(start) == 0 or start[0] != 0 or start[-1] != entries or (start[1:] < start[:-1]).any():
        raise InputError(f"{where}: {name} does not fit the {entries} entries it divides")


def check_counts(counts: Mapping[str, int], where: str, packed: int = 1) -> None:
    """Raise unless the lengths of a table's columns fit each other; `packed` flags are stored as one."""
    images, pairs = counts["image_start"] - 1, counts["pair_start"] - 1
    expected = {
        "sizes": counts["points"], "angles": counts["points"], "image_camera": images, "image_size": images,
        "pair_images": pairs, "pair_rotation": pairs, "pair_translation": pairs, "pair_share": pairs,
        "ratio": counts["index"], **dict.fromkeys(("mutual", "known", "right"), -(-counts["index"] // packed) * packed),
    }  # fmt: skip
    for name, count in expected.items():
        # Pairs of before 0.3 have no labels by depth.
        if counts.get(name, count) != count:
            raise InputError(f"{where}: expected {count} entries of {name}, got {counts[name]}")


def join(tables: Sequence[PairTable]) -> PairTable:
    """Concatenate tables, with image numbers and starts shifted."""
    image_shift = np.cumsum([0, *(table.images for table in tables)]).tolist()

    def cat_starts(name: str) -> Tensor:
        shift, parts = 0, [torch.zeros(1, dtype=torch.int64)]
        for table in tables:
            parts.append(getattr(table, name)[1:] + shift)
            shift += int(getattr(table, name)[-1])
        return torch.cat(parts)

    columns = {f.name: torch.cat([getattr(table, f.name) for table in tables]) for f in fields(PairTable)}
    columns |= {name: cat_starts(name) for name in ("image_start", "pair_start")}
    shifted = [table.pair_images + shift for table, shift in zip(tables, image_shift, strict=False)]
    return PairTable(**columns | {"pair_images": torch.cat(shifted)})


def table_from_arrays(
    images: Sequence[dict[str, np.ndarray | None]], pairs: Sequence[dict[str, np.ndarray]]
) -> PairTable:
    """Concatenate images (`points sizes angles K image_size`) and pairs (`images R t index ratio mutual`).

    Where the depth of a scene is known, pairs also have `known`, `right` and `share`.
    """

    def starts(lengths: Iterable[int]) -> Tensor:
        return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64))

    def joined(rows: Sequence[Any], shape: tuple[int, ...], dtype: Any, join: Any) -> Tensor:
        return torch.from_numpy(
            np.ascontiguousarray(join(rows).astype(dtype)) if rows else np.zeros((0, *shape), dtype)
        )

    def per_keypoint(name: str) -> list[np.ndarray]:
        """Values of all keypoints; NaN for images without."""
        return [np.full(len(i["points"]), np.nan) if i[name] is None else i[name] for i in images]  # type: ignore[arg-type, misc]

    return PairTable(
        points=joined([image["points"] for image in images], (2,), np.float32, np.concatenate),
        sizes=joined(per_keypoint("sizes"), (), np.float16, np.concatenate),
        angles=joined(per_keypoint("angles"), (), np.float16, np.concatenate),
        image_start=starts(len(image["points"]) for image in images),  # type: ignore[arg-type]
        image_camera=joined([camera_parameters(image["K"]) for image in images], (4,), np.float32, np.stack),  # type: ignore[arg-type]
        image_size=joined([image["image_size"] for image in images], (2,), np.float32, np.stack),
        pair_images=joined([pair["images"] for pair in pairs], (2,), np.int64, np.stack),
        pair_start=starts(len(pair["index"]) for pair in pairs),
        pair_rotation=joined([pair["R"] for pair in pairs], (3, 3), np.float32, np.stack),
        pair_translation=joined([pair["t"] for pair in pairs], (3,), np.float32, np.stack),
        index=joined([pair["index"] for pair in pairs], (), np.int32, np.concatenate),
        ratio=joined([np.round(pair["ratio"] * RATIO_STEPS) for pair in pairs], (), np.uint8, np.concatenate),
        **{
            name: joined([pair.get(name, np.zeros(len(pair["index"]))) for pair in pairs], (), bool, np.concatenate)
            for name in ("mutual", "known", "right")
        },
        pair_share=joined([pair.get("share", np.nan) for pair in pairs], (), np.float32, np.stack),
    )


def table_of_pairs(pairs: Iterable[LabelledPair]) -> PairTable:
    """Make a table of calibrated pairs with poses, each with two images of its own."""
    images: list[dict[str, np.ndarray | None]] = []
    rows: list[dict[str, np.ndarray]] = []
    for pair in pairs:
        m = pair.matches._as_tensors()
        if m.K0 is None or m.K1 is None or pair.R is None or pair.t is None:
            raise InputError(f"pairs: expected cameras and a pose of every pair, {pair.name!r} lacks them")
        names = {"points": "points", "sizes": "keypoint_sizes", "angles": "angles", "K": "K"}
        for n in (0, 1):
            given = {name: getattr(m, f"{argument}{n}") for name, argument in names.items()}
            image: dict[str, Any] = {name: v if v is None else v.cpu().numpy() for name, v in given.items()}
            size = getattr(m, f"image_size{n}")
            # Without a size, the principal point is taken for the centre of the image.
            images.append(image | {"image_size": 2 * image["K"][:2, 2] + 1 if size is None else np.array(size)})
        row = {"images": np.array([len(images) - 2, len(images) - 1]), "index": np.arange(len(m))}
        row |= {"R": pair.R.cpu().numpy(), "t": pair.t.cpu().numpy()}
        # An unknown ratio counts as the worst.
        row["ratio"] = np.ones(len(m)) if m.ratio is None else m.ratio.cpu().numpy()
        flags = {"mutual": m.mutual, "known": pair.known, "right": pair.right}
        row |= {name: values.cpu().numpy() for name, values in flags.items() if values is not None}
        row["share"] = np.array(np.nan if pair.share is None else pair.share)
        rows.append(row)
    return table_from_arrays(images, rows)
