"""Photos whose homographies are known: the Oxford affine set and HPatches.

Both have six photos of a scene and five text files of 3 x 3 numbers, which map pixels of photo 1 to those of photo k:

    Oxford      img1.ppm ... img6.ppm     H1to2p ... H1to6p     (also .pgm, .png, .jpg)
    HPatches    1.ppm ... 6.ppm           H_1_2 ... H_1_6

A pair is photo 1 with each of the others.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ananet.datasets.base import HomographyPair
from ananet.datasets.sources import HomographyPhotos
from ananet.errors import InputError
from ananet.io.files import read_rows

# Name of a file with a homography, and that of the photos beside it.
LAYOUTS = ((re.compile(r"H1to(\d+)p"), "img{}"), (re.compile(r"H_1_(\d+)"), "{}"))
SUFFIXES = (".ppm", ".pgm", ".png", ".jpg", ".jpeg")


class HomographyScenes(HomographyPhotos):
    """A scene of the Oxford affine set or of HPatches, or a folder of such scenes."""

    name = "photos with homographies"
    recognised_by = "img1 with H1to2p (Oxford) or 1.ppm with H_1_2 (HPatches), in a folder or in the folders within"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.is_dir() and bool(cls.find(path))

    @classmethod
    def find(cls, path: Path) -> list[Path]:
        """Return the folder itself if it is a scene, and the scenes in it, by name."""
        folders = (path, *sorted(folder for folder in path.iterdir() if folder.is_dir()))
        return [folder for folder in folders if homography_files(folder)]

    def pairs(self) -> list[HomographyPair]:
        return [pair for folder in self.find(self.path) for pair in read_scene(folder)]


def homography_files(folder: Path) -> list[tuple[int, Path, str]]:
    """Number of the second photo, file of the homography and pattern of the photos' names, by number."""
    found = [
        (int(match[1]), file, photos)
        for file in folder.iterdir()
        for name, photos in LAYOUTS
        if (match := name.fullmatch(file.name))
    ]
    return sorted(found, key=lambda each: each[0])


def read_scene(folder: str | Path) -> list[HomographyPair]:
    """Read the pairs of a folder: the first photo with each that has a homography; not the photos."""
    folder = Path(folder)
    scene = folder.resolve().name
    return [
        HomographyPair(
            _photo(folder, photos.format(1)),
            _photo(folder, photos.format(number)),
            read_homography(file),
            f"{scene}/1-{number}",
            scene,
        )
        for number, file, photos in homography_files(folder)
    ]


def _photo(folder: Path, stem: str) -> Path:
    for suffix in SUFFIXES:
        if (path := folder / f"{stem}{suffix}").is_file():
            return path
    raise InputError(f"{folder}: expected a photo {stem} ({', '.join(SUFFIXES)}), there is none")


def read_homography(path: str | Path) -> np.ndarray:
    """Read a [3 x 3] matrix from a text file of nine numbers."""
    words = " ".join(line for _, line in read_rows(path)).split()
    try:
        H = np.array(words, np.float64)
    except ValueError as error:
        raise InputError(f"{path}: expected a homography of 3 x 3 numbers ({error})") from None
    if len(H) != 9 or not np.isfinite(H).all() or np.linalg.matrix_rank(H.reshape(3, 3)) < 3:
        expected = "a homography of 3 x 3 numbers that can be inverted"
        raise InputError(f"{path}: expected {expected}, got {' '.join(words)!r}")
    return H.reshape(3, 3)
