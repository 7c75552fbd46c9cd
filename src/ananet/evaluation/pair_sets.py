"""The tables of the documentation, measured on the repository's validation pairs.

Every cell follows from one summary of a pruner on one part of the set. Summaries may be kept in a folder, so that only
what changed is measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ananet.datasets.formats.packed import PHOTOS
from ananet.datasets.sources import digest
from ananet.evaluation import reports
from ananet.evaluation.predictions import installed_versions
from ananet.evaluation.runner import choose_pruners, evaluate
from ananet.io.files import file_sha256, read_json, write_json

# AUC of some hundred pairs differs between runs.
REPEATS = 3
# The parts of the set, and the estimators that are reported for each.
ESTIMATORS = {"usual": ("poselib",), "hard": ("poselib",), "paper": ("ransac", "poselib")}
# In place of a pruner: all matches with the right label.
TRUE_LABELS = "true labels"
Summary = Mapping[str, Any]


class Measurements:
    """Summaries by part and pruner, measured when they are asked for.

    Args:
        pair_set: a folder with parts of these names.
        summaries: folder to keep summaries in, by a hash of pairs, weights, options, settings and versions.
        predictions: folder for predictions, as of `evaluate`; one subfolder for each part.
        limit: at most this many pairs of each part, evenly spread.
        estimators: those that are reported, by part.
    """

    def __init__(
        self,
        pair_set: str | Path,
        *,
        summaries: str | Path | None = None,
        predictions: str | Path | None = None,
        limit: int | None = None,
        workers: int | None = None,
        progress: bool = False,
    ) -> None:
        self.pair_set = Path(pair_set)
        self.summaries = None if summaries is None else Path(summaries)
        self.predictions = None if predictions is None else Path(predictions)
        self.limit, self.workers, self.progress = limit, workers, progress
        self._known: dict[tuple[str, str], Summary] = {}

    def __call__(self, part: str, pruner: str) -> Summary:
        """Means of a pruner on a part of the set."""
        if (part, pruner) not in self._known:
            file = None if self.summaries is None else self.summaries / f"{self._hash(part, pruner)}.json"
            if file is None or not file.exists():
                summary = self._measure(part, pruner)
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    write_json(file, {"part": part, "pruner": pruner, **summary}, indent=1)
            else:
                summary = read_json(file)
            self._known[part, pruner] = summary
        return self._known[part, pruner]

    def _measure(self, part: str, pruner: str) -> Summary:
        share, name = (0.0, "all") if pruner == TRUE_LABELS else (None, pruner)
        stored = None if self.predictions is None or share is not None else self.predictions / part
        [evaluation] = evaluate(
            self.pair_set / part,
            name,
            estimators=ESTIMATORS[part],
            repeats=REPEATS,
            outlier_share=share,
            limit=self.limit,
            prediction_folder=stored,
            device="cpu",
            workers=self.workers,
            progress=self.progress,
        )
        [scores] = evaluation.scores.values()
        auc = {estimator: scores.pose_summary(estimator)["auc"] for estimator in evaluation.estimators}
        scenes = {
            row["scene"]: {"f1": row["F1"], "auc": row["poselib AUC@5"]} for row in reports.scores_by_scene(evaluation)
        }
        return {**scores.matches_summary(), **scores.truth_summary(), "auc": auc, "scenes": scenes}

    def _hash(self, part: str, pruner: str) -> str:
        files = sorted(path for folder in (PHOTOS, part) for path in (self.pair_set / folder).iterdir())
        [choice] = choose_pruners(["all" if pruner == TRUE_LABELS else pruner])
        settings = [part, pruner, choice.options, choice.weights_sha256, ESTIMATORS[part], REPEATS, self.limit]
        return digest([settings, [file_sha256(path) for path in files], installed_versions()])


def share(value: float) -> str:
    """A number from 0 to 1.

    >>> share(0.9784), share(1.0)
    ('.978', '1')
    """
    return f"{value:.3f}".removeprefix("0").removesuffix(".000")


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def areas(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


@dataclass(frozen=True)
class Column:
    """What a column shows of a summary."""

    title: str
    part: str
    value: Callable[[Summary], Any]
    text: Callable[[Any], str]
    best: Callable[..., Any] | None = None
    """`max` or `min`: the best of the pruners is bold. None where a number alone says little."""
    applies: Callable[[str], bool] = bool
    """Whether a pruner has a cell."""


def auc(title: str, part: str, estimator: str = "poselib") -> Column:
    return Column(f"{title}AUC@5/10/20", part, lambda summary: summary["auc"][estimator], areas, max)


def of_matches(title: str, name: str, best: Callable[..., Any] | None = None) -> Column:
    """A mean over the pairs of the paper's input."""
    return Column(title, "paper", lambda summary: summary[name], share, best)


