"""Two-view problems with known truth, for every test that needs one."""

import os
from dataclasses import dataclass

# Both before torch reads them. With one process per core, more threads only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# As the command line does: threads that spin slow down a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# isort: split
import numpy as np
import pytest
import torch

from ananet.core.correspondences import Correspondences
from ananet.core.geometry import essential_from_pose

# Importing it registers its toys; only the tests that use them should.
collect_ignore = ["toys.py"]


# Files whose tests start programs, browsers or clusters.
SLOW_FILES = {"test_notebooks.py", "test_page.py", "test_cluster.py", "test_exporter.py", "test_limits.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_FILES or item.path.name.startswith("test_benchmark_"):
            item.add_marker(pytest.mark.slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@dataclass
class Problem:
    matches: Correspondences
    inlier: np.ndarray
    R: torch.Tensor
    t: torch.Tensor

    @property
    def E(self) -> torch.Tensor:
        return essential_from_pose(self.R, self.t)


def make_problem(inliers: int = 300, outliers: int = 200, noise: float = 0.2, seed: int = 0) -> Problem:
    """Points in front of two cameras, projected with pixel noise, and random matches among them."""
    rng = np.random.default_rng(seed)
    width, height, focal = 640, 480, 500.0
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    angle = np.radians([4.0, -12.0, 7.0])
    Rx = np.array([[1, 0, 0], [0, np.cos(angle[0]), -np.sin(angle[0])], [0, np.sin(angle[0]), np.cos(angle[0])]])
    Ry = np.array([[np.cos(angle[1]), 0, np.sin(angle[1])], [0, 1, 0], [-np.sin(angle[1]), 0, np.cos(angle[1])]])
    Rz = np.array([[np.cos(angle[2]), -np.sin(angle[2]), 0], [np.sin(angle[2]), np.cos(angle[2]), 0], [0, 0, 1]])
    R = Rz @ Ry @ Rx
    t = np.array([0.9, 0.1, 0.4])
    t = t / np.linalg.norm(t)
    # A wavy surface: neighbours move alike, as they do in photos.
    points0 = rng.uniform([0, 0], [width, height], (inliers, 2))
    depth = 6 + np.sin(points0[:, 0] / 90) + np.cos(points0[:, 1] / 70)
    X = np.c_[points0, np.ones(inliers)] @ np.linalg.inv(K).T * depth[:, None]
    projected = (X @ R.T + t) @ K.T
    points1 = projected[:, :2] / projected[:, 2:]
    points0 = np.r_[points0 + rng.normal(0, noise, points0.shape), rng.uniform([0, 0], [width, height], (outliers, 2))]
    points1 = np.r_[points1 + rng.normal(0, noise, points1.shape), rng.uniform([0, 0], [width, height], (outliers, 2))]
    inlier = np.arange(inliers + outliers) < inliers
    order = rng.permutation(len(inlier))
    inlier = inlier[order]
    matches = Correspondences(
        points0[order],
        points1[order],
        K0=K,
        K1=K,
        image_size0=(width, height),
        image_size1=(width, height),
        ratio=np.where(inlier, rng.uniform(0.3, 0.8, len(inlier)), rng.uniform(0.75, 1, len(inlier))),
        mutual=np.where(inlier, True, rng.random(len(inlier)) < 0.3),
    )
    return Problem(matches, inlier, torch.from_numpy(R), torch.from_numpy(t))


@pytest.fixture
def problem() -> Problem:
    return make_problem()
