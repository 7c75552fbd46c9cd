"""Which geometry photos of unknown cameras have, and poses of cameras whose focal length is found.

    python benchmarks/geometry.py PAIRS [--planes OXFORD] [--turned N] [--limit N] [--pruner NAME] [--json]

PAIRS is a data source with poses, whose cameras are hidden; its scenes have depth. OXFORD has folders of `img1` to
`img6` and homographies `H1to2p` to `H1to6p`: planes, and cameras that only turned. N photos of PAIRS are turned about
their camera's centre by 5 to 25 degrees. The first table says which model each pair was given. The second compares
poses with the truth: from a fundamental matrix with the true cameras, with a focal length that was found, with one
that is guessed as 1.2 times the longest side, and with the true cameras.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ananet import Correspondences, PhotoMatcher, Pose, Pruned
from ananet._util.tables import format_table
from ananet.cli.demo import rotation
from ananet.core import geometry
from ananet.core.cameras import centred_camera
from ananet.core.metrics import pose_auc
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import open_source
from ananet.errors import InputError
from ananet.estimators import Estimator, find_focal, load_estimator
from ananet.evaluation.pairs import MatchSettings, Pairs, open_pairs
from ananet.pruners import load
from ananet.twoview.models import find_models

GUESS = 1.2
TURNS = (5.0, 25.0)


def hidden(matches: Correspondences) -> Correspondences:
    """The same matches of unknown cameras."""
    return matches.replace(K0=None, K1=None)


def with_focal(matches: Correspondences, ratio: float) -> Correspondences:
    """Matches of centred cameras with a focal length given over the longest side."""
    sizes = matches.image_size0, matches.image_size1
    K0, K1 = (centred_camera(ratio * max(size), size) for size in sizes if size is not None)
    return Correspondences(*matches.numpy_points(), K0=K0, K1=K1, mutual=matches.mutual)


def poses(pair: LabelledPair, kept: Pruned, estimator: Estimator) -> dict[str, Pose | None]:
    """Poses of one pair, by where its cameras come from."""
    matches = hidden(pair.matches)
    found: dict[str, Pose | None] = {"fundamental matrix, true cameras": None, "focal length found": None}
    fundamental = estimator.fundamental(matches, kept)
    if fundamental is not None and fundamental.inliers.any():
        tensors = pair.matches._as_tensors()
        E = tensors.K1.double().T @ torch.as_tensor(fundamental.F) @ tensors.K0.double()
        rays = tensors.normalized().double()[torch.as_tensor(fundamental.inliers)]
        R, t, _ = geometry.recover_pose(E, rays[:, :2], rays[:, 2:])
        found["fundamental matrix, true cameras"] = Pose(R, t, fundamental.inliers)
    ratio = find_focal(matches, estimator, kept)
    if ratio is not None:
        found["focal length found"] = estimator.pose(with_focal(matches, ratio), kept)
    found[f"focal length {GUESS} x longest side"] = estimator.pose(with_focal(matches, GUESS), kept)
    found["true cameras"] = estimator.pose(pair.matches, kept)
    return found


def planes(folder: Path) -> Iterator[tuple[Path, Path]]:
    for scene in sorted(path for path in folder.iterdir() if path.is_dir()):
        photos = {path.stem: path for path in scene.iterdir() if path.stem.startswith("img")}
        for number in range(2, 7):
            if not (scene / f"H1to{number}p").is_file() or not {"img1", f"img{number}"} <= set(photos):
                raise InputError(f"planes: expected img1, img{number} and H1to{number}p in {scene}")
            yield photos["img1"], photos[f"img{number}"]


def turned(pairs: Pairs, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Photos and what their cameras would have seen after a turn."""
    rng = np.random.default_rng(0)
    for number in np.linspace(0, len(pairs) - 1, count).astype(int):
        pair = pairs[int(number)]
        if pair.paths is None:
            raise InputError("turned: expected pairs that know their photos, got matches alone")
        photo = cv2.imread(str(pair.paths[0]))
        height, width = photo.shape[:2]
        K = centred_camera(float(rng.uniform(0.7, 1.3)) * max(width, height), (width, height))
        axis = rng.normal(size=3)
        H = K @ rotation(*(axis / np.linalg.norm(axis) * rng.uniform(*TURNS))) @ np.linalg.inv(K)
        yield photo, cv2.warpPerspective(photo, H, (width, height), flags=cv2.INTER_CUBIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("pairs", type=Path, metavar="PAIRS")
    add("--planes", type=Path, metavar="OXFORD")
    add("--turned", type=int, default=0, metavar="N")
    add("--limit", type=int, metavar="N")
    add("--pruner", default="auto")
    add("--json", action="store_true")
    arguments = parser.parse_args()
    pruner, estimator = load(arguments.pruner, device="cpu"), load_estimator()
    matcher = PhotoMatcher(pruner=pruner, use_exif=False)
    chosen: dict[str, list[str | None]] = {"pairs, cameras hidden": [], "pairs, true cameras": []}
    errors: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        settings = MatchSettings(detector="sift@root=false", max_keypoints=2000, limit=arguments.limit)
        pairs = open_pairs(open_source(arguments.pairs), settings, Path(folder))
        for number in tqdm(range(len(pairs)), desc="pairs", disable=None):
            pair = pairs[number]
            blind = hidden(pair.matches)
            kept = pruner(blind)
            chosen["pairs, cameras hidden"].append(find_models(blind, kept, estimator).model)
            chosen["pairs, true cameras"].append(find_models(pair.matches, kept, estimator).model)
            for name, pose in poses(pair, kept, estimator).items():
                errors.setdefault(name, []).append(pair.pose_error(pose).worse)
        if arguments.turned:
            photos = tqdm(turned(pairs, arguments.turned), desc="turned", total=arguments.turned, disable=None)
            chosen["turned photos"] = [matcher(*both).model for both in photos]
    if arguments.planes is not None:
        photos = tqdm(list(islice(planes(arguments.planes), arguments.limit)), desc="planes", disable=None)
        chosen["planes"] = [matcher(*both).model for both in photos]
    rows = [
        {"": name, "number": len(models)}
        | {kind: sum(model == kind for model in models) for kind in ("essential", "fundamental", "homography")}
        for name, models in chosen.items()
    ]
    aucs = [
        {"": name} | {f"AUC@{at}": value for at, value in zip((5, 10, 20), pose_auc(worse), strict=True)}
        for name, worse in errors.items()
    ]
    if arguments.json:
        print(json.dumps({"models": rows, "poses": aucs}))
    else:
        print(format_table(rows))
        print(format_table(aucs))


if __name__ == "__main__":
    main()
