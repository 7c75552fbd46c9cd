"""The Python API: every public function with matches, features and options of all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import ananet
from ananet import Correspondences
from ananet.core import metrics
from ananet.estimators import ESTIMATORS, load_estimator
from ananet.features import Features, load_detector, match, nearest_neighbours
from ananet.pruners.base import Pruned
from tests.fuzz import matches as fuzzed
from tests.fuzz.campaign import Case, target

# Networks besides the smallest take seconds on a slow machine, and differ from it in their weights alone.
PRUNERS = ("ananet-small", "all", "mutual", "ratio", "gms", "lpm", "lmf", "code", "ransac", "magsac")
LARGE = ("ananet", "ananet-quadratic", "ananet-paper", "cne", "acne", "oanet", "lmcnet")
OPTION_TEXTS = (
    "0",
    "1",
    "-1",
    "0.5",
    "2",
    "1e-9",
    "1e9",
    "1e400",
    "nan",
    "inf",
    "none",
    "true",
    "false",
    "x",
    "",
    "4/6",
)
OPTION_TEXTS += ("0/0", "-1/3", "9" * 400, "1_0", "٣", " 1", "1=2", "é")
VALUES = (
    None,
    True,
    0,
    1,
    -1,
    0.5,
    float("nan"),
    float("inf"),
    10**400,
    "x",
    "",
    (4, 6),
    [],
    {},
    np.float32(0.5),
    object(),
)


def check_answer(found: Pruned, count: int) -> None:
    mask, scores, logits = (np.asarray(getattr(found, name)) for name in ("mask", "scores", "logits"))
    assert mask.shape == scores.shape == logits.shape == (count,)
    assert mask.dtype == bool and scores.dtype == logits.dtype == np.float32
    assert np.isfinite(scores).all() and np.isfinite(logits).all()
    assert (scores >= 0).all() and (scores < 1).all()
    assert found.pruner and len(found.indices) == mask.sum()


@target("Correspondences")
def prepare_correspondences(_: Path) -> Case:
    def case(data: st.DataObject) -> None:
        given = fuzzed.given(data)
        before = {name: fuzzed.copied(value) for name, value in given.items() if not hasattr(value, "__next__")}
        try:
            made = Correspondences(**given)
            assert made.points0.shape == made.points1.shape == (len(made), 2)
            assert np.isfinite(made.points0).all() and np.isfinite(made.points1).all()
            rays = made.normalized()
            assert rays.shape == (len(made), 4)
            plain = (slice(None, None, 2), [], np.zeros(len(made), bool), np.arange(len(made)) % 2 == 0)
            which = data.draw(st.sampled_from(plain) | st.sampled_from(plain) | st.sampled_from(fuzzed.NONSENSE))
            assert len(made[which]) <= max(len(made), 4)
        finally:
            fuzzed.assert_unchanged({name: given[name] for name in before}, before)

    return case


def prune(data: st.DataObject, pruner: ananet.Pruner) -> None:
    given = fuzzed.given(data)
    before = {name: fuzzed.copied(value) for name, value in given.items() if not hasattr(value, "__next__")}
    try:
        found = pruner(**given)
        check_answer(found, len(Correspondences(**given)))
    finally:
        fuzzed.assert_unchanged({name: given[name] for name in before}, before)


def prepare_pruners(names: tuple[str, ...]) -> Case:
    loaded = {name: ananet.load(name, device="cpu") for name in names}

    def case(data: st.DataObject) -> None:
        prune(data, loaded[data.draw(st.sampled_from(names))])

    return case


@target("pruners")
def prepare_small_pruners(_: Path) -> Case:
    return prepare_pruners(PRUNERS)


@target("large networks")
def prepare_large_pruners(_: Path) -> Case:
    return prepare_pruners(LARGE)


@target("batches")
def prepare_batches(_: Path) -> Case:
    loaded = {name: ananet.load(name, device="cpu") for name in ("ananet-small", "gms+ananet-small", "lpm", "mutual")}

    def case(data: st.DataObject) -> None:
        pruner = loaded[data.draw(st.sampled_from(sorted(loaded)))]
        pairs: list[Any] = [fuzzed.correspondences(data) for _ in range(data.draw(st.integers(0, 3)))]
        before = [fuzzed.state(pair) for pair in pairs]
        if data.draw(st.integers(0, 9)) == 0:
            pairs.append(data.draw(st.sampled_from(fuzzed.NONSENSE)))
        found = pruner.batch(pairs)
        assert len(found) == len(pairs)
        for pair, one, state in zip(pairs, found, before, strict=True):
            check_answer(one, len(pair))
            fuzzed.assert_unchanged(vars(pair), state)

    return case


@target("options by name")
def prepare_options(_: Path) -> Case:
    small = Correspondences(
        *np.random.default_rng(0).uniform(0, 100, (2, 60, 2)), image_size0=(100, 100), image_size1=(100, 100)
    )
    makers = {
        **dict.fromkeys(PRUNERS, lambda text: ananet.load(text, device="cpu")),
        **dict.fromkeys(ESTIMATORS.names, load_estimator),
        "sift": load_detector,
        "orb": load_detector,
        "stored": load_detector,
        "nonsense": ananet.load,
    }
    options = ("threshold", "conflict_odds", "rotation", "scale", "neighbours", "agreement", "limits", "eta", "vectors")
    options += ("sigma", "floor", "likelihood", "deviation", "centroids", "seed_ratio", "min_seeds", "width")
    options += ("confidence", "use_scores", "match_selection", "max_keypoints", "path", "x", "")

    def case(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(makers)))
        text = name
        for _ in range(data.draw(st.integers(0, 2))):
            text += f"@{data.draw(st.sampled_from(options))}={data.draw(st.sampled_from(OPTION_TEXTS))}"
        made = makers[name](text)
        if isinstance(made, ananet.Pruner):
            check_answer(made(small), len(small))

    return case


@target("estimators")
def prepare_estimators(_: Path) -> Case:
    def case(data: st.DataObject) -> None:
        options = {}
        if data.draw(st.integers(0, 3)) == 0:
            name = data.draw(st.sampled_from(("threshold", "confidence", "use_scores", "match_selection", "x")))
            options[name] = data.draw(st.sampled_from((*VALUES, 1.0, 0.99, "kept", "one-to-one")))
        estimator = load_estimator(data.draw(st.sampled_from(ESTIMATORS.names)), **options)
        pair = fuzzed.correspondences(data)
        before = fuzzed.state(pair)
        logits = torch.randn(len(pair), generator=torch.Generator().manual_seed(0))
        kept: Any = Pruned(logits > 0, logits.sigmoid(), logits) if data.draw(st.booleans()) else None
        if data.draw(st.integers(0, 9)) == 0:
            kept = data.draw(st.sampled_from(fuzzed.NONSENSE))
        try:
            for found, name in ((estimator.fundamental(pair, kept), "F"), (estimator.homography(pair, kept), "H")):
                if found is not None:
                    matrix, inliers = np.asarray(getattr(found, name)), np.asarray(found.inliers)
                    assert matrix.shape == (3, 3) and np.isfinite(matrix).all()
                    assert inliers.shape == (len(pair),) and inliers.dtype == bool
            pose = estimator.pose(pair, kept)
            if pose is not None:
                R, t, inliers = (np.asarray(value) for value in (pose.R, pose.t, pose.inliers))
                assert inliers.shape == (len(pair),) and inliers.dtype == bool
                np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-6)
                np.testing.assert_allclose(np.linalg.norm(t), 1, atol=1e-6)
        finally:
            fuzzed.assert_unchanged(vars(pair), before)

    return case


@target("group_motions")
def prepare_motions(_: Path) -> Case:
    def case(data: st.DataObject) -> None:
        pair = fuzzed.correspondences(data)
        before = fuzzed.state(pair)
        mask: Any = data.draw(st.sampled_from((None, np.ones(len(pair), bool), torch.zeros(len(pair)) > 0)))
        kept: Any = None
        if data.draw(st.integers(0, 9)) == 0:
            mask = data.draw(st.sampled_from(fuzzed.NONSENSE))
        if data.draw(st.integers(0, 9)) == 0:
            kept = data.draw(st.sampled_from(fuzzed.NONSENSE))
        seed = data.draw(st.sampled_from((0, 0, 1, 2**40, -1, 0.5, None, True)))
        found = ananet.group_motions(pair, kept, mask=mask, seed=seed)
        assert found.labels.shape == (len(pair),) and found.labels.dtype == np.int64
        assert not len(pair) or (found.labels.min() >= -1 and found.labels.max() < len(found))
        for number, motion in enumerate(found.motions):
            assert motion.support == (found.labels == number).sum() and 0 <= motion.confidence <= 1
            assert motion.model.shape == (3, 3) and np.isfinite(motion.model).all()
        fuzzed.assert_unchanged(vars(pair), before)

    return case


def descriptors(data: st.DataObject, count: int, rng: np.random.Generator) -> Any:
    """Of a kind that a detector gives, or nonsense."""
    width = data.draw(st.sampled_from((0, 1, 8, 32, 128)))
    kind = data.draw(st.sampled_from(("f4", "f8", "f2", "i4", "u1", "same", "huge", "tensor", "nonsense")))
    values = rng.normal(0, 50, (count, width))
    if kind == "same":
        return np.ones((count, width), np.float32)
    if kind == "huge":
        return values * 1e30
    if kind == "tensor":
        return torch.from_numpy(values)
    if kind == "nonsense":
        return data.draw(st.sampled_from(fuzzed.NONSENSE))
    with np.errstate(all="ignore"):
        return values.astype(kind)


@target("features")
def prepare_features(_: Path) -> Case:
    def features(data: st.DataObject) -> Features:
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        count = data.draw(st.sampled_from(fuzzed.COUNTS))
        given: dict[str, Any] = {
            "points": fuzzed.contained(data, rng.uniform(0, 100, (count, 2))),
            "descriptors": descriptors(data, count, rng),
            "image_size": (100, 100),
        }
        if data.draw(st.booleans()):
            given |= {"sizes": rng.uniform(0, 9, count), "angles": rng.normal(size=count), "scores": rng.random(count)}
        if data.draw(st.integers(0, 3)) == 0:
            given[data.draw(st.sampled_from(sorted(given)))] = data.draw(st.sampled_from(fuzzed.NONSENSE))
        return Features(**given)

    def case(data: st.DataObject) -> None:
        first, second = features(data), features(data)
        neighbours = data.draw(st.sampled_from((1, 1, 2, 5, 1000, 0, -1, 0.5, None)))
        found = nearest_neighbours(first.descriptors, second.descriptors, neighbours)
        assert len(found.index) == len(found.ratio) == len(found.mutual)
        assert not len(found.index) or 0 <= found.index.min() <= found.index.max() < len(second)
        assert ((found.ratio >= 0) & (found.ratio <= 1)).all()
        pair = match(first, second, neighbours=neighbours)
        assert len(pair) == len(found.index)

    return case


@target("detectors")
def prepare_detectors(_: Path) -> Case:
    def case(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(("sift", "orb")))
        detector = load_detector(name, max_keypoints=data.draw(st.sampled_from((1, 50, 9, 2, 300, 80, 0, 0.5))))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        height, width = (data.draw(st.sampled_from((1, 2, 7, 31, 64, 100))) for _ in range(2))
        shapes = (
            (height, width),
            (height, width, 3),
            (height, width),
            (height, width, 3),
            (height, width, 4),
            (0, width),
        )
        shape = data.draw(st.sampled_from(shapes))
        image: Any = (
            rng.integers(0, 256, shape, np.uint8) if data.draw(st.booleans()) else np.full(shape, 128, np.uint8)
        )
        if data.draw(st.integers(0, 5)) == 0:
            image = data.draw(st.sampled_from(fuzzed.NONSENSE))
        found = detector.detect(image)
        assert len(found) <= detector.max_keypoints and np.isfinite(found.points).all()

    return case


@target("metrics")
def prepare_metrics(_: Path) -> Case:
    def values(data: st.DataObject) -> Any:
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        count = data.draw(st.sampled_from(fuzzed.COUNTS))
        kind = data.draw(st.sampled_from(("scores", "flags", "whole", "errors", "same", "matrix", "list", "nonsense")))
        made = {
            "scores": rng.random(count),
            "flags": rng.random(count) < 0.5,
            "whole": rng.integers(-1, 4, count),
            "errors": rng.choice([0.0, 3.0, 90.0, np.inf, np.nan], count),
            "same": np.ones(count),
            "matrix": rng.normal(size=(count, 3)),
            "list": rng.random(count).tolist(),
        }
        return made[kind] if kind in made else data.draw(st.sampled_from(fuzzed.NONSENSE))

    calls = {
        metrics.precision_recall_f1: 2,
        metrics.misclassification_error: 2,
        metrics.pose_auc: 1,
        metrics.binned_map: 1,
        metrics.recall_curve: 2,
        metrics.mean_by_bin: 3,
        metrics.precision_recall_curve: 2,
        metrics.average_precision: 2,
        metrics.reliability: 2,
        metrics.expected_calibration_error: 2,
        metrics.inlier_neighbour_ratio: 3,
    }
    # A bin without values has no mean, as the docstring says.
    may_be_nan = (metrics.mean_by_bin, metrics.reliability)

    def case(data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(list(calls)))
        found = call(*(values(data) for _ in range(calls[call])))
        if call not in may_be_nan:
            parts = vars(found).values() if hasattr(found, "__dict__") else [found]
            assert not any(np.isnan(np.asarray(part, float)).any() for part in parts)

    return case
