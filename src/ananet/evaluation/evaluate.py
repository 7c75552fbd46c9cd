"""Pruners on a source: predictions first, scores second, in one pass over the pairs and on all cores."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet.errors import InputError, MissingExtraError
from ananet.evaluation import metrics
from ananet.evaluation.explain import inlier_neighbours
from ananet.evaluation.predictions import (
    Origin,
    Prediction,
    Predictions,
    check_origin,
    check_pair,
    file_sha256,
    fingerprint,
    installed_versions,
    read_predictions,
    write_predictions,
)
from ananet.evaluation.scoring import PairScore, PoseSettings, PrunerScores, score_pair
from ananet.evaluation.sources import MatchSettings, Source, open_source
from ananet.evaluation.workers import ordered_map, worker_pool
from ananet.files import atomic_path
from ananet.networks import load_network
from ananet.pruners import LearnedPruner, Pruner, load, look_up


@dataclass(frozen=True)
class PrunerChoice:
    """A pruner that somebody asked for, not loaded yet."""

    name: str
    given: str
    """What `load` takes: a name or the path of a weight file."""
    options: list[dict[str, Any]]
    """Of each pruner of a chain, defaults included."""
    weights_sha256: str | None = None
    file: Path | None = None
    """Weights of a learned one, unless there are several."""
    network: dict[str, Any] | None = None
    """Settings and number of parameters of the same."""


def choose_pruners(given: Sequence[str]) -> list[PrunerChoice]:
    """Looks up names and weight files; a weight file goes by its name without the suffix."""
    choices = [_choose_pruner(text) for text in given]
    names = [choice.name for choice in choices]
    if not names or len(set(names)) < len(names):
        raise InputError(f"pruner: expected different names, got {', '.join(names) or 'none'}")
    return choices


def _choose_pruner(given: str) -> PrunerChoice:
    parts = look_up(given)
    files = [part.pruner for part in parts if isinstance(part.pruner, Path)]
    weights = "+".join(file_sha256(file) for file in files) or None
    # Wrong options are better found here than in every worker.
    pruner = load(given, device="cpu")
    file = about = None
    if isinstance(pruner, LearnedPruner):
        (file,) = files
        network = pruner.network
        about = {**network.settings.to_dict(), "parameters": sum(p.numel() for p in network.parameters())}
    # As they will be read from a file of predictions: lists, not tuples.
    options = json.loads(json.dumps([part.all_options for part in parts]))
    return PrunerChoice("+".join(part.name for part in parts), given, options, weights, file, about)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Everything that was measured on one source."""

    source: str
    kind: str
    matching: str
    match_settings: MatchSettings
    pose_settings: PoseSettings
    names: list[str]
    scenes: list[str]
    """[P] of every pair."""
    inliers: list[np.ndarray]
    """[P] labels, [N] bool each."""
    pruners: dict[str, PrunerChoice]
    predictions: dict[str, Predictions]
    scores: dict[str, PrunerScores]
    estimators: tuple[str, ...]
    """Those that ran: none on a source without poses."""
    reused: tuple[str, ...] = ()
    """Pruners that did not run, because their predictions were there."""

    @property
    def inlier_ratios(self) -> np.ndarray:
        return np.array([inlier.mean() if len(inlier) else 0.0 for inlier in self.inliers])

    def pooled(self, pruner: str) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and labels of the matches of all pairs together, [S] each."""
        return pooled_scores(self.predictions[pruner].answers), np.concatenate(self.inliers)


def pooled_scores(answers: Sequence[Prediction]) -> np.ndarray:
    logits = np.concatenate([np.zeros(0, np.float32), *(answer.logits for answer in answers)])
    return torch.from_numpy(logits).double().sigmoid().numpy()


@dataclass(frozen=True)
class Job:
    """What a worker needs to know."""

    source: Path
    image_folder: Path | None
    feature_folder: Path
    match_settings: MatchSettings
    pose_settings: PoseSettings
    pruners: Sequence[PrunerChoice]
    device: str
    stored: dict[str, Path] = field(default_factory=dict)
    """Files of predictions by pruner; the others are made."""
    neighbours: bool = False

    def open(self) -> Source:
        return open_source(
            self.source, self.match_settings, image_folder=self.image_folder, feature_folder=self.feature_folder
        )


@dataclass(frozen=True, eq=False)
class PairResult:
    """What a worker found out about a pair."""

    name: str
    scene: str
    fingerprint: str
    inlier: np.ndarray
    predictions: dict[str, Prediction]
    scores: dict[str, PairScore]
    inlier_neighbours: dict[str, np.ndarray]


class Worker:
    """A source and pruners, opened once a process."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        self.job, self.source = job, job.open()
        self.stored = {name: read_predictions(path) for name, path in job.stored.items()}
        self.pruners: dict[str, Pruner] = {
            choice.name: load(choice.given, device=job.device)
            for choice in job.pruners
            if choice.name not in job.stored
        }
        self.networks = {
            choice.name: load_network(choice.file)[0] for choice in job.pruners if choice.file and job.neighbours
        }

    def evaluate(self, number: int) -> PairResult:
        pair = self.source[number]
        predictions = {}
        for choice in self.job.pruners:
            if choice.name in self.stored:
                check_pair(self.job.stored[choice.name], self.stored[choice.name], number, pair.name, pair.matches)
                predictions[choice.name] = self.stored[choice.name].answers[number]
            else:
                kept = self.pruners[choice.name](pair.matches)
                predictions[choice.name] = Prediction(np.asarray(kept.mask), np.asarray(kept.logits, np.float32))
        inlier = pair.inlier.numpy()
        return PairResult(
            pair.name,
            pair.scene,
            fingerprint(pair.matches),
            inlier,
            predictions,
            {name: score_pair(pair, made, self.job.pose_settings) for name, made in predictions.items()},
            {name: inlier_neighbours(network, pair.matches, inlier) for name, network in self.networks.items()},
        )


