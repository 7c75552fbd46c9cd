"""Photos with cameras and poses from COLMAP models, text and binary; COLMAP itself is not needed.

COLMAP puts the centre of the first pixel at (0.5, 0.5). Principal points are moved to OpenCV's (0, 0) on reading.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ananet.core.cameras import CAMERA_MODELS, MODEL_NAMES, Camera, calibrate, parse_camera, undistort_points
from ananet.datasets.base import PosedImage, PosedPair, PosedScene
from ananet.datasets.sources import SceneFolders
from ananet.errors import InputError
from ananet.io.files import read_lines, read_rows
from ananet.io.pairs import read_pairs
from ananet.networks.input import MAX_COORDINATE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ImageRow:
    """One row of a model's images."""

    name: str
    camera: int
    quaternion: np.ndarray
    """[4] world-to-camera rotation, real part first."""
    translation: np.ndarray
    """[3] world-to-camera."""


def read_posed_scene(folder: str | Path) -> PosedScene:
    """Read `images/`, `sparse/` or `sparse/0/`, and `pairs.txt` if there; pairs without photos are left out."""
    folder = Path(folder)
    if not (folder / "images").is_dir():
        raise InputError(f"folder: expected a folder of photos {folder / 'images'}, there is none")
    candidates = [folder / "sparse", folder / "sparse" / "0"]
    model = next((path for path in candidates if _suffix(path)), None)
    if model is None:
        raise InputError(f"folder: expected a COLMAP model in {candidates[0]} or {candidates[1]}, there is none")
    scene = read_colmap(model, folder / "images", Path(os.path.abspath(folder)).name)
    return with_listed_pairs(scene, folder / "pairs.txt") if (folder / "pairs.txt").exists() else scene


def with_listed_pairs(scene: PosedScene, path: Path) -> PosedScene:
    """The scene with the pairs of a list, two names of images per line; pairs without photos are left out."""
    listed = list(read_pairs(path))
    for where, names in listed:
        if not {*scene.images, *scene.missing}.issuperset(names):
            raise InputError(f"{where}: expected two names of images of the model, got {' and '.join(names)}")
    complete = [names for _, names in listed if scene.images.keys() >= set(names)]
    if len(complete) < len(listed):
        left_out = len(listed) - len(complete)
        logger.warning("%s: %d of %d pairs left out, their photos are missing", path, left_out, len(listed))
    return replace(scene, pairs=[PosedPair(scene.images[a], scene.images[b], f"{a}-{b}") for a, b in complete])


class PosedScenes(SceneFolders):
    """A scene laid out as `images/` beside `sparse/`, or a folder of such scenes."""

    name = "posed scenes"
    recognised_by = "images/ beside sparse/, a COLMAP model, in a folder or in the folders within"
    marker = "sparse"
    read = staticmethod(read_posed_scene)


def read_colmap(folder: str | Path, image_folder: str | Path | None = None, name: str | None = None) -> PosedScene:
    """Read the images of a COLMAP model (`cameras` and `images`, `.bin` or else `.txt`) with cameras and poses.

    Photos that are not in `image_folder` are left out, and logged; without a folder, paths are the bare names. Photos
    of lenses so wide that keypoints or matches will be left out are logged too.
    """
    folder = Path(folder)
    suffix = _suffix(folder)
    if suffix is None:
        raise InputError(f"folder: expected a COLMAP model (cameras and images, .bin or .txt), {folder} holds none")
    read_cameras, read_images = (_binary_cameras, _binary_images) if suffix == ".bin" else (_text_cameras, _text_images)
    cameras, rows = dict(read_cameras(folder / f"cameras{suffix}")), list(read_images(folder / f"images{suffix}"))
    if not rows:
        raise InputError(f"folder: expected a model with images, {folder} has none")
    images: dict[str, PosedImage] = {}
    missing = []
    wide = {number for number, camera in cameras.items() if not _is_in_view(camera)}
    for row in rows:
        if row.camera not in cameras:
            raise InputError(f"folder: image {row.name} of {folder} refers to camera {row.camera}, which is not there")
        if row.name in images:
            raise InputError(f"folder: {folder} names image {row.name} twice")
        camera = cameras[row.camera]
        path = Path(row.name) if image_folder is None else Path(image_folder) / row.name
        if image_folder is not None and not path.is_file():
            missing.append(row.name)
            continue
        R = _rotation(row.quaternion, f"{folder}, image {row.name}")
        images[row.name] = PosedImage(path, camera.K, R, row.translation, camera.distortion, camera.size)
    if missing:
        logger.warning("%s: %d of %d photos are not in %s: %s", folder, len(missing), len(rows), image_folder, missing)
    if number := sum(row.camera in wide and row.name in images for row in rows):
        lost = "keypoints 90 degrees or more beside the axis are left out, networks take matches beyond 63 for wrong"
        logger.warning("%s: %d of %d photos have a very wide lens: %s", folder, number, len(images), lost)
    if not images:
        raise InputError(f"image_folder: expected the photos of {folder}, {image_folder} has none of its {len(rows)}")
    return PosedScene(folder.resolve().name if name is None else name, images, missing=tuple(missing))


