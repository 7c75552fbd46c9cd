"""Fit the probability that two photos show the same place (`ananet.twoview.same_place`), and report it.

python tools/fit_overlap.py PAIRS... --validation PAIRS...

PAIRS are folders that `ananet data build` wrote. Pairs with a common view of a tenth and more show the same place;
those with nothing in common, half of which are mined look-alikes, do not. Photos of different scenes are matched here,
as further pairs that do not. Whole scenes are held out in turn for the report on the first pairs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

import ananet
from ananet._util.defaults import DISTINCTIVE_RATIO
from ananet.core.correspondences import Correspondences
from ananet.datasets.formats.shards import PairShards
from ananet.datasets.photos import load_photo_detector
from ananet.errors import InputError
from ananet.features import Features, match
from ananet.io.files import read_json, write_json
from ananet.io.images import as_photo
from ananet.twoview import same_place
from ananet.twoview.overlap import check_overlap

MIN_SHARE, REPORTED_SHARE = 0.1, 0.2
FOLDS = 8
# Of the squared weights of standardised numbers.
PENALTY = 0.01
# Photos stand still on a background that moves with the camera: the labels, of the object, are not those of a place.
TURNTABLES = ("ethiopian_head", "dino")
# Scenes of one place under two names, besides those that begin with the same word.
SAME_PLACES = [{"entry", "fountain"}]

Row = dict[str, Any]
"""A pair: `scene`, `kind` (usual, empty, unrelated), `share` of the view, `pruner`, `numbers`, `nfa` of the test."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", type=Path, help="folders of training pairs")
    parser.add_argument("--validation", nargs="+", type=Path, default=[], help="folders of pairs of other scenes")
    parser.add_argument("--pruner", default="ananet")
    parser.add_argument("--per-scene", type=int, default=10, help="pairs of each scene that share a view (default: 10)")
    parser.add_argument("--empty", type=int, default=16, help="pairs of each scene without (default: 16)")
    parser.add_argument("--unrelated", type=int, default=300, help="pairs across scenes, per folder (default: 300)")
    parser.add_argument("--rows", type=Path, help="folder that keeps the numbers of pairs for another call")
    parser.add_argument("--dry-run", action="store_true", help="report on the weights in the package, write none")
    arguments = parser.parse_args()
    pruner = ananet.load(arguments.pruner)

    def gathered(folders: Sequence[Path], per_scene: int) -> list[Row]:
        rows: list[Row] = []
        for folder in folders:
            kept = None if arguments.rows is None else arguments.rows / f"{folder.name}.json"
            if kept is not None and kept.is_file():
                rows += read_json(kept)
                continue
            source = PairShards(folder)
            pairs = [*stored_pairs(source, per_scene, arguments.empty), *unrelated_pairs(source, arguments.unrelated)]
            own = [row for pair in tqdm(pairs, folder.name) for row in rows_of(pair, pruner)]
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_json(kept, own)
            rows += own
        return rows

    training = [row for row in gathered(arguments.pairs, arguments.per_scene) if row["scene"] not in TURNTABLES]
    validation = gathered(arguments.validation, 10**6)
    if not arguments.dry_run:
        held_out = [0.0] * len(training)
        folds = fold_of_scenes(training)
        for fold in range(FOLDS):
            weights = fit([row for row, own in zip(training, folds, strict=True) if own != fold])
            for number, row in enumerate(training):
                if folds[number] == fold:
                    held_out[number] = probability(row, weights)
        report("training, whole scenes held out", training, held_out)
        write_json(same_place.WEIGHTS, rounded(fit(training)), indent=1)
        same_place.load_weights.cache_clear()
    if validation:
        weights = same_place.load_weights()
        report("validation", validation, [probability(row, weights) for row in validation])


def stored_pairs(source: PairShards, per_scene: int, empty: int) -> Iterator[tuple[Row, Correspondences, Any, Any]]:
    """Some pairs of each scene, those that show nothing in common first, with all keypoints of both photos."""
    table, scenes = source.table(), np.array(source.scene_of_pairs())
    share, rng = table.pair_share.numpy(), np.random.default_rng(0)
    for scene in dict.fromkeys(scenes.tolist()):
        for kind, chosen, most in (("empty", share == 0, empty), ("usual", share >= MIN_SHARE, per_scene)):
            numbers = rng.permutation(np.flatnonzero(chosen & (scenes == scene)))[:most]
            for number in numbers.tolist():
                images = table.pair_images[number].tolist()
                keypoints = [table.points[slice(*table.image_start[n : n + 2].tolist())].numpy() for n in images]
                row = {"scene": scene, "kind": kind, "share": float(share[number])}
                yield row, table.matches(number), *keypoints


