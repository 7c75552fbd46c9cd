"""Time of motion grouping, and how often a rigid scene is reported as one motion.

    python benchmarks/motions.py [--pairs FOLDER] [--pruner NAME] [--limit N] [--runs N] [--json]

Speed: median CPU time of `ananet.group_motions` on one thread, for 400 and 2000 matches of one to four rigid objects
with half a pixel of noise. With `--pairs`, pairs of rigid scenes from `ananet data build`: the share of pairs in which
the kept matches are reported as one motion.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

# numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet import Correspondences, group_motions, load
from ananet._util.tables import format_table
from ananet.datasets.sources import open_source
from ananet.errors import InputError

COUNTS, MOTIONS = (400, 2000), (1, 2, 3, 4)
RUNS = 9
FOCAL, MIDDLE = 700.0, (320.0, 240.0)


def rigid_objects(count: int, motions: int) -> Correspondences:
    """Matches of objects side by side, each with its own rotation and translation."""
    random = np.random.default_rng(motions)
    ends = []
    for number, part in enumerate(np.array_split(np.arange(count), motions)):
        centre = np.array([(number - (motions - 1) / 2) * 3 / motions, 0.0, 5.0])
        X = random.uniform(-1, 1, (len(part), 3)) * [1.4 / motions, 1.4, 0.5]
        R, _ = cv2.Rodrigues(random.normal(0, 0.2, 3))
        moved = X @ R.T + random.normal(0, 0.2, 3)
        ends.append([FOCAL * Y[:, :2] / Y[:, 2:] + MIDDLE for Y in (X + centre, moved + centre)])
    points0, points1 = (np.concatenate(side) for side in zip(*ends, strict=True))
    return Correspondences(points0, points1 + random.normal(0, 0.5, points1.shape))


def measure_speed(runs: int) -> list[dict[str, object]]:
    rows = []
    for count in COUNTS:
        for motions in MOTIONS:
            matches = rigid_objects(count, motions)
            seconds = []
            for seed in range(runs):
                start = time.process_time()
                found = group_motions(matches, seed=seed)
                seconds.append(time.process_time() - start)
            milliseconds = 1000 * statistics.median(seconds)
            rows.append({"matches": count, "motions": motions, "found": len(found), "ms": round(milliseconds, 1)})
    return rows


def measure_rigid(folder: str, name: str, limit: int | None) -> list[dict[str, object]]:
    """The share of pairs with one motion, by scene."""
    source, pruner = open_source(folder), load(name, device="cpu")
    step = max(1, -(-len(source) // (limit or len(source))))
    found: dict[str, list[int]] = {}
    for number in tqdm(range(0, len(source), step), desc="pairs"):
        pair = source[number]
        found.setdefault(pair.scene, []).append(len(group_motions(pair.matches, pruner(pair.matches))))
    found = {**dict(sorted(found.items())), "all": [count for counts in found.values() for count in counts]}
    return [
        {
            "scene": scene,
            "pairs": len(counts),
            "none": counts.count(0),
            "one": counts.count(1),
            "more": sum(count > 1 for count in counts),
            "share of one": counts.count(1) / len(counts),
        }
        for scene, counts in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", metavar="FOLDER", help="pairs of rigid scenes")
    parser.add_argument("--pruner", default="ananet", help="default: ananet")
    parser.add_argument("--limit", type=int, help="at most N pairs, evenly spread")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each measurement of speed (default: {RUNS})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        found = {"speed": measure_speed(arguments.runs)}
        if arguments.pairs:
            found["rigid"] = measure_rigid(arguments.pairs, arguments.pruner, arguments.limit)
    except InputError as error:
        raise SystemExit(f"motions.py: {error}") from None
    if arguments.json:
        print(json.dumps(found))
        return
    print("\n\n".join(format_table(rows) for rows in found.values()))


if __name__ == "__main__":
    main()
