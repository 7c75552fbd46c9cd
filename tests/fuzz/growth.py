"""Whether memory or time grow with the number of calls."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ananet

MAX_MATCHES = 300


@dataclass(frozen=True)
class Growth:
    """From the end of the first fifth of the calls, when caches are filled, to the last."""

    megabytes: float
    seconds_before: float
    """Of a call, in the second fifth."""
    seconds_after: float
    """In the last fifth."""


def measure(pruner: ananet.Pruner, calls: int, seed: int = 0) -> Growth:
    """Calls with matches of changing number; the same sizes in every fifth."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, MAX_MATCHES, calls // 5)
    points = rng.uniform(0, 640, (2, MAX_MATCHES, 2))
    memory, seconds = [], []
    for _ in range(5):
        start = time.process_time()
        for size in sizes:
            pruner(points[0, :size], points[1, :size], image_size0=(640, 640), image_size1=(640, 640))
        seconds.append((time.process_time() - start) / len(sizes))
        memory.append(resident_bytes())
    return Growth((memory[-1] - memory[0]) / 2**20, seconds[1], seconds[-1])


def resident_bytes() -> int:
    """What the process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
