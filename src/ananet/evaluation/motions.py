"""Evaluation of motion grouping: on pairs with labelled motions, such as AdelaideRMF, and on synthetic problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ananet._util import seeds
from ananet._util.tables import format_table
from ananet.core.correspondences import Correspondences
from ananet.core.metrics import misclassification_error
from ananet.datasets.formats.labelled import FILE, LabelledMatches
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.io.npz import read_arrays
from ananet.pruners import Pruner
from ananet.twoview.motion_search import MIN_SUPPORT
from ananet.twoview.motions import group_motions

BODIES, OUTLIER_SHARES = (1, 2, 3, 4, 5), (0.3, 0.5, 0.7, 0.8)
# Problems of each kind, matches of each, and problems drawn at a time.
PROBLEMS, MATCHES, BATCH = 16, 600, 32
Problem = tuple[Correspondences, np.ndarray]
"""Matches, and [N] their true motions, 0 for wrong ones."""


@dataclass(frozen=True, eq=False)
class MotionScores:
    """Scores of one or several problems over all seeds."""

    name: str
    true: float
    """Mean number of true motions of at least 8 matches."""
    found: np.ndarray
    """[R] number of motions found."""
    errors: np.ndarray
    """[R] misclassification errors."""

    def as_row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "motions": round(self.true, 2),
            "found": float(self.found.mean()),
            "number right": float((self.found == self.true).mean()),
            "error % mean": 100.0 * float(self.errors.mean()),
            "median": 100.0 * float(np.median(self.errors)),
            "worst": 100.0 * float(self.errors.max()),
        }


def true_motions(truth: np.ndarray) -> int:
    """Number of motions with enough matches to be found.

    >>> true_motions(np.array([0] * 5 + [1] * 8 + [2] * 7))
    1
    """
    return int((np.bincount(truth)[1:] >= MIN_SUPPORT).sum())


def score_motions(name: str, problems: Sequence[Problem], pruner: Pruner, repeats: int) -> MotionScores:
    """Prune and group each problem with seeds 0 to `repeats` - 1."""
    found, errors = [], []
    for matches, truth in problems:
        kept = pruner(matches)
        for seed in range(repeats):
            motions = group_motions(matches, kept, seed=seed)
            found.append(len(motions))
            errors.append(misclassification_error(np.asarray(motions.labels), truth))
    true = float(np.mean([true_motions(truth) for _, truth in problems]))
    return MotionScores(name, true, np.array(found), np.array(errors))


def synthetic_problems(
    bodies: int, outlier_share: float, count: int = PROBLEMS, matches: int = MATCHES
) -> Iterator[Problem]:
    """Problems with this number of motions of at least 8 matches, one of them the static scene; always the same."""
    generator = seeds.generator("cpu", "motions", bodies, round(100.0 * outlier_share))
    right = 1 - outlier_share
    settings = SyntheticSettings(
        matches=matches, inlier_ratio=(right, right), moving=float(bodies > 1), bodies=max(bodies - 1, 1), regions=16
    )
    made = 0
    while made < count:
        batch = synthesize(BATCH, generator, settings)
        for number in range(BATCH):
            truth = ((batch.body[number] + 1) * batch.correct[number]).numpy()
            # If the views overlap little, fewer matches are right than the settings ask for.
            if true_motions(truth) != bodies or abs((truth == 0).mean() - outlier_share) > 0.03:
                continue
            focal0, focal1 = float(batch.focal0[number]), float(batch.focal1[number])
            rays = batch.matches[number].double().numpy()
            K0, K1 = np.diag([focal0, focal0, 1]), np.diag([focal1, focal1, 1])
            yield Correspondences(rays[:, :2] * focal0, rays[:, 2:] * focal1, K0=K0, K1=K1), truth
            made += 1
            if made == count:
                return


def evaluate_motions(
    source: str | Path, pruner: Pruner, repeats: int = 5, limit: int | None = None, progress: bool = True
) -> list[MotionScores]:
    """Score each pair of a folder with labelled matches or, for "synthetic", each kind of problem."""
    scores: list[MotionScores] = []
    if str(source) == "synthetic":
        count = min(limit or PROBLEMS, PROBLEMS)
        kinds = [(share, bodies) for share in OUTLIER_SHARES for bodies in BODIES]
        for share, bodies in tqdm(kinds, desc="synthetic", disable=not progress, leave=False):
            name = f"{share:.0%} wrong, {bodies} motion{'s' * (bodies > 1)}"
            scores.append(score_motions(name, list(synthetic_problems(bodies, share, count)), pruner, repeats))
        return scores
    folders = LabelledMatches(source).folders[:limit]
    bar = tqdm(folders, desc=Path(source).name, unit="pair", disable=not progress, leave=False)
    for folder in bar:
        arrays = read_arrays(folder / FILE, more=("motion",))
        truth = arrays.pop("motion")
        scores.append(score_motions(folder.name, [(Correspondences(**arrays), truth)], pruner, repeats))
    return scores


def motion_rows(scores: Sequence[MotionScores]) -> list[dict[str, Any]]:
    """A row for each, and their means."""
    rows = [score.as_row() for score in scores]
    if len(scores) < 2:
        return rows
    mean: dict[str, Any] = {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "name"}
    mean = {"name": "mean"} | mean | {"motions": round(mean["motions"], 2), "worst": max(row["worst"] for row in rows)}
    mean["median"] = 100.0 * float(np.median(np.concatenate([score.errors for score in scores])))
    return [*rows, mean]


def motion_report(source: str | Path, pruner: str, repeats: int, scores: Sequence[MotionScores], style: str) -> str:
    """A table with the settings in its title."""
    seeds_used = "seed 0" if repeats == 1 else f"seeds 0 to {repeats - 1}"
    title = f"{Path(source).name}: motions of the matches kept by {pruner}, misclassification error over {seeds_used}"
    return f"{title}\n\n{format_table(motion_rows(scores), style, decimals=2)}"
