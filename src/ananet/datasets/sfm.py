"""Posed scenes from photos without poses, by structure from motion with pycolmap (an extra)."""

from __future__ import annotations

import logging
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from ananet._util.defaults import COLMAP_MIN_MATCHES
from ananet.errors import InputError
from ananet.features import nearest_neighbours
from ananet.integrations.colmap.mapping import (
    MIN_PHOTOS,
    PHOTOS_AT_ONCE,
    check_features,
    chunks,
    find_photos,
    map_photos,
)
from ananet.integrations.colmap.verification import import_pycolmap, quiet
from ananet.io.images import read_image, reduce

logger = logging.getLogger(__name__)

# With more photos, each is matched only with its most similar ones.
MAX_PHOTOS_FOR_ALL_PAIRS = 120
CANDIDATES = 25
# Pairs per call of COLMAP; the progress bar moves between calls.
PAIRS_AT_ONCE = 16


@dataclass(frozen=True)
class Reconstruction:
    """The result of structure from motion on a folder of photos."""

    folder: Path
    """`images/` and `sparse/`, as `read_posed_scene` takes it."""
    photos: int
    registered: tuple[str, ...]
    """Names in `images/` of the photos with a pose, with underscores for spaces."""
    left_out: tuple[str, ...]
    """Names of the photos that could not be read or got no pose."""
    points: int
    """Number of 3D points in the model."""
    reprojection_error: float
    """Mean in pixels; above 1.5 is suspicious."""

    @property
    def summary(self) -> str:
        return (
            f"{len(self.registered)} of {self.photos} photos registered, {self.points} points, "
            f"reprojection error {self.reprojection_error:.2f} px"
        )


def reconstruct(
    photos: str | Path, out: str | Path, *, longest_side: int = 1600, max_keypoints: int = 4096, progress: bool = True
) -> Reconstruction:
    """Find cameras and poses of a folder of photos and write a scene: `out/images`, `out/sparse` (text).

    Photos are turned upright, scaled down to `longest_side` and undistorted. Of several separate models the largest is
    used. `out` appears complete or not at all.

    Args:
        photos: folder with at least three photos, subfolders included.
        out: folder to be created; it must be empty if it exists.
        longest_side, max_keypoints: lower values are faster, higher values register more photos.
        progress: show progress bars.

    Raises `InputError` with the probable reason if reconstruction fails.
    """
    pycolmap = import_pycolmap()
    photos, out = Path(photos), Path(out)
    found = _find_photos(photos)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"out: expected a folder that does not exist or is empty, got {out}")
    if not out.parent.is_dir():
        raise InputError(f"out: the folder {out.parent} does not exist")
    # Beside `out`, so that the finished scene can be renamed to it.
    beside = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-", ignore_cleanup_errors=True)
    with beside as work, quiet(pycolmap):
        run = _Run(pycolmap, Path(work), max_keypoints, progress)
        run.prepare(found, longest_side)
        run.extract()
        run.match()
        model = run.map()
        scene = run.undistort(model)
        if out.exists():
            out.rmdir()
        scene.rename(out)
    registered = sorted(image.name for image in model.images.values() if image.has_pose)
    return Reconstruction(
        out,
        len(found),
        tuple(registered),
        tuple(sorted(set(found) - set(registered))),
        model.num_points3D(),
        float(model.compute_mean_reprojection_error()),
    )


