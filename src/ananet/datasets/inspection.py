"""Inspection of training pairs: statistics by scene, histograms, and pairs with their labels drawn.

Most *distinctive* matches (mutual, ratio below 0.8) are right in any scene. If the labels call few of them inliers, the
poses are wrong. Where depth is known, it tells which matches near the epipolar line are there by accident.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ananet._util.defaults import DISTINCTIVE_RATIO
from ananet._util.plots import figure_to_picture, import_matplotlib
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.datasets.base import SHARE_GROUPS, LabelledPair
from ananet.datasets.formats.shards import PairShards
from ananet.errors import InputError
from ananet.io.images import read_image
from ananet.twoview.drawing import GAP, GREEN, GREY, ORANGE, RED, draw_kinds, draw_right_wrong, stack

# A pair is doubtful if it has enough distinctive matches and most of them are labelled outliers.
ENOUGH_DISTINCTIVE = 20
DOUBTFUL_BELOW = 0.3
COUNTS = ("near_line", "known", "accidental")
COLUMNS, ROWS = 3, 4
SHOWN_MATCHES, SHOWN_OF_A_KIND = 80, 25


@dataclass(frozen=True)
class PairFacts:
    """Statistics of one pair."""

    scene: int
    matches: int
    inlier_ratio: float
    rotation: float
    """Degrees between the two cameras."""
    parallax: float
    """Degrees, median over distinctive inliers: a measure of the baseline."""
    distinctive: int
    distinctive_inliers: float
    """Share of the distinctive matches that are labelled inliers."""
    residual: float
    """Pixels, median distance (Sampson) of the distinctive inliers."""
    number: int = 0
    """Of the pair in its folder."""
    share: float = math.nan
    """Share of the view that both photos have in common; NaN if no depth is known."""
    hard: bool = False
    near_line: int = 0
    """Number of matches near the epipolar line, like the two below."""
    known: int = 0
    """Of those near the line, how many are known to be right or wrong."""
    accidental: int = 0
    """Of those near the line, how many are known to be wrong."""

    @property
    def empty(self) -> bool:
        """Whether the photos have nothing in common, so that labels by the line mean nothing."""
        return self.share == 0

    @property
    def doubtful(self) -> bool:
        judged = self.distinctive >= ENOUGH_DISTINCTIVE and not self.empty
        return judged and self.distinctive_inliers < DOUBTFUL_BELOW


def facts_of(pair: LabelledPair, scene: int, number: int = 0) -> PairFacts:
    matches = pair.matches._as_tensors()
    assert pair.R is not None and pair.t is not None
    assert matches.mutual is not None and matches.ratio is not None
    assert matches.K0 is not None and matches.K1 is not None
    distinctive = matches.mutual & (matches.ratio < DISTINCTIVE_RATIO)
    good = distinctive & pair.inlier
    rays = matches.normalized().double()[good]
    rays0, rays1 = rays[:, :2], rays[:, 2:]
    turned, seen = geometry.homogeneous(rays0) @ pair.R.T, geometry.homogeneous(rays1)
    cosine = (turned * seen).sum(1) / (turned.norm(dim=1) * seen.norm(dim=1))
    focal = mean_focal(matches.K0, matches.K1)
    residual = geometry.sampson_distance(rays0, rays1, geometry.essential_from_pose(pair.R, pair.t)) * focal
    return PairFacts(
        scene=scene,
        matches=len(matches),
        inlier_ratio=float(pair.inlier.float().mean()) if len(matches) else 0.0,
        rotation=float(geometry.rotation_error(pair.R, pair.R.new_tensor(np.eye(3)))),
        parallax=float(np.degrees(np.arccos(np.clip(np.median(cosine), -1, 1)))) if len(rays) else 0.0,
        distinctive=int(distinctive.sum()),
        distinctive_inliers=float(good.sum() / max(int(distinctive.sum()), 1)),
        residual=float(residual.median()) if len(rays) else float("nan"),
        number=number,
        near_line=int(pair.inlier.sum()),
        **_depth_facts(pair),
    )


def _depth_facts(pair: LabelledPair) -> dict[str, Any]:
    truth = pair.truth()
    if pair.share is None or truth is None:
        return {}
    near_known = pair.inlier & truth[0]
    counts = {"known": int(near_known.sum()), "accidental": int((near_known & ~truth[1]).sum())}
    return {"share": pair.share, "hard": pair.hard, **counts}


def facts_by_scene(pairs: PairShards, facts: list[PairFacts]) -> list[dict[str, Any]]:
    """One row per scene; means are over the pairs that have something in common."""
    rows = []
    for number, scene in enumerate(pairs.index["scenes"]):
        all_pairs = [fact for fact in facts if fact.scene == number]
        own = [fact for fact in all_pairs if not fact.empty]
        judged = [fact for fact in own if fact.distinctive >= ENOUGH_DISTINCTIVE]

        def mean(name: str, over: list[PairFacts]) -> float | None:
            values = [value for fact in over if np.isfinite(value := getattr(fact, name))]
            return round(float(np.mean(values)), 4) if values else None

        row: dict[str, Any] = {"scene": scene["name"], "photos": len(set(scene["images"])), "pairs": len(all_pairs)}
        row["matches"] = round(mean("matches", own) or 0)
        row |= {name: mean(name, own) for name in ("inlier_ratio", "rotation", "parallax")}
        row |= {"distinctive_inliers": mean("distinctive_inliers", judged), "residual": mean("residual", own)}
        rows.append(row | {"doubtful_pairs": sum(fact.doubtful for fact in own)})
    return rows


def depth_by_scene(pairs: PairShards, facts: list[PairFacts]) -> list[dict[str, Any]]:
    """One row per scene with known depth: what is known of the matches near the line, and numbers of pairs."""
    rows = []
    for number, scene in enumerate(pairs.scenes):
        own = [fact for fact in facts if fact.scene == number and not np.isnan(fact.share)]
        usual = [fact for fact in own if not fact.empty]
        near_line, known, accidental = (sum(getattr(f, name) for f in usual) for name in COUNTS)
        row: dict[str, Any] = {"scene": scene, "known": round(known / near_line, 4) if near_line else None}
        row["accidental"] = round(accidental / known, 4) if known else None
        row |= {name: sum(low <= f.share < high for f in usual) for name, (low, high) in SHARE_GROUPS.items()}
        row |= {"hard_pairs": sum(fact.hard for fact in own), "empty_pairs": len(own) - len(usual)}
        rows += [row] if own else []
    return rows


def draw_pair_set(pairs: PairShards, facts: list[PairFacts], seed: int = 0) -> np.ndarray:
    """Draw histograms and a contact sheet of pairs.

    Where depth is known, matches near the line and distinctive ones: right, accidental, wrong, unknown. Else
    distinctive matches, green for inliers, red for outliers.
    """
    rng = np.random.default_rng(seed)
    histograms = _histograms(facts)
    sheet = _contact_sheet([pairs[fact.number] for fact in _chosen(facts, rng)], histograms.shape[1], rng)
    return stack(histograms, sheet)


def _chosen(facts: list[PairFacts], rng: np.random.Generator) -> list[PairFacts]:
    """Pairs to draw: of many scenes in random order, each once before any is repeated; of one, by rising share."""
    most = min(COLUMNS * ROWS, len(facts))
    by_scene = [[fact for fact in facts if fact.scene == scene] for scene in sorted({fact.scene for fact in facts})]
    if len(by_scene) == 1:
        ordered = sorted((facts[n] for n in rng.permutation(len(facts))), key=lambda fact: np.nan_to_num(fact.share))
        return [ordered[n * len(facts) // most] for n in range(most)]
    order = np.concatenate([rng.permutation(len(by_scene)) for _ in range(-(-COLUMNS * ROWS // len(by_scene)))])
    return [by_scene[scene][rng.integers(len(by_scene[scene]))] for scene in order[:most]]


def _histograms(facts: list[PairFacts]) -> np.ndarray:
    plt = import_matplotlib()
    titles = {"inlier_ratio": "inlier ratio", "rotation": "rotation between cameras, degrees"}
    titles["parallax"] = "parallax of inliers, degrees"
    if not np.isnan([fact.share for fact in facts]).all():
        titles["share"] = "share of common view"
    figure, axes = plt.subplots(1, len(titles), figsize=(18, 4), dpi=100, layout="constrained")
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        # Labels by the line mean nothing in an empty pair.
        shown = [fact for fact in facts if name in ("share", "rotation") or not fact.empty]
        axis.hist([getattr(fact, name) for fact in shown], bins=40, color="tab:blue")
        axis.set_xlabel(title)
        axis.set_ylabel("pairs")
    return figure_to_picture(figure)


def _contact_sheet(shown: list[LabelledPair], width: int, rng: np.random.Generator) -> np.ndarray:
    cell_width = width // COLUMNS
    pictures = [_draw_labels(pair, cell_width - 2 * GAP, rng) for pair in shown]
    rows = []
    for start in range(0, len(pictures), COLUMNS):
        row = pictures[start : start + COLUMNS]
        sheet = np.full((max(picture.shape[0] for picture in row), width, 3), 255, np.uint8)
        for number, picture in enumerate(row):
            left = number * cell_width + GAP
            sheet[: picture.shape[0], left : left + picture.shape[1]] = picture
        rows.append(sheet)
    return stack(*rows)


def _draw_labels(pair: LabelledPair, width: int, rng: np.random.Generator) -> np.ndarray:
    matches = pair.matches._as_tensors()
    assert matches.mutual is not None and matches.ratio is not None
    distinctive = (matches.mutual & (matches.ratio < DISTINCTIVE_RATIO)).numpy()
    images = [_photo(pair, number) for number in range(2)]
    height = int((width - GAP) / sum(image.shape[1] / image.shape[0] for image in images))
    points0, points1 = matches.numpy_points()
    inlier, truth = pair.inlier.numpy(), pair.truth()
    if pair.share is None or truth is None:
        candidates = np.flatnonzero(distinctive)
        some = rng.choice(candidates, min(SHOWN_MATCHES, len(candidates)), replace=False)
        caption = f"{pair.name}: {inlier.mean():.0%} inliers"
        return draw_right_wrong(images[0], images[1], points0[some], points1[some], inlier[some], caption, height)
    known, right = (flags.numpy() for flags in truth)
    near = inlier & (not pair.is_empty)
    kinds = {
        "right": (GREEN, right),
        "accidental": (ORANGE, near & known & ~right),
        "wrong": (RED, ~near),
        "unknown": (GREY, near & ~known),
    }
    listed = near | distinctive
    kinds = {name: (colour, members[listed]) for name, (colour, members) in kinds.items()}
    # As many of each kind, since accidental ones are few.
    shown = np.concatenate([rng.permutation(np.flatnonzero(own))[:SHOWN_OF_A_KIND] for _, own in kinds.values()])
    caption = f"{pair.name}: {pair.share:.0%} common view{', hard' if pair.hard else ''}"
    points = points0[listed], points1[listed]
    return draw_kinds(images[0], images[1], *points, kinds, rng.permutation(shown), caption, height)


def _photo(pair: LabelledPair, number: int) -> np.ndarray:
    """Read the photo; a grey picture of its size if it is missing."""
    size = (pair.matches.image_size0, pair.matches.image_size1)[number]
    assert size is not None
    if pair.paths is not None:
        with suppress(InputError):
            return read_image(pair.paths[number])
    return np.full((int(size[1]), int(size[0]), 3), 160, np.uint8)


def facts_as_json(
    rows: list[dict[str, Any]], facts: list[PairFacts], depth_rows: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the statistics for strict JSON: None instead of NaN."""
    pairs = [{name: None if np.isnan(value) else value for name, value in asdict(fact).items()} for fact in facts]
    return {"scenes": rows, **({"depth": depth_rows} if depth_rows else {}), "pairs": pairs}
