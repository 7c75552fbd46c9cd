"""One call on one thread with each engine: PyTorch, ONNX Runtime (ananet-lite) and the C++ header.

    make test-native && python benchmarks/anywhere.py [--rounds 5]
    python benchmarks/anywhere.py --pairs SCENES [--limit 500]

CPU times; all take turns in every round, and the least counts. Matches are synthetic. `neighbours` is the search of the
nearest of N descriptors with 128 numbers among as many others, by the product of the header; `OpenCV` is its
brute-force matcher. With --pairs, the decisions of ananet-lite are compared with those of ananet on pairs of photos
(SIFT, 2000 keypoints).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch

import ananet
from ananet._util.tables import format_table
from ananet.integrations.onnx import export
from ananet.weights import bundled_path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "packages" / "lite" / "src"))

import ananet_lite  # noqa: E402

SPEED = ROOT / "build" / "native" / "speed"
# Network, seeds (None: as trained) and number of matches.
CASES = [
    *(("ananet-small", seeds, count) for count in (1000, 2048) for seeds in (None, 128)),
    *(("ananet", seeds, 2048) for seeds in (None, 256)),
]
SIZE = (1000, 1000)
# Of each pair of photos, at most.
MATCHES = 2000
# Scores nearer to the threshold than this are borderline.
BORDERLINE = 1e-3


def milliseconds(call: Callable[[], object]) -> float:
    """CPU time, which other processes do not lengthen by taking turns."""
    start = time.process_time()
    call()
    return 1000 * (time.process_time() - start)


def matches(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of them move together, as in native/benchmarks/speed.cpp."""
    numbers = np.random.default_rng(0)
    points0 = numbers.uniform(0, 1000, (count, 2)).astype(np.float32)
    points1 = numbers.uniform(0, 1000, (count, 2)).astype(np.float32)
    points1[1::2] = points0[1::2] + np.float32([20, 5])
    return points0, points1


def measure(name: str, seeds: int | None, count: int, rounds: int, folder: Path) -> dict[str, object]:
    """A row of the table."""
    pruner = ananet.load(name, device="cpu", **({} if seeds is None else {"seeds": seeds}))
    path = folder / f"{name}-{seeds}.onnx"
    if not path.exists():
        export(pruner, path, pixels=True)
    lite = ananet_lite.load(path, threads=1)
    points0, points1 = matches(count)
    given = {"image_size0": SIZE, "image_size1": SIZE}
    descriptors = np.random.default_rng(0).normal(size=(2, count, 128)).astype(np.float32)
    calls = {
        "PyTorch": lambda: pruner(points0, points1, **given),
        "ONNX Runtime": lambda: lite(points0, points1, **given),
        "OpenCV": lambda: cv2.BFMatcher().match(*descriptors),
    }
    trained = pruner.network.settings.seeds  # type: ignore[attr-defined]
    program = [SPEED, bundled_path(name), str(count), str(trained if seeds is None else seeds), "5"]
    least = dict.fromkeys([*calls, "C++", "neighbours"], float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for engine, call in calls.items():
            least[engine] = min(least[engine], milliseconds(call))
        found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
        least["C++"] = min(least["C++"], found["pruner_ms"])
        least["neighbours"] = min(least["neighbours"], found["neighbours_ms"])
    row: dict[str, object] = {"network": name, "seeds": trained if seeds is None else seeds, "matches": count}
    row |= {f"{engine}, ms": round(value, 2) for engine, value in least.items()}
    for engine in ("ONNX Runtime", "PyTorch", "neighbours", "OpenCV"):
        row[f"C++ / {engine}"] = round(least["C++"] / least[engine], 2)
    return row


def compare(sources: list[str], limit: int, folder: Path) -> list[dict[str, object]]:
    """How many decisions of ananet-lite differ from those of ananet on pairs of photos."""
    from ananet.datasets.sources import open_source
    from ananet.evaluation.pairs import MatchSettings, open_pairs

    settings = MatchSettings(detector="sift@root=false", max_keypoints=2000)
    opened = [open_pairs(open_source(source), settings, folder) for source in sources]
    rows = []
    for name in ananet_lite.list_pruners():
        pruner, lite = ananet.load(name, device="cpu"), ananet_lite.load(name)
        rows.append(row := {"network": name, "pairs": 0, "matches": 0, "differ": 0, "not borderline": 0, "scores": 0.0})
        for some in opened:
            for number in range(min(len(some), limit - row["pairs"])):
                pair = some[number].matches[:MATCHES]
                expected = pruner(pair)
                given = {n: getattr(pair, n) for n in ("K0", "K1", "ratio", "mutual")}
                found = lite(pair.points0, pair.points1, **given)
                other = found.mask != np.asarray(expected.mask)
                difference = np.abs(found.scores - np.asarray(expected.scores))
                far = np.abs(np.asarray(expected.scores) - 0.4) > BORDERLINE
                row["pairs"] += 1
                row["matches"] += len(pair)
                row["differ"] += int(other.sum())
                row["not borderline"] += int((other & far).sum())
                row["scores"] = max(row["scores"], float(difference.max(initial=0)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", nargs="+", metavar="SOURCE", help="photos with poses, or stored pairs")
    parser.add_argument("--limit", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    if not arguments.pairs and not SPEED.exists():
        parser.error(f"expected {SPEED.relative_to(ROOT)}; build it by: make test-native")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.pairs:
            rows = compare(arguments.pairs, arguments.limit, Path(folder))
        else:
            rows = [measure(*case, arguments.rounds, Path(folder)) for case in CASES]
    print(format_table(rows))


if __name__ == "__main__":
    main()
