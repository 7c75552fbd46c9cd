"""Run pruners on the pairs of a source, on all cores: predictions first, scores second.

On a CPU, workers read, prune and score one pair at a time. On a GPU, this process runs networks on many pairs at a time
while workers match and score.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ananet._util.checks import check_whole_number
from ananet._util.defaults import DETECTOR, PRUNER, REPORTED_ESTIMATORS
from ananet._util.devices import choose_device
from ananet.core import metrics
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import SOURCES, Source, open_source
from ananet.errors import InputError
from ananet.estimators import ESTIMATORS
from ananet.estimators.base import Model
from ananet.evaluation.explain import inlier_neighbours
from ananet.evaluation.pairs import MatchSettings, PhotoPairs, open_pairs
from ananet.evaluation.predictions import (
    Origin,
    Prediction,
    Predictions,
    PredictionStore,
    fingerprint,
    installed_versions,
)
from ananet.evaluation.scoring import (
    EmptyPairScore,
    PairScore,
    PoseSettings,
    PrunerScores,
    protocol_settings,
    score_empty_pair,
    score_pair,
)
from ananet.features import DETECTORS, MATCHERS
from ananet.io.files import file_sha256
from ananet.networks import NETWORKS
from ananet.pruners import CLASSICAL, LearnedPruner, Pruned, Pruner, load
from ananet.pruners.base import stream_items
from ananet.pruners.registry import look_up

# Pairs with predictions that are written together; also how far workers read ahead of a GPU.
PAIRS_AT_ONCE = 256
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Items that a worker takes at once; few, so that all workers end at about the same time.
AT_ONCE = 4


@dataclass(frozen=True)
class PrunerChoice:
    """A pruner to evaluate."""

    name: str
    given: str
    """The argument of `load`: a name or the path of a weight file."""
    options: list[dict[str, Any]]
    """Options of each pruner of a chain, defaults included."""
    learned: bool
    """Whether it has a network."""
    weights_sha256: str | None = None
    network: dict[str, Any] | None = None
    """Settings and number of parameters of a learned one, unless it is part of a chain."""


def choose_pruners(given: Sequence[str]) -> list[PrunerChoice]:
    """Look up names and weight files; a weight file is named after its stem."""
    choices = []
    for text in given:
        parts = look_up(text)
        files = [part.file for part in parts if part.file is not None]
        name, hashes = "+".join(part.name for part in parts), "+".join(map(file_sha256, files))
        # Lists instead of tuples, as they are read from a file of predictions.
        options = json.loads(json.dumps([part.all_options for part in parts]))
        # Loading here reports wrong options once, not in every worker.
        pruner = load(text, device="cpu")
        network = pruner.network.description() if isinstance(pruner, LearnedPruner) else None
        choices.append(PrunerChoice(name, text, options, bool(files), hashes or None, network))
    names = [choice.name for choice in choices]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"pruner: expected different names, got {', '.join(names) or 'none'}; weight files of one name can be told "
            "apart as 'first=a/weights.safetensors'"
        )
    return choices


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """All measurements on one source."""

    source: str
    """Name of the source."""
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
    shares: np.ndarray
    """[P] share of the view that both photos of a pair have in common; NaN if unknown."""
    hard: np.ndarray
    """[P] bool: pairs of which `is_hard` is true."""
    empty_pairs: list[str]
    """Names of the pairs whose photos have nothing in common. They are in no other list: pruners' scores have a part
    of their own for them."""
    pruners: dict[str, PrunerChoice]
    predictions: dict[str, Predictions]
    """By pruner."""
    scores: dict[str, PrunerScores]
    """By pruner."""
    estimators: tuple[str, ...]
    """The estimators that ran: none on a source without a true model."""
    reused: tuple[str, ...] = ()
    """Pruners that did not run because all their predictions were stored."""

    def __repr__(self) -> str:
        return f"Evaluation({self.source}: {len(self.names)} pairs, pruners {', '.join(self.pruners)})"

    @property
    def model(self) -> Model:
        """What the estimators look for."""
        return self.pose_settings.model

    @property
    def knows_depth(self) -> bool:
        """Whether depth tells of some pairs which matches are right."""
        return bool(np.isfinite(self.shares).any())

    @property
    def inlier_ratios(self) -> np.ndarray:
        """[P] share of inliers among all matches of a pair."""
        return np.array([inlier.mean() if len(inlier) else 0.0 for inlier in self.inliers])

    def pooled(self, pruner: str) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and labels of the matches of all pairs together, [S] each."""
        return pooled_scores(self.predictions[pruner].results), np.concatenate(self.inliers)


