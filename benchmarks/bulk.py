"""Pairs per second of `ananet bulk` with 1 and 2 workers, and the size of its files.

    python benchmarks/bulk.py                               # 64 pairs of 2048 matches, on the CPU: minutes
    python benchmarks/bulk.py --pairs 24 --workers 1 2 --json
    python benchmarks/bulk.py --photos FOLDER               # CPU time and bytes of each step from photos to poses

The pairs are synthetic: points on a wavy surface in front of two cameras, half of the matches right. Workers are
processes of a local Ray, each on one thread. The rate counts the parts after the first of each worker, without the time
to start. It is only meaningful on an idle machine, so the load is printed too. With --photos, each photo is matched
with the next two, in one process on one thread; CPU times depend little on other load.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet.bulk import prune_in_bulk
from ananet.bulk.inputs import PhotoPairs
from ananet.bulk.stages import Prune, Verify, write_part

WIDTH, HEIGHT, FOCAL = 1600, 1200, 1400.0


def write_pairs(folder: Path, count: int, matches: int) -> None:
    K = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])
    for number in tqdm(range(count), desc="pairs", leave=False):
        random = np.random.default_rng(number)
        points0 = random.uniform([0, 0], [WIDTH, HEIGHT], (matches, 2))
        depth = 6 + np.sin(points0[:, 0] / 200) + np.cos(points0[:, 1] / 150)
        seen = np.c_[points0, np.ones(matches)] @ np.linalg.inv(K).T * depth[:, None] + [0.9, 0.1, 0.4]
        points1 = (seen @ K.T)[:, :2] / seen[:, 2:] + random.normal(0, 0.5, (matches, 2))
        right = random.random(matches) < 0.5
        points1[~right] = random.uniform([0, 0], [WIDTH, HEIGHT], (int((~right).sum()), 2))
        np.savez(
            folder / f"{number:06d}.npz",
            points0=points0.astype(np.float32),
            points1=points1.astype(np.float32),
            K0=K,
            K1=K,
            ratio=np.where(right, random.uniform(0.3, 0.9, matches), random.uniform(0.7, 1, matches)).astype(
                np.float32
            ),
            mutual=right | (random.random(matches) < 0.3),
            image_size0=[WIDTH, HEIGHT],
            image_size1=[WIDTH, HEIGHT],
        )


def steady_rate(written: Sequence[float], workers: int, pairs_per_part: int) -> float:
    """Return pairs per second, without the first part of each worker.

    Args:
        written: times of all parts, in any order.

    >>> steady_rate([10, 11, 12, 13, 14], workers=1, pairs_per_part=8)
    8.0
    """
    times = sorted(written)
    return (len(times) - workers) * pairs_per_part / (times[-1] - times[workers - 1])


def measure(folder: Path, output: Path, workers: int, pairs_per_part: int) -> dict[str, Any]:
    start = time.perf_counter()
    summary = prune_in_bulk(folder, output, workers=workers, pairs_per_part=pairs_per_part, device="cpu")
    seconds = time.perf_counter() - start
    parts = list(output.glob("part-*.parquet"))
    return {
        "workers": workers,
        "pairs": summary.counts.pairs,
        "failed": summary.counts.failed,
        "poses": summary.counts.poses,
        "seconds": round(seconds, 1),
        "pairs_per_second": round(steady_rate([p.stat().st_mtime for p in parts], workers, pairs_per_part), 2),
        "bytes_per_pair": round(sum(p.stat().st_size for p in parts) / summary.counts.pairs),
        "load": round(os.getloadavg()[0], 1),
    }


def measure_photos(folder: Path, work: Path, most: int = 12) -> dict[str, float]:
    """CPU milliseconds of each step and bytes written, per photo or per pair."""
    photos = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".png"))[:most]
    pairs = [(a, b) for i, a in enumerate(photos) for b in photos[i + 1 : i + 3]]
    (work / "pairs.txt").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    source = PhotoPairs(folder, work / "pairs.txt", work / "features", "sift", 2000, focal=1000.0)
    prune, verify, detector = Prune(None, "cpu"), Verify("poselib"), source.load_detector("cpu")
    spent = {}

    def timed(step: str, count: int, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        answer = work()
        spent[f"{step}_ms"] = round(1000 * (time.process_time() - start) / count, 2)
        return answer

    (part,) = source.parts(len(pairs))
    timed("detect", len(photos), lambda: [source.detect(name, detector) for name in photos])
    found = timed("match", len(pairs), lambda: list(source.read(part)))
    travelling = len(pickle.dumps(found)) / len(pairs)
    found = timed("prune", len(pairs), lambda: prune.prune(found))
    found = timed("verify", len(pairs), lambda: verify(found))
    write_part(work / "part.parquet", found, with_indices=True)  # imports pyarrow, which is not timed
    counts = timed("write", len(pairs), lambda: write_part(work / "part.parquet", found, with_indices=True))
    features = sum(path.stat().st_size for path in (work / "features").iterdir())
    return spent | {
        "photos": len(photos),
        "pairs": len(pairs),
        "failed": counts.failed,
        "poses": counts.poses,
        "matches_per_pair": counts.matches / len(pairs),
        "photo_bytes": round(sum((folder / name).stat().st_size for name in photos) / len(photos)),
        "features_bytes": round(features / len(photos)),
        "travelling_bytes": round(travelling),
        "pair_bytes": round((work / "part.parquet").stat().st_size / len(pairs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--matches", type=int, default=2048)
    parser.add_argument("--pairs-per-part", type=int, default=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--photos", type=Path, metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.photos is not None:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        with tempfile.TemporaryDirectory() as temporary:
            print(json.dumps(measure_photos(arguments.photos, Path(temporary))))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "pairs"
        folder.mkdir()
        write_pairs(folder, arguments.pairs, arguments.matches)
        size = sum(path.stat().st_size for path in folder.iterdir()) / arguments.pairs
        runs = [
            measure(folder, Path(temporary) / f"workers-{workers}", workers, arguments.pairs_per_part)
            for workers in arguments.workers
        ]
    first, last = runs[0], runs[-1]
    scaling = last["pairs_per_second"] / first["pairs_per_second"]
    if arguments.json:
        print(json.dumps({"load_before": load, "input_bytes_per_pair": size, "runs": runs, "scaling": scaling}))
        return
    print(f"load before {load:.1f}, {size:,.0f} bytes of input per pair")
    for run in runs:
        print(", ".join(f"{name} {value}" for name, value in run.items()))
    print(f"{last['workers']} workers over {first['workers']}: {scaling:.2f} x")


if __name__ == "__main__":
    main()