def unrelated_pairs(source: PairShards, wanted: int) -> Iterator[tuple[Row, Correspondences, Any, Any]]:
    """Photos of different scenes, matched; each photo is in a few pairs."""
    scenes, settings = source.index["scenes"], source.index["settings"]
    if len(scenes) < 2:
        return
    detector, rng = load_photo_detector(settings["detector"], settings["max_keypoints"]), np.random.default_rng(0)
    each = -(-2 * wanted // (4 * len(scenes)))
    photos: list[tuple[str, Features]] = []
    for scene in scenes:
        for name in rng.permutation(scene["images"])[:each].tolist():
            path = Path(scene["source"]) / name
            photos.append((scene["name"], detector.detect(as_photo(path).pixels, path)))
    pairs = [
        (a, b)
        for a in range(len(photos))
        for b in range(len(photos))
        if a != b and not one_place(photos[a][0], photos[b][0])
    ]
    for number in rng.permutation(len(pairs))[:wanted].tolist():
        (scene, first), (_, second) = (photos[n] for n in pairs[number])
        yield {"scene": scene, "kind": "unrelated", "share": 0.0}, match(first, second), first.points, second.points


def one_place(scene0: str, scene1: str) -> bool:
    """Whether two scenes may show one place."""
    return scene0.partition("_")[0] == scene1.partition("_")[0] or {scene0, scene1} in SAME_PLACES


def rows_of(pair: tuple[Row, Correspondences, Any, Any], pruner: ananet.Pruner) -> Iterator[Row]:
    """A pair as the network prunes it, and, for pruners without scores, with simpler masks."""
    row, matches, *keypoints = pair
    kept, given = pruner(matches), [np.asarray(points, np.float64) for points in keypoints]
    cv2.setRNGSeed(0)
    nfa = min(check_overlap(matches, kept.mask).log10_nfa, 0.0)
    tensors = matches._as_tensors()
    numbers = same_place.measure(tensors, kept, torch.as_tensor(kept.mask), *given)
    yield {**row, "pruner": "network", "numbers": numbers, "nfa": nfa}
    distinctive = tensors.mutual & (tensors.ratio < DISTINCTIVE_RATIO)
    for name, mask in (("ratio", distinctive), ("mutual", tensors.mutual)):
        cv2.setRNGSeed(0)
        yield {**row, "pruner": name, "numbers": same_place.measure(tensors, None, mask, *given), "nfa": nfa}


def fold_of_scenes(rows: Sequence[Row]) -> list[int]:
    scenes = np.random.default_rng(0).permutation(sorted({row["scene"] for row in rows})).tolist()
    return [scenes.index(row["scene"]) % FOLDS for row in rows]


def weight_of(rows: Sequence[Row]) -> np.ndarray:
    """[P] weight of each pair: both answers count half; among those that say no, unrelated photos half.

    A scene counts by the square root of its number of pairs: these resemble each other.
    """
    groups = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row["kind"], row["scene"], row["pruner"]].append(number)
    weights = np.zeros(len(rows))
    for own in groups.values():
        weights[own] = len(own) ** -0.5
    kinds = np.array([row["kind"] for row in rows])
    pruners = np.array([row["pruner"] for row in rows])
    for pruner in set(pruners.tolist()):
        for kind, part in (("usual", 0.5), ("empty", 0.25), ("unrelated", 0.25)):
            own_kind = (kinds == kind) & (pruners == pruner)
            weights[own_kind] *= part / max(weights[own_kind].sum(), 1e-9)
    return weights


def fit(rows: Sequence[Row]) -> dict[str, Any]:
    """All regressions, as same_place.json has them."""
    weight, same = weight_of(rows), np.array([row["kind"] == "usual" for row in rows])
    few = np.array([row["numbers"].get("kept", np.nan) for row in rows])
    network = np.array([row["pruner"] == "network" for row in rows])
    # One pair's weight more of each answer, so that no count is certain.
    one = 1 / len(rows)
    counts = [(network & (few == k)) for k in range(same_place.MIN_MATCHES)]
    odds = [(weight[own & same].sum() + one) / (weight[own & ~same].sum() + one) for own in counts]
    rest = [number for number in range(len(rows)) if np.isnan(few[number])]
    names = dict.fromkeys(same_place.NEEDS.values())
    heads = {}
    for choice in range(2 ** len(names)):
        known = {need for bit, need in enumerate(names) if choice >> bit & 1}
        columns = [name for name in same_place.NUMBERS if same_place.NEEDS.get(name) in known | {None}]
        having = [number for number in rest if all(name in rows[number]["numbers"] for name in columns)]
        head = "+".join(need for need in names if need in known) or "points"
        if having:
            values = np.array([[rows[number]["numbers"][name] for name in columns] for number in having])
            heads[head] = regression(columns, values, same[having], weight[having])
    return {"heads": heads, "few": np.maximum.accumulate(np.log(odds)).tolist()}


