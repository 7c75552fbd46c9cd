"""kornia's LightGlue and LighterGlue: networks that match keypoints by descriptor and position."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ananet._util.checks import check_share
from ananet.errors import InputError
from ananet.features.base import Features
from ananet.features.kornia import import_features
from ananet.features.learned import fill, take_weights
from ananet.features.matching import Matcher


class LightGlue(Matcher):
    """LightGlue (Lindenberger et al. 2023): one-to-one matches of ALIKED or DISK keypoints.

    Args:
        threshold: lowest score of matches, from 0 to 1.
        keypoints: name of their detector, if features come from a file.
        weights: a file; see `features.learned`.
        detector: name of the detector.
    """

    name = "lightglue"
    licence: ClassVar[str] = "Apache-2.0"
    weights_of: ClassVar[dict[str, str]] = {"aliked": "aliked_lightglue", "disk": "disk_lightglue"}
    """Names of the weights, by detector."""

    def __init__(
        self,
        threshold: float = 0.1,
        keypoints: str | None = None,
        weights: Path | None = None,
        device: str | torch.device = "cpu",
        *,
        detector: str,
    ) -> None:
        check_share("threshold", threshold)
        keypoints = keypoints or detector
        if keypoints not in self.weights_of:
            known = " or ".join(self.weights_of)
            raise InputError(f"matcher {self.name!r}: expected keypoints of {known}, got {keypoints!r}")
        of_kornia, name = import_features().LightGlue, self.weights_of[keypoints]
        found, source = take_weights(name, weights, lambda: of_kornia(keypoints).state_dict(), "--matcher-weights")
        settings = of_kornia.default_conf | of_kornia.features[keypoints]
        self.device = torch.device(device)
        self.network: Any = network_of(renamed(found), settings | {"filter_threshold": threshold}, name, source)
        self.network.eval().requires_grad_(False).to(self.device)

    def pair(self, features0: Features, features1: Features) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with torch.inference_mode():
            found = self.network({"image0": self._given(features0), "image1": self._given(features1)})
        return found["matches"][0].cpu().numpy(), {"scores": found["scores"][0].float().cpu().numpy()}

    def _given(self, features: Features) -> dict[str, Tensor]:
        """Return the input for one image, as a batch of one."""
        descriptors, width = features.descriptors, self.network.conf.input_dim
        if descriptors.dtype == np.uint8 or descriptors.shape[1] != width:
            got = f"{descriptors.dtype} {descriptors.shape}"
            raise InputError(f"descriptors: matcher {self.name!r} expected real numbers (N, {width}), got {got}")
        size = np.array(features.image_size, np.float32)
        given = {
            # Undistorted keypoints may lie outside the image, which kornia refuses.
            "keypoints": features.points.clip(0, size),
            "descriptors": descriptors.astype(np.float32),
            "image_size": size,
        }
        return {name: torch.from_numpy(values)[None].to(self.device) for name, values in given.items()}


class LighterGlue(LightGlue):
    """LighterGlue (Potje et al. 2024): a smaller LightGlue for XFeat keypoints."""

    name = "lighterglue"
    weights_of: ClassVar[dict[str, str]] = {"xfeat": "xfeat-lighterglue"}


def network_of(weights: dict[str, Tensor], settings: dict[str, Any], name: str, source: str) -> nn.Module:
    """Return kornia's LightGlue with these weights, and with their number of layers.

    Files with only the first layers may lack the weights for early stopping and point pruning; then both are off.

    Args:
        settings: kornia's.
        name, source: expected weights, and where these come from, for the error message.
    """
    layers = len({number[1] for key in weights if (number := re.match(r"transformers\.(\d+)\.", key))})
    early = tuple(f"log_assignment.{number}." for number in range(layers - 1))
    not_needed: tuple[str, ...] = ("confidence_thresholds",)
    if not any(key.startswith(early) for key in weights):
        settings = settings | {"depth_confidence": -1, "width_confidence": -1}
        not_needed += early
    if settings["depth_confidence"] < 0:
        not_needed += ("token_confidence.",)
    # At least one layer, so that the error for other weights names what is missing.
    network = import_features().LightGlue(None, **settings | {"weights": None, "n_layers": max(1, layers)})
    fill(network, weights, name, source, not_needed)
    return network


def renamed(weights: dict[str, Any]) -> dict[str, Any]:
    """Return weights by kornia's current names; files of the authors have older ones."""
    names = {
        key: re.sub(r"^(self|cross)_attn\.(\d+)", r"transformers.\2.\1_attn", key.removeprefix("matcher."))
        for key in weights
    }
    # Some files have an unused `r`.
    return {name: weights[key] for key, name in names.items() if not re.fullmatch(r"log_assignment\.\d+\.r", name)}
