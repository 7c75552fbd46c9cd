"""Which pairs of a COLMAP database's images are matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from ananet.errors import InputError
from ananet.features.candidates import promising_pairs
from ananet.integrations.colmap.database import Database, Pair
from ananet.io.files import is_file
from ananet.io.pairs import read_pairs

KINDS = ALL_PAIRS, AUTO_PAIRS, EXISTING_PAIRS, SEQUENTIAL_PAIRS = "all", "auto", "existing", "sequential"
# Photos that a photo of a sequence is matched with, as in COLMAP.
NEXT_PHOTOS = 10
# Photos of a tile of the table of all pairs: with their features in memory, each photo is read a few times only.
TILE = 64


def check_which(which: str | Path | Sequence[tuple[str, str]]) -> None:
    """Raise if pairs are neither a kind nor a file, where a text is given."""
    if isinstance(which, str | Path) and which not in KINDS and not is_file(Path(which)):
        raise InputError(
            f"pairs: expected {', '.join(KINDS)} or a text file with two names per line, got {str(which)!r}"
        )


def choose_pairs(database: Database, which: str | Path | Sequence[tuple[str, str]]) -> tuple[int, Iterable[Pair]]:
    """Return the number of pairs to match and these pairs, in order of their numbers and both images with descriptors.

    Args:
        which: "all"; "auto" for the most promising (`ananet.features.candidates`); "existing" for pairs that have
            matches; "sequential" for each image with the next ones by name; a file with names of pairs; or the names
            themselves.
    """
    check_which(which)
    described = database.images_with_descriptors()
    names = database.image_names()
    if not described and names:
        raise InputError(f"{database.name}: no descriptors in the database: extract features first")
    if which == ALL_PAIRS:
        return len(described) * (len(described) - 1) // 2, _in_tiles(described)
    if which == EXISTING_PAIRS:
        chosen = [pair for pair, _ in database.matched_pairs()]
    elif which == AUTO_PAIRS:
        promising = promising_pairs(database.view(image, True) for image in described)
        chosen = [Pair(described[a], described[b]) for a, b in promising.tolist()]
    elif which == SEQUENTIAL_PAIRS:
        ordered = sorted(described, key=lambda image: names[image])
        steps = range(1, NEXT_PHOTOS + 1)
        chosen = [Pair(first, second) for step in steps for first, second in zip(ordered, ordered[step:], strict=False)]
    else:
        chosen = _named_pairs(database, which)
    usable = sorted({pair.in_order for pair in chosen if set(described).issuperset(pair)})
    return len(usable), usable


def _in_tiles(images: Sequence[int]) -> Iterator[Pair]:
    """All pairs, tile by tile.

    >>> [tuple(pair) for pair in _in_tiles([1, 2, 3])]
    [(1, 2), (1, 3), (2, 3)]
    """
    bounds = [*range(0, len(images), TILE), len(images)]
    tiles = [images[start:end] for start, end in pairwise(bounds)]
    for number, tile in enumerate(tiles):
        for other in tiles[number:]:
            yield from (Pair(first, second) for first in tile for second in other if first < second)


def _named_pairs(database: Database, pairs: str | Path | Sequence[tuple[str, str]]) -> list[Pair]:
    """Pairs of images by name, listed in a file or given."""
    images = {name: image for image, name in database.image_names().items()}
    named = read_pairs(pairs) if isinstance(pairs, str | Path) else (("pairs", tuple(two)) for two in pairs)
    found = []
    for where, names in named:
        if len(names) != 2 or not images.keys() >= set(names) or len(set(names)) != 2:
            raise InputError(f"{where}: expected the names of two images of {database.name}, got {' '.join(names)!r}")
        found.append(Pair(images[names[0]], images[names[1]]))
    return found
