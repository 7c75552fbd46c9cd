"""What the bundled weights can do, measured in one go: usual, hard, empty pairs, turned photos, no cameras, and more.

    python benchmarks/weights.py [--pairs FOLDER] [--measures NAME ...] [--empty FOLDER] [--set KIND=PATH ...] [--json]

The folder of pairs (default: the repository's validation pairs) has the parts `usual`, `hard` and `paper`. More is
measured where it is given:

    --empty FOLDER        pairs of `ananet data build`, of which those with nothing in common count
    --set xfeat=FOLDER    the same of other keypoints, under a name of their own
    --set multi=FOLDER    pairs with labels and no poses: MULTI, AdelaideRMF, or homographies: Oxford
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ananet._util.tables import format_table
from ananet.core.cameras import calibrate, project, rotate_axes, rotate_camera
from ananet.core.geometry import homogeneous
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import Source, StoredPairs, open_source
from ananet.evaluation import Evaluation, evaluate
from ananet.evaluation.pair_sets import EVERY_MATCH, LINE, POINTS_ONLY, REPEATS
from ananet.evaluation.scoring import PrunerScores

VALIDATION = Path(__file__).parent / "pairs" / "validation"
NETWORKS = {
    "all input": "ananet",
    "all input, every match": EVERY_MATCH,
    "points only": POINTS_ONLY,
    "points only, every match": f"{POINTS_ONLY}@seeds=0",
    "small": "ananet-small",
    "small, points only": "ananet-small@side_input=false",
}


class TurnedPairs(StoredPairs):
    """Pairs whose second photo is turned by some quarters."""

    name = "turned pairs"
    recognised_by = "code"

    def __init__(self, pairs: StoredPairs, quarters: int) -> None:
        super().__init__(pairs.path)
        self.pairs, self.quarters = pairs, quarters

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> LabelledPair:
        return turned(self.pairs[number], self.quarters)


def turned(pair: LabelledPair, quarters: int) -> LabelledPair:
    """The pair as if the second photo had been turned counter-clockwise before keypoints were found."""
    matches = pair.matches._as_tensors()
    assert matches.K1 is not None and matches.image_size1 is not None
    assert pair.R is not None and pair.t is not None
    width, height = matches.image_size1
    K = torch.from_numpy(rotate_camera(matches.K1.double().numpy(), (round(width), round(height)), quarters))
    axes = torch.from_numpy(rotate_axes(quarters))
    rays = homogeneous(calibrate(matches.points1.double(), matches.K1.double())) @ axes.T
    points = project(rays, K)
    angles = None if matches.angles1 is None else (matches.angles1 - math.pi / 2 * quarters) % (2 * math.pi)
    change = {
        "points1": points.to(matches.points1),
        "K1": K.to(matches.K1),
        "image_size1": (height, width) if quarters % 2 else (width, height),
        "angles1": angles,
    }
    R, t = axes @ pair.R.double(), axes @ pair.t.double()
    return replace(pair, matches=matches.replace(**change), R=R, t=t)


@dataclass(frozen=True)
class Run:
    """How everything is evaluated."""

    limit: int | None
    workers: int | None

    def __call__(
        self, source: str | Path | Source, pruners: Sequence[str], estimators: Sequence[str] = (), **more: Any
    ) -> Evaluation:
        # Only means over pairs with a pose differ between repeats.
        more |= {"repeats": REPEATS if estimators else 1, "limit": self.limit, "workers": self.workers}
        [found] = evaluate(source, list(pruners), estimators=estimators, device="cpu", **more)
        return found


def auc(scores: PrunerScores) -> float:
    return float(scores.pose_summary("poselib")["auc"][0])


Rows = Iterator[dict[str, Any]]


def row(measure: str, data: str, value: float, *, network: str) -> dict[str, Any]:
    return {"measure": measure, "data": data, "network": network, "value": round(float(value), 4)}


def of_usual_pairs(run: Run, folder: Path) -> Rows:
    """The paper's label and poses on the paper's input; poses and truth on the default input."""
    for decision, suffix in (("by the line", LINE), ("default", "")):
        found = run(folder / "paper", [name + suffix for name in NETWORKS.values()], ["poselib"])
        data = f"paper's input, decision {decision}"
        for words, scores in zip(NETWORKS, found.scores.values(), strict=True):
            summary = scores.matches_summary()
            yield row("F1", data, summary["f1"], network=words)
            yield row("average precision", data, summary["average_precision"], network=words)
            if suffix == LINE:
                yield row("calibration error", data, summary["calibration_error"], network=words)
            yield row("AUC@5", data, auc(scores), network=words)
    found = run(folder / "usual", ["ratio", *NETWORKS.values()], ["poselib"])
    for words, scores in zip(["ratio test", *NETWORKS], found.scores.values(), strict=True):
        truth = scores.truth_summary()
        yield row("AUC@5", "usual pairs", auc(scores), network=words)
        for name in ("wrong_at_95", "wrong_at_95_mutual"):
            yield row(name.replace("_", " "), "usual pairs", truth[name] or math.nan, network=words)


def of_hard_pairs(run: Run, folder: Path) -> Rows:
    """Poses, and their share of those of true labels."""
    most = auc(run(folder / "hard", ["all"], ["poselib"], outlier_share=0.0).scores["all"])
    yield row("AUC@5", "hard pairs", most, network="true labels")
    for words, scores in zip(
        ["ratio test", *NETWORKS], run(folder / "hard", ["ratio", *NETWORKS.values()], ["poselib"]).scores.values(),
        strict=True,
    ):  # fmt: skip
        yield row("AUC@5", "hard pairs", auc(scores), network=words)
        yield row("share of true labels' AUC@5", "hard pairs", auc(scores) / most, network=words)


def of_turned_photos(run: Run, folder: Path) -> Rows:
    """F1 by the line that is lost where the second photo is turned."""
    pairs = open_source(folder / "paper")
    assert isinstance(pairs, StoredPairs)
    pruners = [name + LINE for name in NETWORKS.values()]
    upright = f1_of(run(pairs, pruners))
    for quarters in (1, 2):
        for words, before, after in zip(
            NETWORKS, upright, f1_of(run(TurnedPairs(pairs, quarters), pruners)), strict=True
        ):
            yield row(f"F1 lost, turned by {90 * quarters} degrees", "paper's input", before - after, network=words)


def of_unknown_cameras(run: Run, folder: Path) -> Rows:
    """F1 by the line that is lost where cameras are hidden."""
    pruners = [name + LINE for name in NETWORKS.values()]
    known = f1_of(run(folder / "paper", pruners))
    hidden = f1_of(run(folder / "paper", pruners, model="fundamental"))
    for words, before, after in zip(NETWORKS, known, hidden, strict=True):
        yield row("F1 lost without cameras", "paper's input", before - after, network=words)


def f1_of(found: Evaluation) -> list[float]:
    return [scores.matches_summary()["f1"] for scores in found.scores.values()]


def of_empty_pairs(run: Run, path: Path) -> Rows:
    """How many matches are kept of photos that have nothing in common."""
    for words, scores in zip(NETWORKS, run(path, list(NETWORKS.values())).scores.values(), strict=True):
        if kept := [pair.kept for pair in scores.empty_pairs]:
            data = f"{len(kept)} empty pairs"
            yield row("kept matches, 95th percentile", data, np.quantile(kept, 0.95), network=words)


def of_a_set(run: Run, name: str, path: Path) -> Rows:
    """Pairs of other keypoints, of several motions, or of planes."""
    # Labels by epipolar distance have an output of their own.
    suffix = LINE if open_source(path).has_poses else ""
    found = run(path, [pruner + suffix for pruner in NETWORKS.values()])
    for words, scores in zip(NETWORKS, found.scores.values(), strict=True):
        summary = scores.matches_summary()
        for measure, key in (("F1", "f1"), ("calibration error", "calibration_error")):
            yield row(measure, name, summary[key], network=words)


MEASURES = {
    "usual": of_usual_pairs,
    "hard": of_hard_pairs,
    "turned": of_turned_photos,
    "cameras": of_unknown_cameras,
}


def by_network(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each measure and its data, one column for each network."""
    table: dict[tuple[str, str], dict[str, Any]] = {}
    columns = dict.fromkeys([*NETWORKS, *(found["network"] for found in rows)])
    for found in rows:
        key = (found["measure"], found["data"])
        empty = {"measure": key[0], "data": key[1], **dict.fromkeys(columns, "")}
        table.setdefault(key, empty)[found["network"]] = found["value"]
    return list(table.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, default=VALIDATION, help="folder with the parts usual, hard and paper")
    parser.add_argument(
        "--measures", nargs="*", choices=MEASURES, default=list(MEASURES), metavar="NAME",
        help=f"of the folder of pairs, some of {', '.join(MEASURES)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--empty", type=Path, help="pairs, some of which have nothing in common")
    parser.add_argument("--set", action="append", default=[], metavar="KIND=PATH", help="more data, may be repeated")
    parser.add_argument("--limit", type=int, help="at most so many pairs of each kind, evenly spread")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    run = Run(arguments.limit, arguments.workers)
    measures: list[Callable[[], Rows]] = [
        partial(measure, run, arguments.pairs) for name, measure in MEASURES.items() if name in arguments.measures
    ]
    if arguments.empty is not None:
        measures.append(partial(of_empty_pairs, run, arguments.empty))
    for given in arguments.set:
        name, _, path = given.partition("=")
        measures.append(partial(of_a_set, run, name, Path(path)))
    rows = [found for measure in measures for found in measure()]
    print(json.dumps(rows) if arguments.json else format_table(by_network(rows)))


if __name__ == "__main__":
    main()
