"""Predictions in files, from which scores are computed later.

One safetensors file per pruner: `mask` [S] and `logits` [S] of all pairs one after another, `start` [P + 1] where each
begins, and a JSON header with the pruner, its options, the hash of its weights, the settings of the matches, the names
of the pairs and a fingerprint of the matches of each.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    """A pruner's result for one pair."""

    mask: np.ndarray
    """[N] bool: kept matches."""
    logits: np.ndarray
    """[N] float32."""


@dataclass(frozen=True)
class Origin:
    """What produced the predictions. If anything differs, they are stale."""

    pruner: str
    options: list[dict[str, Any]]
    """Options of each pruner of a chain, defaults included."""
    weights_sha256: str | None
    """Hash of the weight file; None without one."""
    source: str
    """Kind of the source."""
    settings: dict[str, Any]
    """Match settings."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """A pruner's results for all pairs of a source."""

    origin: Origin
    names: list[str]
    """Names of the pairs."""
    fingerprints: list[str]
    """Fingerprints of the matches of each pair."""
    results: Sequence[Prediction]
    versions: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.names)


def fingerprint(matches: Correspondences) -> str:
    """A short hash of the points of all matches in their order.

    >>> matches = Correspondences([[10, 20], [30, 40]], [[12, 20], [33, 41]])
    >>> fingerprint(matches), fingerprint(matches[[1, 0]])
    ('6c3f2c67edc59bf6', '2e63a319eebd39e5')
    """
    matches = matches._as_tensors()
    points = torch.cat([matches.points0, matches.points1], dim=1).cpu().to(torch.float32).contiguous()
    return hashlib.sha256(points.numpy().tobytes()).hexdigest()[:16]


