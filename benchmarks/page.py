"""The page that needs no server in a headless Chromium.

    make page && python benchmarks/page.py [A.jpg B.jpg] [--megapixels 12] [--rounds 5]
    make page && python benchmarks/page.py --scenes SCENES [--pairs 3]

Seconds from two photos to the picture of their matches. Photos are enlarged to the size of a phone's first; without
any, it is the pair of `ananet demo`. The least of all rounds counts, after a first one that loads everything. The same
photos in the library, in the same rounds and on one thread, with its default input (SIFT), give the ratio.

With --scenes: poses from what `ananet` keeps on the page and in the library, for as many pairs of each scene (PoseLib,
its default threshold), and how many matches it keeps of photos of one scene and of different ones.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import ananet
from ananet import Correspondences
from ananet._util.tables import format_table
from ananet.cli.web import examples
from ananet.core import geometry
from ananet.core.metrics import pose_auc
from ananet.datasets.base import PosedPair
from ananet.datasets.sources import open_posed_photos
from ananet.estimators import Pose, estimate_pose
from ananet.pruners import Pruned
from ananet.twoview import PhotoMatcher

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser import launched, send, served_folder  # noqa: E402

PAGE = ROOT / "build" / "page"
DETECTORS = ("akaze", "orb")
# A megapixel, as on the page.
LONGEST_SIDE = 1155
# For one pair, on a busy machine.
MILLISECONDS = 120_000
# As in backend.js.
FEWEST = 50
CHOICES = [(detector, pruner) for detector in DETECTORS for pruner in ("ananet", "ananet-small")]
# A page without photos.
CLEAR = "(detector) => { answer = null; files.fill(null); $('result').hidden = true; $('detector').value = detector; }"
# All that a user waits for, the drawing included.
CALL = """async ([detector, pruner]) => {
    $("detector").value = detector;
    $("pruner").value = pruner;
    const start = performance.now();
    await match();
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const total = performance.now() - start;
    return { ...answer.milliseconds, total, matches: answer.scores.length, kept: answer.mask.filter(Boolean).length };
}"""


def enlarged(path: Path, megapixels: float, folder: Path) -> Path:
    image = cv2.imread(str(path))
    scale = (megapixels * 1e6 / (image.shape[0] * image.shape[1])) ** 0.5
    cv2.imwrite(str(folder / path.name), cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC))
    return folder / path.name


def library(matcher: PhotoMatcher, photos: list[Path]) -> float:
    start = time.perf_counter()
    matcher(*photos)
    return time.perf_counter() - start


def measure(photos: list[Path], rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    matcher = PhotoMatcher(longest_side=LONGEST_SIDE, device="cpu")
    times: dict[tuple[str, str], list[dict[str, float]]] = {choice: [] for choice in CHOICES}
    seconds = []
    with served_folder(PAGE) as address, launched() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(f"{address}/index.html")
        send(page, *photos)
        for number in range(rounds + 1):
            found = {choice: page.evaluate(CALL, choice) for choice in CHOICES}
            taken = library(matcher, photos)
            if number:
                seconds.append(taken)
                for choice, row in found.items():
                    times[choice].append(row)
    rows = list[dict[str, Any]]()
    for (detector, pruner), all_rounds in times.items():
        least = {name: min(row[name] for row in all_rounds) for name in all_rounds[0]}
        parts = {f"{name} (s)": f"{least[name] / 1000:.2f}" for name in ("keypoints", "pruning", "total")}
        counts = {"matches": int(least["matches"]), "kept": int(least["kept"])}
        ratio = {"ratio to the library": f"{least['total'] / 1000 / min(seconds):.2f}"}
        rows.append({"detector": detector, "pruner": pruner, **counts, **parts, **ratio})
    print(f"ananet {ananet.__version__} in Python, SIFT, one thread: {min(seconds):.2f} s")
    return rows


def pose_error(pair: PosedPair, pose: Pose | None) -> float:
    if pose is None:
        return 180.0
    R, t = pair.relative_pose()
    rotation = geometry.rotation_error(torch.as_tensor(pose.R), R)
    return max(float(rotation), float(geometry.translation_error(torch.as_tensor(pose.t), t)))


def pose_of(pair: PosedPair, answer: dict[str, Any]) -> Pose | None:
    """The pose that follows from what the page kept."""
    names = ("points0", "points1", "ratio", "mutual", "keypoint_sizes0", "keypoint_sizes1")
    sizes = {f"image_size{i}": (photo["width"], photo["height"]) for i, photo in enumerate(answer["photos"])}
    arrays = {name: np.array(answer[name]) for name in names}
    matches = Correspondences(**arrays, **sizes, K0=pair.image0.K, K1=pair.image1.K)
    scores = np.clip(np.array(answer["scores"], np.float32), 1e-6, 1 - 1e-6)
    kept = Pruned(np.array(answer["mask"]), scores, np.log(scores / (1 - scores)))
    return estimate_pose(matches, kept=kept)


def compare(folder: Path, count: int) -> list[dict[str, Any]]:
    numbers = random.Random(0)
    scenes = [scene.all_pairs() for scene in open_posed_photos(folder).scenes()]
    chosen = [numbers.sample(pairs, min(count, len(pairs))) for pairs in scenes]
    same = [pair for of_scene in chosen for pair in of_scene]
    photos = [[pair.image0.path for pair in of_scene] for of_scene in chosen]
    # As many, each of two scenes.
    pairs = [(a, b) for left, right in itertools.combinations(photos, 2) for a, b in zip(left, right, strict=False)]
    different = numbers.sample(pairs, min(len(same), len(pairs)))
    rows = []
    with served_folder(PAGE) as address, launched() as browser:
        page = browser.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.goto(f"{address}/index.html")

        def ask(detector: str, *paths: Path) -> dict[str, Any]:
            page.evaluate(CLEAR, detector)
            send(page, *paths)
            return page.evaluate("answer")

        for detector in DETECTORS:
            answers = [ask(detector, pair.image0.path, pair.image1.path) for pair in same]
            poses = [pose_of(pair, found) for pair, found in zip(same, answers, strict=True)]
            others = [ask(detector, *paths) for paths in different]
            rows.append({"keypoints": f"page, {detector}", **scores(same, poses, answers, others)})
    matcher = PhotoMatcher(longest_side=LONGEST_SIDE, device="cpu")
    found = [matcher(pair.image0.path, pair.image1.path, K0=pair.image0.K, K1=pair.image1.K) for pair in same]
    answers, others = (
        [{"indices": one.matches.indices, "mask": one.kept.mask} for one in some]
        for some in (found, (matcher(*paths) for paths in different))
    )
    rows.append({"keypoints": "library, sift", **scores(same, [one.pose for one in found], answers, others)})
    return rows


def scores(same: list[PosedPair], poses: list[Pose | None], answers: list[Any], others: list[Any]) -> dict[str, Any]:
    auc = pose_auc([pose_error(pair, pose) for pair, pose in zip(same, poses, strict=True)], (5, 10, 20))
    shown = {"pairs": len(same), "AUC@5/10/20": " / ".join(f"{100 * value:.1f}" for value in auc)}
    for name, found in (("kept, one scene", answers), ("different scenes", others)):
        kept = np.array([len(np.unique(np.array(each["indices"])[np.array(each["mask"]), 1])) for each in found])
        shown[name] = f"{kept.min()} to {kept.max()}, {(kept >= FEWEST).sum()} of {len(kept)} at least {FEWEST}"
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, nargs="*", metavar="PHOTO")
    parser.add_argument("--megapixels", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scenes", type=Path, metavar="SCENES")
    parser.add_argument("--pairs", type=int, default=3, help="of each scene (default: 3)")
    arguments = parser.parse_args()
    if not (PAGE / "index.html").exists():
        parser.error("expected the page in build/page, got none; run make page")
    if len(arguments.photos) not in (0, 2):
        parser.error(f"expected two photos, got {len(arguments.photos)}")
    if arguments.scenes is not None:
        print(format_table(compare(arguments.scenes, arguments.pairs), "markdown"))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        photos = arguments.photos
        if not photos:
            photos = [Path(folder) / f"demo{number}.jpg" for number in (0, 1)]
            for path, data in zip(photos, examples()["motorcycle"].photos, strict=True):
                path.write_bytes(data)
        (Path(folder) / "large").mkdir()
        large = [enlarged(path, arguments.megapixels, Path(folder) / "large") for path in photos]
        print(format_table(measure(large, arguments.rounds), "markdown"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
