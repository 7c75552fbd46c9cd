"""Data sources: photos with known cameras or homographies, or stored matches with labels.

`evaluate`, `data build` and `train` open data here. The kind is recognised by the files. A new kind is one file with a
subclass of `StoredPairs`, `PosedPhotos` or `HomographyPhotos`, and one line here.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from ananet._util.names import Registry
from ananet.datasets.base import HomographyPair, LabelledPair, PairTable, PosedScene, join, table_of_pairs
from ananet.errors import InputError
from ananet.estimators.base import Model


class Source(ABC):
    """Data at a path."""

    name: ClassVar[str]
    """Kind of data, in words."""
    recognised_by: ClassVar[str]
    """What such data looks like, for error messages."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    @abstractmethod
    def recognises(cls, path: Path) -> bool:
        """Return whether an existing path holds such data."""

    @property
    def title(self) -> str:
        """Name of the data."""
        return self.path.resolve().stem

    @property
    def models(self) -> tuple[Model, ...]:
        """Models that can be scored, as the truth of every pair is known; the usual one first."""
        return "essential", "fundamental"

    @property
    def has_poses(self) -> bool:
        """Whether the true pose of every pair is known."""
        return "essential" in self.models


class StoredPairs(Source):
    """Pairs with matches and labels in files, read one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, number: int) -> LabelledPair: ...

    def __iter__(self) -> Iterator[LabelledPair]:
        return (self[number] for number in range(len(self)))

    def scene_of_pairs(self) -> list[str]:
        """Return the scene of every pair."""
        return [pair.scene for pair in self]

    def fingerprint(self) -> str:
        """Return a hash of the pairs that does not depend on their path."""
        return digest(self.scene_of_pairs())

    def table(self) -> PairTable:
        """Return all pairs as flat tensors, for training."""
        return table_of_pairs(self)


class PairFolders(StoredPairs):
    """Pairs with labels and without poses, one per folder."""

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.is_dir() and bool(cls.find(path))

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path))
        self.folders = self.find(self.path)
        if not self.folders:
            raise InputError(f"source: expected {self.recognised_by}, {path} holds none")

    @staticmethod
    @abstractmethod
    def find(path: Path) -> list[Path]:
        """Return the folders of all pairs, at any depth."""

    @abstractmethod
    def read(self, folder: Path) -> LabelledPair:
        """Read the pair of a folder."""

    @property
    def models(self) -> tuple[Model, ...]:
        return ()

    def __len__(self) -> int:
        return len(self.folders)

    def __getitem__(self, number: int) -> LabelledPair:
        return self.read(self.folders[number])


class JoinedPairs(StoredPairs):
    """Pairs of several folders, such as several detectors, as one. Scenes of the same name are one scene."""

    name = "several folders of pairs"
    recognised_by = "paths with commas between them"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return False  # made by open_stored_pairs

    def __init__(self, parts: Sequence[StoredPairs]) -> None:
        super().__init__(parts[0].path)
        self.parts = parts
        self.starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, number: int) -> LabelledPair:
        if not 0 <= number < len(self):
            raise IndexError(number)
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.parts[part][number - int(self.starts[part])]

    def scene_of_pairs(self) -> list[str]:
        return [scene for part in self.parts for scene in part.scene_of_pairs()]

    def fingerprint(self) -> str:
        return digest([part.fingerprint() for part in self.parts])

    def table(self) -> PairTable:
        return join([part.table() for part in self.parts])


def digest(value: Any) -> str:
    """Return a short hash of a JSON value.

    >>> digest(["a", "b"])
    '3554d2b8a1e34099'
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class PosedPhotos(Source):
    """Photos with known cameras, to be matched."""

    @abstractmethod
    def scenes(self) -> list[PosedScene]:
        """The scenes, in order."""


class SceneFolders(PosedPhotos):
    """A scene in a folder, or a folder of such scenes."""

    marker: ClassVar[str]
    """Name in the folder of a scene by which it is recognised."""

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.is_dir() and bool(cls.find(path))

    @classmethod
    def find(cls, path: Path) -> list[Path]:
        """Return the folder itself if it is a scene, and the scenes in it, by name."""
        return [folder for folder in (path, *sorted(path.iterdir())) if (folder / cls.marker).exists()]

    @staticmethod
    @abstractmethod
    def read(folder: Path) -> PosedScene:
        """Read the scene of a folder."""

    def scenes(self) -> list[PosedScene]:
        return [self.read(folder) for folder in self.find(self.path)]


class HomographyPhotos(Source):
    """Photos with known homographies, to be matched."""

    @property
    def models(self) -> tuple[Model, ...]:
        return ("homography",)

    @abstractmethod
    def pairs(self) -> list[HomographyPair]:
        """The pairs, in order."""