def pooled_scores(results: Sequence[Prediction]) -> np.ndarray:
    logits = np.concatenate([np.zeros(0, np.float32), *(result.logits for result in results)])
    return torch.from_numpy(logits).double().sigmoid().numpy()


@dataclass(frozen=True, eq=False)
class PairResult:
    """Output of a worker for one pair."""

    name: str
    scene: str
    fingerprint: str
    inlier: np.ndarray
    share: float
    """NaN if unknown."""
    hard: bool
    truth: np.ndarray | None
    """[3 x N] bool: matches whose truth is known, right ones, mutual ones; None if no depth is known."""
    predictions: dict[str, Prediction]
    scores: dict[str, PairScore]
    """None of an empty pair."""
    empty_scores: dict[str, EmptyPairScore]
    """Of an empty pair only."""
    inlier_neighbours: dict[str, np.ndarray]


class Worker:
    """Pairs, pruners to run, and those with inliers among neighbours to measure, opened once per process."""

    def __init__(
        self,
        plugins: Iterable[str],
        pairs: tuple[Source, MatchSettings, Path, str],
        pose_settings: PoseSettings,
        pruners: Sequence[PrunerChoice],
        neighbours: Sequence[PrunerChoice],
    ) -> None:
        import cv2

        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        for module in plugins:
            import_module(module)
        self.pairs, self.pose_settings = open_pairs(*pairs), pose_settings
        self.pruners: dict[str, Pruner] = {c.name: load(c.given, device="cpu") for c in pruners}
        self.networks = {}
        for choice in neighbours:
            pruner = load(choice.given, device="cpu")
            assert isinstance(pruner, LearnedPruner)
            self.networks[choice.name] = pruner.network

    def evaluate(self, pair: LabelledPair, given: dict[str, Prediction]) -> PairResult:
        """Run the pruners without a given prediction on a pair, and score all."""
        predictions = dict(given)
        for name, pruner in self.pruners.items():
            if name not in given:
                predictions[name] = _prediction(pruner(pair.matches))
        inlier = pair.inlier.numpy()
        labels = (pair.name, pair.scene, fingerprint(pair.matches), inlier)
        depth = (math.nan if pair.share is None else pair.share, pair.hard, _truth(pair))
        if pair.is_empty:
            alarms = {name: score_empty_pair(pair, made) for name, made in predictions.items()}
            return PairResult(*labels, *depth, predictions, {}, alarms, {})
        scores = {name: score_pair(pair, made, self.pose_settings) for name, made in predictions.items()}
        near = {name: inlier_neighbours(network, pair.matches, inlier) for name, network in self.networks.items()}
        return PairResult(*labels, *depth, predictions, scores, {}, near)


def _truth(pair: LabelledPair) -> np.ndarray | None:
    truth, mutual = pair.truth(), pair.matches._as_tensors().mutual
    if truth is None:
        return None
    return torch.stack([*truth, torch.zeros_like(truth[0]) if mutual is None else mutual]).numpy()


_worker: Worker


def _start_worker(*arguments: Any) -> None:
    global _worker
    _worker = Worker(*arguments)


def _prepare(number: int) -> None:
    assert isinstance(_worker.pairs, PhotoPairs)
    _worker.pairs.prepare(number)


def _read(number: int) -> LabelledPair:
    return _worker.pairs[number]


def _evaluate(pair: int | LabelledPair, given: dict[str, Prediction]) -> PairResult:
    return _worker.evaluate(_worker.pairs[pair] if isinstance(pair, int) else pair, given)


def _prediction(kept: Pruned) -> Prediction:
    return Prediction(np.asarray(kept.mask), np.asarray(kept.logits, np.float32))


