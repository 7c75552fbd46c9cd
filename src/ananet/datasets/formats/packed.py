"""Pairs packed for passing on, without pixels and descriptors: some 6 bytes per keypoint and 2.3 per match.

A pair set is a folder with one subfolder per build of `ananet data build`, and the folder `photos` with the keypoints
that they share. Each has a file SCENE.xz per scene: an LZMA-compressed safetensors file of columns of a `PairTable`,
numbers split into planes of bytes of equal significance. Sizes and angles of keypoints are rounded, all else is exact.
Labels by depth are kept for matches near the epipolar line only: the others are wrong whatever is known of them.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ananet.datasets.base import LabelledPair, PairTable
from ananet.errors import InputError
from ananet.io.files import atomic_path

SUFFIX = ".xz"
PHOTOS = "photos"
Columns = dict[str, np.ndarray]

# Steps per octave of size, and per turn. Sizes are at least 2 ** -4 pixels, and below 2 ** 12.
SIZE_STEPS, ANGLE_STEPS = 64, 1024
FIRST_OCTAVE = -4
# Where size or angle are not known.
UNKNOWN = 1024
FLAGS = ("mutual", "known", "right")
# Stored as they are.
OF_PHOTOS = ("image_camera", "image_size")
OF_PAIRS = ("pair_start", "pair_rotation", "pair_translation", "pair_share")
# Neighbouring bytes are independent: contexts and positions do not help to predict them.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]


def write_columns(path: Path, columns: Columns) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(lzma.compress(save(columns), filters=FILTERS))


def read_columns(path: Path) -> Columns:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        return load(lzma.decompress(path.read_bytes()))
    except (lzma.LZMAError, SafetensorError) as error:
        raise InputError(f"{path}: not a file of packed pairs ({error})") from None


def to_planes(numbers: np.ndarray) -> np.ndarray:
    """[W x N] bytes of N numbers of W bytes, the lowest first."""
    stored = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    return np.ascontiguousarray(stored.view(np.uint8).reshape(len(stored), -1).T)


def from_planes(planes: np.ndarray, kind: str) -> np.ndarray:
    return np.ascontiguousarray(planes.T).view(f"<{kind}")[:, 0]


def pack_keypoints(table: PairTable) -> Columns:
    """Columns of the keypoints of a table. SIFT has several angles at one place: neighbours share position and size."""
    octaves = np.log2(np.maximum(table.sizes.double().numpy(), 2.0**FIRST_OCTAVE)) - FIRST_OCTAVE
    size = np.nan_to_num(np.round(octaves * SIZE_STEPS), nan=UNKNOWN).clip(0, UNKNOWN).astype(np.uint16)
    turns = np.round(table.angles.double().numpy() / (2 * np.pi) * ANGLE_STEPS) % ANGLE_STEPS
    angle = np.nan_to_num(turns, nan=UNKNOWN).astype(np.uint16)
    x, y = table.points.numpy().T
    new = np.ones(len(x), np.uint8)
    new[1:] = (x[1:] != x[:-1]) | (y[1:] != y[:-1]) | (size[1:] != size[:-1])
    own = {"x": x[new == 1], "y": y[new == 1], "size": size[new == 1], "angle": angle}
    return {"new": new, **{name: to_planes(values) for name, values in own.items()}}


def unpack_keypoints(columns: Columns) -> dict[str, torch.Tensor]:
    place = np.cumsum(columns["new"], dtype=np.int64) - 1
    points = np.stack([from_planes(columns[name], "f4") for name in "xy"], axis=1)
    size, angle = (from_planes(columns[name], "u2") for name in ("size", "angle"))
    sizes = np.where(size == UNKNOWN, np.nan, np.exp2(size / SIZE_STEPS + FIRST_OCTAVE))
    angles = np.where(angle == UNKNOWN, np.nan, angle * (2 * np.pi / ANGLE_STEPS))
    return {
        "points": torch.from_numpy(points[place]),
        "sizes": torch.from_numpy(sizes[place].astype(np.float16)),
        "angles": torch.from_numpy(angles.astype(np.float16)),
    }


def pack_matches(table: PairTable) -> Columns:
    """Columns of the pairs of a table."""
    near = [
        LabelledPair.from_pose("", table.matches(n), table.pair_rotation[n], table.pair_translation[n]).inlier
        for n in range(table.pairs)
    ]
    near_line = torch.cat([torch.zeros(0, dtype=torch.bool), *near])
    flags = (table.mutual + 2 * (table.known & near_line) + 4 * (table.right & near_line)).to(torch.uint8).numpy()
    return {
        "pair_images": table.pair_images.numpy(),
        **{name: getattr(table, name).numpy() for name in OF_PAIRS},
        "index": to_planes(table.index.numpy().astype(np.uint16)),
        "flags": flags,
        # Ratios of matches of a kind are alike.
        "ratio": table.ratio.numpy()[np.argsort(flags, kind="stable")],
    }


def read_packed(path: Path) -> PairTable:
    """Read one scene of a build: its pairs, and their keypoints from the folder `photos` beside that of the build."""
    photos, pairs = read_columns(path.parent.parent / PHOTOS / path.name), read_columns(path)
    try:
        keypoints, used = unpack_keypoints(photos), pairs["photo"]
        kept = torch.from_numpy(np.cumsum(from_planes(pairs["step"], "i4"), dtype=np.int64))
        ratio = np.empty_like(pairs["ratio"])
        ratio[np.argsort(pairs["flags"], kind="stable")] = pairs["ratio"]
        table = PairTable(
            **{name: values[kept] for name, values in keypoints.items()},
            **{name: torch.from_numpy(photos[name][used]) for name in OF_PHOTOS},
            **{name: torch.from_numpy(pairs[name]) for name in ("image_start", "pair_images", *OF_PAIRS)},
            index=torch.from_numpy(from_planes(pairs["index"], "u2").astype(np.int32)),
            ratio=torch.from_numpy(ratio),
            **{name: torch.from_numpy(pairs["flags"] >> bit & 1 == 1) for bit, name in enumerate(FLAGS)},
        )
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise InputError(f"{path}: not a file of packed pairs ({error!r})") from None
    table.check(str(path))
    return table
