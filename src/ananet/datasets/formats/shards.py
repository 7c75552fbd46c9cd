"""Training pairs on disk: safetensors shards with a JSON index. Reading needs only torch, numpy and safetensors.

A shard is a `PairTable` of whole scenes; it may be packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from ananet.datasets.base import LabelledPair, PairTable, check_counts, check_starts, join
from ananet.datasets.formats import packed
from ananet.datasets.sources import StoredPairs, digest
from ananet.errors import InputError
from ananet.io.files import read_json, save_tensors, write_json

FORMAT = "ananet-pairs"
VERSION = 3
# Version 2 knew no depth: its matches are labelled by epipolar distance alone.
READABLE = (2, 3)
INDEX = "index.json"
# Keypoint indices are stored in 16 bits.
KEYPOINT_LIMIT = 2**16
# Type of each column of a `PairTable` in a shard, and the shape of one entry.
LAYOUT: dict[str, tuple[str, tuple[int, ...]]] = {
    "points": ("F32", (2,)), "sizes": ("F16", ()), "angles": ("F16", ()),
    "image_start": ("I64", ()), "image_camera": ("F32", (4,)), "image_size": ("F32", (2,)),
    "pair_images": ("I32", (2,)), "pair_start": ("I64", ()),
    "pair_rotation": ("F32", (3, 3)), "pair_translation": ("F32", (3,)),
    "index": ("I16", ()), "ratio": ("U8", ()), "mutual": ("U8", ()),
    "known": ("U8", ()), "right": ("U8", ()), "pair_share": ("F32", ()),
}  # fmt: skip
FLAGS = ("mutual", "known", "right")
NEW_IN_3 = ("known", "right", "pair_share")


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
        """Content of index.json: scenes, settings, versions, counts."""
        self.shards = [self.path / name for name in index["shards"]]
        counts = [_check_shard(path) for path in self.shards]
        self._last: tuple[int, PairTable] | None = None
        self.starts, self.shard_images = np.cumsum([(0, 0), *counts], axis=0).T
        counted = sum(scene["pairs"] for scene in index["scenes"])
        if self.starts[-1] != counted:
            raise InputError(f"{self.path}: {INDEX} counts {counted} pairs, the shards hold {self.starts[-1]}")
        self.image_starts = np.cumsum([0, *(len(scene["images"]) for scene in index["scenes"])])
        """[S + 1]: where each scene's images start among those of all shards."""
        if self.image_starts[-1] != self.shard_images[-1]:
            counts_differ = f"names {self.image_starts[-1]} images, the shards hold {self.shard_images[-1]}"
            raise InputError(f"{self.path}: {INDEX} {counts_differ}")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

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
        return [scene["name"] for scene in self.index["scenes"] for _ in range(scene["pairs"])]

    def fingerprint(self) -> str:
        """Hash of settings, scenes and counts, without paths."""
        scenes = [[scene.get(key) for key in ("name", "pairs", "matches", "images")] for scene in self.index["scenes"]]
        return digest([self.index.get("settings"), scenes])

    def table(self) -> PairTable:
        return join([read_table(path) for path in self.shards])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, number: int) -> LabelledPair:
        """Return one pair with its label; ratios are rounded in storage."""
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number} of {len(self)}")
        which = int(np.searchsorted(self.starts, number, side="right")) - 1
        # Pairs are mostly read in order, so that one shard is enough.
        if self._last is None or self._last[0] != which:
            self._last = (which, read_table(self.shards[which]))
        table, own = self._last[1], number - int(self.starts[which])
        images = table.pair_images[own].numpy() + self.shard_images[which]
        scene_number = int(self.pair_scene[number])
        scene = self.index["scenes"][scene_number]
        first, end = self.image_starts[scene_number : scene_number + 2]
        if not ((first <= images) & (images < end)).all():
            where = f"{self.shards[which]}: pair {number}"
            raise InputError(f"{where} refers to images of another scene than {scene['name']!r}")
        names = [self._image_names[image] for image in images]
        folder = Path(scene["source"]) if scene.get("source") else None
        return LabelledPair.from_pose(
            f"{scene['name']}/{names[0]}-{names[1]}",
            table.matches(own),
            table.pair_rotation[own],
            table.pair_translation[own],
            scene["name"],
            paths=None if folder is None else (folder / names[0], folder / names[1]),
            **table.depth_labels(own),
        )


def pack(table: PairTable) -> dict[str, Tensor]:
    """Return the columns as stored: 16-bit indices, one bit per flag."""
    tensors = {f.name: getattr(table, f.name) for f in fields(table)}
    tensors |= {name: torch.from_numpy(np.packbits(tensors[name].numpy())) for name in FLAGS}
    # As int16, since few torch operations support uint16.
    tensors["index"] = torch.from_numpy(table.index.numpy().astype(np.uint16).view(np.int16))
    tensors["pair_images"] = table.pair_images.to(torch.int32)
    return tensors


