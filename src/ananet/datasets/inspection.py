"""Inspection of training pairs: statistics by scene, histograms, and pairs with their labels drawn.

Most *distinctive* matches (mutual, ratio below 0.8) are right in any scene. If the labels call few of them inliers, the
poses are wrong.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ananet._util.defaults import DISTINCTIVE_RATIO
from ananet._util.plots import figure_to_picture, import_matplotlib
from ananet.core import geometry
from ananet.core.cameras import mean_focal
from ananet.datasets.base import LabelledPair
from ananet.datasets.formats.shards import PairShards
from ananet.errors import InputError
from ananet.io.images import read_image
from ananet.twoview.drawing import GAP, draw_right_wrong, stack

# A pair is doubtful if it has enough distinctive matches and most of them are labelled outliers.
ENOUGH_DISTINCTIVE = 20
DOUBTFUL_BELOW = 0.3
COLUMNS, ROWS = 3, 4
SHOWN_MATCHES = 80


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

    @property
    def doubtful(self) -> bool:
        return self.distinctive >= ENOUGH_DISTINCTIVE and self.distinctive_inliers < DOUBTFUL_BELOW


def facts_of(pair: LabelledPair, scene: int) -> PairFacts:
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
    )


def facts_by_scene(pairs: PairShards, facts: list[PairFacts]) -> list[dict[str, Any]]:
    """One row per scene."""
    rows = []
    for number, scene in enumerate(pairs.index["scenes"]):
        own = [fact for fact in facts if fact.scene == number]
        judged = [fact for fact in own if fact.distinctive >= ENOUGH_DISTINCTIVE]

        def mean(name: str, over: list[PairFacts]) -> float | None:
            values = [value for fact in over if np.isfinite(value := getattr(fact, name))]
            return round(float(np.mean(values)), 4) if values else None

        row: dict[str, Any] = {"scene": scene["name"], "photos": len(set(scene["images"])), "pairs": len(own)}
        row["matches"] = round(mean("matches", own) or 0)
        row |= {name: mean(name, own) for name in ("inlier_ratio", "rotation", "parallax")}
        row |= {"distinctive_inliers": mean("distinctive_inliers", judged), "residual": mean("residual", own)}
        rows.append(row | {"doubtful_pairs": sum(fact.doubtful for fact in own)})
    return rows


def draw_pair_set(pairs: PairShards, facts: list[PairFacts], seed: int = 0) -> np.ndarray:
    """Draw histograms and a contact sheet of pairs: distinctive matches, green for inliers, red for outliers."""
    rng = np.random.default_rng(seed)
    # Scenes in random order, each once before any is repeated.
    by_scene = [np.flatnonzero([fact.scene == n for fact in facts]) for n in range(len(pairs.scenes))]
    by_scene = [own for own in by_scene if len(own)]
    order = np.concatenate([rng.permutation(len(by_scene)) for _ in range(-(-COLUMNS * ROWS // len(by_scene)))])
    shown = [int(rng.choice(by_scene[scene])) for scene in order[: min(COLUMNS * ROWS, len(facts))]]
    histograms = _histograms(facts)
    sheet = _contact_sheet([pairs[number] for number in shown], histograms.shape[1], rng)
    return stack(histograms, sheet)


def _histograms(facts: list[PairFacts]) -> np.ndarray:
    plt = import_matplotlib()
    figure, axes = plt.subplots(1, 3, figsize=(18, 4), dpi=100, layout="constrained")
    titles = {"inlier_ratio": "inlier ratio", "rotation": "rotation between cameras, degrees"}
    titles["parallax"] = "parallax of inliers, degrees"
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        axis.hist([getattr(fact, name) for fact in facts], bins=40, color="tab:blue")
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
    points0, points1 = matches.numpy_points()
    distinctive = np.flatnonzero((matches.mutual & (matches.ratio < DISTINCTIVE_RATIO)).numpy())
    some = rng.choice(distinctive, min(SHOWN_MATCHES, len(distinctive)), replace=False)
    inlier = pair.inlier.numpy()
    caption = f"{pair.name}: {inlier.mean():.0%} inliers"
    images = [_photo(pair, number) for number in range(2)]
    height = int((width - GAP) / sum(image.shape[1] / image.shape[0] for image in images))
    points = points0[some], points1[some]
    return draw_right_wrong(images[0], images[1], *points, inlier[some], caption, height)


def _photo(pair: LabelledPair, number: int) -> np.ndarray:
    """Read the photo; a grey picture of its size if it is missing."""
    size = (pair.matches.image_size0, pair.matches.image_size1)[number]
    assert size is not None
    if pair.paths is not None:
        with suppress(InputError):
            return read_image(pair.paths[number])
    return np.full((int(size[1]), int(size[0]), 3), 160, np.uint8)


def facts_as_json(rows: list[dict[str, Any]], facts: list[PairFacts]) -> dict[str, Any]:
    """Return the statistics for strict JSON: None instead of NaN."""
    pairs = [{name: None if np.isnan(value) else value for name, value in asdict(fact).items()} for fact in facts]
    return {"scenes": rows, "pairs": pairs}
