"""Pruners on the pairs of a source: predictions first, scores second, in one pass and on all cores.

Learned pruners run where the network is: on a CPU in the workers, one pair at a time; on a GPU in this process, many
pairs at a time, while workers match and score.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet._util.devices import choose_device
from ananet.core import metrics
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import SOURCES, open_source
from ananet.errors import InputError
from ananet.estimators import ESTIMATORS
from ananet.evaluation.explain import inlier_neighbours
from ananet.evaluation.pairs import MatchSettings, Pairs, open_pairs
from ananet.evaluation.predictions import (
    Origin,
    Prediction,
    Predictions,
    PredictionStore,
    fingerprint,
    installed_versions,
)
from ananet.evaluation.scoring import PairScore, PoseSettings, PrunerScores, score_pair
from ananet.evaluation.workers import AT_ONCE, map_ahead, worker_pool
from ananet.features import DETECTORS, MATCHERS
from ananet.io.files import file_sha256, write_json
from ananet.networks import NETWORKS
from ananet.pruners import CLASSICAL, LearnedPruner, Pruner, load
from ananet.pruners.base import stream_items
from ananet.pruners.registry import look_up

# Pairs whose predictions are written together, and that workers read ahead of a GPU and score behind it.
PAIRS_AT_ONCE = 256


@dataclass(frozen=True)
class PrunerChoice:
    """A pruner that somebody asked for."""

    name: str
    given: str
    """What `load` takes: a name or the path of a weight file."""
    options: list[dict[str, Any]]
    """Of each pruner of a chain, defaults included."""
    learned: bool
    """Whether a network is part of it."""
    weights_sha256: str | None = None
    network: dict[str, Any] | None = None
    """Settings and number of parameters of a learned one, unless it is part of a chain."""


def choose_pruners(given: Sequence[str]) -> list[PrunerChoice]:
    """Looks up names and weight files; a weight file goes by its name without the suffix."""
    choices = [_choose_pruner(text) for text in given]
    names = [choice.name for choice in choices]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"pruner: expected different names, got {', '.join(names) or 'none'}; weight files of one name can be told "
            "apart as 'first=a/weights.safetensors'"
        )
    return choices


def _choose_pruner(given: str) -> PrunerChoice:
    parts = look_up(given)
    files = [file for part in parts for file in part.files]
    # Wrong options are better found here than in every worker.
    pruner = load(given, device="cpu")
    return PrunerChoice(
        "+".join(part.name for part in parts),
        given,
        # As they will be read from a file of predictions: lists, not tuples.
        json.loads(json.dumps([part.all_options for part in parts])),
        bool(files),
        "+".join(file_sha256(file) for file in files) or None,
        pruner.network.description() if isinstance(pruner, LearnedPruner) else None,
    )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Everything that was measured on one source."""

    source: str
    """Its path."""
    kind: str
    """Name of the source's format."""
    matching: str
    """How the matches were made, in words."""
    match_settings: MatchSettings
    pose_settings: PoseSettings
    names: list[str]
    """[P] names of the pairs."""
    scenes: list[str]
    """[P] scene of every pair."""
    inliers: list[np.ndarray]
    """[P] labels, [N] bool each."""
    pruners: dict[str, PrunerChoice]
    predictions: dict[str, Predictions]
    """Of every pruner, by name."""
    scores: dict[str, PrunerScores]
    """Of every pruner, by name."""
    estimators: tuple[str, ...]
    """Those that ran: none on a source without poses."""
    reused: tuple[str, ...] = ()
    """Pruners that did not run, because their predictions were there."""

    @property
    def inlier_ratios(self) -> np.ndarray:
        """[P] share of inliers among all matches of a pair."""
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
    """Those that workers run."""
    neighbours: Sequence[PrunerChoice]
    """Those whose inliers among neighbours are wanted."""
    plugins: Sequence[str]
    """Modules that made networks, detectors, ... known from outside."""
    device: str
    """Of detector and matcher."""

    def open(self) -> Pairs:
        source = open_source(self.source, image_folder=self.image_folder)
        return open_pairs(source, self.match_settings, self.feature_folder, self.device)


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
    """Pairs and pruners, opened once per process."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        for module in job.plugins:
            import_module(module)
        self.job, self.pairs = job, job.open()
        self.pruners: dict[str, Pruner] = {c.name: load(c.given, device="cpu") for c in job.pruners}
        self.networks = {}
        for choice in job.neighbours:
            pruner = load(choice.given, device="cpu")
            assert isinstance(pruner, LearnedPruner)
            self.networks[choice.name] = pruner.network

    def evaluate(self, pair: LabelledPair, given: dict[str, Prediction]) -> PairResult:
        """Prune a pair by those pruners whose predictions are not given, and score all."""
        predictions = dict(given)
        for name, pruner in self.pruners.items():
            if name not in given:
                kept = pruner(pair.matches)
                predictions[name] = Prediction(np.asarray(kept.mask), np.asarray(kept.logits, np.float32))
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
    _worker.pairs.prepare(number)


def _read(number: int) -> LabelledPair:
    return _worker.pairs[number]


def _evaluate(number: int, given: dict[str, Prediction]) -> PairResult:
    return _worker.evaluate(_worker.pairs[number], given)


def _evaluate_pair(pair: LabelledPair, given: dict[str, Prediction]) -> PairResult:
    return _worker.evaluate(pair, given)


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
    """Run pruners on the pairs of a source and score their answers.

    Worker processes import the calling script: outside of the command line, call it under
    `if __name__ == "__main__":`.

    Args:
        source: what `open_source` takes.
        pruners: names or weight files.
        prediction_folder: predictions found here are scored; others are made and written here, a file per pruner, as
            the evaluation proceeds, so that an interrupted one can continue. A file of other weights, settings or
            matches is refused.
        neighbours: whether to collect the ratio of inliers among neighbours in feature space, of learned pruners.
        device: where networks run: of learned pruners, of the detector and of the matcher.
        workers: processes; None for one per core. The result does not depend on it.
    """
    match_settings, pose_settings = match_settings or MatchSettings(), pose_settings or PoseSettings()
    gpu = choose_device(device)
    choices = choose_pruners(pruners)
    pairs = open_pairs(open_source(source, image_folder=image_folder), match_settings, device=device)
    origins = {
        choice.name: Origin(choice.name, choice.options, choice.weights_sha256, pairs.kind, match_settings.to_dict())
        for choice in choices
    }
    store = PredictionStore(prediction_folder, origins, len(pairs))
    here = [choice for choice in choices if choice.learned and gpu.type != "cpu" and choice.name not in store.complete]
    with tempfile.TemporaryDirectory(prefix="ananet-features-") as features:
        job = Job(
            Path(source),
            image_folder,
            Path(features),
            match_settings,
            pose_settings,
            [choice for choice in choices if choice not in here and choice.name not in store.complete],
            [choice for choice in choices if neighbours and choice.network is not None],
            [*_plugins()],
            device,
        )
        with worker_pool(workers, _start_worker, job) as pool:

            def bar(results: Iterator[Any], count: int, unit: str) -> Iterator[Any]:
                return iter(tqdm(results, desc=pairs.title, total=count, unit=unit, disable=not progress, leave=False))

            photos = job.open().photos
            for _ in bar(pool.map(_prepare, range(photos), chunksize=AT_ONCE), photos, "photo"):
                pass
            loaded = {choice.name: load(choice.given, device=gpu) for choice in here}
            found = _on_gpu(pool, len(pairs), store, loaded) if loaded else _on_cpu(pool, len(pairs), store)
            results = bar(found, len(pairs), "pair")
            gathered: list[PairResult] = []
            while some := list(islice(results, PAIRS_AT_ONCE)):
                for number, result in enumerate(some, start=len(gathered)):
                    store.check(number, result.name, result.fingerprint)
                gathered += some
                store.add([(r.name, r.fingerprint, r.predictions) for r in some])
    store.finish()
    return _summarised(pairs, choices, origins, store, gathered, match_settings, pose_settings)


def _plugins() -> set[str]:
    registries = (NETWORKS, DETECTORS, MATCHERS, ESTIMATORS, SOURCES, CLASSICAL)
    return {module for registry in registries for module in registry.outside_modules}


def _on_cpu(pool: ProcessPoolExecutor, count: int, store: PredictionStore) -> Iterator[PairResult]:
    """Results in order: a worker reads, prunes and scores a pair."""
    return pool.map(_evaluate, range(count), map(store.given, range(count)), chunksize=AT_ONCE)


def _on_gpu(
    pool: ProcessPoolExecutor, count: int, store: PredictionStore, pruners: dict[str, Pruner]
) -> Iterator[PairResult]:
    """Results in order: workers read pairs, this process prunes them as they come, workers score them."""
    read = map_ahead(pool, _read, ((number,) for number in range(count)), PAIRS_AT_ONCE)
    known: Iterator[tuple[LabelledPair, dict[str, Prediction]]]
    known = ((pair, store.given(number)) for number, pair in enumerate(read))
    for name, pruner in pruners.items():
        known = _predicted(known, name, pruner)
    return map_ahead(pool, _evaluate_pair, known, PAIRS_AT_ONCE)


def _predicted(
    pairs: Iterator[tuple[LabelledPair, dict[str, Prediction]]], name: str, pruner: Pruner
) -> Iterator[tuple[LabelledPair, dict[str, Prediction]]]:
    """Pairs with what is known of them, and what one more pruner says unless that is known."""
    for (pair, known), kept in stream_items(pruner, pairs, lambda each: None if name in each[1] else each[0].matches):
        if kept is not None:
            known[name] = Prediction(np.asarray(kept.mask), np.asarray(kept.logits, np.float32))
        yield pair, known


def _summarised(
    pairs: Pairs,
    choices: list[PrunerChoice],
    origins: dict[str, Origin],
    store: PredictionStore,
    results: list[PairResult],
    match_settings: MatchSettings,
    pose_settings: PoseSettings,
) -> Evaluation:
    names = [result.name for result in results]
    fingerprints = [result.fingerprint for result in results]
    inliers = [result.inlier for result in results]
    labels = np.concatenate(inliers)
    predictions, scores = {}, {}
    for name, origin in origins.items():
        answers = [result.predictions[name] for result in results]
        predictions[name] = Predictions(origin, names, fingerprints, answers, installed_versions())
        calibration_error = metrics.expected_calibration_error(pooled_scores(answers), labels)
        near = [result.inlier_neighbours[name] for result in results if name in result.inlier_neighbours]
        scores[name] = PrunerScores(
            [result.scores[name] for result in results], calibration_error, np.mean(near, axis=0) if near else None
        )
    return Evaluation(
        pairs.title,
        pairs.kind,
        pairs.matching(),
        match_settings,
        pose_settings,
        names,
        [result.scene for result in results],
        inliers,
        {choice.name: choice for choice in choices},
        predictions,
        scores,
        pose_settings.estimators if pairs.has_poses else (),
        tuple(store.complete),
    )


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
        "match_settings": evaluation.match_settings.to_dict(),
        "pose_settings": evaluation.pose_settings.to_dict(),
        "versions": installed_versions(),
        "pairs": evaluation.names,
        "scenes": evaluation.scenes,
        "inlier_ratio": evaluation.inlier_ratios.round(6).tolist(),
        "pruners": pruners,
    }


def write_scores(path: str | Path, evaluations: Sequence[Evaluation]) -> None:
    write_json(path, [scores_as_json(evaluation) for evaluation in evaluations])