def unpack(tensors: dict[str, Tensor]) -> PairTable:
    index = torch.from_numpy(tensors["index"].numpy().view(np.uint16).astype(np.int32))
    images = tensors["pair_images"].to(torch.int64)
    flags = {
        name: torch.from_numpy(np.unpackbits(tensors[name].numpy(), count=len(index)).astype(bool))
        if name in tensors
        else torch.zeros(len(index), dtype=torch.bool)
        for name in FLAGS
    }
    share = tensors.get("pair_share", torch.full((len(images),), torch.nan))
    return PairTable(**{**tensors, **flags, "index": index, "pair_images": images, "pair_share": share})


def nbytes(table: PairTable) -> int:
    """Size on disk."""
    return sum(tensor.nbytes for tensor in pack(table).values())


def write_table(path: Path, table: PairTable) -> None:
    # One entry of metadata: safetensors writes several in any order, and the same pairs should give the same bytes.
    save_tensors(path, pack(table), {"format": f"{FORMAT} {VERSION}"})


def read_table(path: Path) -> PairTable:
    """Read and check a shard."""
    if path.suffix == packed.SUFFIX:
        return packed.read_packed(path)
    _check_shard(path)
    with _readable(path):
        table = unpack(load_file(path))
    table.check(str(path))
    return table


def _check_shard(path: Path) -> tuple[int, int]:
    """Check the layout of a shard, without reading it unless it is packed; return its numbers of pairs and images."""
    if path.suffix == packed.SUFFIX:
        table = packed.read_packed(path)
        return table.pairs, table.images
    with _readable(path), safe_open(path, framework="pt") as file:
        formats = {f"{FORMAT} {number}": number for number in READABLE}
        written = formats.get((file.metadata() or {}).get("format", ""))
        if written is None:
            raise InputError(
                f"{path}: expected a shard of format {FORMAT!r}, version {' or '.join(map(str, READABLE))}"
            )
        counts = _check_layout(
            path, file, {name: LAYOUT[name] for name in LAYOUT if written == VERSION or name not in NEW_IN_3}
        )
        # Overlapping parts would give the points of another photo.
        check_starts("image_start", file.get_tensor("image_start"), counts["points"], str(path))
        check_starts("pair_start", file.get_tensor("pair_start"), counts["index"], str(path))
    return counts["pair_images"], counts["image_camera"]


def _check_layout(path: Path, file: Any, layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, int]:
    """Check names, types and shapes of the columns; return their lengths, flags counted one by one."""
    found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    wrong = sorted(found.keys() ^ layout.keys())
    if wrong:
        raise InputError(f"{path}: expected the columns {', '.join(layout)}; missing or beside them: {wrong}")
    for name, (kind, entry) in layout.items():
        has, shape = found[name].get_dtype(), tuple(found[name].get_shape())
        if has != kind or len(shape) != 1 + len(entry) or shape[1:] != entry:
            expected = ", ".join(["N", *map(str, entry)])
            raise InputError(f"{path}: expected {name} as {kind} of shape ({expected}), got {has} of shape {shape}")
    counts = {name: int(column.get_shape()[0]) * (8 if name in FLAGS else 1) for name, column in found.items()}
    check_counts(counts, str(path), packed=8)
    return counts


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn exceptions on a broken file into `InputError`."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        yield
    except InputError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(f"{path}: not a shard of training pairs ({error})") from None


def read_index(folder: Path) -> dict[str, Any] | None:
    """Read index.json; None if there is none."""
    path = folder / INDEX
    if not path.is_file():
        return None
    index = read_json(path)
    if not isinstance(index, dict) or index.get("format") != FORMAT or index.get("version") not in READABLE:
        versions = " or ".join(map(str, READABLE))
        raise InputError(f"{path}: expected format {FORMAT!r}, version {versions}; build the pairs again")
    scenes, shards = index.get("scenes"), index.get("shards")
    named = isinstance(shards, list) and all(isinstance(name, str) for name in shards)
    if not named or not isinstance(scenes, list) or not all(map(_describes_scene, scenes)):
        raise InputError(f"{path}: expected scenes with names, images and counts of pairs, got {str(index)[:80]}")
    return index


def _describes_scene(scene: Any) -> bool:
    if not isinstance(scene, dict) or not isinstance(scene.get("images"), list):
        return False
    texts = [scene.get("name"), scene.get("source", ""), *scene["images"]]
    return all(isinstance(text, str) for text in texts) and type(scene.get("pairs")) is int and scene["pairs"] >= 0


def write_index(folder: Path, index: dict[str, Any]) -> None:
    write_json(folder / INDEX, {"format": FORMAT, "version": VERSION, **index}, indent=1)
