"""What waiting threads cost on a busy machine: `ananet.load()` beside one busy process on every core.

    PYTHONPATH=src python3 benchmarks/busy.py [results.json]

Every case runs in its own process, since OpenMP reads its settings once, and the cases take turns, since a machine
may be busy with other things too. Ratios are to "variables set", as the `ananet` command sets them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

MATCHES, CALLS, ROUNDS = 2000, 3, 1
# It ends with its parent, however that ends.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
TIMED = f"""
import time
import numpy as np, torch, ananet
{{setup}}
points = np.random.default_rng(0).random(({MATCHES}, 2)) * 640
pruner = ananet.load(device="cpu")
call = lambda: pruner(points, points + 3, image_size0=(640, 640), image_size1=(640, 640))
call()
times = []
for _ in range({CALLS}):
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
print(sorted(times)[{CALLS} // 2])
"""
VARIABLES = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
# (environment variables, statements after the imports) each.
CASES: dict[str, tuple[dict[str, str], str]] = {
    "variables set": (VARIABLES, ""),
    "not set": ({}, ""),
    "not set, threads spin": ({}, "from ananet._util import devices; devices.shorten_spinning = lambda: None"),
    "not set, one thread": ({}, "torch.set_num_threads(1)"),
}


def seconds(variables: dict[str, str], setup: str) -> float:
    """Median time of a call in a process that starts so."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    command = [sys.executable, "-c", TIMED.format(setup=setup)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def measure(neighbours: int) -> dict[str, float]:
    """Median time of each case beside so many busy processes."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(neighbours)]
    try:
        taken: dict[str, list[float]] = {name: [] for name in CASES}
        for _ in range(ROUNDS):
            for name, case in CASES.items():
                taken[name].append(seconds(*case))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    results = {f"{neighbours} neighbours": measure(neighbours) for neighbours in (0, os.cpu_count() or 1)}
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))
    for title, times in results.items():
        for name, taken in times.items():
            print(f"{title:14} {name:26} {taken * 1000:9.0f} ms  x {taken / times['variables set']:.2f}")


if __name__ == "__main__":
    main()