def evaluate(
    sources: str | Path | Source | Sequence[str | Path | Source],
    pruners: str | Sequence[str] = PRUNER,
    *,
    model: Model | None = None,
    estimators: str | Sequence[str] = REPORTED_ESTIMATORS,
    protocol: str = "plain",
    pose_threshold: float | None = None,
    confidence: float | None = None,
    repeats: int = 1,
    detectors: str | Sequence[str] | None = None,
    max_keypoints: int | None = None,
    longest_side: int | None = None,
    candidates: int = 1,
    matcher: str = "nearest",
    limit: int | None = None,
    scenes: Sequence[str] | None = None,
    outlier_share: float | None = None,
    image_folder: str | Path | None = None,
    prediction_folder: str | Path | None = None,
    neighbours: bool = False,
    device: str = "auto",
    workers: int | None = None,
    progress: bool = True,
) -> list[Evaluation]:
    """Run pruners on pairs with known truth, and score the matches they keep and the poses or homographies that follow.

    Worker processes import the calling script: call this under `if __name__ == "__main__":`.

    Args:
        sources: one or several arguments of `ananet.datasets.open_source`.
        pruners: names or weight files.
        model: what estimators look for: "essential" or "fundamental" where poses are known, "homography" where
            homographies are; None for the first of these that the source knows. With "fundamental", cameras are hidden
            from pruners and estimators, and used to turn the fundamental matrix into a pose for scoring.
        estimators: names, with options if needed.
        protocol: "plain" (each estimator's own threshold at original size), "yfcc" (1 px at longest side 1600,
            confidence 0.99999) or "sun3d" (0.001 in calibrated coordinates, confidence 0.99). The last two have the
            paper's keypoints: "sift@root=false", 2000 per photo.
        pose_threshold, confidence: of the estimators, instead of the protocol's.
        repeats: how often each pose is estimated, from matches in another order each time.
        detectors: names of keypoint detectors, for sources with photos; None for the protocol's, or else "sift".
        max_keypoints: of a photo; None for the protocol's number, or else the detector's own.
        longest_side: photos are scaled to it, instead of the protocol's.
        candidates: putative matches per keypoint.
        limit: at most this many pairs of each source, evenly spread.
        scenes: only pairs of these.
        outlier_share: remove wrong matches at random until at most this share of a pair is wrong.
        image_folder: photos of a pair list.
        prediction_folder: stored predictions are reused, missing ones are stored here while the evaluation runs, so
            that it can be continued. Several sources and detectors have subfolders. Predictions of other weights,
            settings or matches are an error.
        neighbours: measure the ratio of inliers among neighbours in feature space (Fig. 7).
        device: device of pruners, detector and matcher.
        workers: number of processes; None for one per core. The result does not depend on it.

    Returns:
        One `Evaluation` for each source and detector.
    """
    listed: Sequence[Any] = [sources] if isinstance(sources, str | Path | Source) else sources
    opened = [one if isinstance(one, Source) else open_source(one, image_folder=image_folder) for one in listed]
    titles = [source.title for source in opened]
    if not titles or len(set(titles)) < len(titles):
        raise InputError(f"sources: expected different names, got {', '.join(titles) or 'none'}")
    if workers is not None:
        check_whole_number("workers", workers, 1)
    pose_settings, own = protocol_settings(
        protocol, estimators=_several(estimators), threshold=pose_threshold, confidence=confidence, repeats=repeats
    )
    models = [_model_of(source, model) for source in opened]
    names = _several(own.get("detector", DETECTOR) if detectors is None else detectors)
    if not names or len(set(names)) < len(names):
        raise InputError(f"detectors: expected different ones, got {', '.join(names) or 'none'}")
    own |= {"scenes": None if scenes is None else _several(scenes)}
    own |= {"limit": limit, "outlier_share": outlier_share, "neighbours": candidates, "matcher": matcher}
    instead = {"max_keypoints": max_keypoints, "longest_side": longest_side}
    own |= {name: value for name, value in instead.items() if value is not None}
    by_detector = {name: MatchSettings(**own | {"detector": name}) for name in names}
    choices = choose_pruners(_several(pruners))
    evaluations = []
    for source, chosen in zip(opened, models, strict=True):
        posing = replace(pose_settings, model=chosen)
        for name, plain in by_detector.items():
            match_settings = replace(plain, hide_cameras=chosen == "fundamental")
            folder = None if prediction_folder is None else Path(prediction_folder)
            if folder is not None:
                folder = folder / (source.title if len(opened) > 1 else "") / (name if len(names) > 1 else "")
            found = _run(source, choices, match_settings, posing, folder, neighbours, device, workers, progress)
            title = f"{source.title}-{name}" if len(names) > 1 else source.title
            evaluations.append(replace(found, source=title))
    return evaluations


