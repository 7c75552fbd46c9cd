"""Time ANA-Net on the CPU, and measure its memory, beside the plain PyTorch reference.

    PYTHONPATH=src python3 benchmarks/cpu.py [results.json]

Every number comes from its own process: peak memory never goes down again, and threads are set before the first
operation. Times are medians over runs that alternate between the engine and the reference.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

FORMS = ("linear", "quadratic")


def times(form: str, length: int, threads: int, runs: int, reference_too: bool) -> dict[str, float]:
    """Median milliseconds of the whole network, batch 1."""
    import torch

    from ananet.attention import VARIABLE
    from ananet.inference import engine_for
    from ananet.networks import ANANet, ANANetSettings

    torch.set_num_threads(threads)
    network = ANANet(ANANetSettings(form=form)).eval()  # type: ignore[arg-type]
    engine = engine_for(network, torch.device("cpu"))
    taken: dict[str, list[float]] = {"engine": [], "reference": []}
    for _ in range(runs + 1):
        matches = torch.rand(1, length, 4) * 2 - 1
        begin = time.perf_counter()
        engine(matches, None)
        taken["engine"].append(time.perf_counter() - begin)
        if reference_too:
            os.environ[VARIABLE] = "reference"
            with torch.inference_mode():
                begin = time.perf_counter()
                network(matches)
                taken["reference"].append(time.perf_counter() - begin)
            del os.environ[VARIABLE]
    return {name: statistics.median(seconds[1:]) * 1000 for name, seconds in taken.items() if seconds}


def peak_megabytes(form: str, length: int) -> float:
    """Peak memory of one run over that of the process with the engine ready."""
    import torch

    from ananet.inference import engine_for
    from ananet.networks import ANANet, ANANetSettings

    engine = engine_for(ANANet(ANANetSettings(form=form)), torch.device("cpu"))  # type: ignore[arg-type]
    engine(torch.rand(1, 16, 4), None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine(torch.rand(1, length, 4), None)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    results: dict[str, Any] = {}

    def alone(function: Any, *arguments: Any) -> Any:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()

    for form in FORMS:
        for threads in (1, 2):
            small = alone(times, form, 2048, threads, 7, True)
            large = alone(times, form, 8192, threads, 3, False)
            results[f"{form}, {threads} threads"] = {
                "engine 2048 ms": small["engine"],
                "reference 2048 ms": small["reference"],
                "ratio": small["engine"] / small["reference"],
                "engine 8192 ms": large["engine"],
                "growth 2048 to 8192": large["engine"] / small["engine"],
            }
        results[f"{form}, peak MB at 8192"] = {"above idle": alone(peak_megabytes, form, 8192)}
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))
    for name, values in results.items():
        print(f"{name:26}", "  ".join(f"{key} {value:.2f}" for key, value in values.items()))


if __name__ == "__main__":
    main()
