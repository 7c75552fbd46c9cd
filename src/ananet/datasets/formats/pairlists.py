"""Lists of image pairs with known pose, as evaluation protocols publish them.

- SuperGlue (ScanNet, YFCC): a line is `name0 name1 rot0 rot1 K0(9) K1(9) T_0to1(16)`, matrices row by row;
- glue-factory: the same without rotations, the pose as 16 numbers of a 4 x 4 matrix or as 12 of R, then t;
- MegaDepth-1500: `views.txt` (`name R(9) t(3) MODEL width height parameters`, COLMAP cameras) and `pairs.txt`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ananet.core.cameras import parse_camera
from ananet.datasets.base import PosedImage, PosedPair, PosedScene
from ananet.datasets.sources import PosedPhotos
from ananet.errors import InputError
from ananet.io.files import read_rows
from ananet.io.pairs import read_pairs


class PairList(PosedPhotos):
    """A SuperGlue or glue-factory list of pairs, with photos in its own folder or the `image_folder`."""

    name = "pair list"
    recognised_by = "a .txt file in SuperGlue's or glue-factory's format"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.is_file() and path.suffix == ".txt"

    def __init__(self, path: str | Path, image_folder: str | Path | None = None) -> None:
        super().__init__(Path(path))
        self.image_folder = self.path.parent if image_folder is None else Path(image_folder)

    def scenes(self) -> list[PosedScene]:
        return _by_scene(read_pair_list(self.path, self.image_folder), self.image_folder)


class ViewsAndPairs(PosedPhotos):
    """A folder laid out as MegaDepth-1500: `images/`, `views.txt`, `pairs.txt`."""

    name = "views and pairs"
    recognised_by = "a folder with views.txt and pairs.txt"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return (path / "views.txt").is_file()

    def scenes(self) -> list[PosedScene]:
        return _by_scene(read_megadepth(self.path), self.path / "images")


def _by_scene(pairs: list[PosedPair], image_folder: Path) -> list[PosedScene]:
    """Group pairs by scene, the folder of the first photo within the image folder, in order of appearance."""
    by_scene: dict[str, list[PosedPair]] = {}
    for pair in pairs:
        first = pair.image0.path.relative_to(image_folder)
        by_scene.setdefault(first.parts[0] if len(first.parts) > 1 else "", []).append(pair)
    # Without images by name, since a photo may be listed with several poses.
    return [PosedScene(scene, {}, listed) for scene, listed in by_scene.items()]


def read_pair_list(path: str | Path, image_folder: str | Path) -> list[PosedPair]:
    """Read the pairs of a SuperGlue or glue-factory list, recognised by the number of columns; not the photos."""
    return [_parse_pair(line.split(), Path(image_folder), where) for where, line in read_rows(path)]


def _parse_pair(fields: list[str], image_folder: Path, where: str) -> PosedPair:
    rotated = len(fields) == 38
    if len(fields) not in (32, 36, 38):
        raise InputError(f"{where}: expected 38 columns (SuperGlue), 36 or 32 (glue-factory), got {len(fields)}")
    rotations = _numbers(fields[2:4], where) if rotated else np.zeros(2)
    if not np.isin(rotations, range(4)).all():
        raise InputError(f"{where}: expected rotations of 0 to 3 quarter turns, got {fields[2:4]}")
    numbers = _numbers(fields[4 if rotated else 2 :], where)
    K0, K1, pose = numbers[:9].reshape(3, 3), numbers[9:18].reshape(3, 3), numbers[18:]
    if len(pose) == 16:
        R, t = pose.reshape(4, 4)[:3, :3], pose.reshape(4, 4)[:3, 3]
    else:
        R, t = pose[:9].reshape(3, 3), pose[9:]
    _check_rotation(R, where)
    return PosedPair(
        PosedImage(image_folder / fields[0], K0, np.eye(3), np.zeros(3)),
        PosedImage(image_folder / fields[1], K1, R, t),
        f"{fields[0]}-{fields[1]}",
        (int(rotations[0]), int(rotations[1])),
    )


def read_megadepth(folder: str | Path) -> list[PosedPair]:
    """Read the pairs of a folder laid out as MegaDepth-1500: `images/`, `views.txt`, `pairs.txt`."""
    folder = Path(folder)
    rows = ((where, line.split()) for where, line in read_rows(folder / "views.txt"))
    views = {fields[0]: _parse_view(fields, folder / "images", where) for where, fields in rows}
    pairs = []
    for where, names in read_pairs(folder / "pairs.txt", more_columns=True):
        if not set(names) <= set(views):
            raise InputError(f"{where}: expected two names of views.txt, got {' and '.join(names)}")
        pairs.append(PosedPair(views[names[0]], views[names[1]], f"{names[0]}-{names[1]}"))
    return pairs


def _parse_view(fields: list[str], image_folder: Path, where: str) -> PosedImage:
    if len(fields) < 16:
        raise InputError(f"{where}: expected name, R (9), t (3), model, width, height, parameters; got {fields}")
    pose = _numbers(fields[1:13], where)
    R, t = pose[:9].reshape(3, 3), pose[9:]
    _check_rotation(R, where)
    width, height, *parameters = _numbers(fields[14:], where)
    camera = parse_camera(fields[13], (int(width), int(height)), parameters, where)
    return PosedImage(image_folder / fields[0], camera.K, R, t, camera.distortion)


def _numbers(fields: list[str], where: str) -> np.ndarray:
    try:
        numbers = np.array(fields, np.float64)
    except ValueError:
        raise InputError(f"{where}: expected numbers, got {' '.join(fields)!r}") from None
    if not np.isfinite(numbers).all():
        raise InputError(f"{where}: expected finite numbers, got {' '.join(fields)!r}")
    return numbers


def _check_rotation(R: np.ndarray, where: str) -> None:
    if not np.allclose(R @ R.T, np.eye(3), atol=1e-3) or np.linalg.det(R) < 0:
        raise InputError(f"{where}: expected a rotation, got {R.tolist()}")
