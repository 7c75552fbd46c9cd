"""Draw accuracy against time: pruners on the hard and usual pairs of the repository's validation pairs.

    python tools/draw_accuracy.py                  # docs/images/accuracy-by-time.png
    python tools/draw_accuracy.py --limit 20       # of 20 pairs of each part

Accuracy is the AUC@5 of PoseLib, as in README's tables; summaries are shared with `tools/write_tables.py`. Time is that
of one core, over that of matching as many descriptors of 128 numbers by nearest neighbours, before and after in the
same process: so it hardly depends on the machine, nor on what else runs there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image

import ananet
from ananet._util.plots import figure_to_picture, import_matplotlib
from ananet.core.correspondences import Correspondences
from ananet.datasets import open_source
from ananet.evaluation.pair_sets import Measurements
from ananet.features import nearest_neighbours

ROOT = Path(__file__).parent.parent
PAIR_SET = ROOT / "benchmarks" / "pairs" / "validation"
SUMMARIES = ROOT / "build" / "tables"
PARTS = {"hard": "hard pairs", "usual": "usual pairs"}
CLASSICAL, NETWORKS = ("ratio", "gms", "lpm", "lmf"), ("ananet-paper", "ananet-small", "ananet", "ananet@seeds=0")
# Pairs whose time is measured, of each part, and runs of each, of which the fastest counts.
TIMED_PAIRS, RUNS = 5, 2
# Where a label may stand, in points from its dot: right, left, above, below, and between.
PLACES = ((7, 0), (-7, 0), (0, 8), (0, -8), (7, 7), (7, -7), (-7, 7), (-7, -7), (0, 18), (0, -18), (14, 16), (14, -16))
PLACES += ((-14, 16), (-14, -16), (0, 28), (0, -28), (-14, 28), (14, -28))
# Farther labels have a line to their dot.
NEAR = 12
Points = Mapping[str, tuple[float, float]]


def seconds(call: Callable[[], Any]) -> float:
    """Of one core, the fastest of some runs."""
    taken = []
    for _ in range(RUNS):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def relative_times(pairs: Sequence[Correspondences], names: Sequence[str]) -> dict[str, float]:
    """Median time of each pruner, over that of matching as many descriptors."""
    pruners = {name: ananet.load(name, device="cpu") for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for pair in pairs:
        descriptors = np.random.default_rng(0).normal(size=(2, len(pair), 128)).astype(np.float32)
        matching = [seconds(lambda both=descriptors: nearest_neighbours(*both))]
        for name, pruner in pruners.items():
            pruning = seconds(lambda pruner=pruner, pair=pair: pruner(pair))
            matching.append(seconds(lambda both=descriptors: nearest_neighbours(*both)))
            ratios[name].append(pruning / np.mean(matching[-2:]))
    return {name: float(np.median(values)) for name, values in ratios.items()}


def measure(part: str, names: Sequence[str], measured: Measurements) -> dict[str, tuple[float, float]]:
    """(relative time, AUC@5) of each pruner."""
    source = open_source(PAIR_SET / part)
    numbers = np.linspace(0, len(source) - 1, min(TIMED_PAIRS, measured.limit or TIMED_PAIRS)).astype(int)
    times = relative_times([source[number].matches for number in numbers], names)
    return {name: (times[name], measured(part, name)["auc"]["poselib"][0]) for name in names}


def draw(parts: Mapping[str, Points]) -> tuple[np.ndarray, list[Any]]:
    """The picture [H x W x 3], and its labels by panel as boxes."""
    plt = import_matplotlib()
    figure, axes = plt.subplots(1, len(parts), figsize=(9, 3.7), layout="constrained", dpi=100, squeeze=False)
    for axis, (title, points) in zip(axes[0], parts.items(), strict=True):
        for name, (at, auc) in points.items():
            colour = "tab:gray" if name in CLASSICAL else "tab:orange" if name == "ananet-paper" else "tab:blue"
            axis.plot(at, auc, "o", color=colour, markersize=6)
        axis.set(xscale="log", title=title, xlabel="time over that of nearest-neighbour matching, one core")
        axis.margins(x=0.35, y=0.14)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("AUC@5 of the pose, PoseLib")
    figure.canvas.draw()
    boxes = [write_labels(axis, points) for axis, points in zip(axes[0], parts.values(), strict=True)]
    return figure_to_picture(figure), boxes


def write_labels(axis: Any, points: Points) -> list[Any]:
    """A name beside every dot, where it covers neither a dot nor another name; their boxes in pixels."""
    bounds = axis.get_window_extent()
    dots, boxes = axis.transData.transform(list(points.values())), []
    for name, at in points.items():
        options = {"xytext": (0, 0), "textcoords": "offset points", "fontsize": 9}
        label = axis.annotate(name, at, **options)
        found = []
        for right, up in PLACES:
            label.set_position((right, up))
            label.set(ha=aligned(right, "left", "right"), va=aligned(up, "bottom", "top"))
            box = label.get_window_extent()
            near = box.padded(3)
            outside = near.x0 < bounds.x0 or near.x1 > bounds.x1 or near.y0 < bounds.y0 or near.y1 > bounds.y1
            hidden = near.count_contains(dots) + near.count_overlaps(boxes)
            found.append((hidden + 2 * outside, len(found), box, label.get_position(), label.get_ha(), label.get_va()))
        _, _, box, place, ha, va = min(found, key=lambda each: each[:2])
        label.set(position=place, ha=ha, va=va)
        if np.hypot(*place) > NEAR:
            line = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.7}
            axis.annotate("", at, place, textcoords="offset points", arrowprops=line)
        boxes.append(box)
    return boxes


def aligned(offset: float, after: str, before: str) -> str:
    return after if offset > 0 else before if offset < 0 else "center"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "images" / "accuracy-by-time.png")
    parser.add_argument("--pruner", metavar="A,B,...", default=",".join((*CLASSICAL, *NETWORKS)), help="names")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N pairs of each part, evenly spread")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    settings = {"limit": arguments.limit, "workers": arguments.workers, "progress": sys.stderr.isatty()}
    measured = Measurements(PAIR_SET, summaries=SUMMARIES, **settings)
    names = arguments.pruner.split(",")
    parts = {title: measure(part, names, measured) for part, title in PARTS.items()}
    for title, points in parts.items():
        for name, (relative, auc) in points.items():
            print(f"{title:12} {name:16} x {relative:<8.3g} AUC@5 {auc:.1f}")
    # Few colours: a third of the bytes.
    Image.fromarray(draw(parts)[0][..., ::-1]).quantize(64).save(arguments.output, optimize=True)
    return 0


if __name__ == "__main__":
    # Workers of the evaluation import this script.
    sys.exit(main())
