"""Write what the packages without PyTorch are built from and tested with; run it whenever weights change.

    python tools/export_packages.py [answers] [onnx]

- `answers/`: weight files, matches, and what Python's pruners say of them, with `index.json`, which lists the cases;
- the networks of `ananet-lite` and of the npm package as ONNX files, in the folders of both.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from ananet import Correspondences, load
from ananet.attention import SEEDED_FORMS, move_seeds
from ananet.attention.reference import group_means
from ananet.attention.seeded import COMPARED
from ananet.core.conflicts import penalize_conflicts
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.integrations.onnx import export
from ananet.networks import ANANet, ANANetSettings, load_network, make_network, save_network
from ananet.networks.input import network_input, within_view
from ananet.networks.seeds import FIRST_STEPS, first_seeds
from ananet.pruners.learned import CONFLICT_ODDS, THRESHOLD, LearnedPruner, with_seeds
from ananet.weights import bundled, bundled_path

ROOT = Path(__file__).parents[1]
ANSWERS = ROOT / "build" / "packages" / "answers"
ONNX_FOLDERS = (ROOT / "packages" / "lite" / "src" / "ananet_lite" / "networks", ROOT / "packages" / "js" / "networks")
COUNTS = (0, 1, 7, 100, 2000, 8192)
# Of the networks that the packages are for; there, double precision would take most of the time.
LARGE = 8192
SHIPPED = ("ananet", "ananet-small")
# Matches and groups of the cases in which groups must be the same.
FEW, FEW_SEEDS, TRIES = 100, 32, 20
# Of a score, in that problem.
MAX_ROUNDING = 3e-5
SIDE = ("ratio", "mutual", "size", "angle")
# Of an input file; a case names those that it gives.
POINTS, CAMERAS, SIZES = ("points0", "points1"), ("K0", "K1"), ("image_size0", "image_size1")
KEYPOINTS = ("ratio", "mutual", "keypoint_sizes0", "keypoint_sizes1", "angles0", "angles1")
# What the bundled weights may not have, each in a small network with random weights.
RANDOM = {
    "random-two-outputs": ANANetSettings(
        blocks=2, width=32, heads=2, side=SIDE, feedback=True, right=True, seeds=64, share_kv=False
    ),
    "random-quadratic": ANANetSettings(blocks=2, width=48, heads=3, form="quadratic", learnable_normalization=False),
    "random-quadratic-seeds": ANANetSettings(blocks=2, width=20, heads=1, form="quadratic", seeds=32, share_kv=False),
    "random-first-order": ANANetSettings(blocks=1, width=20, heads=2, second_order=False, side=("mutual", "angle")),
}


@dataclass(frozen=True)
class Case:
    """One call."""

    weights: str
    count: int
    given: tuple[str, ...]
    seeds: int | None = None
    label: str = ""
    threshold: float = THRESHOLD
    conflict_odds: float = CONFLICT_ODDS


def random_weights(settings: ANANetSettings, path: Path) -> None:
    """A network whose every part has an effect."""
    generator = torch.Generator().manual_seed(0)
    network = make_network(settings).eval()
    with torch.no_grad():
        for name, values in network.state_dict().items():
            if name.endswith("running_var"):
                values.uniform_(0.5, 2, generator=generator)
            elif values.is_floating_point():
                spread = 1.0 if values.dim() < 2 else 2 / values.shape[1] ** 0.5
                centre = 1.0 if values.dim() == 1 and "norm" in name and name.endswith("weight") else 0.0
                values.normal_(0, 0.3 * spread if values.dim() < 2 else spread, generator=generator).add_(centre)
    save_network(path, network)


def problem(count: int, seed: int) -> dict[str, np.ndarray]:
    """Synthetic matches as a program has them, in pixels, with all that may be known of them."""
    generator = torch.Generator().manual_seed(seed)
    settings = SyntheticSettings(
        matches=max(count, 100), inlier_ratio=(0.3, 0.6), moving=0.0, still=0.0, unequal_cameras=0.0,
        focal=(0.8, 0.8), longest_side=(1200.0, 1200.0),
    )  # fmt: skip
    batch = synthesize(1, generator, settings)
    size, focal = np.array([1200, 1200], np.float32), 960.0
    points = batch.matches[0, :count].double().numpy() * focal + 600
    numbers = np.random.default_rng(seed)
    if count > 50:
        # Sentinels and corners far off, of which networks see nothing.
        points[3], points[20, :2], points[30, 2:] = 65535, [-640, 10], [1210, 1830]
        # Conflicts: several matches end in one point.
        points[40:45, 2:] = points[40, 2:]
    K = np.array([[focal, 0.5, 600], [0, 1.01 * focal, 600], [0, 0, 1]], np.float32)
    return {
        "points0": points[:, :2].astype(np.float32),
        "points1": points[:, 2:].astype(np.float32),
        "K0": K,
        "K1": K * np.array([[1.02], [1.02], [1]], np.float32),
        "image_size0": size,
        "image_size1": size,
        "ratio": batch.ratio[0, :count].numpy(),
        "mutual": batch.mutual[0, :count].numpy().astype(np.float32),
        "keypoint_sizes0": numbers.lognormal(1.5, 0.7, count).astype(np.float32),
        "keypoint_sizes1": numbers.lognormal(1.5, 0.7, count).astype(np.float32),
        "angles0": numbers.uniform(-3, 3, count).astype(np.float32),
        "angles1": numbers.uniform(-3, 3, count).astype(np.float32),
    }


def cases(settings: dict[str, ANANetSettings]) -> Iterator[Case]:
    """Every network on every number of matches, and what else may be told or asked."""
    for weights, network in settings.items():
        side = KEYPOINTS if network.side else ()
        for number, count in enumerate(COUNTS):
            # All ways to say how large a coordinate is.
            scale = (CAMERAS, SIZES, CAMERAS + SIZES)[number % 3]
            if count < LARGE or weights in SHIPPED:
                yield Case(weights, count, POINTS + scale + side)
        yield Case(weights, 2000, POINTS + SIZES + side[1:2], threshold=0.6, conflict_odds=1.0)
        if network.form in SEEDED_FORMS:
            yield Case(weights, FEW, POINTS + SIZES + side[:2], seeds=FEW_SEEDS)
            yield Case(weights, 2000, POINTS + SIZES, seeds=256)
            yield Case(weights, 2000, POINTS + SIZES, seeds=0)
        if network.right:
            yield Case(weights, FEW, POINTS + SIZES + side, seeds=0, label="line", conflict_odds=math.inf)


def seeded(network: ANANet, seeds: int | None) -> ANANet:
    return network if seeds is None else with_seeds(network, seeds)  # type: ignore[return-value]


def score(logits: Tensor | np.ndarray) -> Tensor:
    return torch.as_tensor(logits).double().sigmoid()


def answer(case: Case, network: ANANet, inputs: dict[str, np.ndarray]) -> tuple[Tensor, float]:
    """Logits of the plain network in double precision, and how far the scores of single precision lie from them.

    If there are very many matches, or none, logits of single precision and NaN.
    """
    pair = Correspondences(**{name: inputs[name] for name in case.given})
    options = {"threshold": case.threshold, "conflict_odds": case.conflict_odds, "label": case.label or None}
    pruner = LearnedPruner(network, "cpu", seeds=case.seeds, **options)
    single = torch.as_tensor(pruner(pair).logits)
    if case.count in (0, LARGE):
        return single, math.nan
    shown = network_input(pair, network.settings.side)
    seen = within_view(pair, shown[:, :4])
    shown = shown[seen][None]
    with torch.no_grad():
        logits = copy.deepcopy(pruner.network).double()(shown.double()).float()
    exact = single.masked_scatter(seen, penalize_conflicts(logits, shown, case.conflict_odds))
    return exact, float((score(exact) - score(single)).abs().max())


@torch.no_grad()
def margin(network: ANANet, inputs: dict[str, np.ndarray]) -> float:
    """How much nearer the nearest group is than the next, for the match with the least difference.

    Where this is no more than rounding, two implementations may choose different groups.
    """
    pair = Correspondences(**{name: inputs[name] for name in POINTS + SIZES + KEYPOINTS[:2]})
    matches = network_input(pair, network.settings.side)
    matches = matches[within_view(pair, matches[:, :4])][None].double()
    network = seeded(network, FEW_SEEDS).double()
    seeds, least = first_seeds(matches, FEW_SEEDS), math.inf
    for number, features in enumerate(network.block_features(matches)[:-1]):
        for _ in range(FIRST_STEPS if number == 0 else 1):
            compared = features[..., :COMPARED]
            means = group_means(compared[:, None], seeds)[:, 0]
            distances = torch.cdist(compared, means).square().masked_fill(seeds.weights[:, None] == 0, math.inf)
            first, second = distances.topk(2, largest=False).values.unbind(-1)
            least = min(least, float(((second - first) / compared.square().sum(-1)).min()))
            seeds = move_seeds(features, seeds)
    return least


def problem_without_ties(networks: dict[str, ANANet]) -> dict[str, np.ndarray]:
    """Of some small problems, one whose groups and geometry depend little on rounding."""
    grouping = [network for network in networks.values() if network.settings.form in SEEDED_FORMS]
    tries = [problem(FEW, seed) for seed in range(TRIES)]
    tries.sort(key=lambda arrays: -min(margin(network, arrays) for network in grouping))
    for arrays in tries:
        every = [c for c in cases({n: network.settings for n, network in networks.items()}) if c.count == FEW]
        if all(answer(case, networks[case.weights], arrays)[1] < MAX_ROUNDING for case in every):
            return arrays
    return tries[0]


def write_answers(folder: Path, names: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(bundled_path(name), folder / f"{name}.safetensors")
    for name, wanted in RANDOM.items():
        random_weights(wanted, folder / f"{name}.safetensors")
    networks: dict[str, ANANet] = {n: ANANet.from_pretrained(folder / f"{n}.safetensors") for n in (*names, *RANDOM)}
    inputs = {count: problem(count, seed=count) for count in COUNTS}
    inputs[FEW] = problem_without_ties(networks)
    for count, arrays in inputs.items():
        save_file(arrays, folder / f"matches-{count}.safetensors")
    index: list[dict[str, Any]] = []
    answers: dict[str, np.ndarray] = {}
    usual: dict[str, float] = {}
    for case in cases({name: network.settings for name, network in networks.items()}):
        network = networks[case.weights]
        seeds = network.settings.seeds if case.seeds is None else case.seeds
        found, rounding = answer(case, network, inputs[case.count])
        # Of the same network with fewer matches, where it was not measured.
        usual[case.weights] = usual.get(case.weights, 0.0) if math.isnan(rounding) else rounding
        answers[str(len(index))] = found.numpy()
        more = {
            "answer": str(len(index)),
            "rounding": usual[case.weights],
            # Groups of matches are not determined to the last digit.
            "grouped": 0 < seeds < case.count != FEW,
            # The geometry of one match is nothing but rounding.
            "undetermined": case.count == 1 and network.settings.feedback,
            "conflict_odds": min(case.conflict_odds, 1e300),  # JSON has no infinity
        }
        index.append({**vars(case), **more})
    save_file(answers, folder / "answers.safetensors")
    (folder / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    return len(index)


def write_onnx() -> None:
    for name in SHIPPED:
        pruner = load(name, device="cpu")
        for folder in ONNX_FOLDERS:
            folder.mkdir(exist_ok=True)
            path = folder / f"{name}.onnx"
            if folder == ONNX_FOLDERS[0]:
                export(pruner, path, pixels=True)
            else:
                shutil.copyfile(ONNX_FOLDERS[0] / path.name, path)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.2f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="answers, onnx (default: both)")
    wanted = parser.parse_args().what or ["answers", "onnx"]
    if unknown := set(wanted) - {"answers", "onnx"}:
        parser.error(f"expected answers or onnx, got {', '.join(unknown)}")
    torch.set_num_threads(1)
    if "answers" in wanted:
        names = [name for name in bundled() if isinstance(load_network(bundled_path(name))[0].settings, ANANetSettings)]
        count = write_answers(ANSWERS, names)
        print(f"{count} cases of {len(names) + len(RANDOM)} networks, written to {ANSWERS.relative_to(ROOT)}")
    if "onnx" in wanted:
        write_onnx()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