# In the order in which they are tried; shards first, which need neither OpenCV nor h5py.
SOURCES: Registry[Source] = Registry(
    "source",
    {
        "training pairs": "ananet.datasets.formats.shards:PairShards",
        "OANet dump": "ananet.datasets.formats.oanet:OANetDump",
        "OANet raw scenes": "ananet.datasets.formats.oanet:OANetRawScenes",
        "views and pairs": "ananet.datasets.formats.pairlists:ViewsAndPairs",
        "posed scenes": "ananet.datasets.formats.colmap:PosedScenes",
        "MULTI": "ananet.datasets.formats.labelled:MULTICases",
        "labelled matches": "ananet.datasets.formats.labelled:LabelledMatches",
        "photos with homographies": "ananet.datasets.formats.homographies:HomographyScenes",
        "matches of planes": "ananet.datasets.formats.labelled:PlaneMatches",
        "pair list": "ananet.datasets.formats.pairlists:PairList",
    },
)
"""Data sources by name; `@SOURCES.add` adds one."""


def open_source(path: str | Path, *, image_folder: str | Path | None = None) -> Source:
    """Open the data at a path; its kind is recognised by the files there.

    Args:
        path: a scene (`images/` beside `sparse/`, and perhaps `pairs.txt`) or a folder of scenes; a folder of training
            pairs; an OANet dump (.h5, .hdf5) or raw scene; a folder of MULTI cases or of labelled matches; photos with
            homographies (Oxford, HPatches), or matches of planes (EVD); a pair list (.txt); a folder with
            `views.txt`; or a part of the repository's pair set, such as "validation/hard".
        image_folder: of a pair list's photos; the list's own folder unless given.
    """
    path = find_source(path)
    for name in SOURCES.names:
        kind = cast(type[Source], SOURCES[name])
        if kind.recognises(path):
            takes_images = "image_folder" in inspect.signature(kind).parameters
            return kind(path, image_folder) if takes_images else kind(path)  # type: ignore[call-arg]
    known = "; ".join(f"{name} ({cast(Any, SOURCES[name]).recognised_by})" for name in SOURCES.names)
    raise InputError(f"source: expected one of: {known}; got {path}, which is none of these")


# Pair sets of the repository, and the variable that names their folder where there is no clone.
PAIR_SETS, PAIR_SETS_VARIABLE = ("validation",), "ANANET_PAIRS"


def find_source(path: str | Path) -> Path:
    """Return an existing path, or where a pair set of the repository is that it names."""
    path = Path(path)
    if path.exists():
        return path
    if path.parts[:1] not in {(name,) for name in PAIR_SETS}:
        raise InputError(f"source: no such file or folder: {path}")
    named = os.environ.get(PAIR_SETS_VARIABLE)
    clones = [folder / "benchmarks" / "pairs" for folder in (Path.cwd(), *Path.cwd().parents, *Path(__file__).parents)]
    for folder in clones if named is None else [Path(named)]:
        if (folder / path).exists():
            return folder / path
    expected = f"its folder benchmarks/pairs in the variable {PAIR_SETS_VARIABLE}"
    raise InputError(
        f"source: {path} is in the repository of ananet, not in the package: expected a clone, or {expected}; "
        f"it is not in {named or 'the folders above this one'}"
    )


def parts_of_pair_set(path: Path) -> list[str]:
    """Return the names of the parts of a pair set (`ananet data pack`), none if it is not one."""
    return sorted(index.parent.name for index in path.glob("*/index.json")) if (path / "photos").is_dir() else []


def open_stored_pairs(path: str | Path) -> StoredPairs:
    """Open pairs with matches, labels and poses, for training and validation; join several paths with commas."""
    sources: list[StoredPairs] = []
    for part in [path] if Path(path).exists() else str(path).split(","):
        source = open_source(part)
        if not isinstance(source, StoredPairs) or not source.has_poses:
            kinds = "training pairs, from 'ananet data build', or an OANet dump"
            raise InputError(f"pairs: expected {kinds}, got {part} ({source.name})")
        sources.append(source)
    return sources[0] if len(sources) == 1 else JoinedPairs(sources)


def open_posed_photos(path: str | Path) -> PosedPhotos:
    """Open photos with known cameras, for building training pairs."""
    source = open_source(path)
    if not isinstance(source, PosedPhotos):
        raise InputError(f"scenes: expected photos with known cameras, got {path} ({source.name})")
    return source


def scene_numbers(names: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the different names in order of appearance, and the number of each name."""
    number = {name: n for n, name in enumerate(dict.fromkeys(names))}
    return list(number), [number[name] for name in names]
