"""kornia's ALIKED, DISK and XFeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ananet._util.checks import check_share
from ananet._util.defaults import LONGEST_SIDE, MAX_KEYPOINTS
from ananet.errors import MissingExtraError
from ananet.features.learned import LearnedDetector, inside

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
        max_keypoints: number of keypoints to keep, the strongest ones.
        threshold: lowest score of keypoints, from 0 to 1.
        model: n16, n32 (samples more around a keypoint), n16rot (trained with turned photos) or t16 (small, fast).
        weights: a file; see `features.learned`.
        longest_side: larger photos are scaled down to it; none leaves all as they are.
    """

    name = "aliked"
    licence = "BSD-3-Clause"

    def __init__(
        self,
        max_keypoints: int = MAX_KEYPOINTS,
        threshold: float = 0.0,
        model: Literal["n16", "n32", "n16rot", "t16"] = "n16",
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        check_share("threshold", threshold)
        of_kornia = import_features().ALIKED
        name = f"aliked-{model}"
        self.network = self.use(
            of_kornia(name, self.max_keypoints, threshold),
            name,
            weights,
            lambda: of_kornia.from_pretrained(name).state_dict(),
            not_needed=("dkd.",),
        )

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        found = self.network(image, image_size=torch.tensor([size]))[0]
        return found.keypoints, found.descriptors, found.keypoint_scores


class DISK(LearnedDetector):
    """DISK (Tyszkiewicz et al. 2020): whole pixels, descriptors of 128 numbers.

    Args:
        max_keypoints: number of keypoints to keep, the strongest ones.
        threshold: lowest score of keypoints, of any size.
        model: supervision of its training.
        weights: a file; see `features.learned`.
        longest_side: larger photos are scaled down to it; none leaves all as they are.
    """

    name = "disk"
    licence = "Apache-2.0"

    def __init__(
        self,
        max_keypoints: int = MAX_KEYPOINTS,
        threshold: float = 0.0,
        model: Literal["depth", "epipolar"] = "depth",
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        self.threshold = threshold
        of_kornia = import_features().DISK
        self.network = self.use(
            of_kornia(),
            f"disk-{model}",
            weights,
            lambda: of_kornia.from_pretrained(model).state_dict(),
            channels_last=False,
        )

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        found = self.network(image, score_threshold=self.threshold)[0]
        seen = inside(found.keypoints, size, BORDER)
        return found.keypoints[seen], found.descriptors[seen], found.detection_scores[seen]


class XFeat(LearnedDetector):
    """XFeat (Potje et al. 2024): fast on a CPU; whole pixels, descriptors of 64 numbers.

    Args:
        max_keypoints: number of keypoints to keep, the strongest ones.
        threshold: lowest value of the keypoint map, from 0 to 1.
        weights: a file; see `features.learned`.
        longest_side: larger photos are scaled down to it; none leaves all as they are.
    """

    name = "xfeat"
    licence = "Apache-2.0"

    def __init__(
        self,
        max_keypoints: int = MAX_KEYPOINTS,
        threshold: float = 0.05,
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        check_share("threshold", threshold)
        of_kornia = import_features().XFeat
        # No limit here: keypoints in the padding are removed before the strongest are chosen.
        self.network = of_kornia(top_k=2**31, detection_threshold=threshold)
        self.use(
            self.network.net,
            "xfeat",
            weights,
            lambda: of_kornia.from_pretrained().net.state_dict(),
            # Refines matches, which we do not use.
            not_needed=("fine_matcher.",),
        )

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        found = self.network.detectAndCompute(image)[0]
        seen = inside(found["keypoints"], size, BORDER)
        return found["keypoints"][seen], found["descriptors"][seen], found["scores"][seen]
