"""Networks as ONNX files, which do all that a pruner does but checking its input."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ananet_lite.matches import InputError, checked

FOLDER = Path(__file__).parent / "networks"
# Those of ananet.
THRESHOLD, CONFLICT_ODDS = 0.4, 30.0
# Numbers that networks may read of every match, and the arguments that hold them.
SIDE = {
    "keypoint_size0": "keypoint_sizes0",
    "keypoint_size1": "keypoint_sizes1",
    "angle0": "angles0",
    "angle1": "angles1",
}


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruner's result."""

    mask: np.ndarray
    """[N] bool: which matches to keep."""
    scores: np.ndarray
    """[N] float32 in [0, 1): how likely each match is right, the sigmoid of its logit."""
    logits: np.ndarray
    """[N] float32: the same before the sigmoid, 0 where undecided."""
    pruner: str = ""
    """Name of the pruner."""

    @property
    def indices(self) -> np.ndarray:
        """Indices of the kept matches, best first."""
        order = np.argsort(-self.logits, kind="stable")
        return order[self.mask[order]]

    def __repr__(self) -> str:
        by = f" by {self.pruner}" if self.pruner else ""
        return f"Pruned({int(self.mask.sum())} of {len(self.mask)} matches kept{by})"


class Pruner:
    """A network that scores matches.

    Args:
        path: an ONNX file that `ananet.integrations.onnx.export(pruner, path, pixels=True)` wrote.
        threshold: the probability above which a match is kept.
        conflict_odds: of matches that share a point but lie apart in the other image, the odds of all but the best are
            divided by this.
        threads: of ONNX Runtime; None for as many as there are cores.
    """

    def __init__(
        self,
        path: str | Path,
        threshold: float = THRESHOLD,
        conflict_odds: float = CONFLICT_ODDS,
        threads: int | None = None,
    ) -> None:
        if not _is_number(threshold) or not 0 < threshold < 1:
            raise InputError(f"threshold: expected a probability above 0 and below 1, got {threshold!r}")
        if not _is_number(conflict_odds) or not conflict_odds >= 1:
            raise InputError(f"conflict_odds: expected a number of at least 1, got {conflict_odds!r}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        # Threads that spin while they wait take cores from others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        metadata = self._session.get_modelmeta().custom_metadata_map
        if metadata.get("input") != "pixels":
            raise InputError(f"pruner: expected a network that takes pixels, of export(..., pixels=True), got {path}")
        self.name = metadata["pruner"]
        self.side: list[str] = json.loads(metadata["side"])
        """Numbers that the network reads of every match beside its points."""
        self._decision = {"threshold": np.array(float(threshold)), "conflict_odds": np.array(float(conflict_odds))}

    def __call__(self, points0: Any, points1: Any = None, **given: Any) -> Pruned:
        """Prune one set of matches.

        Args:
            points0, points1: [N x 2] pixel coordinates, numpy arrays or lists.
            given: K0 and K1, or image_size0 and image_size1; optionally ratio, mutual, keypoint_sizes0 and
                keypoint_sizes1, angles0 and angles1, as `ananet.Correspondences` takes them.
        """
        arrays = checked(points0, points1, given)
        count = len(arrays["points0"])
        if count == 0:
            nothing = np.zeros(0, np.float32)
            return Pruned(np.zeros(0, bool), nothing, nothing.copy(), self.name)
        unknown = {"K": np.full((3, 3), math.nan), "image_size": np.full(2, math.nan)}
        inputs = {name: arrays.get(name, unknown.get(name[:-1])) for name in (
            "points0", "points1", "K0", "K1", "image_size0", "image_size1"
        )}  # fmt: skip
        inputs = {name: np.asarray(value, np.float64) for name, value in inputs.items()} | self._decision
        if self.side:
            missing = np.full(count, math.nan, np.float32)
            inputs["side"] = np.stack([arrays.get(SIDE.get(name, name), missing) for name in self.side], axis=1)
        logits, scores, mask = self._session.run(["logits", "scores", "mask"], inputs)
        return Pruned(mask, scores, logits, self.name)

    def __repr__(self) -> str:
        return f"<pruner {self.name}>"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def list_pruners() -> list[str]:
    """Names that `load` takes."""
    return sorted(path.stem for path in FOLDER.glob("*.onnx"))


def load(
    pruner: str | Path = "ananet",
    *,
    threshold: float = THRESHOLD,
    conflict_odds: float = CONFLICT_ODDS,
    threads: int | None = None,
) -> Pruner:
    """A pruner by its name, or by the path of an ONNX file; see `Pruner`."""
    path = FOLDER / f"{pruner}.onnx"
    if not path.is_file():
        path = Path(pruner)
    if not path.is_file():
        names = ", ".join(list_pruners()) or "nothing: the package was built without its networks"
        raise InputError(f"pruner: expected one of {names}, or an ONNX file, got {str(pruner)!r}")
    return Pruner(path, threshold, conflict_odds, threads)
