"""Times of trained matchers and of pruners in one run, on one thread of the CPU.

    python benchmarks/matchers.py [--photos A B] [--sizes 1024,2048] [--runs N] [--json]

Of two photos (the motorcycle of `ananet demo` unless given): LightGlue matches ALIKED keypoints, LighterGlue those of
XFeat; pruners get the nearest neighbours of the ALIKED keypoints. Weights come from the folder ANANET_WEIGHTS or a
download. LightGlue stops early on easy photos, and leaves out keypoints that it has decided on: its time is given with
that, as it comes, and without. Times are medians of the CPU's, over rounds in which each has one turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import torch

from ananet._util.tables import format_table
from ananet.cli.demo import motorcycle
from ananet.errors import InputError, MissingExtraError
from ananet.features import load_detector, load_matcher, match
from ananet.io.images import read_image
from ananet.pruners import load

FULL = "lightglue, all layers"
# Limits of pruners' time as shares of LightGlue's, at this number of keypoints.
BARS_AT, BARS = 1024, {"ananet": 0.2, "ananet-small": 0.04}


def calls(size: int, images: list[Any]) -> tuple[int, dict[str, Callable[[], object]]]:
    """Return the number of keypoints of the first photo, and the calls to time by name."""
    aliked, xfeat = (
        [load_detector(name, device="cpu", max_keypoints=size).detect(image) for image in images]
        for name in ("aliked", "xfeat")
    )
    glue, full = (load_matcher("lightglue", detector="aliked", device="cpu") for _ in range(2))
    full.network.conf.depth_confidence = full.network.conf.width_confidence = -1
    lighter = load_matcher("lighterglue", detector="xfeat", device="cpu")
    matches = match(*aliked)
    pruners = {name: load(name, device="cpu") for name in BARS}
    return len(matches), {
        "lightglue": lambda: glue(*aliked),
        FULL: lambda: full(*aliked),
        "lighterglue": lambda: lighter(*xfeat),
        "nearest neighbours": lambda: match(*aliked),
        **{name: lambda pruner=pruner: pruner(matches) for name, pruner in pruners.items()},
    }


def measure(size: int, images: list[Any], runs: int) -> list[dict[str, Any]]:
    """Return one row per timed call."""
    keypoints, timed = calls(size, images)
    taken: dict[str, list[float]] = {name: [] for name in timed}
    # The first round warms up.
    for _ in range(runs + 1):
        for name, call in timed.items():
            begin = time.process_time()
            call()
            taken[name].append(time.process_time() - begin)
    milliseconds = {name: statistics.median(seconds[1:]) * 1000 for name, seconds in taken.items()}
    return [
        {
            "keypoints": keypoints,
            "what": name,
            "ms": value,
            "of lightglue": value / milliseconds["lightglue"],
            "of all layers": value / milliseconds[FULL],
            "bar": BARS.get(name) if size == BARS_AT else None,
        }
        for name, value in milliseconds.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, nargs=2, metavar=("A", "B"))
    parser.add_argument("--sizes", default="1024,2048", help="numbers of keypoints (default: 1024,2048)")
    parser.add_argument("--runs", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        if arguments.photos:
            images = [read_image(path) for path in arguments.photos]
        else:
            pair = motorcycle()
            images = [pair.image0, pair.image1]
        rows = [
            row for size in arguments.sizes.split(",") for row in measure(int(size), images, max(1, arguments.runs))
        ]
    except (InputError, MissingExtraError) as error:
        print(f"matchers.py: {error}", file=sys.stderr)
        return 1
    print(json.dumps(rows) if arguments.json else format_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
