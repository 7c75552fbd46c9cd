"""Memory over very many calls: pruners, and estimators after them, on matches whose number changes with every call.

    PYTHONPATH=src python benchmarks/soak.py [--calls 100000] [--seconds 3600] [--device cpu] [results.json]

Memory is read a hundred times; its slope is the least-squares line through the last four fifths, when all that is kept
between calls is there. `benchmarks/service.py --seconds 3600` does the same for the service, under load.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ananet
from ananet import Correspondences
from ananet.estimators import load_estimator

PRUNERS = ("ananet", "ananet-small", "gms", "lpm", "ratio")
MAX_MATCHES, SAMPLES = 2000, 100
# The first fifth of the calls fills caches.
WARM_UP = 0.2


def resident_megabytes() -> float:
    """What the process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def device_megabytes(device: str) -> float:
    return torch.cuda.memory_reserved(device) / 1e6 if device.startswith("cuda") else 0.0


def matches(rng: np.random.Generator) -> Correspondences:
    """As many as nobody knows before: mostly few, at most `MAX_MATCHES`; half of them right."""
    count = int(np.exp(rng.uniform(0, np.log(MAX_MATCHES))))
    first = rng.uniform(0, 640, (count, 2))
    right = rng.random(count) < 0.5
    second = np.where(right[:, None], first + rng.normal((20, 5), 0.5, (count, 2)), rng.uniform(0, 640, (count, 2)))
    K = np.array([[600.0, 0, 320], [0, 600, 320], [0, 0, 1]])
    return Correspondences(first, second, K0=K, K1=K, ratio=rng.random(count), mutual=right)


def slope(calls: Sequence[int], megabytes: Sequence[float]) -> float:
    """Megabytes per 1000 calls, of the line through the samples after the warm-up.

    >>> slope([0, 1000, 2000, 3000, 4000, 5000], [10, 50, 51, 52, 53, 54])
    1.0
    """
    kept = np.asarray(calls) >= WARM_UP * calls[-1]
    at, used = np.asarray(calls, float)[kept], np.asarray(megabytes, float)[kept]
    return float(np.round(1000 * np.polyfit(at, used, 1)[0], 6)) if len(at) > 1 else float("nan")


def soak(calls: int, seconds: float, device: str) -> dict[str, Any]:
    """Calls every pruner in turn until the calls, or the seconds, are over."""
    pruners, estimator = [ananet.load(name, device=device) for name in PRUNERS], load_estimator("poselib")
    rng = np.random.default_rng(0)
    done: list[int] = []
    used: list[tuple[float, float]] = []
    start, number = time.monotonic(), 0
    share = 0.0
    while share < 1:
        number += 1
        pair = matches(rng)
        kept = pruners[number % len(pruners)](pair)
        assert np.isfinite(kept.logits).all()
        estimator.pose(pair, kept)
        share = max(number / calls, (time.monotonic() - start) / seconds)
        if share * SAMPLES >= len(done) + 1 or share >= 1:
            done.append(number)
            used.append((resident_megabytes(), device_megabytes(device)))
    resident, reserved = zip(*used, strict=True)
    return {
        "calls": number,
        "seconds": time.monotonic() - start,
        "resident_megabytes": resident,
        "device_megabytes": reserved,
        "sampled_at": done,
        "megabytes_per_1000_calls": slope(done, resident),
        "device_megabytes_per_1000_calls": slope(done, reserved),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", nargs="?", type=Path, help="write all samples here, as JSON")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="at most so long (default: 3600)")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    found = soak(arguments.calls, arguments.seconds, arguments.device)
    if arguments.results:
        arguments.results.write_text(json.dumps(found, indent=1), encoding="utf-8")
    resident = found["resident_megabytes"]
    print(f"{found['calls']} calls in {found['seconds']:.0f} s, at most {MAX_MATCHES} matches each")
    print(f"memory {resident[len(resident) // 5]:.1f} MB after a fifth, {resident[-1]:.1f} MB at the end")
    print(f"slope  {found['megabytes_per_1000_calls']:+.3f} MB per 1000 calls")
    if arguments.device.startswith("cuda"):
        print(f"device {found['device_megabytes_per_1000_calls']:+.3f} MB per 1000 calls")


if __name__ == "__main__":
    main()