def _model_of(source: Source, model: Model | None) -> Model:
    """What to estimate on a source; where it knows no model, no estimator runs."""
    if model is None:
        return source.models[0] if source.models else "essential"
    if model not in source.models:
        known = " or ".join(source.models) or "none, as its matches alone are scored,"
        raise InputError(f"model: expected {known} for {source.path} ({source.name}), got {model!r}")
    return model


def _several(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _run(
    source: Source,
    choices: Sequence[PrunerChoice],
    match_settings: MatchSettings,
    pose_settings: PoseSettings,
    prediction_folder: Path | None,
    neighbours: bool,
    device: str,
    workers: int | None,
    progress: bool,
) -> Evaluation:
    gpu = choose_device(device)
    with tempfile.TemporaryDirectory(prefix="ananet-features-") as features:
        opened = (source, match_settings, Path(features), device)
        pairs = open_pairs(*opened)
        # Lists instead of tuples, as they are read from a file of predictions.
        settings = json.loads(json.dumps(match_settings.to_dict()))
        origins = {c.name: Origin(c.name, c.options, c.weights_sha256, pairs.kind, settings) for c in choices}
        store = PredictionStore(prediction_folder, origins, len(pairs))
        missing = [choice for choice in choices if choice.name not in store.complete]
        here = [choice for choice in missing if choice.learned and gpu.type != "cpu"]
        there = [choice for choice in missing if choice not in here]
        near = [choice for choice in choices if neighbours and choice.network is not None]
        registries = (NETWORKS, DETECTORS, MATCHERS, ESTIMATORS, SOURCES, CLASSICAL)
        plugins = {module for registry in registries for module in registry.outside_modules}
        with worker_pool(workers, _start_worker, plugins, opened, pose_settings, there, near) as pool:

            def bar(results: Iterator[Any], count: int, unit: str) -> Iterator[Any]:
                return iter(tqdm(results, desc=pairs.title, total=count, unit=unit, disable=not progress, leave=False))

            for _ in bar(pool.map(_prepare, range(pairs.photos), chunksize=AT_ONCE), pairs.photos, "photo"):
                pass
            loaded = {choice.name: load(choice.given, device=gpu) for choice in here}
            if loaded:
                found = _on_gpu(pool, len(pairs), store, loaded)
            else:
                numbers = range(len(pairs))
                found = pool.map(_evaluate, numbers, map(store.given, numbers), chunksize=AT_ONCE)
            results = bar(found, len(pairs), "pair")
            gathered: list[PairResult] = []
            while some := list(islice(results, PAIRS_AT_ONCE)):
                for number, result in enumerate(some, start=len(gathered)):
                    store.check(number, result.name, result.fingerprint)
                gathered += some
                store.add([(r.name, r.fingerprint, r.predictions) for r in some])
    store.finish()
    empty, usual = ([r for r in gathered if (r.share == 0) == is_empty] for is_empty in (True, False))
    names, fingerprints = [result.name for result in usual], [result.fingerprint for result in usual]
    predictions = {
        name: Predictions(origin, names, fingerprints, [r.predictions[name] for r in usual], installed_versions())
        for name, origin in origins.items()
    }
    return Evaluation(
        pairs.title,
        pairs.kind,
        pairs.matching(),
        match_settings,
        pose_settings,
        names,
        [result.scene for result in usual],
        [result.inlier for result in usual],
        np.array([result.share for result in usual]),
        np.array([result.hard for result in usual], bool),
        [result.name for result in empty],
        {choice.name: choice for choice in choices},
        predictions,
        {name: _pruner_scores(name, usual, empty) for name in origins},
        pose_settings.estimators if pairs.models and usual else (),
        tuple(store.complete),
    )


Known = Iterator[tuple[LabelledPair, dict[str, Prediction]]]
"""Pairs with the predictions known so far."""


def _on_gpu(
    pool: ProcessPoolExecutor, count: int, store: PredictionStore, pruners: dict[str, Pruner]
) -> Iterator[PairResult]:
    """Results in order: workers read pairs, this process prunes them as they arrive, workers score them."""
    read = map_ahead(pool, _read, ((number,) for number in range(count)), PAIRS_AT_ONCE)
    known: Known = ((pair, store.given(number)) for number, pair in enumerate(read))
    for name, pruner in pruners.items():
        known = _predicted(known, name, pruner)
    return map_ahead(pool, _evaluate, known, PAIRS_AT_ONCE)


def _predicted(pairs: Known, name: str, pruner: Pruner) -> Known:
    """Add one pruner's predictions where they are missing."""
    for (pair, known), kept in stream_items(pruner, pairs, lambda each: None if name in each[1] else each[0].matches):
        if kept is not None:
            known[name] = _prediction(kept)
        yield pair, known


def _pruner_scores(name: str, results: Sequence[PairResult], empty: Sequence[PairResult]) -> PrunerScores:
    labels = np.concatenate([np.zeros(0, bool), *(result.inlier for result in results)])
    error = metrics.expected_calibration_error(pooled_scores([result.predictions[name] for result in results]), labels)
    near = [result.inlier_neighbours[name] for result in results if name in result.inlier_neighbours]
    return PrunerScores(
        [result.scores[name] for result in results],
        error,
        np.mean(near, axis=0) if near else None,
        *_wrong_at_95(name, results),
        [result.empty_scores[name] for result in empty],
    )


def _wrong_at_95(name: str, results: Sequence[PairResult]) -> tuple[float | None, float | None]:
    """Share of wrong matches at 95 % true recall: of all, and of mutual ones; None without right ones."""
    judged = [(result.predictions[name].logits, result.truth) for result in results if result.truth is not None]
    if not judged:
        return None, None
    logits = np.concatenate([one for one, _ in judged])
    known, right, mutual = np.concatenate([truth for _, truth in judged], axis=1)
    groups = (known, known & mutual)
    first, second = (
        metrics.wrong_share_at_recall(logits[own], right[own], 0.95) if right[own].any() else None for own in groups
    )
    return first, second


@contextmanager
def worker_pool(
    workers: int | None, initializer: Callable[..., None], *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Processes that have each called `initializer(*arguments)`, one per core for None. An error ends them at once.

    Each has one thread, so that sums and thus results do not depend on the number of workers.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    # numpy and OpenMP read these when a worker imports them.
    os.environ.update(ONE_THREAD)
    # Forking a process that runs threads is not safe.
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    count = min(workers or os.cpu_count() or 1, 61)  # limit of Windows
    pool = ProcessPoolExecutor(count, context, _start, (lifeline, initializer, arguments))
    try:
        yield pool
    except BaseException:
        held.close()
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        pool.shutdown()
        held.close()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def map_ahead(
    pool: ProcessPoolExecutor, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], ahead: int
) -> Iterator[Any]:
    """`pool.map` in constant memory: at most `ahead` calls are submitted before their results are consumed."""
    given = iter(arguments)
    running: deque[Future[list[Any]]] = deque()
    while chunk := list(islice(given, AT_ONCE)):
        running.append(pool.submit(_call, function, chunk))
        if len(running) * AT_ONCE >= ahead:
            yield from running.popleft().result()
    while running:
        yield from running.popleft().result()


def _call(function: Callable[..., Any], chunk: list[tuple[Any, ...]]) -> list[Any]:
    return [function(*given) for given in chunk]


def _start(lifeline: Connection, initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # Ctrl-C reaches every process of the terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # End this process when the parent closes the other end of the pipe or is killed.
    threading.Thread(target=lambda: wait([lifeline]) and os._exit(1), daemon=True).start()
    initializer(*arguments)
