"""Training pairs on disk: safetensors shards with a small JSON index. Read with torch, numpy and safetensors alone.

Keypoints are stored once an image, a pair as indices into them: match k of a pair joins keypoint k of its first image
to keypoint `index[k]` of its second. At 2000 keypoints an image takes 16 KB and a pair 6.3 KB. Epipolar distances are
not stored: they follow from the points and the pose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ananet.correspondences import Correspondences
from ananet.datasets.base import LabelledPair
from ananet.errors import InputError
from ananet.files import atomic_path

FORMAT = "ananet-pairs"
VERSION = 1
INDEX = "index.json"
# Keypoint indices are stored in 16 bits.
MOST_KEYPOINTS = 2**16


@dataclass(frozen=True, eq=False)
class PairTable:
    """Pairs of many scenes as flat tensors, on any device. M images, P pairs, T keypoints and S matches in all."""

    points: Tensor
    """[T x 2] float32 keypoints of all images, in pixels, free of lens distortion."""
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

    @property
    def images(self) -> int:
        return len(self.image_camera)

    @property
    def pairs(self) -> int:
        return len(self.pair_images)

    def to(self, device: str | torch.device) -> PairTable:
        return PairTable(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def nbytes(self) -> int:
        """Size on disk."""
        return sum(tensor.nbytes for tensor in pack(self).values())


def join(tables: Sequence[PairTable]) -> PairTable:
    """One table after another; image numbers and starts are moved along."""
    image_shift = np.cumsum([0, *(table.images for table in tables)]).tolist()

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(table, name) for table in tables])

    def cat_starts(name: str) -> Tensor:
        shift, parts = 0, [torch.zeros(1, dtype=torch.int64)]
        for table in tables:
            parts.append(getattr(table, name)[1:] + shift)
            shift += int(getattr(table, name)[-1])
        return torch.cat(parts)

    return PairTable(
        points=cat("points"),
        image_start=cat_starts("image_start"),
        image_camera=cat("image_camera"),
        image_size=cat("image_size"),
        pair_images=torch.cat([t.pair_images + shift for t, shift in zip(tables, image_shift, strict=False)]),
        pair_start=cat_starts("pair_start"),
        pair_rotation=cat("pair_rotation"),
        pair_translation=cat("pair_translation"),
        index=cat("index"),
        ratio=cat("ratio"),
        mutual=cat("mutual"),
    )


def pack(table: PairTable) -> dict[str, Tensor]:
    """The table as it is stored: 16-bit indices, one bit a mutual flag."""
    tensors = {f.name: getattr(table, f.name) for f in fields(table)}
    # safetensors knows 16 unsigned bits, but few torch operations do: the bits of int16 serve both.
    tensors["index"] = table.index.to(torch.int32).numpy().astype(np.uint16).view(np.int16)
    tensors["index"] = torch.from_numpy(tensors["index"])
    tensors["mutual"] = torch.from_numpy(np.packbits(table.mutual.numpy()))
    tensors["pair_images"] = table.pair_images.to(torch.int32)
    return tensors


def unpack(tensors: dict[str, Tensor]) -> PairTable:
    index = torch.from_numpy(tensors["index"].numpy().view(np.uint16).astype(np.int32))
    mutual = np.unpackbits(tensors["mutual"].numpy(), count=len(index)).astype(bool)
    return PairTable(
        **{
            **tensors,
            "index": index,
            "mutual": torch.from_numpy(mutual),
            "pair_images": tensors["pair_images"].to(torch.int64),
        }
    )


def write_table(path: Path, table: PairTable) -> None:
    with atomic_path(path) as temporary:
        # One entry: safetensors writes several in any order, and the same pairs should give the same bytes.
        save_file(pack(table), temporary, {"format": f"{FORMAT} {VERSION}"})


def read_table(path: Path) -> PairTable:
    try:
        return unpack(load_file(path))
    except (SafetensorError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a shard of training pairs ({error})") from None


@dataclass(frozen=True, eq=False)
class PairSet:
    """Everything a folder of shards holds."""

    table: PairTable
    index: dict[str, Any]
    """What index.json says: scenes, settings, versions, counts."""
    pair_scene: Tensor
    """[P] int64: number of each pair's scene in `index["scenes"]`."""

    @property
    def scenes(self) -> list[str]:
        return [scene["name"] for scene in self.index["scenes"]]

    def __len__(self) -> int:
        return self.table.pairs

    def __getitem__(self, number: int) -> LabelledPair:
        """One pair with its label; the last bits of pixel positions and ratios were rounded in storage."""
        if not 0 <= number < len(self):
            raise IndexError(f"pair {number} of {len(self)}")
        table = self.table
        image0, image1 = table.pair_images[number].tolist()
        matches = slice(int(table.pair_start[number]), int(table.pair_start[number + 1]))
        start0, start1 = int(table.image_start[image0]), int(table.image_start[image1])
        count = matches.stop - matches.start
        name0, name1 = self.image_name(image0), self.image_name(image1)
        scene = self.index["scenes"][int(self.pair_scene[number])]
        correspondences = Correspondences(
            table.points[start0 : start0 + count],
            table.points[start1 + table.index[matches].long()],
            K0=camera_matrix(table.image_camera[image0]),
            K1=camera_matrix(table.image_camera[image1]),
            size0=table.image_size[image0],
            size1=table.image_size[image1],
            ratio=table.ratio[matches].float() / 255,
            mutual=table.mutual[matches],
        )
        correspondences.given_as_numpy = True
        folder = Path(scene["source"]) if scene.get("source") else None
        return LabelledPair.from_pose(
            f"{scene['name']}/{name0}-{name1}",
            correspondences,
            table.pair_rotation[number],
            table.pair_translation[number],
            scene["name"],
            None if folder is None else (folder / name0, folder / name1),
        )

    def __iter__(self) -> Iterator[LabelledPair]:
        return (self[number] for number in range(len(self)))

    def image_name(self, image: int) -> str:
        for scene in self.index["scenes"]:
            if image < len(scene["images"]):
                return scene["images"][image]
            image -= len(scene["images"])
        raise IndexError(image)


def camera_matrix(camera: Tensor) -> Tensor:
    """[4] fx, fy, cx, cy to [3 x 3]."""
    fx, fy, cx, cy = camera.tolist()
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=camera.dtype)


def read_pairs(folder: str | Path) -> PairSet:
    """The pairs that `ananet data build` wrote to a folder."""
    folder = Path(folder)
    index = read_index(folder)
    if index is None:
        raise InputError(f"{folder}: no training pairs here, expected the file {INDEX}")
    tables = [read_table(folder / shard) for shard in index["shards"]]
    table = join(tables)
    counts = torch.tensor([scene["pairs"] for scene in index["scenes"]])
    if table.pairs != int(counts.sum()):
        raise InputError(f"{folder}: {INDEX} counts {int(counts.sum())} pairs, the shards hold {table.pairs}")
    return PairSet(table, index, torch.repeat_interleave(torch.arange(len(counts)), counts))


def read_index(folder: Path) -> dict[str, Any] | None:
    """What index.json says, or None where there is none."""
    path = folder / INDEX
    if not path.is_file():
        return None
    try:
        index = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON ({error})") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT or index.get("version") != VERSION:
        raise InputError(f"{path}: expected format {FORMAT!r}, version {VERSION}")
    return index


def write_index(folder: Path, index: dict[str, Any]) -> None:
    with atomic_path(folder / INDEX) as temporary:
        temporary.write_text(json.dumps({"format": FORMAT, "version": VERSION, **index}, indent=1) + "\n")
