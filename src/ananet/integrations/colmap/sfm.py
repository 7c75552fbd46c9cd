"""From photos to a model: COLMAP's features and mapping, with matches that are pruned and verified here.

    from ananet.integrations.colmap import build_model
    print(build_model("photos", "model").summary)

Every step works through `model/database.db` and goes on where a killed call stopped.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from ananet._util.checks import check_whole_number
from ananet._util.defaults import LONGEST_SIDE, RECONSTRUCTION_KEYPOINTS, RECONSTRUCTION_PRUNER
from ananet._util.devices import choose_device
from ananet._util.tables import count
from ananet.errors import InputError
from ananet.integrations.colmap.database import Database, open_database
from ananet.integrations.colmap.mapping import (
    CAMERAS,
    MAPPERS,
    MIN_PHOTOS,
    check_features,
    extract_features,
    find_photos,
    map_photos,
)
from ananet.integrations.colmap.pairs import ALL_PAIRS, check_which
from ananet.integrations.colmap.pictures import draw_model
from ananet.integrations.colmap.pruning import check_verify, identity_of, match_database, verify_database
from ananet.integrations.colmap.verification import import_pycolmap, quiet
from ananet.io.files import only_process, read_json, remove_temporaries, write_json
from ananet.io.images import save_picture
from ananet.pruners import Pruner

DATABASE, MODELS, REPORT, PICTURE, SETTINGS = "database.db", "sparse", "report.json", "model.png", "settings.json"
UNFINISHED = ".mapping"


@dataclass(frozen=True)
class Model:
    """What became of a folder of photos."""

    folder: str
    """With `sparse/0`, the largest model as COLMAP writes it, `database.db` and `model.png`."""
    photos: int
    registered: list[str]
    """Photos with a pose in the largest model."""
    left_out: list[str]
    """Photos without one."""
    models: int
    """Separate models; more than one if parts of the photos could not be joined."""
    points: int
    """3D points of the largest model."""
    track_length: float
    """Mean number of photos that see a point."""
    reprojection_error: float
    """Mean in pixels; above 1.5 is suspicious."""
    pairs: int
    """Pairs of photos that were matched."""
    verified: int
    """Of these, pairs with a two-view geometry."""
    doubtful: list[tuple[str, str]]
    """Pairs that kept matches and lost them, since they hardly show the same place (`Summary.doubtful`)."""
    pruner: str
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each step of the call that made this."""

    @property
    def summary(self) -> str:
        return (
            f"{len(self.registered)} of {self.photos} photos registered, {count(self.points, 'point')}, each seen in "
            f"{self.track_length:.1f} photos, reprojection error {self.reprojection_error:.2f} px"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"summary": self.summary}


def build_model(
    photos: str | Path,
    output: str | Path,
    pruner: str | Path | Pruner | None = None,
    *,
    pairs: str | Path | Sequence[tuple[str, str]] = ALL_PAIRS,
    max_keypoints: int = RECONSTRUCTION_KEYPOINTS,
    longest_side: int = LONGEST_SIDE,
    cameras: str = "auto",
    verify: str = "poselib",
    mapper: str = "incremental",
    device: str | torch.device = "auto",
    progress: bool = False,
) -> Model:
    """Find cameras, poses and points of a folder of photos (needs pycolmap).

    A call that was killed at any time goes on where it stopped when it is repeated, and photos that came since are
    added. A call with nothing to do returns the model that is there.

    Args:
        photos: folder with at least three photos, subfolders included.
        output: folder for `database.db`, `sparse/0` (the largest model, as COLMAP writes it), `report.json` and
            `model.png`.
        pruner, device: as for `match_database`.
        pairs: which pairs are matched, as for `match_database`.
        max_keypoints, longest_side: COLMAP's SIFT features; larger photos are scaled down for these.
        cameras: "auto": photos of one size and focal length by EXIF share a camera, others have one each; "one" for
            all photos; "each" for one per photo.
        verify: "poselib", or "colmap" for COLMAP's own verification.
        mapper: COLMAP's "incremental" or its "global" one.
        progress: show bars.

    Raises `InputError` with the probable reason if there is no model.
    """
    pycolmap = import_pycolmap()
    for name, value, known in (("cameras", cameras, CAMERAS), ("mapper", mapper, MAPPERS)):
        if value not in known:
            raise InputError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    method = check_verify(verify)
    if method is None:
        raise InputError(f"verify: expected poselib or colmap, got {verify!r}")
    check_whole_number("max_keypoints", max_keypoints, 1, 10**6)
    check_whole_number("longest_side", longest_side, 1, 10**6)
    # What later steps would find out after minutes.
    choose_device(device)
    identity_of(RECONSTRUCTION_PRUNER if pruner is None else pruner)
    check_which(pairs)
    photos, output = Path(photos), Path(output)
    found = find_photos(photos)
    # Its picture would be a photo the next time.
    if output.resolve().is_relative_to(photos.resolve()) or (output.exists() and not output.is_dir()):
        raise InputError(f"output: expected a folder outside that of the photos, got {output}")
    if not output.parent.is_dir():
        raise InputError(f"output: the folder {output.parent} does not exist")
    output.mkdir(exist_ok=True)
    with only_process(output), quiet(pycolmap):
        _check_settings(output, {"max_keypoints": max_keypoints, "longest_side": longest_side, "cameras": cameras})
        run = _Run(pycolmap, photos, output, progress)
        with run.timed("features"):
            run.extract(found, cameras, max_keypoints, longest_side)
        with run.timed("matches"):
            summary = match_database(run.database, pruner, pairs=pairs, in_parts=True, device=device, progress=progress)
        with run.timed("verification"):
            verified = verify_database(run.database, method, in_parts=True, progress=progress)
        if verified < MIN_PHOTOS - 1:
            raise InputError(
                f"photos: too few matched pairs: {verified} of {summary.pairs} pairs share consistent matches. "
                "The photos may not overlap, or not show the same place"
            )
        facts = {
            "photos": len(found),
            "pairs": summary.pairs,
            "verified": verified,
            "doubtful": [(pair.name0, pair.name1) for pair in summary.doubtful],
            "pruner": summary.pruner,
        }
        return run.map(mapper, list(found), facts)


