"""Structure from motion with COLMAP's own matches and with pruned ones, on scenes with known poses.

    python benchmarks/sfm.py SCENES                                          # the table: about an hour on two cores
    python benchmarks/sfm.py SCENES --rows entry:3,entry:2 --matches colmap,ananet --refine --runs 3 --json
    python benchmarks/sfm.py SCENES --rows few --matches colmap,sfm --runs 3 --style pairs     # docs/evaluation.md
    python benchmarks/sfm.py SCENES --rows sparse --matches colmap,sfm,aliked:lightglue        # the same, seven scenes
    python benchmarks/sfm.py SCENES --rows growth --matches colmap,sfm                         # 10 to 155 photos

Every n-th photo of a scene is reconstructed by pycolmap (an extra): its SIFT, known cameras, matches of one kind at a
time, geometric verification, incremental mapping. Matches are "colmap", its own (ratio 0.8, cross check), those of them
that a pruner keeps ("colmap+ananet"), what `ananet sfm` does ("sfm", "sfm+ananet" for another pruner than its own;
PoseLib verifies), those of a detector and a matcher ("aliked:lightglue", "aliked:lightglue+ananet"; weights as
docs/keypoints.md says, as many keypoints as the row has), or nearest neighbours that a pruner keeps. "colmap" with 8192
keypoints is COLMAP's default. `match`, `prune`, `refine`, `verify` and `map` are seconds, `cpu` those of all cores
together until the mapper starts. With --refine each kind comes a second
time, its keypoints refined (`ananet.twoview.keypoint_refinement`). Poses are compared over all
pairs of photos; a pair with a photo that got no pose has failed. Runs differ in the seeds of verification and mapping;
numbers are means over them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ananet._util.defaults import DETECTOR
from ananet._util.tables import format_table
from ananet.core.correspondences import Correspondences
from ananet.core.geometry import relative_pose, rotation_error, translation_error
from ananet.core.metrics import FAILURE, pose_auc
from ananet.datasets.base import PosedImage, PosedPair
from ananet.datasets.formats.colmap import read_posed_scene
from ananet.datasets.photos import read_posed_image
from ananet.errors import InputError
from ananet.features import Features, load_detector, load_matcher
from ananet.features.matching import Matcher, join
from ananet.integrations.colmap import match_database, verify_database
from ananet.integrations.colmap.database import HALF_PIXEL
from ananet.integrations.colmap.mapping import PHOTOS_AT_ONCE, chunks
from ananet.integrations.colmap.verification import import_pycolmap, quiet
from ananet.pruners import load
from ananet.twoview.keypoint_refinement import KeypointRefinement

# Scene, stride between its photos and, unless it is KEYPOINTS, the number of keypoints per photo.
ROWS = (
    "sacre_coeur:2", "fountain:3:1000", "entry:3", "entry:2", "sacre_coeur:1", "sceaux:1", "drone_brighton:2",
    "drone_brighton:1",
)  # fmt: skip
KEYPOINTS = 4096
# Few photos from far apart, where matches decide.
FEW = ("entry:2", "sceaux:2", "sacre_coeur:2")
SPARSE = ("sacre_coeur:2", "entry:2", "sceaux:2", "fountain:2", "drone_brighton:3", "olsson_8:2", "olsson_9:2")
PRESETS = {
    "few": (*(f"{row}:{keypoints}" for row in FEW for keypoints in (2000, 4000, 8192)), "sceaux:1:2000"),
    "sparse": tuple(f"{row}:{keypoints}" for row in SPARSE for keypoints in (2000, 4000, 8192)),
    # 10, 32, 78 and all of 155 photos.
    "growth": tuple(f"kyiv_theater:{step}:500" for step in (16, 5, 2, 1)),
}
COLMAP, SFM = "colmap", "sfm"
# The last as `ananet colmap --match` makes them.
MATCHES = (COLMAP, "mutual", "ananet+mutual", "ananet@threshold=0.5+mutual")


@dataclass(frozen=True)
class Result:
    """Reconstruction of the photos of a row with one kind of matches."""

    registered: float
    points: float
    """3D points."""
    track: float
    """Mean number of photos that see a point."""
    error: float
    """Mean reprojection error in pixels."""
    auc1: float
    """AUC of the errors of all relative poses up to 1 degree, in per cent."""
    auc5: float
    match: float
    """Seconds; so are the fields below."""
    prune: float
    refine: float
    verify: float
    map: float
    cpu: float


@dataclass(frozen=True)
class Row:
    """A selection of photos of a scene."""

    scene: str
    step: int
    keypoints: int = KEYPOINTS

    @classmethod
    def parse(cls, text: str) -> Row:
        scene, *numbers = text.split(":")
        if not scene or not 1 <= len(numbers) <= 2 or not all(number.isdigit() and int(number) for number in numbers):
            raise InputError(f"--rows: expected scene:every or scene:every:keypoints, such as entry:2, got {text!r}")
        return cls(scene, *map(int, numbers))

    def photos(self, scenes: Path) -> dict[str, PosedImage]:
        images = read_posed_scene(scenes / self.scene).images
        return {name: images[name] for name in sorted(images)[:: self.step]}


class Collection:
    """The photos of a row with their features, and the steps from matches to poses."""

    features: dict[str, Features]

    def __init__(self, pycolmap: Any, work: Path, images: dict[str, PosedImage], keypoints: int) -> None:
        self.pycolmap, self.work, self.images, self.keypoints = pycolmap, work, images, keypoints
        self.extracted, self.database = work / "features.db", work / "database.db"
        self.folder = next(iter(images.values())).path.parent
        self._extract()
        with pycolmap.Database.open(self.extracted) as database:
            self.numbers = {image.name: image.image_id for image in database.read_all_images()}
            self.features = {name: self._read_features(database, name) for name in self.numbers}
        self.pairs = list(combinations(sorted(self.numbers), 2))

    def _extract(self) -> None:
        """SIFT of every photo, with its own camera as given."""
        pycolmap = self.pycolmap
        options = pycolmap.FeatureExtractionOptions()
        options.sift.max_num_features = self.keypoints
        pycolmap.Database.open(self.extracted).close()
        reader = pycolmap.ImageReaderOptions(camera_model="PINHOLE")
        for names in tqdm(list(chunks(list(self.images), PHOTOS_AT_ONCE)), desc="features", leave=False):
            pycolmap.extract_features(
                self.extracted, self.folder, names, pycolmap.CameraMode.PER_IMAGE, reader, options, pycolmap.Device.cpu
            )
        with pycolmap.Database.open(self.extracted) as database:
            for image in database.read_all_images():
                K = self.images[image.name].K
                camera = database.read_camera(image.camera_id)
                camera.params = [K[0, 0], K[1, 1], K[0, 2] + HALF_PIXEL, K[1, 2] + HALF_PIXEL]
                camera.has_prior_focal_length = True
                database.update_camera(camera)

    def _read_features(self, database: Any, name: str) -> Features:
        keypoints = np.asarray(database.read_keypoints(self.numbers[name]))
        descriptors = np.asarray(database.read_descriptors(self.numbers[name]).data, np.float32)
        # Columns 2 to 5 are the affine shape: the scale, turned.
        a11, _, a21, _ = keypoints[:, 2:6].T
        camera = database.read_camera(database.read_image(self.numbers[name]).camera_id)
        return Features(
            keypoints[:, :2] - np.float32(HALF_PIXEL),
            descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12),
            (camera.width, camera.height),
            # COLMAP's scale is a radius where OpenCV's size is a diameter.
            sizes=2 * np.hypot(a11, a21),
            angles=np.arctan2(a21, a11),
        )

    def with_features_of(self, detector: str) -> Collection:
        """The same photos with the keypoints of another detector."""
        other = copy(self)
        other.extracted = self.work / "others.db"
        shutil.copy(self.extracted, other.extracted)
        extract = load_detector(detector, device="cpu", max_keypoints=self.keypoints).detect
        photos = tqdm(self.numbers, desc=detector, leave=False)
        other.features = {name: extract(read_posed_image(self.images[name])) for name in photos}
        with self.pycolmap.Database.open(other.extracted) as database:
            for name, features in other.features.items():
                database.update_keypoints(self.numbers[name], (features.points + HALF_PIXEL).astype(np.float32))
        return other

    def matched_by(self, matcher: Matcher) -> list[Correspondences]:
        """Matches of all pairs."""
        found = []
        for first, second in tqdm(self.pairs, desc="matches", leave=False):
            K0, K1 = self.images[first].K, self.images[second].K
            found.append(matcher(self.features[first], self.features[second], K0=K0, K1=K1))
        return found

    def matched_by_colmap(self) -> list[Correspondences]:
        options = self.pycolmap.FeatureMatchingOptions()
        options.skip_geometric_verification = True
        shutil.copy(self.extracted, self.database)
        self.pycolmap.match_exhaustive(self.database, options, device=self.pycolmap.Device.cpu)
        return self._read_matches()

    def matched_by_ananet(self, pruner: str | None) -> tuple[list[Correspondences], dict[str, float]]:
        """As `ananet sfm` does; and seconds by step."""
        shutil.copy(self.extracted, self.database)
        summary = match_database(self.database, pruner, device="cpu")
        return self._read_matches(), summary.seconds

    def _read_matches(self) -> list[Correspondences]:
        with self.pycolmap.Database.open(self.database) as database:
            return [
                join(
                    self.features[first],
                    self.features[second],
                    np.asarray(database.read_matches(self.numbers[first], self.numbers[second]), np.int64),
                    K0=self.images[first].K,
                    K1=self.images[second].K,
                )
                for first, second in self.pairs
            ]

    def moves(self, pairs: Sequence[Correspondences]) -> dict[str, np.ndarray]:
        """Shifts of the keypoints by subpixel refinement, in pixels."""
        names = list(self.features)
        refinement = KeypointRefinement([len(self.features[name]) for name in names], device="cpu")
        photos = {name: read_posed_image(self.images[name]) for name in names}
        for (first, second), matches in tqdm(
            zip(self.pairs, pairs, strict=True), desc="refinement", total=len(pairs), leave=False
        ):
            refinement.add_pair(names.index(first), names.index(second), photos[first], photos[second], matches)
        return dict(zip(names, refinement.shifts(), strict=True))

    def write(self, pairs: Sequence[Correspondences], moves: dict[str, np.ndarray]) -> None:
        """A new database with these matches alone."""
        shutil.copy(self.extracted, self.database)
        with self.pycolmap.Database.open(self.database) as database:
            for (first, second), matches in zip(self.pairs, pairs, strict=True):
                assert matches.indices is not None
                indices = matches.indices.astype(np.uint32)
                database.write_matches(self.numbers[first], self.numbers[second], indices)
            for name, shifts in moves.items():
                keypoints = np.array(database.read_keypoints(self.numbers[name]))
                keypoints[:, :2] += shifts
                database.update_keypoints(self.numbers[name], keypoints)

    def verify(self, seed: int, kind: str) -> None:
        if kind.startswith(SFM):
            verify_database(self.database)
            return
        options = self.pycolmap.TwoViewGeometryOptions()
        options.ransac.random_seed = seed
        listed = self.work / "pairs.txt"
        listed.write_text("".join(f"{first} {second}\n" for first, second in self.pairs), encoding="utf-8")
        self.pycolmap.verify_matches(self.database, listed, options)

    def map(self, seed: int) -> Any:
        """The largest model, or None."""
        options = self.pycolmap.IncrementalPipelineOptions()
        options.min_model_size = 2
        options.random_seed = seed
        options.ba_refine_focal_length = options.ba_refine_extra_params = False
        models = self.work / "models"
        models.mkdir(exist_ok=True)
        with tqdm(total=len(self.images), desc="poses", leave=False) as bar:
            found = self.pycolmap.incremental_mapping(
                self.database,
                self.folder,
                models,
                options,
                initial_image_pair_callback=lambda: bar.update(2),
                next_image_callback=bar.update,
            )
        return max(found.values(), key=lambda model: (model.num_reg_images(), model.num_points3D()), default=None)

    def pose_errors(self, model: Any) -> list[float]:
        """Pose errors of all pairs of photos, in degrees."""
        poses = {}
        for image in model.images.values() if model is not None else ():
            if image.has_pose:
                pose = image.cam_from_world()
                poses[image.name] = (torch.tensor(pose.rotation.matrix()), torch.tensor(pose.translation))
        errors = []
        for first, second in self.pairs:
            if first not in poses or second not in poses:
                errors.append(FAILURE)
                continue
            R, t = relative_pose(*poses[first], *poses[second])
            true_R, true_t = PosedPair(self.images[first], self.images[second]).relative_pose()
            errors.append(max(float(rotation_error(R, true_R)), float(translation_error(t, true_t))))
        return errors


class Clock:
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("match", "prune", "refine", "verify", "map", "cpu"), 0.0)

    @contextmanager
    def time(self, step: str) -> Iterator[None]:
        start, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds[step] += time.perf_counter() - start
        if step != "map":
            self.seconds["cpu"] += time.process_time() - cpu


def kept_matches(collection: Collection, kind: str, clock: Clock) -> list[Correspondences]:
    """Matches of one kind, of all pairs."""
    first, _, others = kind.partition("+")
    if first == SFM:
        with clock.time("prune"):
            found, seconds = collection.matched_by_ananet(others or None)
        clock.seconds |= {step: seconds.get(step, 0.0) for step in ("match", "prune")}
        return found
    detector, _, learned = first.partition(":")
    name = others if learned or first == COLMAP else kind
    pruner = load(name, device="cpu") if name else None
    matcher = load_matcher(learned or "nearest", detector=detector if learned else DETECTOR, device="cpu")
    with clock.time("match"):
        found = collection.matched_by_colmap() if first == COLMAP else collection.matched_by(matcher)
    if pruner is None:
        return found
    with clock.time("prune"):
        return [pair[pruner(pair).mask] for pair in tqdm(found, desc=f"pruning by {name}", leave=False)]


def reconstruct(
    collection: Collection,
    kind: str,
    pairs: Sequence[Correspondences],
    moves: dict[str, np.ndarray],
    seed: int,
    clock: Clock,
) -> Result:
    collection.write(pairs, moves)
    with clock.time("verify"):
        collection.verify(seed, kind)
    with clock.time("map"):
        model = collection.map(seed)
    auc1, auc5 = pose_auc(collection.pose_errors(model), (1, 5))
    return Result(
        registered=0 if model is None else model.num_reg_images(),
        points=0 if model is None else model.num_points3D(),
        track=0.0 if model is None else model.compute_mean_track_length(),
        error=0.0 if model is None else model.compute_mean_reprojection_error(),
        auc1=100 * auc1,
        auc5=100 * auc5,
        **clock.seconds,
    )


def mean(results: Sequence[Result]) -> Result:
    return Result(**{f.name: float(np.mean([getattr(result, f.name) for result in results])) for f in fields(Result)})


def measure(collection: Collection, kind: str, refine: bool, runs: int) -> dict[str, Result]:
    """Results with matches of one kind, and with their keypoints moved, by name."""
    clock = Clock()
    detector, learned, _ = kind.partition("+")[0].partition(":")
    if learned:
        collection = collection.with_features_of(detector)
    pairs = kept_matches(collection, kind, clock)
    before = dict(clock.seconds)

    def average(moves: dict[str, np.ndarray], seconds: dict[str, float]) -> Result:
        results = []
        for seed in range(runs):
            clock.seconds = dict(seconds)
            results.append(reconstruct(collection, kind, pairs, moves, seed, clock))
        return mean(results)

    found = {kind: average({}, before)}
    if refine:
        clock.seconds = dict(before)
        with clock.time("refine"):
            moves = collection.moves(pairs)
        found[f"{kind}, refined"] = average(moves, clock.seconds)
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path, help="folder of scenes: images/ beside sparse/ in each")
    parser.add_argument(
        "--rows",
        default=",".join(ROWS),
        metavar="A:N,...",
        help=f"scene:every[:keypoints], several; or {', '.join(PRESETS)}",
    )
    text = '"colmap", "sfm", DETECTOR:MATCHER and pruners'
    parser.add_argument("--matches", default=",".join(MATCHES), metavar="A,B,...", help=text)
    parser.add_argument("--refine", action="store_true", help="also with refined keypoints")
    parser.add_argument("--runs", type=int, default=1, help="seeds that numbers are means over (default: 1)")
    parser.add_argument("--threads", type=int, help="of torch (default: one per core)")
    text = (
        "of the table (default: text); pairs: Markdown, the kinds of matches side by side, CPU seconds over the first's"
    )
    parser.add_argument("--style", choices=("text", "markdown", "pairs"), default="text", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    try:
        rows = PRESETS.get(arguments.rows) or arguments.rows.split(",")
        arguments.rows = [Row.parse(text) for text in rows]
    except InputError as error:
        parser.error(str(error))
    return arguments


def main() -> None:
    arguments = parse_arguments()
    pycolmap = import_pycolmap()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    table: list[dict[str, Any]] = []
    for row in tqdm(arguments.rows, desc="rows"):
        images = row.photos(arguments.scenes)
        with tempfile.TemporaryDirectory() as work, quiet(pycolmap):
            collection = Collection(pycolmap, Path(work), images, row.keypoints)
            for kind in tqdm(arguments.matches.split(","), desc=f"{row.scene}, {len(images)} photos", leave=False):
                for name, result in measure(collection, kind, arguments.refine, arguments.runs).items():
                    facts = {"scene": row.scene, "photos": len(images), "keypoints": row.keypoints, "matches": name}
                    table.append(facts | asdict(result))
    if arguments.json:
        print(json.dumps(table, indent=1))
    elif arguments.style == "pairs":
        print(format_table(side_by_side(table), "markdown"))
    else:
        print(format_table(readable(table), arguments.style))


def readable(table: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Format numbers with suitable decimals."""
    decimals = {"points": 0, "track": 2, "error": 3} | dict.fromkeys(("match", "verify", "cpu"), 2)

    def text(name: str, value: Any) -> str:
        return f"{value:.{decimals.get(name, 1)}f}" if isinstance(value, float) else str(value)

    return [{name: text(name, value) for name, value in row.items()} for row in table]


def side_by_side(table: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A line per row: photos registered / points / AUC@1 / AUC@5 of each kind, and CPU seconds over the first's."""
    lines: dict[Any, dict[str, str]] = {}
    first: dict[Any, float] = {}
    for row in table:
        key, kind = (row["scene"], row["photos"], row["keypoints"]), row["matches"]
        line = lines.setdefault(key, {"scene, photos": f"{key[0]}, {key[1]}", "keypoints": str(key[2])})
        cpu = first.setdefault(key, row["cpu"])
        line[kind] = f"{row['registered']:.3g} / {row['points']:.0f} / {row['auc1']:.1f} / {row['auc5']:.1f}"
        line[f"{kind}, CPU s"] = f"{row['cpu']:.2f}" + (f" ({row['cpu'] / cpu:.1f} x)" if row["cpu"] != cpu else "")
    return list(lines.values())


if __name__ == "__main__":
    main()
