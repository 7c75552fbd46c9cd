"""Predictions in files: what a pruner said of every match, and what it said it about.

One safetensors file per pruner: `mask` [S] and `logits` [S] of all pairs one after another, `start` [P + 1] where each
begins, and a JSON header with the pruner, its options, the hash of its weights, the settings of the matches, the names
of the pairs and a fingerprint of the matches of each. Scores are made from it later, here or elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.io.files import save_tensors

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
    """What produced the predictions. If any of it differs, they are stale."""

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
    """Write predictions to a safetensors file that `ananet evaluate --predictions` reads."""
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
    save_tensors(path, tensors, {"format": FORMAT, "version": str(VERSION), "header": json.dumps(header)})


def read_predictions(path: str | Path) -> Predictions:
    """Predictions that `write_predictions` wrote."""
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
    except InputError:
        raise
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        # An AttributeError: numpy knows fewer kinds of numbers than safetensors.
        raise InputError(f"predictions: {path} cannot be read ({error})") from None
    if not isinstance(versions, dict):
        raise InputError(f"predictions: {path} cannot be read (expected versions by package, got {versions!r})")
    _check_consistent(path, start, mask, logits, names, fingerprints)
    answers = [Prediction(mask[a:b], logits[a:b]) for a, b in pairwise(start.tolist())]
    return Predictions(origin, names, fingerprints, answers, versions)


def _check_consistent(
    path: Path, start: np.ndarray, mask: np.ndarray, logits: np.ndarray, names: Any, fingerprints: Any
) -> None:
    lists = (names, fingerprints)
    good = all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in lists)
    good = good and start.ndim == mask.ndim == logits.ndim == 1
    good = good and start.dtype == np.int64 and mask.dtype == np.bool_ and logits.dtype == np.float32
    good = good and len(start) - 1 == len(names) == len(fingerprints) and len(mask) == len(logits)
    good = good and start[0] == 0 and start[-1] == len(mask) and bool((start[1:] >= start[:-1]).all())
    if not good or not np.isfinite(logits).all():
        raise InputError(f"predictions: {path} contradicts itself: its pairs and matches do not fit each other")


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


class PredictionStore:
    """A folder of predictions: what is there already, and what is added as an evaluation goes.

    Args:
        folder: None keeps nothing.
        origins: of the predictions that are asked for, by pruner.
        pairs: how many there are.
    """

    def __init__(self, folder: Path | None, origins: Mapping[str, Origin], pairs: int) -> None:
        self.folder, self.origins, self.pairs = folder, origins, pairs
        self.found: dict[str, Predictions] = {}
        """Of each pruner that has any: for all pairs, or for the first so many."""
        self.added = 0
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, origin in origins.items():
            known = (
                _read_parts(self._parts(name)) if not self._file(name).exists() else read_predictions(self._file(name))
            )
            if known is not None:
                check_origin(self._file(name), known.origin, origin)
                if len(known) > pairs or (self._file(name).exists() and len(known) != pairs):
                    raise InputError(
                        f"predictions: {self._file(name)} is stale: it has {len(known)} pairs, expected {pairs}"
                    )
                self.found[name] = known

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"

    def _parts(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.parts"

    @property
    def complete(self) -> list[str]:
        """Pruners whose predictions for all pairs were there."""
        return [name for name, known in self.found.items() if len(known) == self.pairs]

    def given(self, number: int) -> dict[str, Prediction]:
        """The predictions for a pair that were there."""
        return {name: known.answers[number] for name, known in self.found.items() if number < len(known)}

    def check(self, number: int, name: str, found_fingerprint: str) -> None:
        """Refuses predictions whose matches are not those of the source."""
        for pruner, known in self.found.items():
            if number < len(known) and (known.names[number], known.fingerprints[number]) != (name, found_fingerprint):
                was = known.names[number]
                what = f"pair {number} is {name}, the file has {was}" if was != name else f"other matches of {name}"
                raise InputError(
                    f"predictions: {self._file(pruner)} is stale: {what}; remove the file, or name another folder"
                )

    def add(self, made: Sequence[tuple[str, str, Mapping[str, Prediction]]]) -> None:
        """Keep the predictions for the next pairs: name, fingerprint, and the answer of every pruner."""
        start, self.added = self.added, self.added + len(made)
        if self.folder is None:
            return
        for pruner, origin in self.origins.items():
            known = len(self.found[pruner]) if pruner in self.found else 0
            new = made[max(0, known - start) :]
            if new:
                names, fingerprints, answers = zip(*((n, f, answer[pruner]) for n, f, answer in new), strict=True)
                self._parts(pruner).mkdir(exist_ok=True)
                part = self._parts(pruner) / f"{max(start, known):08d}.safetensors"
                write_predictions(
                    part, Predictions(origin, list(names), list(fingerprints), answers, installed_versions())
                )

    def finish(self) -> None:
        """Join the parts of every pruner to one file."""
        for pruner in self.origins if self.folder is not None else ():
            parts = self._parts(pruner)
            # Parts beside a file that is complete were being removed when the process ended: there may be few left.
            if not self._file(pruner).exists() and (joined := _read_parts(parts)) is not None:
                write_predictions(self._file(pruner), joined)
            if self._file(pruner).exists() and parts.is_dir():
                shutil.rmtree(parts)


def _read_parts(folder: Path) -> Predictions | None:
    """Predictions for the first so many pairs, from files that follow each other; None where there are none."""
    parts: list[Predictions] = []
    for path in sorted(folder.glob("[0-9]" * 8 + ".safetensors")):
        if int(path.stem) != sum(map(len, parts)):
            break
        parts.append(read_predictions(path))
    if not parts:
        return None
    return Predictions(
        parts[0].origin,
        [name for part in parts for name in part.names],
        [one for part in parts for one in part.fingerprints],
        [answer for part in parts for answer in part.answers],
        parts[-1].versions,
    )
