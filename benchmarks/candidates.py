"""How many of the pairs that match `--pairs auto` chooses, and in which share of the time of all pairs.

    python benchmarks/candidates.py SCENE DATABASE --rows counts.npy

SCENE has photos with known poses (`ananet data inspect` shows them), DATABASE their SIFT features, such as the one that
`ananet sfm` leaves. A pair is true if at least 15 of its distinctive matches, and more than half, fit the poses: 4
pixels from the epipolar line (of a photo of one megapixel), in front of both cameras. Time is that of the processor: of
choosing and matching the chosen pairs, over that of matching all, by some pairs drawn at random.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import ananet
from ananet._util.defaults import DISTINCTIVE_RATIO, RECONSTRUCTION_PRUNER
from ananet._util.tables import format_table
from ananet.core.correspondences import Correspondences
from ananet.datasets.depth import View, fits_poses
from ananet.datasets.sources import open_posed_photos
from ananet.features import nearest_neighbours
from ananet.features.candidates import PER_PHOTO, SHARE, promising_pairs
from ananet.integrations.colmap.database import View as StoredView
from ananet.integrations.colmap.database import join, open_database
from ananet.integrations.colmap.pruning import PROMISING_RATIO
from ananet.twoview.same_place import judge_pair

MIN_FITTING, LINE_PIXELS = 15, 4.0
SHARES = (0.05, 0.07, 0.08, 0.09, SHARE, 0.15, 0.2)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=Path)
    parser.add_argument("database", type=Path)
    parser.add_argument("--rows", type=Path, help="file that keeps the counts of all pairs for another call")
    parser.add_argument("--sample", type=int, default=60, help="pairs that are matched in full for their time")
    parser.add_argument("--pruner", default=RECONSTRUCTION_PRUNER)
    arguments = parser.parse_args(given)
    torch.set_num_threads(1)
    with open_database(arguments.database) as database:
        images = database.images_with_descriptors()
        names, stored = database.image_names(), [database.view(image, descriptors=True) for image in images]
    if arguments.rows is None or not arguments.rows.is_file():
        scene = open_posed_photos(arguments.scene).scenes()[0]
        views = [posed(view, scene.images[names[image]]) for image, view in zip(images, stored, strict=True)]
        rows = count_all(views)
        if arguments.rows is not None:
            np.save(arguments.rows, rows)
    else:
        rows = np.load(arguments.rows)
    true = (rows[:, 3] >= MIN_FITTING) & (rows[:, 3] > rows[:, 2] / 2)
    number = {(a, b): row for row, (a, b) in enumerate(rows[:, :2].tolist())}
    pruner, rng = ananet.load(arguments.pruner, device="cpu"), np.random.default_rng(0)
    sample = rows[rng.permutation(len(rows))[: arguments.sample], :2].tolist()
    # The first call prepares the network.
    match_in_full(stored[0], stored[1], pruner)
    each = seconds(lambda: [match_in_full(stored[a], stored[b], pruner) for a, b in sample]) / len(sample)
    chosen: list[np.ndarray] = []
    choosing = seconds(lambda: chosen.append(promising_pairs(stored, SHARES[-1]))) / (each * len(rows))
    order = np.array([number[a, b] for a, b in chosen[0].tolist()])
    print(f"{len(stored)} photos, {len(rows)} pairs, {true.sum()} true ({true.mean():.1%}), {1e3 * each:.1f} ms a pair")
    print(
        f"choosing takes {choosing:.2%} of the time of all pairs; by default {PER_PHOTO} pairs per photo at least, here"
    )
    print(f"{max(SHARE, PER_PHOTO * len(stored) / len(rows)):.1%} of all")
    table = []
    for share in SHARES:
        own = order[: round(share * len(rows))]
        found = true[own].sum()
        shares = {"pairs": share, "of the time": share + choosing, "true pairs found": found / true.sum()}
        table.append(shares | {"at best": min(1.0, len(own) / true.sum()), "true of the chosen": found / len(own)})
    print(format_table(table, decimals=3))


def posed(view: StoredView, image: ananet.datasets.base.PosedImage) -> View:
    """The keypoints of a database with the pose of a scene."""
    return View(view.points, view.descriptors, image.K, image.R, np.ravel(image.t), view.image_size)


def count_all(views: Sequence[View]) -> np.ndarray:
    """[P x 4] both photos of each pair, its distinctive matches, and those that fit the poses."""
    rows = []
    for a, b in tqdm(list(itertools.combinations(range(len(views)), 2))):
        found = nearest_neighbours(views[a].descriptors, views[b].descriptors)
        good = np.flatnonzero(found.mutual & (found.ratio < DISTINCTIVE_RATIO))
        fitting = fits_poses(views[a], views[b], np.stack([good, found.index[good]], axis=1), LINE_PIXELS)
        rows.append((a, b, len(good), int(fitting.sum())))
    return np.array(rows)


def match_in_full(first: StoredView, second: StoredView, pruner: ananet.Pruner) -> Correspondences:
    """What `ananet colmap --match` does with a pair."""
    found = nearest_neighbours(first.descriptors, second.descriptors)
    seen = np.flatnonzero(found.mutual | (found.ratio < PROMISING_RATIO))
    known = {"ratio": found.ratio[seen], "mutual": found.mutual[seen]}
    matches, _ = join(first, second, np.stack([seen, found.index[seen]], axis=1), **known)
    kept = pruner(matches)
    judge_pair(matches, kept, first.points, second.points)
    return matches[kept.mask]


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, all threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
