"""Predictions in files: what a pruner said of every match, and what it said it about.

One safetensors file a pruner: `mask` [S] and `logits` [S] of all pairs one after another, `start` [P + 1] where each
begins, and a JSON header with the pruner, its options, the hash of its weights, the settings of the matches, the names
of the pairs and a fingerprint of the matches of each. Scores are made from it later, here or elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ananet.correspondences import Correspondences
from ananet.errors import InputError
from ananet.files import atomic_path

FORMAT = "ananet-predictions"
VERSION = 2


@dataclass(frozen=True, eq=False)
class Prediction:
    """A pruner's answer for one pair."""

    mask: np.ndarray
    """[N] bool: which matches are kept."""
    logits: np.ndarray
    """[N] float32."""


@dataclass(frozen=True)
class Origin:
    """What predictions were made by and of: where this differs, they are stale."""

    pruner: str
    options: list[dict[str, Any]]
    """Of the pruner, or of each in a chain, defaults included."""
    weights_sha256: str | None
    """Of the weight file; None for a pruner without one."""
    source: str
    """Kind of the source."""
    settings: dict[str, Any]
    """How matches were made."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """A pruner's answers for all pairs of a source."""

    origin: Origin
    names: list[str]
    """Of the pairs."""
    fingerprints: list[str]
    """Of the matches of each pair."""
    answers: Sequence[Prediction]
    versions: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.names)


def fingerprint(matches: Correspondences) -> str:
    """A short hash of the points of all matches: other keypoints or another order give another one.

    >>> matches = Correspondences([[10, 20], [30, 40]], [[12, 20], [33, 41]])
    >>> fingerprint(matches), fingerprint(matches[[1, 0]])
    ('6c3f2c67edc59bf6', '2e63a319eebd39e5')
    """
    points = torch.cat([matches.points0, matches.points1], dim=1).cpu().to(torch.float32).contiguous()
    return hashlib.sha256(points.numpy().tobytes()).hexdigest()[:16]


def file_sha256(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def installed_versions() -> dict[str, str]:
    """Of what can change a result."""
    versions = {}
    for package in ("ananet", "numpy", "torch", "opencv-python-headless", "poselib"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def write_predictions(path: str | Path, predictions: Predictions) -> None:
    lengths = [len(answer.mask) for answer in predictions.answers]
    tensors = {
        "start": torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64)),
        "mask": torch.from_numpy(np.concatenate([np.zeros(0, bool), *(a.mask for a in predictions.answers)])),
        "logits": torch.from_numpy(
            np.concatenate([np.zeros(0, np.float32), *(a.logits for a in predictions.answers)]).astype(np.float32)
        ),
    }
    header = {
        **asdict(predictions.origin),
        "pairs": predictions.names,
        "fingerprints": predictions.fingerprints,
        "versions": dict(predictions.versions),
    }
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, {"format": FORMAT, "version": str(VERSION), "header": json.dumps(header)})


def read_predictions(path: str | Path) -> Predictions:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"predictions: no file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT or metadata.get("version") != str(VERSION):
                raise InputError(f"predictions: expected format {FORMAT!r}, version {VERSION} in the header of {path}")
            header = json.loads(metadata["header"])
            start, mask, logits = (file.get_tensor(name) for name in ("start", "mask", "logits"))
        origin = Origin(**{field.name: header[field.name] for field in fields(Origin)})
        names, fingerprints, versions = header["pairs"], header["fingerprints"], header["versions"]
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"predictions: {path} cannot be read ({error})") from None
    if not len(start) - 1 == len(names) == len(fingerprints) or not start[-1] == len(mask) == len(logits):
        raise InputError(f"predictions: {path} contradicts itself: {len(names)} pairs, {len(mask)} matches")
    answers = [Prediction(mask[a:b], logits[a:b]) for a, b in pairwise(start.tolist())]
    return Predictions(origin, names, fingerprints, answers, versions)


def check_origin(path: Path, found: Origin, expected: Origin) -> None:
    """Refuses predictions that were made by another pruner or weight file, or with other settings."""
    for name, was, now in (
        ("pruner", found.pruner, expected.pruner),
        ("options", found.options, expected.options),
        ("weights (sha256)", found.weights_sha256, expected.weights_sha256),
        ("source", found.source, expected.source),
        ("match settings", found.settings, expected.settings),
    ):
        if was != now:
            raise InputError(
                f"predictions: {path} is stale: its {name} was {was}, expected {now}; "
                "remove the file, or name another folder"
            )


def check_pair(path: Path, found: Predictions, number: int, name: str, matches: Correspondences) -> None:
    """Refuses predictions whose matches are not those of the source."""
    if number >= len(found) or found.names[number] != name:
        was = found.names[number] if number < len(found) else "nothing"
        raise InputError(f"predictions: {path} is stale: pair {number} is {name}, the file has {was}")
    answer = found.answers[number]
    if len(answer.mask) != len(matches) or found.fingerprints[number] != fingerprint(matches):
        raise InputError(
            f"predictions: {path} is stale: it was made of other matches of {name} "
            f"({len(answer.mask)}, now {len(matches)}); remove the file, or name another folder"
        )