def regression(columns: list[str], values: np.ndarray, same: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
    """Logistic regression by Newton's method."""
    low, high = np.quantile(values, [0.005, 0.995], axis=0)
    values = np.clip(values, low, high)
    total, mean = weight.sum(), np.average(values, axis=0, weights=weight)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight)) + 1e-9
    X = np.column_stack([(values - mean) / deviation, np.ones(len(values))])
    penalty = PENALTY * np.diag([1.0] * len(columns) + [0.0])
    beta = np.zeros(X.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-X @ beta))
        gradient = X.T @ (weight * (p - same)) / total + penalty @ beta
        hessian = (X * (weight * (p * (1 - p) + 1e-9))[:, None]).T @ X / total + penalty
        beta -= np.linalg.solve(hessian, gradient)
    return {
        "bias": float(beta[-1]),
        "weights": dict(zip(columns, (beta[:-1] / deviation).tolist(), strict=True)),
        "mean": dict(zip(columns, mean.tolist(), strict=True)),
        "range": dict(zip(columns, np.stack([low, high], axis=1).tolist(), strict=True)),
    }


def probability(row: Row, weights: dict[str, Any]) -> float:
    return same_place.probability_of(row["numbers"], weights)


def rounded(weights: Any) -> Any:
    """Numbers of six digits are enough."""
    return json.loads(json.dumps(weights), parse_float=lambda text: float(f"{float(text):.6g}"))


def report(title: str, rows: Sequence[Row], probabilities: Sequence[float]) -> None:
    """Print for each pruner how well both tests separate pairs, and whether probabilities are what they say."""
    for pruner in dict.fromkeys(row["pruner"] for row in rows):
        own = [number for number, row in enumerate(rows) if row["pruner"] == pruner]
        _report(f"{title}, {pruner}", [rows[number] for number in own], [probabilities[number] for number in own])


def _report(title: str, rows: Sequence[Row], probabilities: Sequence[float]) -> None:
    p, kinds = np.array(probabilities), np.array([row["kind"] for row in rows])
    nfa, share = -np.array([row["nfa"] for row in rows]), np.array([row["share"] for row in rows])
    seen = (kinds == "usual") & (share >= REPORTED_SHARE)
    print(f"\n{title}: {len(rows)} pairs, of which {seen.sum()} share {REPORTED_SHARE:.0%} of their view")
    for kind in ("empty", "unrelated"):
        apart = kinds == kind
        if not apart.any() or not seen.any():
            continue
        print(f"  against {apart.sum()} {kind} pairs")
        for name, score in (("probability", p), ("overlap test", nfa)):
            limit = np.quantile(score[seen], 0.05)
            alarms = (score[apart] >= limit).mean()
            numbers = f"AUROC {auroc(score[seen], score[apart]):.3f}, AP {precision(score[seen], score[apart]):.3f}"
            print(f"    {name:13} {numbers}, false alarms at 95 % detection {alarms:.3f}")
    for limit in (0.05, 0.1, 0.2, 0.5):
        shares = [f"{kind} {(p[kinds == kind] >= limit).mean():.3f}" for kind in dict.fromkeys(kinds.tolist())]
        print(f"  share of pairs at or above {limit}: {', '.join(shares)}, seen {(p[seen] >= limit).mean():.3f}")
    found = nfa > 6
    print(
        "  found by the overlap test: " + ", ".join(f"{k} {found[kinds == k].mean():.3f}" for k in set(kinds.tolist()))
    )
    weight = weight_of(rows)
    print("  said / is, pairs: ", end="")
    for low in np.arange(0, 1, 0.2):
        own = (p >= low) & (p < low + 0.2 + (low > 0.7))
        if own.any():
            said, true = (np.average(x[own], weights=weight[own]) for x in (p, kinds == "usual"))
            print(f"{said:.2f} / {true:.2f}, {own.sum()};  ", end="")
    print()


def auroc(yes: np.ndarray, no: np.ndarray) -> float:
    return float((yes[:, None] > no[None]).mean() + 0.5 * (yes[:, None] == no[None]).mean())


def precision(yes: np.ndarray, no: np.ndarray) -> float:
    """Average precision; pairs with equal scores come in the worst order."""
    scores, labels = np.concatenate([no, yes]), np.repeat([0.0, 1.0], [len(no), len(yes)])
    ranked = labels[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(ranked) / np.arange(1, len(ranked) + 1))[ranked > 0].mean())


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"fit_overlap: {error}")
