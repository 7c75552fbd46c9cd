r"""The paper's comparison and ablations on your own data: all networks trained alike, all methods in one table.

    python benchmarks/comparison.py train PAIRS VALIDATION -o runs/comparison --jobs 4
    python benchmarks/comparison.py train PAIRS VALIDATION -o runs/long --steps 20000 \
        --networks oanet,lmcnet,dematch,linear
    python benchmarks/comparison.py tables runs/comparison SCENES --multi MULTI

`train` shows all networks the same batches for the same number of steps: coordinates only, one schedule, the loss and
stages of each network's authors. It needs only torch, numpy and safetensors; an interrupted run continues.
`tables` prints Table 1 (poses), Table 2 (time and size), Table 3 (MULTI), Tables 5 and 6 (forms and parts of ANA-Net)
and Figure 7 right (blocks), and draws Figure 5 (F1 by inlier ratio), with the classical methods beside the networks;
means over seeds. Tables 1 to 3 have each network with the better of both optimisers; Tables 1 and 3 have two rows for
it: the calibrated probability above 0.5, and the decision of its authors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ananet._util.defaults import PAPER_DETECTOR, PAPER_KEYPOINTS
from ananet._util.tables import format_table
from ananet.datasets.batches import BatchSettings
from ananet.networks import ANANetSettings, NetworkSettings, load_network
from ananet.networks.acne import ACNeSettings
from ananet.networks.cne import CNeSettings
from ananet.networks.dematch import DeMatchSettings
from ananet.networks.lmcnet import LMCNetSettings
from ananet.networks.oanet import OANetSettings
from ananet.training.loop import WEIGHTS, train
from ananet.training.settings import TrainSettings

if TYPE_CHECKING:
    from ananet.evaluation.runner import Evaluation


@dataclass(frozen=True)
class Entry:
    """A network of the comparison, and how it is trained."""

    title: str
    network: NetworkSettings
    geometric_weight: float = 0.0
    """Of the geometric loss that its authors use."""
    optimizer: str = "muon"
    learning_rate: float = 3e-3
    weight_decay: float = 0.02


# The paper's rivals, and DeMatch, a newer one. LMCNet is trained with the fast basis: to decompose 32 matrices of
# 1024 x 1024 takes seconds on every step.
RIVALS = {
    "cne": Entry("CNe", CNeSettings(), 0.1),
    "acne": Entry("ACNe", ACNeSettings(), 0.1),
    "oanet": Entry("OANet", OANetSettings(), 0.5),
    "oanet-bottleneck": Entry("OANet, bottleneck", OANetSettings(bottleneck=128), 0.5),
    "lmcnet": Entry("LMCNet", LMCNetSettings(basis="subspace"), 0.5),
    "dematch": Entry("DeMatch", DeMatchSettings(), 0.5),
}
OWN = {
    "first-order": Entry("ANA-Net without second order", ANANetSettings(second_order=False)),
    "sigmoid": Entry("ANA-Net without learnable normalisation", ANANetSettings(learnable_normalization=False)),
    "linear": Entry("ANA-Net, linear", ANANetSettings()),
    "quadratic": Entry("ANA-Net, quadratic", ANANetSettings(form="quadratic")),
    "cubic": Entry("ANA-Net, cubic", ANANetSettings(form="cubic")),
    "feedback": Entry("ANA-Net, linear, with feedback", ANANetSettings(feedback=True)),
}
# The authors' optimiser, Adam without weight decay, beside Muon, for all: of each network the better one counts. The
# authors of DeMatch take 1e-4 for 500,000 steps, which is too slow for few.
ADAM = {
    f"{name}-adam": replace(
        entry, title=f"{entry.title}, Adam", optimizer="adamw", learning_rate=1e-3, weight_decay=0.0
    )
    for name, entry in (RIVALS | {"linear": OWN["linear"]}).items()
}
CLASS_LOSS = {
    f"{name}-class-loss": replace(entry, title=f"{entry.title}, class loss alone", geometric_weight=0.0)
    for name, entry in RIVALS.items()
}
BLOCKS = {
    f"blocks-{blocks}": Entry(f"ANA-Net, {blocks} block{'s' * (blocks > 1)}", ANANetSettings(blocks=blocks))
    for blocks in (1, 2, 3, 4, 6)
}
NETWORKS = RIVALS | OWN | ADAM | CLASS_LOSS | BLOCKS
# Networks of each table; the rest of Table 1 is classical.
COMPARED = (*RIVALS, "linear", "feedback")
FORMS = ("first-order", "linear", "quadratic", "cubic")
PARTS = ("first-order", "sigmoid", "linear")
DEPTHS = ("blocks-1", "blocks-2", "blocks-3", "blocks-4", "linear", "blocks-6")
CLASSICAL = ("all", "ratio", "ransac", "magsac", "gms", "lpm", "lmf", "code")
# Two decisions of a network alone: at a calibrated probability of 0.5, and as its authors decide.
ALONE, AUTHORS = "@threshold=0.5@conflict_odds=1.0", "@threshold=authors@conflict_odds=1.0"
BY_AUTHORS = ", authors' decision"
# Need descriptors, which MULTI does not have.
WITHOUT_DESCRIPTORS = ("ratio",)
# Share of the steps before the geometric losses begin. The authors wait for 20,000 of 500,000, when the class loss is
# trained. As large a share of a short run lies within the warm-up, so a fifth: twice the warm-up of 5,000 steps.
GEOMETRIC_FROM = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train the networks")
    training.add_argument("pairs", help="training pairs, from 'ananet data build'")
    training.add_argument("validation", help="validation pairs, by which the better optimiser is chosen")
    training.add_argument("-o", "--folder", type=Path, default=Path("runs/comparison"))
    training.add_argument("--networks", default=",".join(NETWORKS), metavar="A,B", help="some of them (default: all)")
    training.add_argument("--seeds", default="0,1", metavar="0,1", help="(default: 0,1)")
    training.add_argument("--jobs", type=int, default=1, help="networks trained side by side (default: 1)")
    training.add_argument("--steps", type=int, default=5000)
    training.add_argument("--batch-size", type=int, default=32)
    training.add_argument("--matches", type=int, default=1024, help="of a problem; the cubic form takes its cube")
    late = f"share of the steps before geometric losses begin (default: {GEOMETRIC_FROM})"
    training.add_argument("--geometric-from", type=float, default=GEOMETRIC_FROM, metavar="SHARE", help=late)
    training.add_argument("--calibration-scenes", default="", metavar="A,B", help="kept out of training for the scores")
    training.add_argument("--excluded-scenes", default="", metavar="A,B")
    training.add_argument("--no-compile", action="store_true", help="for runs of a few steps")
    training.add_argument(
        "--max-seconds", type=float, default=float("inf"), help="stop after this time; run again to continue"
    )
    training.add_argument("--device", default="auto")
    training.add_argument("--json", action="store_true")
    tables = commands.add_parser("tables", help="print the tables for the trained networks")
    tables.add_argument("folder", type=Path, help="where `train` wrote")
    tables.add_argument("scenes", help="posed scenes that were not trained on")
    tables.add_argument("--multi", help="MULTI cases, for Table 3")
    tables.add_argument("--classical", default=",".join(CLASSICAL), metavar="A,B", help="(default: all)")
    tables.add_argument("--repeats", type=int, default=3, help="of every pose (default: 3)")
    tables.add_argument("--limit", type=int, help="at most N pairs of a source, evenly spread")
    tables.add_argument("--scenes", dest="only", default="", metavar="A,B", help="only pairs of these (default: all)")
    tables.add_argument("--seconds", type=float, default=10.0, help="for each measurement of time (default: 10)")
    tables.add_argument("--style", choices=("text", "markdown"), default="text")
    tables.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "train":
        train_all(arguments)
    else:
        print_tables(arguments)


def train_all(arguments: argparse.Namespace) -> None:
    """Train every network with every seed, `jobs` of them in parallel, and print validation scores."""
    names = split(arguments.networks)
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        sys.exit(f"--networks: expected some of {', '.join(NETWORKS)}, got {', '.join(unknown)}")
    runs = [(name, int(seed)) for seed in split(arguments.seeds) for name in names]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(lambda run: train_apart(arguments, *run), runs))
    found = [
        {"network": name, "seed": seed, **load_network(path)[1]["validation"]}
        for name, seed in runs
        if (path := folder_of(arguments, name, seed) / WEIGHTS).exists()
    ]
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"{arguments.steps} steps of {arguments.batch_size} x {arguments.matches}\n")
        print(format_table(found, "text", decimals=3))
    if any(codes):
        failed = ", ".join(f"{name} ({seed})" for (name, seed), code in zip(runs, codes, strict=True) if code)
        sys.exit(f"failed, see output.txt in their folders: {failed}")


def train_apart(arguments: argparse.Namespace, name: str, seed: int) -> int | None:
    """Train in a separate process, so that networks can share a GPU and fail independently."""
    process = multiprocessing.get_context("spawn").Process(target=train_one, args=(arguments, name, seed))
    process.start()
    process.join()
    return process.exitcode


def train_one(arguments: argparse.Namespace, name: str, seed: int) -> None:
    entry, steps = NETWORKS[name], arguments.steps
    settings = TrainSettings(
        pairs=arguments.pairs,
        validation=arguments.validation,
        calibration_scenes=split(arguments.calibration_scenes),
        excluded_scenes=split(arguments.excluded_scenes),
        steps=steps,
        optimizer=entry.optimizer,
        learning_rate=entry.learning_rate,
        weight_decay=entry.weight_decay,
        warmup=min(500, steps // 8),
        averaging=0.998,
        geometric_weight=entry.geometric_weight,
        geometric_from=round(arguments.geometric_from * steps),
        compile=not arguments.no_compile,
        seed=seed,
        validate_every=steps,
        checkpoint_every=2000,
        log_every=500,
        network=entry.network,
        # One motion per problem: geometric losses assume one.
        batches=BatchSettings(
            batch_size=arguments.batch_size, matches=arguments.matches, dropped_outliers=0.15, second_motion=0.0
        ),
    )
    run = folder_of(arguments, name, seed)
    run.mkdir(parents=True, exist_ok=True)
    with (
        open(run / "output.txt", "a", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            train(settings, run, device=arguments.device, max_seconds=arguments.max_seconds)
        except Exception:
            traceback.print_exc()
            sys.exit(1)


def print_tables(arguments: argparse.Namespace) -> None:
    # Training does not need photos and estimators.
    from ananet.evaluation import evaluate
    from ananet.io.images import save_picture

    trained = {
        name: runs
        for name in NETWORKS
        if (runs := sorted(path.parent for path in arguments.folder.glob(f"{name}-[0-9]*/{WEIGHTS}")))
    }
    if not trained:
        sys.exit(f"no trained network in {arguments.folder}: expected folders such as {next(iter(NETWORKS))}-0")
    pruners = [*split(arguments.classical)]
    # A method is one classical pruner, or a network with every seed and one decision.
    methods = {name: [name] for name in split(arguments.classical)}
    better = better_optimized(trained)
    for name, runs in trained.items():
        for words, decision in (("", ALONE), (BY_AUTHORS, AUTHORS)):
            if name in better or decision == ALONE:
                methods[f"{name}{words}"] = [f"{run.name}{decision}" for run in runs]
                pruners += [f"{run.name}={run / WEIGHTS}{decision}" for run in runs]
    evaluations = {}
    for title, source, left_out in (("scenes", arguments.scenes, ()), ("multi", arguments.multi, WITHOUT_DESCRIPTORS)):
        if source is not None:
            (evaluations[title],) = evaluate(
                source,
                [pruner for pruner in pruners if pruner not in left_out],
                estimators=("ransac", "poselib", "eight-point"),
                repeats=arguments.repeats,
                limit=arguments.limit,
                scenes=split(arguments.only) or None if title == "scenes" else None,
                detectors=PAPER_DETECTOR,
                max_keypoints=PAPER_KEYPOINTS,
                prediction_folder=arguments.folder / "predictions" / title / arguments.only,
            )
    scenes = evaluations["scenes"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    found["scenes"] = {name: summary(scenes, members) for name, members in methods.items()}
    if "multi" in evaluations:
        found["multi"] = {
            name: summary(evaluations["multi"], members)
            for name, members in methods.items()
            if name not in WITHOUT_DESCRIPTORS
        }
    plain = {name: members for name, members in methods.items() if not name.endswith(BY_AUTHORS)}
    found["time"] = times(plain, trained, arguments.seconds)
    found["by inlier ratio"] = {name: by_inlier_ratio(scenes, members) for name, members in plain.items()}
    compared = [name for name in methods if name in CLASSICAL or name.removesuffix(BY_AUTHORS) in better]
    save_picture(
        arguments.folder / "figure-5.png", figure_5(scenes, {name: plain[name] for name in compared if name in plain})
    )
    if arguments.json:
        print(json.dumps(found))
        return
    for title, part, names in (
        (f"Table 1: poses and matches, {len(scenes.names)} pairs; +- half the difference of seeds", "scenes", compared),
        ("Table 2: time of one pair of 2048 matches", "time", compared),
        ("Table 3: MULTI", "multi", compared),
        ("Table 5: forms", "scenes", FORMS),
        ("Table 6: parts", "scenes", PARTS),
        ("Optimisers", "scenes", [one for name in ADAM for one in (name.removesuffix("-adam"), name)]),
        ("Geometric losses", "scenes", [one for name in RIVALS for one in (name, f"{name}-class-loss")]),
        ("Figure 7, right: blocks", "scenes", DEPTHS),
        ("Figure 5 in numbers: F1 by inlier ratio of the pair", "by inlier ratio", plain),
    ):
        rows = [{"method": title_of(name), **found[part][name]} for name in names if name in found.get(part, {})]
        if rows:
            print(f"{title}\n\n{format_table(rows, arguments.style)}\n")
    print(f"Figure 5: {arguments.folder / 'figure-5.png'}")


def better_optimized(trained: dict[str, list[Path]]) -> set[str]:
    """Of each network of Table 1, the optimiser with the higher average precision on the validation pairs."""

    def average_precision(name: str) -> float:
        cards = [load_network(run / WEIGHTS)[1] for run in trained[name]]
        return float(np.mean([card["validation"]["average_precision"] for card in cards]))

    both = ([one for one in (name, f"{name}-adam") if one in trained] for name in COMPARED)
    return {max(names, key=average_precision) for names in both if names}


def title_of(name: str) -> str:
    network = name.removesuffix(BY_AUTHORS)
    return NETWORKS[network].title + name[len(network) :] if network in NETWORKS else name


def summary(evaluation: Evaluation, members: Sequence[str]) -> dict[str, Any]:
    """Means over seeds, and how far F1 and AUC differ between them."""
    scores = [evaluation.scores[member] for member in members]
    matches = [each.matches_summary() for each in scores]
    row: dict[str, Any] = {"seeds": len(members)}
    for title, name in (("P", "precision"), ("R", "recall"), ("F1", "f1"), ("AP", "average_precision")):
        row[title] = float(np.mean([each[name] for each in matches]))
    row["F1 +-"] = spread([each["f1"] for each in matches])
    for estimator in evaluation.estimators:
        areas = np.array([each.pose_summary(estimator)["auc"] for each in scores])
        row[f"{estimator} AUC@5/10/20"] = "/".join(f"{area:.1f}" for area in areas.mean(0))
        row[f"{estimator} @5 +-"] = spread(areas[:, 0].tolist())
    return row


def spread(values: Sequence[float]) -> float | None:
    """Half the difference between the seeds."""
    return (max(values) - min(values)) / 2 if len(values) > 1 else None


def times(
    methods: dict[str, list[str]], trained: dict[str, list[Path]], seconds: float
) -> dict[str, dict[str, float | int | None]]:
    """Milliseconds of every method on one CPU thread, and the size of networks."""
    import speed  # benchmarks/speed.py, in the folder of this script
    import torch

    torch.set_num_threads(1)
    effort, execution = speed.Effort(4000, seconds), speed.Execution(torch.device("cpu"), False, torch.float32)
    found: dict[str, dict[str, float | int | None]] = {}
    for name in methods:
        given = str(trained[name][0] / WEIGHTS) if name in trained else name
        [timing] = speed.measure_pruners([given], 2048, effort, execution, lambda text: None).values()
        size = load_network(trained[name][0] / WEIGHTS)[0].description()["parameters"] if name in trained else None
        found[name] = {"milliseconds, median": timing.median, "parameters": size}
    return found


def by_inlier_ratio(evaluation: Evaluation, members: Sequence[str]) -> dict[str, float | None]:
    """F1 by inlier ratio of the pair, means over seeds; None for bins without pairs."""
    from ananet.core.metrics import mean_by_bin
    from ananet.evaluation.plots import INLIER_RATIO_EDGES

    ratios = evaluation.inlier_ratios
    bins = [mean_by_bin(evaluation.scores[name].column("f1"), ratios, INLIER_RATIO_EDGES)[0] for name in members]
    edges = zip(INLIER_RATIO_EDGES, INLIER_RATIO_EDGES[1:], np.mean(bins, axis=0), strict=False)
    return {f"{low:.1f} to {high:.1f}": float(f1) if np.isfinite(f1) else None for low, high, f1 in edges}


def figure_5(evaluation: Evaluation, methods: dict[str, list[str]]) -> np.ndarray:
    """F1 by inlier ratio, each network by its first seed."""
    from ananet.evaluation.plots import plot_f1

    shown = {title_of(name): evaluation.scores[members[0]] for name, members in methods.items() if name != "all"}
    return plot_f1(replace(evaluation, scores=shown))


def folder_of(arguments: argparse.Namespace, name: str, seed: int) -> Path:
    return arguments.folder / f"{name}-{seed}"


def split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


if __name__ == "__main__":
    main()