class _Run:
    """The steps from photos to a scene, through files in a working folder."""

    def __init__(self, pycolmap: Any, work: Path, max_keypoints: int, progress: bool) -> None:
        self.pycolmap, self.max_keypoints, self.progress = pycolmap, max_keypoints, progress
        self.images, self.database = work / "photos", work / "database.db"
        self.models, self.scene, self.pair_list = work / "models", work / "scene", work / "pairs.txt"
        self.cameras: dict[tuple[int, int, float | None], list[str]] = defaultdict(list)
        """Photos by camera: (width, height, focal length)."""

    @property
    def names(self) -> list[str]:
        return [name for names in self.cameras.values() for name in names]

    def bar(self, total: int, label: str) -> Any:
        return tqdm(total=total, desc=label, disable=not self.progress)

    def prepare(self, photos: dict[str, Path], longest_side: int) -> None:
        """Make upright, scaled copies, since COLMAP ignores the EXIF orientation."""
        for name, path in tqdm(photos.items(), desc="photos", disable=not self.progress):
            try:
                image = read_image(path)
            except InputError as error:
                logger.warning("left out: %s", error)
                continue
            scale = min(1.0, longest_side / max(image.shape[:2]))
            image = reduce(image, longest_side)
            target = self.images / name
            target.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(target), image, [cv2.IMWRITE_JPEG_QUALITY, 95])
            guess = self.pycolmap.infer_camera_from_image(path)
            focal = round(guess.mean_focal_length() * scale, 1) if guess.has_prior_focal_length else None
            self.cameras[image.shape[1], image.shape[0], focal].append(name)
        if len(self.names) < MIN_PHOTOS:
            raise InputError(f"photos: expected at least {MIN_PHOTOS} photos that can be read, got {len(self.names)}")

    def extract(self) -> None:
        """Extract SIFT features, with one camera per group of photos."""
        pycolmap = self.pycolmap
        options = pycolmap.FeatureExtractionOptions()
        options.sift.max_num_features = self.max_keypoints
        pycolmap.Database.open(self.database).close()
        with self.bar(len(self.names), "features") as bar:
            for (width, height, focal), names in self.cameras.items():
                reader = pycolmap.ImageReaderOptions(camera_model="SIMPLE_RADIAL")
                if focal is not None:
                    reader.camera_params = f"{focal},{width / 2},{height / 2},0"
                for some in chunks(names, PHOTOS_AT_ONCE):
                    how = (pycolmap.CameraMode.SINGLE, reader, options, pycolmap.Device.cpu)
                    pycolmap.extract_features(self.database, self.images, some, *how)
                    with pycolmap.Database.open(self.database) as database:
                        reader.existing_camera_id = database.read_image_with_name(some[0]).camera_id
                    bar.update(len(some))
        with pycolmap.Database.open(self.database) as database:
            images = database.read_all_images()
            counts = {image.name: database.num_keypoints_for_image(image.image_id) for image in images}
        check_features(self.names, counts)

    def match(self) -> None:
        """Match and verify pairs of photos."""
        pycolmap = self.pycolmap
        many = len(self.names) > MAX_PHOTOS_FOR_ALL_PAIRS
        pairs = self._promising_pairs() if many else list(combinations(self.names, 2))
        with self.bar(len(pairs), "pairs") as bar:
            for some in chunks(pairs, PAIRS_AT_ONCE):
                self.pair_list.write_text("".join(f"{first} {second}\n" for first, second in some), encoding="utf-8")
                pycolmap.match_image_pairs(
                    self.database,
                    pairing_options=pycolmap.ImportedPairingOptions(match_list_path=self.pair_list),
                    device=pycolmap.Device.cpu,
                )
                bar.update(len(some))
        with pycolmap.Database.open(self.database) as database:
            _, inliers = database.read_two_view_geometry_num_inliers()
        self.verified_pairs = sum(count >= COLMAP_MIN_MATCHES for count in inliers)
        if self.verified_pairs < MIN_PHOTOS - 1:
            raise InputError(
                f"photos: too few matched pairs: {self.verified_pairs} of {len(pairs)} pairs share "
                f"{COLMAP_MIN_MATCHES} consistent matches. The photos may not overlap, or not show the same place"
            )

    def _promising_pairs(self) -> list[tuple[str, str]]:
        """Return pairs with the best matches of their largest features.

        A few hundred large features, which survive changes of scale, show which photos overlap at little cost
        (preemptive matching; Wu, Towards linear-time incremental structure from motion, 2013).
        """
        largest = 256
        descriptors = {}
        with self.pycolmap.Database.open(self.database) as database:
            for image in database.read_all_images():
                keypoints = np.asarray(database.read_keypoints(image.image_id))
                values = np.asarray(database.read_descriptors(image.image_id).data, np.float32)
                # Columns 2 to 5 are the affine shape: its determinant is the squared scale.
                shape = keypoints[:, 2:6]
                area = shape[:, 0] * shape[:, 3] - shape[:, 1] * shape[:, 2]
                descriptors[image.name] = values[np.argsort(-area)[:largest]]
        names = sorted(descriptors)
        likeness = np.zeros((len(names), len(names)))
        for i, j in tqdm(
            combinations(range(len(names)), 2),
            desc="overlap",
            total=len(names) * (len(names) - 1) // 2,
            disable=not self.progress,
        ):
            found = nearest_neighbours(descriptors[names[i]], descriptors[names[j]])
            likeness[i, j] = likeness[j, i] = np.count_nonzero(found.mutual & (found.ratio < 0.85))
        best = np.argsort(-likeness, axis=1)[:, :CANDIDATES]
        chosen = {(min(i, int(j)), max(i, int(j))) for i in range(len(names)) for j in best[i] if likeness[i, j] > 0}
        return [(names[i], names[j]) for i, j in sorted(chosen)]

    def map(self) -> Any:
        """Return the largest model of incremental mapping."""
        how = (self.verified_pairs, "incremental", len(self.names), self.progress)
        return map_photos(self.pycolmap, self.database, self.images, self.models, *how)[0]

    def undistort(self, model: Any) -> Path:
        """Write the scene: undistorted photos, and the model as text."""
        chosen = self.models / "chosen"
        chosen.mkdir()
        model.write(chosen)
        undistorted = self.scene.with_name("undistorted")
        self.pycolmap.undistort_images(undistorted, chosen, self.images, jpeg_quality=95)
        (self.scene / "sparse").mkdir(parents=True)
        self.pycolmap.Reconstruction(undistorted / "sparse").write_text(self.scene / "sparse")
        (undistorted / "images").rename(self.scene / "images")
        return self.scene


def _find_photos(folder: Path) -> dict[str, Path]:
    """Photos by name. Spaces become underscores, since COLMAP's pair lists split there."""
    found = find_photos(folder)
    photos = {re.sub(r"\s", "_", name): path for name, path in found.items()}
    if len(photos) < len(found):
        raise InputError(f"photos: expected names that differ in more than spaces and underscores in {folder}")
    return photos
