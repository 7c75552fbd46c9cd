"""Uploads, checked before use (nothing is unpickled), and results as the service sends them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ananet.core.conflicts import penalize_conflicts
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.io.images import image_size
from ananet.io.npz import OPTIONAL, REQUIRED, read_arrays
from ananet.pruners import Pruned
from ananet.twoview import PhotoMatches
from ananet.twoview.cameras import parse_camera
from ananet.web.limits import Limits

# Maximum number of 8-byte numbers per match, and of bytes of all headers.
NUMBERS_PER_MATCH, HEADERS_BYTES = 16, 65_536
# An archive directory of hundreds of thousands of entries takes seconds to read.
MAX_ENTRIES = 64
# First bytes of JPEG, PNG and WebP files.
PHOTO_KINDS = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF")


def matches_from_json(data: bytes, limits: Limits) -> tuple[Correspondences, str | None]:
    """Return the matches, and the requested pruner."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError("body: expected a JSON object with points0 and points1, got no valid JSON") from None
    if not isinstance(given, dict):
        raise InputError(f"body: expected a JSON object with points0 and points1, got {type(given).__name__}")
    pruner = given.pop("pruner", None)
    if pruner is not None and not isinstance(pruner, str):
        raise InputError(f"pruner: expected a name, got {type(pruner).__name__}")
    missing = [name for name in REQUIRED if name not in given]
    unknown = sorted(set(given) - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        got = f"no {', '.join(missing)}" if missing else shown(", ".join(unknown))
        expected = f"{', '.join(REQUIRED)} and optionally {', '.join(OPTIONAL)}, pruner"
        raise InputError(f"body: expected {expected}, got {got}")
    arrays = {name: _array(name, values, limits) for name, values in given.items() if values is not None}
    return Correspondences(**arrays), pruner


def _array(name: str, values: Any, limits: Limits) -> np.ndarray:
    if not isinstance(values, list):
        raise InputError(f"{name}: expected a list of numbers, got {type(values).__name__}")
    _check_count(name, len(values), limits)
    try:
        array = np.array(values)
    except ValueError:
        raise InputError(f"{name}: expected lists of the same length, got different lengths") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected a list of numbers, got values of type {array.dtype}")
    return array


def matches_from_npz(data: bytes, limits: Limits) -> tuple[Correspondences, None]:
    """Return the matches of an .npz file, which names no pruner. Sizes are checked before unpacking."""
    if data.count(b"PK\x01\x02") > MAX_ENTRIES:
        raise InputError(f"npz: expected at most {MAX_ENTRIES} arrays, got more")
    arrays = read_arrays(Path("npz"), data=data, max_bytes=8 * NUMBERS_PER_MATCH * limits.matches + HEADERS_BYTES)
    for name, values in arrays.items():
        _check_count(name, len(values) if values.ndim else 0, limits)
    return Correspondences(**arrays), None


def _check_count(name: str, count: int, limits: Limits) -> None:
    if count > limits.matches:
        raise InputError(f"{name}: expected at most {limits.matches:,} matches, got {count:,}")


def check_photo(name: str, data: bytes, limits: Limits) -> str:
    """Check the kind and the number of pixels of a photo by its header. Return its name, safe to print."""
    name = shown(name) or "photo"
    size = image_size(data) if data.startswith(PHOTO_KINDS) else None
    if size is None:
        raise InputError(f"{name}: expected a JPEG, PNG or WebP photo, got a file of another kind")
    if math.prod(size) > limits.pixels:
        got = f"{math.prod(size):,} ({size[0]} x {size[1]})"
        raise InputError(f"{name}: expected at most {limits.pixels:,} pixels, got {got}")
    return name


def read_cameras(fields: dict[str, str]) -> dict[str, Any]:
    """Return K0 and K1 (fx,fy,cx,cy) or focal of a form, as `PhotoMatcher` takes them."""
    given = {name: fields[name] for name in ("K0", "K1") if fields.get(name)}
    found: dict[str, Any] = {name: parse_camera(name, text, shown=repr(shown(text))) for name, text in given.items()}
    if fields.get("focal") == "auto":
        found["focal"] = "auto"
    elif fields.get("focal"):
        try:
            found["focal"] = float(fields["focal"])
        except ValueError:
            raise InputError(f"focal: expected a number of pixels or auto, got {shown(fields['focal'])!r}") from None
    return found


def shown(text: Any) -> str:
    """Return a client's text as it may be printed: short, printable, without folders."""
    name = str(text).replace("\\", "/").rpartition("/")[2]
    return "".join(sign for sign in name if sign.isprintable())[:80]


def prune_result(kept: Pruned, decision: float) -> dict[str, Any]:
    told = {"pruner": kept.pruner, "threshold": 1 / (1 + math.exp(-decision))}
    return told | {"mask": kept.mask.tolist(), "scores": kept.scores.tolist()}


def match_result(found: PhotoMatches) -> dict[str, Any]:
    """`PhotoMatches.to_dict` with all matches, and what the page needs to show conflicts."""
    return found.to_dict(matches=True) | {"conflicting": conflicting(found).tolist()}


def conflicting(found: PhotoMatches) -> np.ndarray:
    """[N] bool: matches that share a point with a better match and end elsewhere in the other photo."""
    logits = torch.as_tensor(found.kept.logits)[None]
    # Conflicts lower the logits of all but the best match.
    lowered = penalize_conflicts(logits, found.matches._as_tensors().normalized().float()[None], math.e)
    return (lowered < logits)[0].numpy()
