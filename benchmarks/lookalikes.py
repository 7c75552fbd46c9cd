"""Reconstructions of photos once around an object whose sides look alike, with all pairs and with those that pass.

    python benchmarks/lookalikes.py PHOTOS WORK --picture cup.png

PHOTOS is a folder of photos in order, evenly spaced once around. pycolmap (an extra) finds features and maps; `ananet
colmap --match` matches, without and with its check that pairs show the same place. WORK keeps the databases, so that
another call goes on where one ended. Printed are how well the check separates pairs at most 45 degrees apart from those
at least 90 apart, and how far the camera turns from photo to photo in each reconstruction.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ananet._util.defaults import RECONSTRUCTION_PRUNER
from ananet.errors import InputError
from ananet.integrations.colmap import match_database
from ananet.integrations.colmap.database import open_database
from ananet.integrations.colmap.verification import import_pycolmap, quiet
from ananet.io.files import check_output
from ananet.twoview.collection import MAX_TURN, Confirmation, confirm_pairs

NEAR, FAR = 45.0, 90.0
CameraPath = list[tuple[str, np.ndarray, np.ndarray]]
"""Name, place and viewing direction of each photo of a reconstruction, in order."""


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--keypoints", type=int, default=2000)
    parser.add_argument("--pruner", default=RECONSTRUCTION_PRUNER)
    parser.add_argument("--picture", type=Path, help="camera paths from above")
    arguments = parser.parse_args(given)
    if not arguments.photos.is_dir():
        raise InputError(f"photos: expected a folder, got {arguments.photos}")
    if arguments.picture is not None:
        check_output(arguments.picture, suffix=".png")
    pycolmap = import_pycolmap()
    arguments.work.mkdir(parents=True, exist_ok=True)
    features, every = arguments.work / "features.db", arguments.work / "all.db"
    with quiet(pycolmap):
        extract(pycolmap, arguments.photos, features, arguments.keypoints)
        if not every.is_file():
            match_database(features, arguments.pruner, output=every, min_overlap=0, verify=True, progress=True)
        compare(every)
        passing = arguments.work / "passing.db"
        summary = match_database(every, arguments.pruner, output=passing, verify=True, progress=True)
        print(f"{summary.pairs} pairs, {len(summary.doubtful)} of them dropped")
        paths = {}
        for name, database in (("all pairs", every), ("pairs that pass", passing)):
            paths[name], points = reconstruct(pycolmap, arguments.photos, database)
            print(f"{name}: {len(paths[name])} photos, {points} points, {in_words(turns(paths[name]))}")
    if arguments.picture is not None:
        draw(paths, arguments.picture)


def extract(pycolmap: Any, photos: Path, database: Path, keypoints: int) -> None:
    if database.is_file():
        return
    options = pycolmap.FeatureExtractionOptions()
    options.sift.max_num_features = keypoints
    temporary = database.with_suffix(".partial")
    temporary.unlink(missing_ok=True)
    one_camera = pycolmap.CameraMode.SINGLE
    pycolmap.extract_features(
        temporary, photos, camera_mode=one_camera, extraction_options=options, device=pycolmap.Device.cpu
    )
    temporary.rename(database)


def compare(database: Path) -> None:
    """Print how well other pairs tell near from far ones."""
    with open_database(database) as opened:
        names = opened.image_names()
        order = sorted(names, key=lambda image: names[image])
        views = {image: opened.view(image) for image in order}
        matches = {(pair.first, pair.second): kept.astype(np.int64) for pair, kept in opened.matched_pairs()}
    found = confirm_pairs(
        {image: view.points for image, view in views.items()},
        {image: view.image_size for image, view in views.items()},
        matches,
        {image: view.some_K for image, view in views.items()},
    )
    place = {image: number for number, image in enumerate(order)}
    apart = {pair: degrees_apart(place[pair[0]], place[pair[1]], len(order)) for pair in found}
    near, far = [pair for pair in found if apart[pair] <= NEAR], [pair for pair in found if apart[pair] >= FAR]
    wins = [[score(found[a]) - score(found[b]) for b in far] for a in near]
    area = np.mean((np.sign(wins) + 1) / 2)
    doubted = [sum(found[pair].doubtful for pair in some) for some in (near, far)]
    print(f"AUROC of {len(near)} pairs up to {NEAR:g} degrees against {len(far)} from {FAR:g}: {area:.3f}")
    print(f"doubtful: {doubted[0]} of {len(near)} and {doubted[1]} of {len(far)}")


def score(confirmation: Confirmation) -> float:
    """Confirmed by tracks, or by a rotation that closes a loop."""
    turned_alike = confirmation.turn is not None and confirmation.turn <= MAX_TURN
    return 1.0 if turned_alike else confirmation.confirmed


def degrees_apart(first: int, second: int, count: int) -> float:
    """Of two photos on a circle of so many.

    >>> degrees_apart(0, 63, 64)
    5.625
    """
    steps = abs(first - second)
    return 360 / count * min(steps, count - steps)


def reconstruct(pycolmap: Any, photos: Path, database: Path) -> tuple[CameraPath, int]:
    """The path of the cameras of the largest reconstruction, and its number of points."""
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = 0
    models = database.with_suffix("")
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    found = pycolmap.incremental_mapping(database, photos, models, options)
    model = max(found.values(), key=lambda model: model.num_reg_images(), default=None)
    if model is None:
        return [], 0
    images = [image for image in model.images.values() if image.has_pose]
    path = [(image.name, image.projection_center(), image.viewing_direction()) for image in images]
    return sorted(path, key=lambda photo: photo[0]), model.num_points3D()


def from_above(path: CameraPath) -> tuple[np.ndarray, np.ndarray]:
    """[P x 2] places and viewing directions in the plane that fits the places best."""
    centres, directions = (np.array([photo[column] for photo in path], np.float64) for column in (1, 2))
    plane = np.linalg.svd(centres - centres.mean(axis=0))[2][:2]
    return (centres - centres.mean(axis=0)) @ plane.T, directions @ plane.T


def turns(path: CameraPath) -> np.ndarray:
    """[P - 1] degrees by which the camera turns from photo to photo, seen from above."""
    if len(path) < 3:
        return np.zeros(0)
    angles = np.arctan2(*from_above(path)[1].T[::-1])
    return np.degrees(np.angle(np.exp(1j * np.diff(angles))))


def in_words(degrees: np.ndarray) -> str:
    if not len(degrees):
        return "no path"
    jumps = int((np.abs(degrees - np.median(degrees)) > NEAR).sum())
    return f"turns by {abs(degrees.sum()):.0f} degrees in all, with {jumps} jumps of more than {NEAR:g}"


def draw(paths: dict[str, CameraPath], picture: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=100, layout="constrained")
    for axes, (name, path) in zip(figure.subplots(1, len(paths)), paths.items(), strict=True):
        axes.set_title(f"{name}: {len(path)} photos")
        axes.set_aspect("equal")
        axes.set_axis_off()
        if len(path) > 2:
            centres, directions = from_above(path)
            axes.plot(*centres.T, color="0.7", zorder=1)
            axes.quiver(*centres.T, *directions.T, np.arange(len(path)), cmap="viridis", width=0.004, zorder=2)
    figure.savefig(picture)


if __name__ == "__main__":
    main()
