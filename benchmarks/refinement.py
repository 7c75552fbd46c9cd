"""Distance of kept matches from the true geometry before and after subpixel refinement.

    python benchmarks/refinement.py SCENES [--limit N] [--pruner NAME] [--json]

For every pair of undistorted photos with known cameras: SIFT, nearest neighbours, the mutual ones among the kept
matches, `ananet.twoview.refinement.refine` on one thread. Distances are Sampson's, in pixels.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from tqdm import tqdm

from ananet._util.tables import format_table
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.core.correspondences import Correspondences
from ananet.datasets.base import PosedImage, PosedPair
from ananet.datasets.photos import read_posed_image
from ananet.datasets.sources import open_posed_photos
from ananet.errors import InputError
from ananet.features import load_detector, match
from ananet.pruners import load
from ananet.twoview.refinement import refine

# Bins of the correlation of patches after refinement.
CORRELATIONS = (-1.0, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)


class Refinement:
    """Refines pairs and measures each match."""

    def __init__(self, pruner: str) -> None:
        self.detector, self.pruner = load_detector("sift@root=false", max_keypoints=2000), load(pruner, device="cpu")
        # Photos of one scene come one after another.
        self.photo = lru_cache(maxsize=64)(self._photo)

    def _photo(self, image: PosedImage):
        pixels = read_posed_image(image)
        return pixels, self.detector.detect(pixels)

    def __call__(self, pair: PosedPair) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """[N] distances before and after, [N] correlations, and CPU seconds."""
        (pixels0, features0), (pixels1, features1) = self.photo(pair.image0), self.photo(pair.image1)
        matches = match(features0, features1, K0=pair.image0.K, K1=pair.image1.K)
        matches = matches[torch.from_numpy(self.pruner(matches).mask) & matches.mutual]
        start = time.process_time()
        found = refine(pixels0, pixels1, matches, device="cpu")
        seconds = time.process_time() - start
        E = geometry.essential_from_pose(*pair.relative_pose())
        return *(distances(each, E) for each in (matches, found.matches)), found.correlation, seconds


def distances(matches: Correspondences, E: torch.Tensor) -> np.ndarray:
    """[N] Sampson distances in pixels."""
    rays = matches._as_tensors().normalized().double()
    return (geometry.sampson_distance(rays[:, :2], rays[:, 2:], E) * mean_focal(matches.K0, matches.K1)).numpy()


def row(name: str, before: np.ndarray, after: np.ndarray) -> dict[str, object]:
    return {
        "": name,
        "matches": len(before),
        "median before": float(np.median(before)),
        "median after": float(np.median(after)),
        "within 1 px before": float((before < 1).mean()),
        "within 1 px after": float((after < 1).mean()),
    }


def measure(scenes: str, pruner: str, limit: int | None) -> dict[str, object]:
    listed = [
        (scene.name, pair)
        for scene in open_posed_photos(scenes).scenes()
        for pair in scene.all_pairs()
        if pair.has_baseline and pair.rotations == (0, 0)
        if pair.image0.distortion is None and pair.image1.distortion is None
    ]
    if not listed:
        raise InputError(f"scenes: expected pairs of undistorted photos, {scenes} has none")
    listed = listed[:: max(1, -(-len(listed) // (limit or len(listed))))]
    refinement = Refinement(pruner)
    refined = [refinement(pair) for _, pair in tqdm(listed, desc="pairs")]
    before, after, correlation = (np.concatenate([each[k] for each in refined]) for k in range(3))
    scene = np.repeat([name for name, _ in listed], [len(each[0]) for each in refined])
    by_scene = [row(name, before[scene == name], after[scene == name]) for name in sorted(set(scene))]
    by_correlation = []
    for low, high in pairwise(CORRELATIONS):
        inside = (correlation > low) & (correlation <= high)
        if inside.any():
            by_correlation.append(row(f"{low:g} to {high:g}", before[inside], after[inside]))
    milliseconds = 500e3 * sum(each[3] for each in refined) / max(len(before), 1)
    return {
        "pairs": len(listed),
        "scenes": [row("all", before, after), *by_scene],
        "correlations": by_correlation,
        "milliseconds of 500 matches": milliseconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes")
    parser.add_argument("--pruner", default="auto", help="default: auto")
    parser.add_argument("--limit", type=int, help="at most N pairs, evenly spread")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        found = measure(arguments.scenes, arguments.pruner, arguments.limit)
    except InputError as error:
        raise SystemExit(f"refinement.py: {error}") from None
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['pairs']} pairs, {found['milliseconds of 500 matches']:.0f} ms for 500 matches on one CPU thread\n")
    for name in ("scenes", "correlations"):
        print(name)
        print(format_table(found[name]) + "\n")


if __name__ == "__main__":
    main()
