"""Pack builds of the same photos into a pair set (`ananet data pack`): the form in which pairs are passed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ananet.datasets.base import PairTable, join
from ananet.datasets.formats.packed import (
    OF_PHOTOS,
    PHOTOS,
    SUFFIX,
    pack_keypoints,
    pack_matches,
    to_planes,
    unpack_keypoints,
    write_columns,
)
from ananet.datasets.formats.shards import INDEX, PairShards, write_index
from ananet.errors import InputError

# What of a build's index says where its photos were.
PATHS = ("source", "unreadable")


def pack_builds(builds: Sequence[str | Path], out: str | Path) -> int:
    """Pack folders of `ananet data build` into the folder `out`, each under its name; return the bytes written.

    Keypoints that several builds have of a photo are stored once. The same builds give the same bytes.
    """
    opened = {build.title: build for build in map(PairShards, builds)}
    if len(opened) < len(builds) or PHOTOS in opened:
        raise InputError(f"builds: expected folders of different names other than {PHOTOS!r}, got {', '.join(opened)}")
    out = Path(out)
    if (out / PHOTOS).exists():
        raise InputError(f"out: {out} holds a pair set already; remove it, or choose another folder")
    for folder in (PHOTOS, *opened):
        (out / folder).mkdir(parents=True, exist_ok=True)
    tables = {title: scene_tables(build) for title, build in opened.items()}
    for scene in dict.fromkeys(name for build in opened.values() for name in build.scenes):
        _pack_scene(scene, {title: scenes[scene] for title, scenes in tables.items() if scene in scenes}, out)
    for title, build in opened.items():
        scenes = [{key: value for key, value in one.items() if key not in PATHS} for one in build.index["scenes"]]
        known = {key: build.index[key] for key in ("settings", "versions", "images", "pairs") if key in build.index}
        write_index(out / title, known | {"shards": [f"{name}{SUFFIX}" for name in build.scenes], "scenes": scenes})
    return sum(path.stat().st_size for path in out.rglob("*") if path.suffix == SUFFIX or path.name == INDEX)


NamedTable = tuple[list[str], PairTable]
"""Names of the photos, and the table of a scene."""


def scene_tables(pairs: PairShards) -> dict[str, NamedTable]:
    """The table of every scene by name, keypoints rounded."""
    whole, tables = pairs.table(), {}
    whole = replace(whole, **unpack_keypoints(pack_keypoints(whole)))
    for number, scene in enumerate(pairs.index["scenes"]):
        images = slice(*pairs.image_starts[number : number + 2].tolist())
        (chosen,) = np.nonzero(pairs.pair_scene == number)
        of_pairs = slice(chosen[0], chosen[-1] + 1) if len(chosen) else slice(0, 0)
        tables[scene["name"]] = scene["images"], _part(whole, images, of_pairs)
    return tables


def _part(table: PairTable, images: slice, pairs: slice) -> PairTable:
    """The table of some neighbouring images, and of some neighbouring pairs of these."""
    image_start = table.image_start[images.start : images.stop + 1]
    pair_start = table.pair_start[pairs.start : pairs.stop + 1]
    columns: dict[str, Any] = {"image_start": image_start - image_start[0], "pair_start": pair_start - pair_start[0]}
    columns["pair_images"] = table.pair_images[pairs] - images.start
    for names, own in (
        (("points", "sizes", "angles"), slice(int(image_start[0]), int(image_start[-1]))),
        (OF_PHOTOS, images),
        (("pair_rotation", "pair_translation", "pair_share"), pairs),
        (("index", "ratio", "mutual", "known", "right"), slice(int(pair_start[0]), int(pair_start[-1]))),
    ):
        columns |= {name: getattr(table, name)[own] for name in names}
    return PairTable(**columns)


def _pack_scene(scene: str, builds: dict[str, NamedTable], out: Path) -> None:
    """Write every keypoint of a scene once, in the order of the first build that has it, and all pairs."""
    photos: dict[str, PairTable] = {}
    places: dict[str, list[np.ndarray]] = {}
    for title, (names, table) in builds.items():
        places[title] = []
        for number, name in enumerate(names):
            own = _part(table, slice(number, number + 1), slice(0, 0))
            known = photos.get(name, own)
            if not all(torch.equal(getattr(known, column), getattr(own, column)) for column in OF_PHOTOS):
                raise InputError(f"{title}: expected the camera that photo {name} of {scene} has in other builds")
            photos[name], place = _united(known, own)
            places[title].append(place)
    joined = join(list(photos.values()))
    starts = dict(zip(photos, joined.image_start.tolist(), strict=False))
    same = {name: getattr(joined, name).numpy() for name in OF_PHOTOS}
    write_columns(out / PHOTOS / f"{scene}{SUFFIX}", pack_keypoints(joined) | same)
    for title, (names, table) in builds.items():
        # Neighbours in one build are mostly neighbours in all.
        where = np.concatenate(
            [np.zeros(0, np.int64), *(starts[n] + p for n, p in zip(names, places[title], strict=True))]
        )
        photo = np.array([list(photos).index(name) for name in names], np.int64)
        of_photos = {
            "photo": photo,
            "image_start": table.image_start.numpy(),
            "step": to_planes(np.diff(where, prepend=0).astype(np.int32)),
        }
        write_columns(out / title / f"{scene}{SUFFIX}", pack_matches(table) | of_photos)


def _united(photo: PairTable, other: PairTable) -> tuple[PairTable, np.ndarray]:
    """The photo with the keypoints that only the other table has behind its own, and where those of the other are."""
    columns = [torch.cat([getattr(table, name) for table in (photo, other)]) for name in ("points", "sizes", "angles")]
    rows = torch.column_stack([values.double() for values in columns]).nan_to_num(-1).numpy()
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    kept = np.sort(first)
    points, sizes, angles = (values[kept] for values in columns)
    end = torch.tensor([0, len(kept)])
    united = replace(photo, points=points, sizes=sizes, angles=angles, image_start=end)
    # Of shape [N x 1] in NumPy 2.0.
    return united, np.searchsorted(kept, first[inverse.reshape(-1)[len(photo.points) :]])