def _is_in_view(camera: Camera) -> bool:
    """Whether the whole photo has an undistorted place where networks look."""
    sides = np.array([(x, y) for x in (0, 0.5, 1) for y in (0, 0.5, 1)])
    border = sides * (np.array(camera.size) - 1)
    rays = calibrate(undistort_points(border, camera.K, camera.distortion), camera.K)
    return bool((np.abs(rays) <= MAX_COORDINATE).all())  # not true of NaN


def _rotation(quaternion: np.ndarray, where: str) -> np.ndarray:
    """[4] quaternion, real part first, to the [3 x 3] rotation."""
    norm = np.linalg.norm(quaternion)
    if not 1e-6 < norm < math.inf:
        raise InputError(f"{where}: expected a rotation quaternion, got {quaternion.tolist()}")
    w, x, y, z = quaternion / norm
    row0 = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    row1 = [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    row2 = [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return np.array([row0, row1, row2])


def _suffix(folder: Path) -> str | None:
    """Return the format of the model in a folder, binary first as in COLMAP; None without a model."""
    complete = (s for s in (".bin", ".txt") if all((folder / f"{part}{s}").is_file() for part in ("cameras", "images")))
    return next(complete, None)


def _text_cameras(path: Path) -> Iterator[tuple[int, Camera]]:
    for where, line in read_rows(path):
        fields = line.split()
        try:
            identity, model_name, size = int(fields[0]), fields[1], (int(fields[2]), int(fields[3]))
            parameters = [float(field) for field in fields[4:]]
        except (ValueError, IndexError):
            raise InputError(f"{where}: expected CAMERA_ID MODEL WIDTH HEIGHT PARAMETERS, got {line!r}") from None
        yield identity, parse_camera(model_name, size, parameters, where)


def _text_images(path: Path) -> Iterator[ImageRow]:
    lines = iter(enumerate(read_lines(path), start=1))
    for number, line in lines:
        if not line or line.startswith("#"):
            continue
        # The name is the rest of the line: it may hold spaces.
        fields = line.split(maxsplit=9)
        try:
            pose, camera, name = [float(field) for field in fields[1:8]], int(fields[8]), fields[9]
        except (ValueError, IndexError):
            expected = "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME"
            raise InputError(f"{path}, line {number}: expected {expected}, got {line!r}") from None
        yield _image_row(name, camera, pose, f"{path}, line {number}")
        number, points = next(lines, (number + 1, ""))
        if len(points.split()) % 3:
            expected = f"the points of image {name} (X Y POINT3D_ID each, or an empty line)"
            raise InputError(f"{path}, line {number}: expected {expected}, got {points[:80]!r}")


def _image_row(name: str, camera: int, pose: list[float], where: str) -> ImageRow:
    if not all(map(math.isfinite, pose)):
        raise InputError(f"{where}: expected a finite pose, got {pose}")
    return ImageRow(name, camera, np.array(pose[:4]), np.array(pose[4:]))


class _BinaryReader:
    """Little-endian values one after another."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.position = path, path.read_bytes(), 0

    def take(self, layout: str) -> tuple[float, ...]:
        start = self.position
        self.skip(struct.calcsize("<" + layout))
        return struct.unpack_from("<" + layout, self.data, start)

    def text(self) -> str:
        """Up to the next zero byte."""
        start, end = self.position, self.data.find(b"\0", self.position)
        self.skip(end + 1 - start if end >= 0 else len(self.data) + 1)
        return self.data[start:end].decode("utf-8", errors="surrogateescape")

    def skip(self, size: int) -> None:
        if self.position + size > len(self.data):
            raise InputError(f"{self.path}: expected more data after byte {self.position}, the file is cut short")
        self.position += size


def _binary_cameras(path: Path) -> Iterator[tuple[int, Camera]]:
    reader = _BinaryReader(path)
    for _ in range(int(reader.take("Q")[0])):
        identity, number, width, height = map(int, reader.take("iiQQ"))
        where = f"{path}, camera {identity}"
        model_name = MODEL_NAMES.get(number, f"number {number}")
        model = CAMERA_MODELS.get(model_name)
        parameters = () if model is None else reader.take("d" * model.parameters)
        yield identity, parse_camera(model_name, (width, height), parameters, where)


def _binary_images(path: Path) -> Iterator[ImageRow]:
    reader = _BinaryReader(path)
    for _ in range(int(reader.take("Q")[0])):
        identity, *pose, camera = reader.take("i7di")
        name = reader.text()
        yield _image_row(name, int(camera), pose, f"{path}, image {identity}")
        reader.skip(24 * int(reader.take("Q")[0]))
