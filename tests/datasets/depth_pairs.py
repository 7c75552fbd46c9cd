"""Made-up pairs with labels by depth: matches that are right, accidental, wrong and unknown."""

from pathlib import Path

import numpy as np
import torch

from ananet.datasets.base import LabelledPair, table_of_pairs
from ananet.datasets.formats.shards import write_index, write_table
from tests.conftest import make_problem

RIGHT, ACCIDENTAL, UNKNOWN, WRONG = 100, 40, 60, 80


def pair_with_depth(share: float = 0.5, right: int = RIGHT, unknown: int = UNKNOWN, seed: int = 0) -> LabelledPair:
    """So many right and unknown matches and 40 accidental ones near the line; 80 off it, depth of half of them unknown.

    If the share is 0, all are wrong.
    """
    near = right + ACCIDENTAL + unknown
    problem = make_problem(near, WRONG, noise=0.05, seed=seed)
    order = np.argsort(~problem.inlier, kind="stable")
    matches = problem.matches[order]
    kind = np.repeat(np.arange(5), (right, ACCIDENTAL, unknown, WRONG // 2, WRONG // 2))
    known, is_right = torch.from_numpy((kind != 2) & (kind != 4)), torch.from_numpy(kind == 0)
    if share == 0:
        known, is_right = torch.ones_like(known), torch.zeros_like(is_right)
    # The few of the 80 that are near the line by chance are moved off it.
    pair = LabelledPair.from_pose("", matches, problem.R, problem.t)
    points1 = np.where((pair.inlier.numpy() & (kind > 2))[:, None], matches.points1[::-1], matches.points1)
    labels = {"known": known, "right": is_right, "share": share}
    pair = LabelledPair.from_pose("", matches.replace(points1=points1), problem.R, problem.t, **labels)
    assert pair.inlier.tolist() == (kind < 3).tolist()
    return pair


def write_pairs(folder: Path, scenes: dict[str, list[LabelledPair]]) -> Path:
    """Training pairs on disk; photos are named by their number in the scene, two for each pair."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "pairs.safetensors", table_of_pairs([pair for pairs in scenes.values() for pair in pairs]))
    described = [
        {"name": name, "pairs": len(pairs), "images": [f"{number}.jpg" for number in range(2 * len(pairs))]}
        for name, pairs in scenes.items()
    ]
    write_index(folder, {"shards": ["pairs.safetensors"], "scenes": described})
    return folder
