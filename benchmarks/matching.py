"""Nearest-neighbour matching against OpenCV's brute-force matcher and the bare matrix product, in one run.

python benchmarks/matching.py
"""

import time
from collections.abc import Callable

import cv2
import numpy as np

from ananet.features import nearest_neighbours


def best_of(job: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def main() -> None:
    rng = np.random.default_rng(0)
    columns = ("descriptors", "OpenCV knn, ms", "product, ms", "ananet, ms", "/ OpenCV", "/ product")
    print("".join(f"{column:>16}" for column in columns))
    for count, runs in ((2000, 20), (8000, 5)):
        a, b = (np.abs(rng.normal(size=(count, 128))).astype(np.float32) for _ in range(2))
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        opencv = best_of(lambda a=a, b=b: cv2.BFMatcher(cv2.NORM_L2).knnMatch(a, b, k=2), runs)
        product = best_of(lambda a=a, b=b: a @ b.T, runs)
        ours = best_of(lambda a=a, b=b: nearest_neighbours(a, b), runs)
        cells = (
            f"{count} x 128",
            *(f"{x:.1f}" for x in (opencv, product, ours)),
            *(f"{ours / x:.2f}" for x in (opencv, product)),
        )
        print("".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
