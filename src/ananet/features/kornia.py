"""kornia's networks: the detectors ALIKED, DISK and XFeat, and the matchers LightGlue and LighterGlue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ananet._util.checks import check_share
from ananet._util.defaults import LONGEST_SIDE
from ananet.errors import InputError, MissingExtraError
from ananet.features.base import Features
from ananet.features.learned import LearnedDetector, fill, inside, take_weights
from ananet.features.matching import Matcher

# Keypoints nearer than this to the border of the photo are left out, as in kornia.
BORDER = 2


def import_features() -> Any:
    try:
        import kornia.feature
    except ImportError:
        raise MissingExtraError("kornia", "features") from None
    return kornia.feature


class ALIKED(LearnedDetector):
    """ALIKED (Zhao et al. 2023): keypoints between pixels, descriptors of 128 numbers, 64 of the model t16.

    Args:
        threshold: lowest score of keypoints, from 0 to 1.
        model: n16, n32 (samples more around a keypoint), n16rot (trained with turned photos) or t16 (small, fast).
    """

    name = "aliked"
    licence = "BSD-3-Clause"

    def __init__(
        self,
        max_keypoints: int | None = None,
        threshold: float = 0.0,
        model: Literal["n16", "n32", "n16rot", "t16"] = "n16",
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        check_share("threshold", threshold)
        kind, name = import_features().ALIKED, f"aliked-{model}"
        network = kind(name, self.max_keypoints, threshold)
        self.network = self.use(network, name, weights, lambda: kind.from_pretrained(name).state_dict(), ("dkd.",))

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        found = self.network(image, image_size=torch.tensor([size]))[0]
        return found.keypoints, found.descriptors, found.keypoint_scores


class DISK(LearnedDetector):
    """DISK (Tyszkiewicz et al. 2020): whole pixels, descriptors of 128 numbers.

    Args:
        threshold: lowest score of keypoints, of any size.
        model: supervision of its training.
    """

    name = "disk"
    licence = "Apache-2.0"

    def __init__(
        self,
        max_keypoints: int | None = None,
        threshold: float = 0.0,
        model: Literal["depth", "epipolar"] = "depth",
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        self.threshold = threshold
        kind = import_features().DISK
        self.network = self.use(
            kind(), f"disk-{model}", weights, lambda: kind.from_pretrained(model).state_dict(), channels_last=False
        )

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        found = self.network(image, score_threshold=self.threshold)[0]
        seen = inside(found.keypoints, size, BORDER)
        return found.keypoints[seen], found.descriptors[seen], found.detection_scores[seen]


class XFeat(LearnedDetector):
    """XFeat (Potje et al. 2024): fast on a CPU; whole pixels, descriptors of 64 numbers, `threshold` in [0, 1]."""

    name = "xfeat"
    licence = "Apache-2.0"

    def __init__(
        self,
        max_keypoints: int | None = None,
        threshold: float = 0.05,
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        check_share("threshold", threshold)
        kind = import_features().XFeat
        # No limit here: keypoints in the padding are removed before the strongest are chosen.
        self.network = kind(top_k=2**31, detection_threshold=threshold)
        # The fine matcher refines matches, which we do not use.
        not_needed = ("fine_matcher.",)
        self.use(self.network.net, "xfeat", weights, lambda: kind.from_pretrained().net.state_dict(), not_needed)

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        found = self.network.detectAndCompute(image)[0]
        seen = inside(found["keypoints"], size, BORDER)
        return found["keypoints"][seen], found["descriptors"][seen], found["scores"][seen]


class LightGlue(Matcher):
    """LightGlue (Lindenberger et al. 2023): one-to-one matches of ALIKED or DISK keypoints.

    Args:
        threshold: lowest score of matches, from 0 to 1.
        keypoints: name of their detector, if features come from a file.
        weights: a file; None to look for it in the folder ANANET_WEIGHTS, or download it.
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