def wrong(title: str, part: str, name: str = "wrong_at_95") -> Column:
    return Column(title, part, lambda summary: summary[name], percent, min, lambda pruner: pruner != TRUE_LABELS)


@dataclass(frozen=True)
class Table:
    """A row for every pruner."""

    title: str
    columns: Sequence[Column]
    pruners: Sequence[str]
    partly: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Pruners that are measured on these parts only."""

    def rows(self, measured: Measurements) -> list[dict[str, str]]:
        rows = [{"pruner": TITLES.get(pruner, f"`{pruner}`")} for pruner in self.pruners]
        for column in self.columns:
            values = [self._value(column, pruner, measured) for pruner in self.pruners]
            texts = ["" if value is None else column.text(value) for value in values]
            rivals = [v for v, p in zip(values, self.pruners, strict=True) if v is not None and p != TRUE_LABELS]
            best = column.text(column.best(rivals)) if column.best and len(rivals) > 1 else None
            for row, text, pruner in zip(rows, texts, self.pruners, strict=True):
                row[column.title] = f"**{text}**" if text == best and pruner != TRUE_LABELS else text
        return rows

    def _value(self, column: Column, pruner: str, measured: Measurements) -> Any:
        if column.part not in self.partly.get(pruner, ESTIMATORS) or not column.applies(pruner):
            return None
        return column.value(measured(column.part, pruner))

    def for_pruners(self, pruners: Sequence[str]) -> Table:
        """The same table of other pruners."""
        return replace(self, pruners=pruners, partly={})


# Networks alone: a match is kept if it is right with a calibrated probability above one half.
ALONE = "@threshold=0.5@conflict_odds=1"
# The same with the output for the paper's label: near the epipolar line.
LINE = "@label=line" + ALONE
POINTS_ONLY = "ananet@side_input=false"
EVERY_MATCH = "ananet@seeds=0"
TITLES = {
    "all": "all matches",
    "ratio": "mutual + ratio test (needs descriptors)",
    "lpm": "LPM (points only)",
    "ananet-paper": "`ananet-paper` (points only, the paper's network)",
    "ananet-quadratic": "`ananet-quadratic` (the same, quadratic form)",
    POINTS_ONLY: f"`{POINTS_ONLY}` (points only)",
    EVERY_MATCH: f"`{EVERY_MATCH}` (attends to every match)",
    "ananet": "**`ananet`**",
    TRUE_LABELS: TRUE_LABELS,
}
QUALITY = (of_matches("precision", "precision", max), of_matches("recall", "recall"), of_matches("F1", "f1", max))
POSES = (auc("RANSAC ", "paper", "ransac"), auc("PoseLib ", "paper"))
USUAL_AND_HARD = Table(
    "Usual and hard pairs: SIFT with square-rooted descriptors, up to 4000 keypoints; PoseLib",
    (
        auc("usual pairs, ", "usual"),
        auc("hard pairs, ", "hard"),
        wrong("wrong at 95 % recall", "usual"),
        wrong("the same, mutual ones", "usual", "wrong_at_95_mutual"),
    ),
    ("ratio", "ananet-small", POINTS_ONLY, "ananet", EVERY_MATCH, TRUE_LABELS),
    {EVERY_MATCH: ("hard",)},
)
PAPER_INPUT = Table(
    "The paper's input, usual pairs: SIFT with plain descriptors, 2000 keypoints",
    (*QUALITY, *POSES),
    ("all", "ratio", "lpm", "ananet-paper", "ananet-quadratic", "ananet-small", POINTS_ONLY, "ananet", TRUE_LABELS),
)


PAPER_LABEL = Table(
    "The paper's label: networks alone, at calibrated 0.5",
    (*QUALITY, *POSES),
    (
        f"ananet-paper{ALONE}",
        f"ananet-quadratic{ALONE}",
        *(f"{name}{LINE}" for name in ("ananet-small", POINTS_ONLY, "ananet")),
    ),
)
CARD_ROWS = {
    "ananet": ("ananet", EVERY_MATCH, "ananet" + LINE, POINTS_ONLY, POINTS_ONLY + LINE, "ratio"),
    "ananet-small": ("ananet-small", "ananet-small" + LINE, "ratio"),
}
CARD_HARD = {
    "ananet": ("ananet", EVERY_MATCH, POINTS_ONLY, f"{POINTS_ONLY}@seeds=0"),
    "ananet-small": ("ananet-small",),
}


def card(network: str) -> Table:
    """Matches and poses of a model card, on the paper's input."""
    error = of_matches("calibration error", "calibration_error")
    # Others do not say how likely a match is near the line.
    error = replace(error, applies=lambda pruner: LINE in pruner or pruner == "ratio")
    return Table(f"`{network}`", (*QUALITY, of_matches("AP", "average_precision"), error, *POSES), CARD_ROWS[network])