def installed_versions() -> dict[str, str]:
    """Versions of the packages that can change a result."""
    versions = {}
    for package in ("ananet", "numpy", "torch", "opencv-python-headless", "poselib"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def write_predictions(path: str | Path, predictions: Predictions) -> None:
    """Write predictions to a safetensors file that `ananet evaluate --predictions` reads."""
    results = predictions.results
    arrays = {
        "start": np.cumsum([0, *(len(result.mask) for result in results)], dtype=np.int64),
        "mask": np.concatenate([np.zeros(0, bool), *(result.mask for result in results)]),
        "logits": np.concatenate([np.zeros(0, np.float32), *(r.logits for r in results)]).astype(np.float32),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    header = asdict(predictions.origin) | {"pairs": predictions.names, "fingerprints": predictions.fingerprints}
    header["versions"] = dict(predictions.versions)
    save_tensors(path, tensors, {"format": FORMAT, "version": str(VERSION), "header": json.dumps(header)})


def read_predictions(path: str | Path) -> Predictions:
    """Read a file of `write_predictions`."""
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
        # AttributeError: numpy lacks some of the dtypes of safetensors.
        raise InputError(f"predictions: {path} cannot be read ({error})") from None
    if not isinstance(versions, dict):
        raise InputError(f"predictions: {path} cannot be read (expected versions by package, got {versions!r})")
    lists = (names, fingerprints)
    good = all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in lists)
    good = good and start.ndim == mask.ndim == logits.ndim == 1
    good = good and start.dtype == np.int64 and mask.dtype == np.bool_ and logits.dtype == np.float32
    good = good and len(start) - 1 == len(names) == len(fingerprints) and len(mask) == len(logits)
    good = good and start[0] == 0 and start[-1] == len(mask) and bool((start[1:] >= start[:-1]).all())
    if not good or not np.isfinite(logits).all():
        raise InputError(f"predictions: {path} is inconsistent: its pairs and matches do not fit each other")
    results = [Prediction(mask[a:b], logits[a:b]) for a, b in pairwise(start.tolist())]
    return Predictions(origin, names, fingerprints, results, versions)


def check_origin(path: Path, found: Origin, expected: Origin) -> None:
    """Raise unless the predictions come from the same pruner, weights and settings."""
    words = {"weights_sha256": "weights (sha256)", "settings": "match settings"}
    for field in fields(Origin):
        was, now = getattr(found, field.name), getattr(expected, field.name)
        if was != now:
            raise InputError(
                f"predictions: {path} is stale: its {words.get(field.name, field.name)} was {was}, expected {now}; "
                "remove the file, or name another folder"
            )


class PredictionStore:
    """Predictions found in a folder, which must have these origins, and those added to it; None stores nothing."""

    def __init__(self, folder: Path | None, origins: Mapping[str, Origin], pairs: int) -> None:
        self.folder, self.origins, self.pairs = folder, origins, pairs
        self.found: dict[str, Predictions] = {}
        """By pruner: predictions for all pairs, or for the first ones."""
        self.added = 0
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, origin in origins.items():
            file = self._file(name)
            known = read_predictions(file) if file.exists() else _read_parts(self._parts(name))
            if known is not None:
                check_origin(file, known.origin, origin)
                if len(known) > pairs or (file.exists() and len(known) != pairs):
                    raise InputError(f"predictions: {file} is stale: it has {len(known)} pairs, expected {pairs}")
                self.found[name] = known

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"

    def _parts(self, name: str) -> Path:
        return self._file(name).with_name(f"{name}.parts")

    @property
    def complete(self) -> list[str]:
        """Pruners with stored predictions for all pairs."""
        return [name for name, known in self.found.items() if len(known) == self.pairs]

    def given(self, number: int) -> dict[str, Prediction]:
        """The stored predictions for a pair."""
        return {name: known.results[number] for name, known in self.found.items() if number < len(known)}

    def check(self, number: int, name: str, found_fingerprint: str) -> None:
        """Raise if stored predictions are for other matches than those of the source."""
        for pruner, known in self.found.items():
            if number < len(known) and (known.names[number], known.fingerprints[number]) != (name, found_fingerprint):
                was = known.names[number]
                what = f"pair {number} is {name}, the file has {was}" if was != name else f"other matches of {name}"
                raise InputError(
                    f"predictions: {self._file(pruner)} is stale: {what}; remove the file, or name another folder"
                )

    def add(self, made: Sequence[tuple[str, str, Mapping[str, Prediction]]]) -> None:
        """Store the predictions for the next pairs: name, fingerprint, and results by pruner."""
        start, self.added = self.added, self.added + len(made)
        if self.folder is None:
            return
        for pruner, origin in self.origins.items():
            known = len(self.found[pruner]) if pruner in self.found else 0
            new = made[max(0, known - start) :]
            if new:
                names, fingerprints, made_by = map(list, zip(*new, strict=True))
                results = [by_name[pruner] for by_name in made_by]
                self._parts(pruner).mkdir(exist_ok=True)
                part = self._parts(pruner) / f"{max(start, known):08d}.safetensors"
                write_predictions(part, Predictions(origin, names, fingerprints, results, installed_versions()))

    def finish(self) -> None:
        """Join the parts of every pruner to one file."""
        for pruner in self.origins if self.folder is not None else ():
            file, parts = self._file(pruner), self._parts(pruner)
            # Parts beside a complete file are left over from a process that was killed while removing them.
            if not file.exists() and (joined := _read_parts(parts)) is not None:
                write_predictions(file, joined)
            if file.exists() and parts.is_dir():
                shutil.rmtree(parts)


def _read_parts(folder: Path) -> Predictions | None:
    """Join consecutive part files; None if there are none."""
    parts: list[Predictions] = []
    for path in sorted(folder.glob("[0-9]" * 8 + ".safetensors")):
        if int(path.stem) != sum(map(len, parts)):
            break
        parts.append(read_predictions(path))
    if not parts:
        return None
    names, fingerprints, results = (
        [one for part in parts for one in getattr(part, name)] for name in ("names", "fingerprints", "results")
    )
    return Predictions(parts[0].origin, names, fingerprints, results, parts[-1].versions)
