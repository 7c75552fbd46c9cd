"""Depths of the keypoints of all photos of a scene: which photos are compared, their tracks, the search along rays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np

from ananet.datasets.depth import (
    Depths,
    KeypointDepths,
    Tracks,
    View,
    common_view,
    join_tracks,
    tracks_of,
    with_surroundings,
)
from ananet.datasets.ray_search import search_along_rays

# Each photo is matched with this many others: those with the most matches at wide angles. Wider ones are no better.
NEIGHBOURS, WIDE_ANGLE = 12, 12.0
# Share of the keypoints that is compared at a glance, at a sixteenth of the cost, and the matches needed there.
GLANCE, MIN_GLANCE = 0.25, 5


def scene_depths(views: Sequence[View], max_pairs: int, run: Callable[..., list[Any]]) -> list[KeypointDepths]:
    """Find the depths of the keypoints of all photos of a scene.

    Args:
        max_pairs: how many pairs of photos are compared at a glance; those with the most similar poses are.
        run: `run(name of the step, function, arguments)` returns the results, as `map` does; see `in_pool`.
    """
    neighbours = _neighbours(views, max_pairs, run)
    matched = sorted({(min(a, b), max(a, b)) for a, others in enumerate(neighbours) for b in others})
    found: list[dict[int, Tracks]] = [{} for _ in views]
    tracks = run("tracks", lambda pair: tracks_of(views[pair[0]], views[pair[1]]), matched)
    for (a, b), (of_a, of_b) in zip(matched, tracks, strict=True):
        found[a][b], found[b][a] = of_a, of_b

    def depths(a: int) -> KeypointDepths:
        tracked = join_tracks(len(views[a].points), found[a])
        # Photos with most of the tracks show most of the rest, too.
        others = sorted(found[a], key=lambda b: -len(found[a][b][0]))
        return with_surroundings(search_along_rays(views[a], {b: views[b] for b in others}, tracked), views[a])

    return run("depths", depths, range(len(views)))


def _neighbours(views: Sequence[View], max_pairs: int, run: Callable[..., list[Any]]) -> list[list[int]]:
    """For each photo, the others that give the most depth; if too few match at a glance, those with similar poses."""
    pairs = np.array(list(itertools.combinations(range(len(views)), 2)), dtype=np.int64).reshape(-1, 2)
    cost = _pose_difference(views)
    pairs = pairs[np.sort(np.argsort(cost[*pairs.T], kind="stable")[:max_pairs])]
    score = -cost / (1 + cost)
    np.fill_diagonal(score, -np.inf)
    glances = run("neighbours", lambda pair: _glance(views[pair[0]], views[pair[1]]), pairs)
    for (a, b), value in zip(pairs, glances, strict=True):
        score[a, b] = score[b, a] = value or score[a, b]
    best = np.argsort(-score, axis=1, kind="stable")[:, :NEIGHBOURS]
    return [[int(b) for b in row if b != a] for a, row in enumerate(best)]


def _pose_difference(views: Sequence[View]) -> np.ndarray:
    """[V x V] distance between cameras, divided by the median, plus the angle between their axes in radians."""
    centre = np.array([-view.R.T @ view.t for view in views]).reshape(-1, 3)
    facing = np.array([view.R[2] for view in views]).reshape(-1, 3)
    step = np.linalg.norm(centre[:, None] - centre, axis=2)
    return step / max(np.median(step) if step.size else 0, 1e-12) + np.arccos(np.clip(facing @ facing.T, -1, 1))


def in_pool(pool: Executor, bar: Any) -> Callable[..., list[Any]]:
    """Return a `run` for `scene_depths` that works in a pool and shows a progress bar."""

    def run(name: str, function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
        arguments = list(arguments)
        bar.reset(len(arguments))
        bar.unit = f" {name}"

        def call(argument: Any) -> Any:
            result = function(argument)
            bar.update()
            return result

        return list(pool.map(call, arguments))

    return run


def _glance(first: View, second: View) -> float:
    """How much depth two photos give: matches of strong keypoints that fit the poses, times common view and angle."""
    few = [
        replace(view, points=view.points[:count], descriptors=view.descriptors[:count])
        for view in (first, second)
        for count in [int(GLANCE * len(view.points))]
    ]
    which, inverse, deviation = tracks_of(few[0], few[1])[0]
    if len(which) < MIN_GLANCE:
        return 0.0
    depths = Depths(*(np.full(len(few[0].points), np.nan) for _ in range(2)))
    depths.inverse[which], depths.deviation[which] = inverse, deviation
    share, angle = common_view(few[0], few[1], depths)
    return share * len(which) * min(angle, WIDE_ANGLE)