class _Run:
    """The steps of one call, through files in the output folder."""

    def __init__(self, pycolmap: Any, photos: Path, output: Path, progress: bool) -> None:
        self.pycolmap, self.photos, self.output, self.progress = pycolmap, photos, output, progress
        self.database = output / DATABASE
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[step] = round(time.perf_counter() - start, 2)

    def extract(self, photos: dict[str, Path], cameras: str, max_keypoints: int, longest_side: int) -> None:
        readable = extract_features(
            self.pycolmap, self.database, photos, cameras, max_keypoints, longest_side, self.progress
        )
        if readable < MIN_PHOTOS:
            raise InputError(f"photos: expected at least {MIN_PHOTOS} photos that can be read, got {readable}")
        with open_database(self.database) as database:
            query = "SELECT name, rows FROM images JOIN keypoints USING (image_id)"
            check_features(list(photos), dict(database.connection.execute(query)))

    def map(self, mapper: str, photos: list[str], facts: dict[str, Any]) -> Model:
        """The model of what is in the database: the one that is there, or a new one."""
        report = self.output / REPORT
        with open_database(self.database) as database:
            state = _digest_of_geometries(database, mapper)
        if report.is_file():
            stored = read_json(report)
            if stored.get("state") == state and (self.output / MODELS / "0").is_dir():
                values = {each.name: stored[each.name] for each in fields(Model)}
                return Model(**values | {"folder": str(self.output)})
            # From here on it would tell of another model.
            report.unlink()
        work = self.output / UNFINISHED
        shutil.rmtree(work, ignore_errors=True)
        with self.timed("mapping"):
            models = map_photos(
                self.pycolmap, self.database, self.photos, work, facts["verified"], mapper, len(photos), self.progress
            )
            shutil.rmtree(work)
            for number, model in enumerate(models):
                (work / str(number)).mkdir(parents=True)
                model.write(work / str(number))
            shutil.rmtree(self.output / MODELS, ignore_errors=True)
            work.rename(self.output / MODELS)
        largest = models[0]
        registered = sorted(image.name for image in largest.images.values() if image.has_pose)
        made = Model(
            folder=str(self.output),
            registered=registered,
            left_out=sorted(set(photos) - set(registered)),
            models=len(models),
            points=largest.num_points3D(),
            track_length=round(float(largest.compute_mean_track_length()), 3),
            reprojection_error=round(float(largest.compute_mean_reprojection_error()), 3),
            seconds=self.seconds,
            **facts,
        )
        save_picture(self.output / PICTURE, draw_model(largest, made.summary))
        # Written last, as a sign that all else is complete.
        write_json(report, made.to_dict() | {"state": state}, indent=1)
        return made


def _check_settings(output: Path, settings: dict[str, Any]) -> None:
    """Note how features are made; raise if those that are there were made otherwise."""
    remove_temporaries(output)
    path = output / SETTINGS
    if path.is_file():
        before = read_json(path)
        changed = [name for name in settings if before.get(name) != settings[name]]
        if changed:
            name = changed[0]
            raise InputError(
                f"{name}: {output} was begun with {before.get(name)}, got {settings[name]}; choose another output"
            )
    elif any(path.name != ".lock" for path in output.iterdir()):
        raise InputError(f"output: expected an empty folder or one of an earlier call, got {output}")
    else:
        write_json(path, settings)


def _digest_of_geometries(database: Database, mapper: str) -> str:
    """Changes whenever the mapper would see something else, or the report has other fields."""
    described = mapper, [each.name for each in fields(Model)]
    digest = hashlib.blake2b(repr(described).encode(), digest_size=16)
    for row in database.connection.execute("SELECT pair_id, config, data FROM two_view_geometries ORDER BY pair_id"):
        digest.update(repr(row[:2]).encode() + (row[2] or b""))
    return digest.hexdigest()