_worker: Worker


def _start_worker(job: Job) -> None:
    global _worker
    _worker = Worker(job)


def _prepare(number: int) -> None:
    _worker.source.prepare(number)


def _evaluate(number: int) -> PairResult:
    return _worker.evaluate(number)


def evaluate(
    source: str | Path,
    pruners: Sequence[str],
    match_settings: MatchSettings | None = None,
    pose_settings: PoseSettings | None = None,
    *,
    image_folder: Path | None = None,
    prediction_folder: Path | None = None,
    neighbours: bool = False,
    device: str = "auto",
    workers: int | None = None,
    progress: bool = True,
) -> Evaluation:
    """Runs pruners on the pairs of a source and scores what they say.

    Worker processes import the calling script: outside of the command line, call it under
    `if __name__ == "__main__":`.

    Args:
        source: what `open_source` takes.
        pruners: names or weight files.
        prediction_folder: predictions found here are scored, others are made and written here, a file a pruner.
            A file that belongs to other weights, settings or matches is refused.
        neighbours: whether to collect the ratio of inliers among neighbours in feature space, of learned pruners.
        workers: processes; None for one a core. The result does not depend on it.
    """
    match_settings, pose_settings = match_settings or MatchSettings(), pose_settings or PoseSettings()
    choices = choose_pruners(pruners)
    opened = open_source(source, match_settings, image_folder=image_folder)
    estimators = pose_settings.estimators if opened.has_poses else ()
    if "poselib" in estimators and find_spec("poselib") is None:
        raise MissingExtraError("poselib", "poselib")
    origins = {
        choice.name: Origin(choice.name, choice.options, choice.weights_sha256, opened.kind, asdict(match_settings))
        for choice in choices
    }
    stored = _find_predictions(prediction_folder, origins, len(opened))
    with tempfile.TemporaryDirectory(prefix="ananet-features-") as features:
        job = Job(
            Path(source),
            image_folder,
            Path(features),
            match_settings,
            pose_settings,
            choices,
            device,
            stored,
            neighbours,
        )
        with worker_pool(workers, _start_worker, job) as pool:

            def bar(results: Any, count: int, unit: str) -> Any:
                return tqdm(results, desc=opened.name, total=count, unit=unit, disable=not progress, leave=False)

            photos = job.open().photos
            for _ in bar(ordered_map(pool, _prepare, photos), photos, "photo"):
                pass
            results: list[PairResult] = list(bar(ordered_map(pool, _evaluate, len(opened)), len(opened), "pair"))

    names = [result.name for result in results]
    predictions = {
        name: Predictions(
            origin,
            names,
            [result.fingerprint for result in results],
            [result.predictions[name] for result in results],
            installed_versions(),
        )
        for name, origin in origins.items()
    }
    if prediction_folder is not None:
        for name in origins:
            if name not in stored:
                write_predictions(prediction_folder / f"{name}.safetensors", predictions[name])
    inliers = [result.inlier for result in results]
    labels = np.concatenate(inliers)
    scores = {
        name: PrunerScores(
            [result.scores[name] for result in results],
            metrics.expected_calibration_error(pooled_scores(predictions[name].answers), labels),
            np.mean([result.inlier_neighbours[name] for result in results], axis=0)
            if name in results[0].inlier_neighbours
            else None,
        )
        for name in origins
    }
    return Evaluation(
        opened.name,
        opened.kind,
        opened.matching() + match_settings.thinning,
        match_settings,
        pose_settings,
        names,
        [result.scene for result in results],
        inliers,
        {choice.name: choice for choice in choices},
        predictions,
        scores,
        estimators,
        tuple(stored),
    )


def _find_predictions(folder: Path | None, origins: dict[str, Origin], pairs: int) -> dict[str, Path]:
    """Files of predictions that are there already and belong to what is asked for."""
    if folder is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, origin in origins.items():
        path = folder / f"{name}.safetensors"
        if path.exists():
            predictions = read_predictions(path)
            check_origin(path, predictions.origin, origin)
            if len(predictions) != pairs:
                raise InputError(f"predictions: {path} is stale: it has {len(predictions)} pairs, expected {pairs}")
            found[name] = path
    return found


def scores_as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Settings, summaries, and the numbers of every pair by column."""
    pruners = {}
    for name, scores in evaluation.scores.items():
        poses = {
            estimator: {
                "summary": scores.pose_summary(estimator),
                "rotation_error": scores.errors(estimator, "rotation").round(4).tolist(),
                "translation_error": scores.errors(estimator, "translation").round(4).tolist(),
            }
            for estimator in evaluation.estimators
        }
        columns = ("kept", "precision", "recall", "f1", "average_precision")
        pruners[name] = {
            "weights_sha256": evaluation.pruners[name].weights_sha256,
            "network": evaluation.pruners[name].network,
            "summary": scores.matches_summary(),
            "pairs": {column: scores.column(column).round(6).tolist() for column in columns},
            "poses": poses,
        }
    return {
        "source": evaluation.source,
        "kind": evaluation.kind,
        "matches": evaluation.matching,
        "match_settings": asdict(evaluation.match_settings),
        "pose_settings": asdict(evaluation.pose_settings),
        "versions": installed_versions(),
        "pairs": evaluation.names,
        "scenes": evaluation.scenes,
        "inlier_ratio": evaluation.inlier_ratios.round(6).tolist(),
        "pruners": pruners,
    }


def write_scores(path: str | Path, evaluations: Sequence[Evaluation]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps([scores_as_json(evaluation) for evaluation in evaluations]) + "\n")
