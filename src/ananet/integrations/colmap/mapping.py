"""COLMAP's features and mapping of a folder of photos, with progress and with reasons where they fail."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ananet.errors import InputError

logger = logging.getLogger(__name__)

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp")
MIN_PHOTOS = 3
# Photos with fewer keypoints count as featureless.
MIN_KEYPOINTS = 50
# Photos per call of COLMAP; the progress bar moves between calls.
PHOTOS_AT_ONCE = 8
CAMERAS = ("auto", "one", "each")
MAPPERS = ("incremental", "global")
CAMERA_MODEL = "SIMPLE_RADIAL"


def find_photos(folder: Path) -> dict[str, Path]:
    """Photos of a folder and its subfolders by relative name, sorted."""
    if not folder.is_dir():
        raise InputError(f"photos: expected a folder, got {folder}")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PHOTO_SUFFIXES and path.is_file())
    if len(paths) < MIN_PHOTOS:
        raise InputError(f"photos: expected at least {MIN_PHOTOS} photos in {folder}, got {len(paths)}")
    return {path.relative_to(folder).as_posix(): path for path in paths}


def chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Split a list into parts of this size."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def extract_features(
    pycolmap: Any,
    database: Path,
    photos: dict[str, Path],
    cameras: str,
    max_keypoints: int,
    longest_side: int,
    progress: bool,
) -> int:
    """Extract SIFT features of photos that have none in a database; return the number of photos that could be read.

    COLMAP commits photo by photo, so a killed call goes on where it stopped.

    Args:
        cameras: "auto": photos of one size and focal length by EXIF share a camera, others have one each; "one" for
            all; "each" for one per photo.
    """
    folder = next(iter(photos.values())).parents[next(iter(photos)).count("/")]
    options = pycolmap.FeatureExtractionOptions()
    options.sift.max_num_features, options.max_image_size = max_keypoints, longest_side
    with pycolmap.Database.open(database) as opened:
        known = {image.name: image.camera_id for image in opened.read_all_images()}
        done = {image.name for image in opened.read_all_images() if opened.exists_descriptors(image.image_id)}
    missing = set(known) - set(photos)
    if missing:
        raise InputError(f"photos: {sorted(missing)[0]} was there when the model was begun; choose another output")
    groups: dict[Any, list[str]] = defaultdict(list)
    with tqdm(total=len(photos), desc="features", unit="photo", disable=not progress) as bar:
        for name, path in photos.items():
            key = _camera_key(pycolmap, name, path, cameras)
            if key is None:
                logger.warning("left out: %s cannot be read", path)
                bar.update()
            else:
                groups[key].append(name)
        for names in groups.values():
            reader = pycolmap.ImageReaderOptions(camera_model=CAMERA_MODEL)
            shared = [known[name] for name in names if name in known]
            for some in chunks([name for name in names if name not in done], PHOTOS_AT_ONCE):
                if shared:
                    reader.existing_camera_id = shared[0]
                how = (pycolmap.CameraMode.SINGLE, reader, options, pycolmap.Device.cpu)
                pycolmap.extract_features(database, folder, some, *how)
                with pycolmap.Database.open(database) as opened:
                    read = [opened.read_image_with_name(name) for name in some]
                    shared += [image.camera_id for image in read if image is not None]
                bar.update(len(some))
            bar.update(sum(name in done for name in names))
    return sum(map(len, groups.values()))


def _camera_key(pycolmap: Any, name: str, path: Path, cameras: str) -> Any:
    """The same for photos that share a camera; None for a photo that cannot be read."""
    try:
        guess = pycolmap.infer_camera_from_image(path)
    except (RuntimeError, ValueError):
        return None
    size = guess.width, guess.height
    if cameras == "one":
        return size
    if cameras == "auto" and guess.has_prior_focal_length:
        return *size, round(guess.mean_focal_length(), 1)
    return name


def check_features(names: Sequence[str], counts: dict[str, int]) -> None:
    """Raise if too few photos have keypoints; `counts` are the keypoints by name."""
    poor = [name for name in names if counts.get(name, 0) < MIN_KEYPOINTS]
    if len(names) - len(poor) < MIN_PHOTOS:
        raise InputError(
            f"photos: too few features: {len(poor)} of {len(names)} photos have fewer than "
            f"{MIN_KEYPOINTS} keypoints. They may be blurred, very small, or show plain surfaces"
        )


def map_photos(
    pycolmap: Any, database: Path, images: Path, models: Path, verified: int, mapper: str, photos: int, progress: bool
) -> list[Any]:
    """Models of the verified pairs, the largest first; `models` is a folder that COLMAP writes to."""
    models.mkdir()
    with tqdm(total=photos, desc="poses", unit="photo", disable=not progress) as bar:
        if mapper == "global":
            options = pycolmap.GlobalPipelineOptions()
            options.random_seed = 0
            found = pycolmap.global_mapping(database, images, models, options)
            bar.update(photos)
        else:
            options = pycolmap.IncrementalPipelineOptions()
            options.min_model_size = MIN_PHOTOS
            options.random_seed = 0
            found = pycolmap.incremental_mapping(
                database,
                images,
                models,
                options,
                # The first two photos come as one event.
                initial_image_pair_callback=lambda: bar.update(2),
                next_image_callback=bar.update,
            )
    if not found:
        raise InputError(
            f"photos: no initial pair: {verified} pairs match, but none can start a reconstruction of "
            f"{MIN_PHOTOS} photos. The camera may have turned without moving, or moved too little or too far"
        )
    return sorted(found.values(), key=lambda model: (-model.num_reg_images(), -model.num_points3D()))