def card_by_depth(network: str) -> Table:
    """Truth by depth of a model card on the paper's input, and poses of hard pairs."""
    columns = (
        of_matches("true precision", "true_precision"),
        of_matches("true recall", "true_recall"),
        wrong("wrong at 95 % recall", "paper"),
        wrong("the same, mutual ones", "paper", "wrong_at_95_mutual"),
        auc("hard pairs, ", "hard"),
    )
    every_match = dict.fromkeys((name for name in CARD_HARD[network] if "seeds=0" in name), ("hard",))
    return Table(f"`{network}`, truth by depth", columns, (*CARD_HARD[network], "ratio"), every_match)


def by_scene(measured: Measurements, network: str) -> list[dict[str, str]]:
    """F1 by both labels of a network, and its poses beside those of the ratio test, by scene of the paper's input."""
    own, by_line, ratio = (measured("paper", name)["scenes"] for name in (network, network + LINE, "ratio"))
    return [
        {
            "scene": scene,
            "F1": share(own[scene]["f1"]),
            "F1, `label=line`, calibrated 0.5": share(by_line[scene]["f1"]),
            "PoseLib AUC@5": f"{own[scene]['auc']:.1f}",
            "PoseLib AUC@5 of `ratio`": f"{ratio[scene]['auc']:.1f}",
        }
        for scene in own
    ]


# By the name that marks their place in the documentation.
TABLES: dict[str, Callable[[Measurements], list[dict[str, str]]]] = {
    "usual and hard pairs": USUAL_AND_HARD.rows,
    "the paper's input": PAPER_INPUT.rows,
    "the paper's label": PAPER_LABEL.rows,
    **{f"card of {network}": card(network).rows for network in CARD_ROWS},
    **{f"{network} by depth": card_by_depth(network).rows for network in CARD_ROWS},
    **{f"{network} by scene": partial(by_scene, network=network) for network in CARD_ROWS},
}


def documented_tables(measured: Measurements, pruners: Sequence[str] | None = None) -> dict[str, list[dict[str, str]]]:
    """Rows of the two main tables of the documentation by title, or of the same tables for other pruners."""
    tables = (USUAL_AND_HARD, PAPER_INPUT)
    chosen = tables if pruners is None else [table.for_pruners(pruners) for table in tables]
    return {table.title: table.rows(measured) for table in chosen}
