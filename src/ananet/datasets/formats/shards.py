"""Training pairs on disk: safetensors shards with a small JSON index. Read with torch, numpy and safetensors alone.

A shard is a `PairTable` of whole scenes. Of a pair that is asked for, only its own part of the shard is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ananet.core.cameras import camera_matrices
from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import StoredPairs, digest
from ananet.datasets.tables import RATIO_STEPS, PairTable, check_counts, check_starts, join
from ananet.errors import InputError
from ananet.io.files import read_json, save_tensors, write_json

FORMAT = "ananet-pairs"
VERSION = 2
INDEX = "index.json"
# Keypoint indices are stored in 16 bits.
KEYPOINT_LIMIT = 2**16
# How a shard stores each column of a `PairTable`: kind of number, and the shape of one entry.
LAYOUT: dict[str, tuple[str, tuple[int, ...]]] = {
    "points": ("F32", (2,)), "sizes": ("F16", ()), "angles": ("F16", ()),
    "image_start": ("I64", ()), "image_camera": ("F32", (4,)), "image_size": ("F32", (2,)),
    "pair_images": ("I32", (2,)), "pair_start": ("I64", ()),
    "pair_rotation": ("F32", (3, 3)), "pair_translation": ("F32", (3,)),
    "index": ("I16", ()), "ratio": ("U8", ()), "mutual": ("U8", ()),
}  # fmt: skip


class PairShards(StoredPairs):
    """The pairs that `ananet data build` wrote to a folder."""

    name = "training pairs"
    recognised_by = f"a folder with {INDEX}, from 'ananet data build'"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return (path / INDEX).is_file()

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path))
        index = read_index(self.path)
        if index is None:
            raise InputError(f"{self.path}: no training pairs here, expected the file {INDEX}")
        self.index = index
        """What index.json says: scenes, settings, versions, counts."""
        self.shards = [Shard(self.path / name) for name in index["shards"]]
        self.starts = np.cumsum([0, *(shard.pairs for shard in self.shards)])
        counted = sum(scene["pairs"] for scene in index["scenes"])
        if self.starts[-1] != counted:
            raise InputError(f"{self.path}: {INDEX} counts {counted} pairs, the shards hold {self.starts[-1]}")
        self.image_starts = np.cumsum([0, *(len(scene["images"]) for scene in index["scenes"])])
        """[S + 1]: where each scene's images start among those of all shards."""
        images = sum(shard.images for shard in self.shards)
        if self.image_starts[-1] != images:
            raise InputError(f"{self.path}: {INDEX} names {self.image_starts[-1]} images, the shards hold {images}")

    @property
    def scenes(self) -> list[str]:
        return [scene["name"] for scene in self.index["scenes"]]

    @cached_property
    def pair_scene(self) -> np.ndarray:
        """[P] int64: number of each pair's scene in `index["scenes"]`."""
        counts = [scene["pairs"] for scene in self.index["scenes"]]
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def _image_names(self) -> list[str]:
        return [name for scene in self.index["scenes"] for name in scene["images"]]

    def scene_of_pairs(self) -> list[str]:
        scenes = self.scenes
        return [scenes[number] for number in self.pair_scene]

    def fingerprint(self) -> str:
        """What the index says the pairs are made of and came to, wherever they and the photos lie."""
        scenes = [
            [scene["name"], scene["pairs"], scene.get("matches"), scene["images"]] for scene in self.index["scenes"]
        ]
        return digest([self.index.get("settings"), scenes])

    def table(self) -> PairTable:
        return join([read_table(shard.path) for shard in self.shards])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, number: int) -> LabelledPair:
        """One pair with its label; the last bits of pixel positions and ratios were rounded in storage."""
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number} of {len(self)}")
        which = int(np.searchsorted(self.starts, number, side="right")) - 1
        shard = self.shards[which]
        images_before = sum(earlier.images for earlier in self.shards[:which])
        matches, R, t, images = shard.read(number - int(self.starts[which]))
        scene_number = int(self.pair_scene[number])
        scene = self.index["scenes"][scene_number]
        first, end = self.image_starts[scene_number : scene_number + 2] - images_before
        if not all(first <= image < end for image in images):
            raise InputError(f"{shard.path}: pair {number} refers to images of another scene than {scene['name']!r}")
        name0, name1 = (self._image_names[images_before + image] for image in images)
        folder = Path(scene["source"]) if scene.get("source") else None
        return LabelledPair.from_pose(
            f"{scene['name']}/{name0}-{name1}",
            matches,
            R,
            t,
            scene["name"],
            None if folder is None else (folder / name0, folder / name1),
        )


