"""Time ANA-Net and `ananet match` on the CPU, and measure its memory, beside the plain PyTorch reference.

    PYTHONPATH=src python3 benchmarks/cpu.py [results.json] [--command]

Every number comes from its own process: peak memory never goes down again, and threads are set before the first
operation. Times are the least over rounds in which the engine, the reference and nearest neighbours take turns. Targets
stand beside them.
`--command` times the command alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SMALL = {"width": 32, "heads": 1, "blocks": 3}
# Settings of networks, and the bars: share of the reference's time, growth from 2048 to 8192.
VARIANTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "linear": ({}, 0.22, 16),
    "quadratic": ({"form": "quadratic"}, 0.22, 16),
    "256 seeds": ({"seeds": 256}, 0.06, 4.5),
    "128 seeds": ({"seeds": 128}, 0.06, 4.5),
    # Of the time of the default network, a quarter of the reference's: .03.
    "small, 128 seeds": ({**SMALL, "seeds": 128}, 0.0075, 4.5),
    "small, 64 seeds": ({**SMALL, "seeds": 64}, 0.0075, 4.5),
}


def times(settings: dict[str, Any], threads: int, rounds: int) -> dict[str, float]:
    """Least milliseconds of whole networks, batch 1, and of nearest neighbours, over rounds in which all take turns.

    The reference is the paper's network in plain PyTorch, which attends to all matches. Other processes make some runs
    longer and none shorter, so the least is what the work itself takes.
    """
    import torch

    from ananet.attention.second_order import VARIABLE
    from ananet.inference import engine_for
    from ananet.networks import ANANet, ANANetSettings

    torch.set_num_threads(threads)
    network = ANANet(ANANetSettings(form=settings.get("form", "linear"))).eval()
    engine = engine_for(ANANet(ANANetSettings(**settings)), torch.device("cpu"))

    @torch.inference_mode()
    def run_reference(matches: torch.Tensor) -> None:
        os.environ[VARIABLE] = "reference"
        network(matches)
        del os.environ[VARIABLE]

    def match(descriptors: torch.Tensor) -> None:
        """Two nearest neighbours of every descriptor."""
        (descriptors[0] @ descriptors[1].T).topk(2, dim=1)

    work: dict[str, tuple[Callable[[torch.Tensor], object], tuple[int, ...]]] = {
        "engine 2048 ms": (engine, (1, 2048, 4)),
        "reference 2048 ms": (run_reference, (1, 2048, 4)),
        "engine 8192 ms": (engine, (1, 8192, 4)),
        "nearest neighbours 8192 ms": (match, (2, 8192, 128)),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, (run, shape) in work.items():
            given = torch.rand(shape) * 2 - 1
            begin = time.perf_counter()
            run(given)
            taken[name].append(time.perf_counter() - begin)
    # The first round warms up.
    return {name: min(seconds[1:]) * 1000 for name, seconds in taken.items()}


def peak_megabytes(settings: dict[str, Any], length: int) -> float:
    """Peak memory of one run over that of the process with the engine ready."""
    import torch

    from ananet.inference import engine_for
    from ananet.networks import ANANet, ANANetSettings

    engine = engine_for(ANANet(ANANetSettings(**settings)), torch.device("cpu"))
    engine(torch.rand(1, 16, 4), None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine(torch.rand(1, length, 4), None)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def command_seconds(runs: int = 5) -> dict[str, float]:
    """Median seconds of `ananet match` of two photos of a megapixel, and of `import torch`, each in a fresh process.

    By the wall clock, and CPU time of all threads: on a busy machine only that can be compared.
    """
    import cv2
    import numpy as np

    rng = np.random.default_rng(0)
    # Texture at several scales, seen twice.
    noise = sum(cv2.resize(rng.random((12 * 2**n, 16 * 2**n)), (1224, 918)) / 2**n for n in range(1, 6))
    photo = (255 * (noise - noise.min()) / np.ptp(noise)).astype(np.uint8)
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cv2.imwrite(f"{folder}/0.png", photo[:864, :1152])
        cv2.imwrite(f"{folder}/1.png", photo[40:904, 60:1212])
        match = ["-m", "ananet", "match", f"{folder}/0.png", f"{folder}/1.png", "--output", f"{folder}/matches.png"]
        for _ in range(runs):
            for name, arguments in (("import torch", ["-c", "import torch"]), ("match", match)):
                begin, before = time.perf_counter(), children_seconds()
                subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
                taken.setdefault(name, []).append(time.perf_counter() - begin)
                taken.setdefault(f"{name}, CPU", []).append(children_seconds() - before)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def children_seconds() -> float:
    """CPU time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bars(results: dict[str, Any]) -> Iterator[str]:
    """The targets beside what was reached."""
    for name, values in results.items():
        if "ratio" in values:
            _, ratio, growth = VARIANTS[name.rpartition(", ")[0]]
            yield f"{name + ', of the reference at 2048':46} {values['ratio']:8.4f}   bar {ratio}"
            yield f"{name + ', growth from 2048 to 8192':46} {values['growth 2048 to 8192']:8.1f}   bar {growth}"
            of_neighbours = values["engine 8192 ms"] / values["nearest neighbours 8192 ms"]
            yield f"{name + ', of nearest neighbours at 8192':46} {of_neighbours:8.2f}   bar 0.6 with seeds"
        if "above idle" in values:
            yield f"{name:46} {values['above idle']:8.1f}   bar 400"
        if "match" in values:
            for clock, bar in (("", "   bar 1.5"), (", CPU", "")):
                beyond = values[f"match{clock}"] - values[f"import torch{clock}"]
                yield f"{f'ananet match beyond import torch{clock}, s':46} {beyond:8.2f}{bar}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument("--command", action="store_true", help="time `ananet match` alone")
    parser.add_argument("--rounds", type=int, default=7, help="how often everything is timed (default: 7)")
    given = parser.parse_args()
    results: dict[str, Any] = {}

    def alone(function: Any, *arguments: Any) -> Any:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()

    for name, (settings, *_) in () if given.command else VARIANTS.items():
        for threads in (1, 2):
            taken = alone(times, settings, threads, given.rounds)
            results[f"{name}, {threads} threads"] = {
                **taken,
                "ratio": taken["engine 2048 ms"] / taken["reference 2048 ms"],
                "growth 2048 to 8192": taken["engine 8192 ms"] / taken["engine 2048 ms"],
            }
        results[f"{name}, peak MB at 8192"] = {"above idle": alone(peak_megabytes, settings, 8192)}
    results["command, s"] = command_seconds()
    if given.results is not None:
        given.results.write_text(json.dumps(results, indent=1))
    for name, values in results.items():
        print(f"{name:26}", "  ".join(f"{key} {value:.2f}" for key, value in values.items()))
    for line in bars(results):
        print(line)


if __name__ == "__main__":
    main()
