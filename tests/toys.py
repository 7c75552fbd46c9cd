"""A network, a detector, an estimator, a data source and a pruner, each in all that it takes to add one."""

import json
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from ananet import Correspondences
from ananet.core import geometry
from ananet.datasets.base import LabelledPair
from ananet.datasets.sources import SOURCES, StoredPairs
from ananet.estimators import ESTIMATORS, Estimator
from ananet.features import DETECTORS, Features, ImageDetector
from ananet.networks import NETWORKS, Network, NetworkSettings
from ananet.networks.base import rescale_linear
from ananet.pruners import CLASSICAL, Pruner
from tests.conftest import make_problem


@dataclass(frozen=True)
class ToySettings(NetworkSettings):
    name: str = "toy"
    width: int = 8


@NETWORKS.add
class ToyNetwork(Network):
    """Two stages: one layer, and a second look at what it said."""

    name = "toy"
    Settings = ToySettings
    settings: ToySettings

    def __init__(self, settings: ToySettings | None = None) -> None:
        super().__init__(settings)
        self.first = nn.Sequential(nn.Linear(self.settings.channels, self.settings.width), nn.ReLU())
        self.glance = nn.Linear(self.settings.width, 1)
        self.head = nn.Linear(self.settings.width + 1, 1)

    def stages(self, matches: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        features = self.first(matches)
        early = self.glance(features)
        final = self.head(torch.cat([features, early], dim=-1))
        logits = [early[..., 0], final[..., 0]]
        return logits if mask is None else [one.masked_fill(~mask, 0.0) for one in logits]

    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.stages(matches, mask)[-1]

    def rescale_logits(self, scale: float, shift: float) -> None:
        rescale_linear(self.head, scale, shift)


@DETECTORS.add
class GridDetector(ImageDetector):
    """Keypoints on a grid, described by the pixels around them."""

    name = "grid"

    def __init__(self, max_keypoints: int = 2000, step: int = 8) -> None:
        super().__init__(max_keypoints)
        self.step = step

    def extract(self, image: np.ndarray) -> Features:
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
        height, width = grey.shape
        x, y = np.meshgrid(np.arange(8, width - 8, self.step), np.arange(8, height - 8, self.step))
        points = np.stack([x.ravel(), y.ravel()], axis=1)[: self.max_keypoints]
        patches = [grey[v - 8 : v + 8, u - 8 : u + 8].astype(np.float32).ravel() for u, v in points]
        return Features(points.astype(np.float32), np.stack(patches), (width, height))


@ESTIMATORS.add
class EightPoint(Estimator):
    """All matches in one linear solution: right as long as all of them are."""

    name = "eight-point"

    def find_pose(self, matches):
        rays = matches._as_tensors().normalized().double().cpu()
        E = geometry.weighted_eight_point(rays[:, :2], rays[:, 2:])
        return geometry.recover_pose(E, rays[:, :2], rays[:, 2:])[:2]

    def find_fundamental(self, matches):
        return geometry.weighted_eight_point(*(torch.from_numpy(points) for points in matches.numpy_points()))

    def find_homography(self, matches):
        points0, points1 = (torch.from_numpy(points) for points in matches.numpy_points())
        return geometry.weighted_homography(points0, points1, torch.ones(len(matches)))


@SOURCES.add
class JSONProblems(StoredPairs):
    """A file that lists seeds of problems."""

    name = "toy problems"
    recognised_by = "a .toy file"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.suffix == ".toy"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.seeds = json.loads(self.path.read_text())

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, number: int) -> LabelledPair:
        problem = make_problem(inliers=60, outliers=40, seed=self.seeds[number])
        return LabelledPair.from_pose(str(number), problem.matches, problem.R, problem.t, scene=f"s{number % 2}")


@CLASSICAL.add
class EveryOther(Pruner):
    """Keeps every other match."""

    name = "every-other"

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.where((torch.arange(len(matches)) + self.offset) % 2 == 0, 1.0, -1.0)
