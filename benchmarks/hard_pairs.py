"""Lists of the hard pairs of scenes, to evaluate on.

    python benchmarks/hard_pairs.py PAIRS FOLDER [--pairs-per-scene N] [--seed N] [--json]

PAIRS are training pairs of version 3 that `ananet data build` wrote: all pairs by common view of the scenes. A pair is
hard if the ratio test finds few right matches although the photos have much of their view in common
(`ananet.datasets.base.is_hard`). FOLDER gets a file SCENE.txt for every scene with hard pairs, two image names per
line; `ananet data build SCENES OUT --pair-lists FOLDER` builds them. Of more than N hard pairs of a scene, N are chosen
at random, spread over the share of common view. A pair that is stored in both directions is listed once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ananet._util.checks import check_whole_number
from ananet._util.tables import format_table
from ananet.datasets.formats.shards import PairShards
from ananet.errors import InputError
from ananet.io.files import atomic_path


@dataclass(frozen=True)
class HardPair:
    """A pair to list."""

    scene: str
    images: tuple[str, str]
    share: float


def hard_pairs(pairs: PairShards) -> Iterator[HardPair]:
    """Yield the hard pairs, each once."""
    names = [name for scene in pairs.index["scenes"] for name in scene["images"]]
    seen = set()
    for number, (first, second) in enumerate(pairs.table().pair_images.tolist()):
        pair = pairs[number]
        images = (names[first], names[second])
        key = (pair.scene, *sorted(images))
        if pair.hard and pair.share is not None and key not in seen:
            seen.add(key)
            yield HardPair(pair.scene, images, pair.share)


def spread(pairs: Sequence[HardPair], count: int, rng: np.random.Generator) -> list[HardPair]:
    """Return at most `count` pairs by rising share: one at random of every `count`-th part."""
    ordered = sorted(pairs, key=lambda pair: (pair.share, pair.images))
    if len(ordered) <= count:
        return ordered
    edges = np.linspace(0, len(ordered), count + 1).astype(int)
    return [ordered[rng.integers(low, high)] for low, high in itertools.pairwise(edges)]


def write_list(path: Path, pairs: Sequence[HardPair]) -> None:
    lines = ["\t".join(p.images) if " " in "".join(p.images) else " ".join(p.images) for p in pairs]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_lists(source: Path, folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write the lists; return one row per scene."""
    check_whole_number("--pairs-per-scene", count, 1)
    check_whole_number("--seed", seed, 0)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: expected a new or empty folder")
    pairs = PairShards(source)
    if not pairs.table().pair_share.isfinite().any():
        raise InputError(f"{source}: expected pairs with known depth; build them again")
    found, rng, rows = list(hard_pairs(pairs)), np.random.default_rng(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    for scene in pairs.scenes:
        own = [pair for pair in found if pair.scene == scene]
        chosen = spread(own, count, rng)
        if chosen:
            write_list(folder / f"{scene}.txt", chosen)
        row: dict[str, Any] = {"scene": scene, "hard": len(own), "listed": len(chosen)}
        row["least share"], row["largest share"] = (chosen[0].share, chosen[-1].share) if chosen else (None, None)
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, help="training pairs")
    parser.add_argument("folder", type=Path, help="for the lists; new or empty")
    parser.add_argument("--pairs-per-scene", type=int, default=40, metavar="N", help="at most (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default: 0)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        rows = write_lists(arguments.pairs, arguments.folder, arguments.pairs_per_scene, arguments.seed)
    except InputError as error:
        print(f"hard_pairs.py: {error}", file=sys.stderr)
        return 1
    print(json.dumps(rows) if arguments.json else format_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
