"""What the details cost in which the paper's rivals differ between the weights of 0.3 and their authors' code.

    ananet data build SCENES PAIRS --detector sift@root=false --max-keypoints 2000
    python benchmarks/faithful.py PAIRS --limit 60

Runs the same weights with both settings: how far logits move, how many decisions (probability above 0.5) change, F1
with the authors' setting beside that with ours, and the time of theirs over that of ours.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from ananet._util.tables import format_table
from ananet.core.metrics import precision_recall_f1
from ananet.datasets.sources import open_source
from ananet.evaluation.pairs import MatchSettings, Pairs, open_pairs
from ananet.networks import Network
from ananet.pruners import LearnedPruner
from ananet.pruners.base import Pruned

# By network: its setting, as the weights of 0.3 have it and as the authors do.
DETAILS = {
    "cne": ("batch_eps", 1e-5, 1e-3),
    "oanet": ("eight_point", "careful", "plain"),
    "lmcnet": ("basis", "subspace", "eigenvectors"),
}


def compare(given: str, pairs: Pairs) -> dict[str, Any]:
    """Both settings of a network on all pairs."""
    network = Network.from_pretrained(given)
    setting, *values = DETAILS[network.name]
    pruners = [
        LearnedPruner(network.with_settings(**{setting: value}), "cpu", threshold=0.5, conflict_odds=1)
        for value in values
    ]
    seconds, answers = np.zeros(2), []
    for pair in (pairs[number] for number in range(len(pairs))):
        both: list[Pruned] = []
        for n, pruner in enumerate(pruners):
            start = time.perf_counter()
            both.append(pruner(pair.matches))
            seconds[n] += time.perf_counter() - start
        answers.append((pair.inlier.numpy(), *both))
    moved = np.concatenate([np.abs(ours.logits - theirs.logits) for _, ours, theirs in answers])
    changed = np.concatenate([ours.mask != theirs.mask for _, ours, theirs in answers])
    first, second = (
        np.mean([precision_recall_f1(both[n].mask, inlier)[2] for inlier, *both in answers]) for n in (0, 1)
    )
    return {
        "weights": given,
        "setting": f"{setting}: {values[0]} and {values[1]}",
        "matches": len(moved),
        "logits, median": float(np.median(moved)),
        "logits, most": float(moved.max()),
        "decisions": int(changed.sum()),
        "F1, ours": float(first),
        "F1, authors'": float(second),
        "time": float(seconds[1] / seconds[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", help="pairs from 'ananet data build'")
    parser.add_argument(
        "--weights", nargs="+", default=list(DETAILS), metavar="NAME", help="names or files (default: cne oanet lmcnet)"
    )
    parser.add_argument("--limit", type=int, help="at most N pairs, evenly spread")
    parser.add_argument("--style", choices=("text", "markdown"), default="text")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pairs = open_pairs(open_source(arguments.pairs), MatchSettings(limit=arguments.limit))
    rows = [compare(given, pairs) for given in arguments.weights]
    print(json.dumps(rows) if arguments.json else format_table(rows, arguments.style, decimals=4))


if __name__ == "__main__":
    main()
