"""Check the labels by depth of scenes against their poses and against tracks over several photos.

    python benchmarks/depth_labels.py SCENES [SCENE ...]

For each scene, over all pairs of photos in common view:

- right matches within 2 px of the epipolar line, which the label does not look at;
- of ratio-test matches (mutual, ratio below 0.8) near the line, those called wrong: all of them, and those with several
  photos behind them: in at least two other photos both keypoints match the same third one, near its epipolar lines.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet._util.tables import format_table
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.datasets.build import BuildSettings, ScenePairs, read_photo, scene_photos
from ananet.datasets.depth import View
from ananet.datasets.scene_depth import in_pool
from ananet.datasets.sources import open_posed_photos
from ananet.features import nearest_neighbours

LINE_PIXELS = 2.0
RATIO = 0.8
# Other photos in which both keypoints of a match have the same third one.
MIN_CLOSED = 2
MIN_SHARE = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="photos with known cameras")
    parser.add_argument("scenes", nargs="*", help="names of the scenes (default: all)")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    rows, settings = [], BuildSettings()
    read = partial(read_photo, detector=settings.load_detector(), scale=1.0)
    for scene in open_posed_photos(arguments.source).scenes():
        if arguments.scenes and scene.name not in arguments.scenes:
            continue
        bar = tqdm(desc=scene.name, leave=False, disable=not sys.stderr.isatty())
        with ThreadPoolExecutor() as pool:
            run = in_pool(pool, bar)
            photos = [one for one in run("photos", read, scene_photos(scene).values()) if not isinstance(one, str)]
            rows.append({"scene": scene.name, **check(ScenePairs(photos, settings, run))})
        bar.close()
    print(format_table(rows))


def check(scene: ScenePairs) -> dict[str, float | int]:
    """Count what labels say of all pairs of a scene in common view."""
    views = scene.views
    pairs = list(itertools.combinations(range(len(views)), 2))
    matched = dict(
        zip(pairs, scene.run("matches", lambda pair: distinctive(views[pair[0]], views[pair[1]]), pairs), strict=True)
    )
    right = precise = near = known = wrong = closed = closed_known = closed_wrong = used = 0
    for a, b in pairs:
        shares, angle = scene.common_view(a, b)
        if min(shares) < MIN_SHARE or angle < scene.settings.min_parallax:
            continue
        used += 1
        pair = scene.match(a, b, min(shares))
        if pair is None:
            continue
        off = line_distance(views[a], views[b], np.arange(len(pair.right)), pair.neighbours.index)
        right, precise = right + pair.right.sum(), precise + (pair.right & (off < LINE_PIXELS)).sum()
        mine = matched[a, b]
        sure = np.flatnonzero((mine >= 0) & pair.near_line)
        loops = np.zeros(len(sure), int)
        for c in set(range(len(views))) - {a, b}:
            of_a, of_b = (matched[m, c] if m < c else inverse(matched[c, m], len(views[m].points)) for m in (a, b))
            closes = np.flatnonzero((of_a[sure] >= 0) & (of_a[sure] == of_b[mine[sure]]))
            third = of_a[sure[closes]]
            off = [line_distance(views[a], views[c], sure[closes], third)]
            off += [line_distance(views[b], views[c], mine[sure[closes]], third)]
            loops[closes[np.max(off, axis=0) < LINE_PIXELS]] += 1
        called_wrong, has_label, several = pair.known[sure] & ~pair.right[sure], pair.known[sure], loops >= MIN_CLOSED
        near, known, wrong = near + len(sure), known + has_label.sum(), wrong + called_wrong.sum()
        closed, closed_known = closed + several.sum(), closed_known + (several & has_label).sum()
        closed_wrong += (several & called_wrong).sum()
    return {
        "photos": len(views),
        "pairs": used,
        "right": int(right),
        "right within 2 px": round(precise / max(right, 1), 4),
        "ratio test, known": int(known),
        "called wrong": round(wrong / max(known, 1), 4),
        "several photos, known": int(closed_known),
        "of these wrong": round(closed_wrong / max(closed_known, 1), 4),
    }


def distinctive(first: View, second: View) -> np.ndarray:
    """[N] keypoint of the second photo by the ratio test; -1 for none."""
    found = nearest_neighbours(first.descriptors, second.descriptors)
    return np.where(found.mutual & (found.ratio < RATIO), found.index, -1)


def inverse(index: np.ndarray, count: int) -> np.ndarray:
    """[count] matches in the other direction."""
    back = np.full(count, -1)
    there = np.flatnonzero(index >= 0)
    back[index[there]] = there
    return back


def line_distance(first: View, second: View, index0: np.ndarray, index1: np.ndarray) -> np.ndarray:
    """[S] pixels, Sampson distance of matches to the true geometry."""
    R, t = (torch.from_numpy(part) for part in first.pose_of(second))
    rays0, rays1 = torch.from_numpy(first.rays(index0)[:, :2]), torch.from_numpy(second.rays(index1)[:, :2])
    distance = geometry.sampson_distance(rays0, rays1, geometry.essential_from_pose(R, t / t.norm()))
    return (distance * mean_focal(first.K, second.K)).numpy()


if __name__ == "__main__":
    main()
