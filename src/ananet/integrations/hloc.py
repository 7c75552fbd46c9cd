"""Prune hloc's matches, and a matcher for hloc.

features.h5 has a group for every image, its folders nested: `keypoints` [N x 2], `image_size` (width, height), and
`descriptors` [D x N]. matches.h5 has a group for every pair, "folder-a.jpg/folder-b.jpg" ("_" in place of "/" in old
files): `matches0` [N0], the partner of each keypoint of the first image or -1, and `matching_scores0` [N0].
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ananet._util.checks import check_share
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.features.base import Features, check_image_size
from ananet.features.matching import join, nearest_neighbours
from ananet.io.files import atomic_path, check_output
from ananet.io.hdf5 import hdf5_errors, import_h5py, open_hdf5, read_dataset
from ananet.pruners import Pruned, Pruner, load
from ananet.pruners.base import stream_items
from ananet.twoview.same_place import pair_probability

MATCHER = "ananet"
"""Name of the matcher that `register` makes known to hloc."""
# hloc stores indices as int16: larger ones come back negative, and those above 65534 come back wrong.
MAX_SIGNED, MAX_UNSIGNED = 2**15 - 1, 2**16 - 2
# Half-precision numbers from here on are a pixel apart.
COARSE_IN_HALF = 1024


@dataclass(frozen=True)
class Summary:
    """The result of pruning a file of matches."""

    pairs: int
    """Pairs in the file."""
    matches: int
    """Matches before pruning."""
    kept: int
    """Matches after pruning."""
    empty: int
    """Pairs that lost all their matches."""
    doubtful: int
    """Of these, pairs that are unlikely to show the same place."""


@dataclass(frozen=True, eq=False)
class StoredPair:
    """One group of matches.h5."""

    group: str
    name0: str
    name1: str
    matches0: np.ndarray


def prune_matches(
    features: str | Path,
    matches: str | Path,
    output: str | Path,
    *,
    reference: str | Path | None = None,
    pruner: str | Pruner | None = None,
    device: str | torch.device = "auto",
    descriptors: bool = False,
    min_overlap: float = 0.0,
    pairs: str | Path | None = None,
    progress: bool = False,
) -> Summary:
    """Prune hloc's matches and write them to a new file of the same layout.

    Args:
        features, matches: hloc's files.
        output: a new file. Indices are stored in 32 bits; scores are probabilities.
        reference: features of images that `features` does not have.
        pruner: a name that `ananet.load` takes, or a pruner; None for the best one.
        device: where it runs.
        descriptors: whether the matches are nearest neighbours, so that descriptors give ratio and mutual flag.
        min_overlap: pairs that are less likely to show the same place lose all matches.
        pairs: a new text file for the pairs that have matches left, two names per line, as hloc reads it.
        progress: show a bar.
    """
    paths = [Path(features), *([] if reference is None else [Path(reference)])]
    check_output(output, Path(matches), *paths)
    check_share("min_overlap", min_overlap)
    if pairs is not None:
        check_output(pairs, Path(matches), *paths, Path(output))
    used = pruner if isinstance(pruner, Pruner) else load(pruner, device=device)
    with ExitStack() as opened:
        images = Images({path: opened.enter_context(open_hdf5(path)) for path in paths})
        stored = opened.enter_context(open_hdf5(Path(matches)))
        groups = sorted(groups_with(stored, "matches0"))
        for group in groups:
            # Unknown names raise before any work is done.
            images.names_of(group, Path(matches))
        temporary = opened.enter_context(atomic_path(output))
        with import_h5py().File(temporary, "w", libver="latest") as written:
            counts, left = np.zeros(5, np.int64), list[str]()
            read = (images.pair(stored[group]) for group in groups)
            pruned = stream_items(used, read, lambda pair: images.correspondences(pair, descriptors))
            for pair, kept in tqdm(pruned, "prune", len(groups), unit="pair", disable=not progress, leave=False):
                assert kept is not None
                judged = min_overlap > 0 and kept.mask.any()
                doubtful = judged and images.probability(pair, descriptors, kept) < min_overlap
                count = _write(written, pair, replace(kept, mask=kept.mask & (not doubtful)))
                counts += (1, len(kept.mask), count, count == 0, doubtful)
                left += [f"{pair.name0} {pair.name1}"] if count else []
    if pairs is not None:
        with atomic_path(pairs) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in left))
    return Summary(*(int(count) for count in counts))


def _write(file: Any, pair: StoredPair, kept: Pruned) -> int:
    """Write the kept matches of a pair; return their number."""
    rows = np.flatnonzero(pair.matches0 >= 0)[kept.mask]
    matches0, scores = np.full(len(pair.matches0), -1, np.int32), np.zeros(len(pair.matches0), np.float16)
    matches0[rows], scores[rows] = pair.matches0[rows], kept.scores[kept.mask]
    group = file.create_group(pair.group)
    group.create_dataset("matches0", data=matches0)
    group.create_dataset("matching_scores0", data=scores)
    return len(rows)


class Images:
    """The images of one or two feature files, by their names in match files."""

    def __init__(self, files: Mapping[Path, Any]) -> None:
        self.groups: dict[str, Any] = {}
        self.flat: dict[str, str] = {}
        self.where = ", ".join(str(path) for path in files)
        self._last: dict[str, Features] = {}
        self._warned = False
        for path, file in files.items():
            for name in groups_with(file, "keypoints"):
                other = self.flat.setdefault(name.replace("/", "-"), name)
                if other != name:
                    raise InputError(f"{path}: {name} and {other} have the same name in hloc's matches")
                self.groups.setdefault(name, file[name])

    def names_of(self, group: str, path: Path) -> tuple[str, str]:
        """The two images of a pair."""
        first, separator, second = group.partition("/")
        splits = [(first, second)] if separator else _splits(group)
        found = [(self.flat[a], self.flat[b]) for a, b in splits if a in self.flat and b in self.flat]
        if len(found) == 1:
            return found[0]
        problem = "no images of that name" if not found else "more than one way to read it"
        raise InputError(f"{path}: pair {group}: {problem} in {self.where}; were other features matched?")

    def pair(self, stored: Any) -> StoredPair:
        path, group = Path(stored.file.filename), stored.name.removeprefix("/")
        name0, name1 = self.names_of(group, path)
        count0, count1 = (self._count(name) for name in (name0, name1))
        indices = _whole_indices(read_dataset(path, stored, "matches0"), count1, group)
        if indices.shape != (count0,):
            raise InputError(f"{group}: matches0: expected shape ({count0},), got {indices.shape}")
        if (indices >= count1).any():
            raise InputError(f"{group}: matches0: expected indices below {count1}, got {indices.max()}")
        return StoredPair(group, name0, name1, indices)

    def _count(self, name: str) -> int:
        shape = getattr(self.groups[name]["keypoints"], "shape", None)
        if shape is None or len(shape) != 2:
            raise InputError(f"{name}: keypoints: expected shape (N, 2), got {shape}")
        return int(shape[0])

    def correspondences(self, pair: StoredPair, descriptors: bool) -> Correspondences:
        first, second = self._read(pair.name0, descriptors), self._read(pair.name1, descriptors)
        matched = np.flatnonzero(pair.matches0 >= 0)
        partners = pair.matches0[matched]
        known = {}
        if descriptors and len(matched):
            found = nearest_neighbours(first.descriptors, second.descriptors)
            nearest = found.index[matched] == partners
            # A match to another keypoint than the nearest is not distinctive.
            known = {"ratio": np.where(nearest, found.ratio[matched], 1.0), "mutual": nearest & found.mutual[matched]}
        return join(first, second, np.stack([matched, partners], axis=1), **known)

    def probability(self, pair: StoredPair, descriptors: bool, kept: Pruned) -> float:
        """How likely a pair shows the same place."""
        keypoints = (self._read(name, descriptors).points for name in (pair.name0, pair.name1))
        return pair_probability(self.correspondences(pair, descriptors), kept, *keypoints)

    def _read(self, name: str, descriptors: bool) -> Features:
        """Features of an image. Pairs come sorted by their first image, so the last two are kept."""
        if name not in self._last:
            group = self.groups[name]
            path = Path(group.file.filename)
            missing = {"image_size", *(("descriptors",) if descriptors else ())} - set(group)
            if missing:
                raise InputError(f"{name}: expected {', '.join(missing)}, as hloc writes it, got {', '.join(group)}")
            points, size = (read_dataset(path, group, each) for each in ("keypoints", "image_size"))
            if points.ndim != 2 or points.shape[1] < 2:
                raise InputError(f"{name}: keypoints: expected shape (N, 2), got {points.shape}")
            self._warn_if_coarse(name, points)
            described = read_dataset(path, group, "descriptors").T if descriptors else np.zeros((len(points), 0))
            while len(self._last) > 1:
                self._last.pop(next(iter(self._last)))
            try:
                self._last[name] = Features(points[:, :2], described.astype(np.float32), check_image_size(size))
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
        return self._last[name]

    def _warn_if_coarse(self, name: str, points: np.ndarray) -> None:
        if not self._warned and points.dtype == np.float16 and points.size and points.max() >= COARSE_IN_HALF:
            self._warned = True
            text = f"{name}: keypoints are stored in half precision, a pixel apart beyond {COARSE_IN_HALF} pixels"
            warnings.warn(f"{text}; extract with as_half=False for precise poses", stacklevel=2)


def _whole_indices(matches0: np.ndarray, count: int, group: str) -> np.ndarray:
    """[N0] int64 indices below `count`, or -1; repair those that overflowed 16 bits where possible."""
    if matches0.dtype.kind not in "iu":
        raise InputError(f"{group}: matches0: expected whole numbers, got {matches0.dtype}")
    indices = matches0.astype(np.int64)
    if matches0.dtype.itemsize == 2 and count > MAX_SIGNED + 1:
        if count > MAX_UNSIGNED + 1:
            raise InputError(f"{group}: {count} keypoints do not fit the 16 bits of matches0; match again, with fewer")
        warnings.warn(f"{group}: indices above {MAX_SIGNED} overflowed 16 bits and were repaired", stacklevel=2)
        return np.where(indices < -1, indices + 2**16, indices)
    if (indices < -1).any():
        raise InputError(f"{group}: matches0: expected indices or -1, got {indices.min()}")
    return indices


def groups_with(file: Any, dataset: str) -> list[str]:
    """Return the names of all groups with a dataset of this name, at any depth."""
    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        folder, _, last = name.rpartition("/")
        if last == dataset and hasattr(item, "dtype"):
            found.append(folder)

    with hdf5_errors(Path(file.filename)):
        file.visititems(visit)
    return found


def _splits(group: str) -> list[tuple[str, str]]:
    """Every way to read "a_b" as two names.

    >>> _splits("a_1.jpg_b.jpg")
    [('a', '1.jpg_b.jpg'), ('a_1.jpg', 'b.jpg')]
    """
    return [(group[:place], group[place + 1 :]) for place, sign in enumerate(group) if sign == "_"]


def register() -> None:
    """Register the matcher "ananet" with hloc: `{"output": "matches-ananet", "model": {"name": "ananet"}}`.

    It matches nearest neighbours and prunes them. Option `pruner`: a name that `ananet.load` takes.
    """
    try:
        from hloc import matchers
        from hloc.utils.base_model import BaseModel
    except ImportError:
        raise ImportError("hloc is not installed: see github.com/cvg/Hierarchical-Localization") from None
    # hloc imports hloc.matchers.NAME and uses the one model that is defined there.
    module = ModuleType(f"{matchers.__name__}.{MATCHER}")

    class Ananet(BaseModel):  # type: ignore[misc]
        """Nearest neighbours, pruned."""

        __module__ = module.__name__
        default_conf: ClassVar = {"pruner": None}
        required_inputs: ClassVar = [f"{name}{i}" for name in ("image", "keypoints", "descriptors") for i in (0, 1)]

        def _init(self, conf: Mapping[str, Any]) -> None:
            self.pruner: Pruner | None = None

        def _forward(self, data: Mapping[str, Any]) -> dict[str, Tensor]:
            if self.pruner is None:
                self.pruner = load(self.conf["pruner"], device=data["descriptors0"].device)
            return match_pair(data, self.pruner)

    module.Ananet = Ananet  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    setattr(matchers, MATCHER, module)


def match_pair(data: Mapping[str, Any], pruner: Pruner) -> dict[str, Tensor]:
    """Return `matches0` and `matching_scores0`, [1 x N0], as hloc's matchers do, from hloc's data."""
    points0, points1 = data["keypoints0"][0], data["keypoints1"][0]
    partners = torch.full((len(points0),), -1, dtype=torch.long, device=points0.device)
    scores = torch.zeros(len(points0), device=points0.device)
    if len(points0) and len(points1):
        found = nearest_neighbours(data["descriptors0"][0].mT, data["descriptors1"][0].mT)
        image_size0, image_size1 = ((image.shape[-1], image.shape[-2]) for image in (data["image0"], data["image1"]))
        points, known = (points0[:, :2], points1[found.index, :2]), {"ratio": found.ratio, "mutual": found.mutual}
        known |= _shapes(data, found.index)
        kept = pruner(Correspondences(*points, image_size0=image_size0, image_size1=image_size1, **known))
        mask = torch.as_tensor(kept.mask)
        partners = torch.where(mask, found.index, partners)
        scores = torch.where(mask, torch.as_tensor(kept.scores), scores)
    if len(points1) > MAX_SIGNED + 1:
        warnings.warn(f"{len(points1)} keypoints: hloc stores indices in 16 bits; use at most 32768", stacklevel=2)
    return {"matches0": partners[None], "matching_scores0": scores[None]}


def _shapes(data: Mapping[str, Any], partners: Tensor) -> dict[str, Tensor]:
    """Diameters and angles (radians) of matched keypoints, where hloc's detector gives them, as `dog` (SIFT) does."""
    known = {}
    for name, argument, unit in (("scales", "keypoint_sizes", 2.0), ("oris", "angles", math.pi / 180)):
        if f"{name}0" in data and f"{name}1" in data:
            known[f"{argument}0"] = data[f"{name}0"][0] * unit
            known[f"{argument}1"] = data[f"{name}1"][0][partners] * unit
    return known