class Shard:
    """One file of pairs, opened when the first pair is read. It can be sent to worker processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        with _readable(path), safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != f"{FORMAT} {VERSION}":
                raise InputError(f"{path}: expected a shard of format {FORMAT!r}, version {VERSION}")
            self.counts = _check_layout(path, file)
            # Where images and pairs start is read whole: what overlaps would give the points of another photo.
            self.image_start, self.pair_start = (file.get_tensor(name) for name in ("image_start", "pair_start"))
        check_starts("image_start", self.image_start, self.counts["points"], str(path))
        check_starts("pair_start", self.pair_start, self.counts["index"], str(path))
        self.pairs, self.images = self.counts["pair_images"], self.counts["image_camera"]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def read(self, number: int) -> tuple[Correspondences, Tensor, Tensor, tuple[int, int]]:
        """Matches, rotation, translation and the two images of a pair."""
        with _readable(self.path):
            if self._file is None:
                self._file = safe_open(self.path, framework="pt")
            file = self._file

            def part(name: str, start: int, end: int) -> Tensor:
                return file.get_slice(name)[start:end]

            start, end = self.pair_start[number : number + 2].tolist()
            images = part("pair_images", number, number + 1)[0].tolist()
            if not all(0 <= image < self.images for image in images):
                raise InputError(f"{self.path}: pair {number} refers to images that are not there")
            keypoints = [self.image_start[image : image + 2].tolist() for image in images]
            count = end - start
            index = _unsigned(part("index", start, end))
            bits = np.unpackbits(part("mutual", start // 8, -(-end // 8)).numpy())
            if not count <= keypoints[0][1] - keypoints[0][0] or not (
                count == 0 or int(index.max()) < keypoints[1][1] - keypoints[1][0]
            ):
                raise InputError(f"{self.path}: matches of pair {number} refer to keypoints that are not there")
            first = {name: part(name, *keypoints[0])[:count] for name in ("points", "sizes", "angles")}
            second = {name: part(name, *keypoints[1])[index.long()] for name in ("points", "sizes", "angles")}
            cameras, sizes = (
                torch.cat([part(name, i, i + 1) for i in images]) for name in ("image_camera", "image_size")
            )
            ratio = part("ratio", start, end).float() / RATIO_STEPS
            R, t = part("pair_rotation", number, number + 1)[0], part("pair_translation", number, number + 1)[0]
            if not (R.isfinite().all() and t.isfinite().all() and t.any()):
                raise InputError(f"{self.path}: pair {number} has no pose: R {R.tolist()}, t {t.tolist()}")
        # What one of the two images does not know of its keypoints is not known of the matches.
        known = {
            f"{argument}{n}": values[name].float()
            for name, argument in (("sizes", "keypoint_sizes"), ("angles", "angles"))
            if first[name].isfinite().all() and second[name].isfinite().all()
            for n, values in enumerate((first, second))
        }
        K0, K1 = camera_matrices(cameras)
        try:
            matches = Correspondences(
                first["points"],
                second["points"],
                K0=K0,
                K1=K1,
                image_size0=sizes[0],
                image_size1=sizes[1],
                ratio=ratio,
                mutual=bits[start % 8 : start % 8 + count],
                indices=torch.stack([torch.arange(count), index.long()], dim=1),
                **known,
            )
        except InputError as error:
            raise InputError(f"{self.path}: pair {number}: {error}") from None
        return matches.replace(given_as_numpy=True), R, t, (images[0], images[1])


def pack(table: PairTable) -> dict[str, Tensor]:
    """The table as it is stored: 16-bit indices, one bit per mutual flag."""
    tensors = {f.name: getattr(table, f.name) for f in fields(table)}
    # safetensors knows 16 unsigned bits, but few torch operations do: the bits of int16 serve both.
    tensors["index"] = torch.from_numpy(table.index.numpy().astype(np.uint16).view(np.int16))
    tensors["mutual"] = torch.from_numpy(np.packbits(table.mutual.numpy()))
    tensors["pair_images"] = table.pair_images.to(torch.int32)
    return tensors


def unpack(tensors: dict[str, Tensor]) -> PairTable:
    index = _unsigned(tensors["index"])
    mutual = torch.from_numpy(np.unpackbits(tensors["mutual"].numpy(), count=len(index)).astype(bool))
    images = tensors["pair_images"].to(torch.int64)
    return PairTable(**{**tensors, "index": index, "mutual": mutual, "pair_images": images})


def _unsigned(index: Tensor) -> Tensor:
    """Stored indices as int32."""
    return torch.from_numpy(index.numpy().view(np.uint16).astype(np.int32))


def nbytes(table: PairTable) -> int:
    """Size on disk."""
    return sum(tensor.nbytes for tensor in pack(table).values())


def write_table(path: Path, table: PairTable) -> None:
    # One entry: safetensors writes several in any order, and the same pairs should give the same bytes.
    save_tensors(path, pack(table), {"format": f"{FORMAT} {VERSION}"})


def read_table(path: Path) -> PairTable:
    """A whole shard, checked."""
    with _readable(path):
        with safe_open(path, framework="pt") as file:
            _check_layout(path, file)
        table = unpack(load_file(path))
    table.check(str(path))
    return table


def _check_layout(path: Path, file: Any) -> dict[str, int]:
    """How many entries each column has; an error where columns, numbers or shapes are not those of a shard."""
    found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    wrong = sorted(found.keys() ^ LAYOUT.keys())
    if wrong:
        raise InputError(f"{path}: expected the columns {', '.join(LAYOUT)}; of these or beside them: {wrong}")
    for name, (kind, entry) in LAYOUT.items():
        has, shape = found[name].get_dtype(), tuple(found[name].get_shape())
        if has != kind or len(shape) != 1 + len(entry) or shape[1:] != entry:
            expected = ", ".join(["N", *map(str, entry)])
            raise InputError(f"{path}: expected {name} as {kind} of shape ({expected}), got {has} of shape {shape}")
    counts = {name: int(column.get_shape()[0]) for name, column in found.items()}
    check_counts(counts | {"mutual": 8 * counts["mutual"]}, str(path), packed=8)
    return counts


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what a broken file raises into a clear error."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        yield
    except InputError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(f"{path}: not a shard of training pairs ({error})") from None


def read_index(folder: Path) -> dict[str, Any] | None:
    """What index.json says, or None where there is none."""
    path = folder / INDEX
    if not path.is_file():
        return None
    index = read_json(path)
    if not isinstance(index, dict) or index.get("format") != FORMAT or index.get("version") != VERSION:
        raise InputError(f"{path}: expected format {FORMAT!r}, version {VERSION}; build the pairs again")
    scenes, shards = index.get("scenes"), index.get("shards")
    good = isinstance(scenes, list) and isinstance(shards, list) and all(isinstance(name, str) for name in shards)
    good = good and all(map(_describes_scene, scenes or ()))
    if not good:
        raise InputError(f"{path}: expected scenes with names, images and counts of pairs, got something else")
    return index


def _describes_scene(scene: Any) -> bool:
    return (
        isinstance(scene, dict)
        and isinstance(scene.get("name"), str)
        and type(scene.get("pairs")) is int
        and scene["pairs"] >= 0
        and isinstance(scene.get("source", ""), str)
        and isinstance(scene.get("images"), list)
        and all(isinstance(name, str) for name in scene["images"])
    )


def write_index(folder: Path, index: dict[str, Any]) -> None:
    write_json(folder / INDEX, {"format": FORMAT, "version": VERSION, **index}, indent=1)
