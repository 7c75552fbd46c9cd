"""A small world to evaluate on: photos of a textured plane and box with exact cameras, in every form a source has."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from ananet.evaluation import Evaluation, evaluate, runner
from ananet.networks import ANANet, ANANetSettings, save_network

SIZE = (320, 240)
K = np.array([[300.0, 0, 159.5], [0, 300.0, 119.5], [0, 0, 1]])


@dataclass
class World:
    folder: Path
    """Of scenes: `room` with three photos and pairs.txt."""
    weights: Path
    """A network that was not trained."""


def camera_pose(number: int) -> tuple[np.ndarray, np.ndarray]:
    """World-to-camera; cameras stand side by side and look at planes in different depths."""
    R = cv2.Rodrigues(np.array([0.0, 0.06 * number, 0.02 * number]))[0]
    return R, -R @ np.array([0.35 * number, 0.02 * number, 0.0])


def photograph(R: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Three textured vertical strips at depths 3, 4 and 5."""
    rng = np.random.default_rng(0)
    photo = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    for depth, left in ((5.0, -4.0), (4.0, -0.7), (3.0, 0.5)):
        noise = rng.normal(0, 1, (256, 256))
        layers = [cv2.resize(cv2.resize(noise, (256 // s, 256 // s)), (256, 256)) * s for s in (1, 2, 4)]
        texture = (128 + 22 * sum(layers)).clip(0, 255).astype(np.uint8)
        # Texture pixels to the plane Z = depth, then to the photo.
        scale = 6.0 / 256 if depth == 5.0 else 2.0 / 256
        to_plane = np.array([[scale, 0, left], [0, scale, -128 * scale], [0, 0, 1]])
        H = K @ np.c_[R[:, 0], R[:, 1], depth * R[:, 2] + t] @ to_plane
        seen = cv2.warpPerspective(texture, H, SIZE, flags=cv2.INTER_LINEAR)
        inside = cv2.warpPerspective(np.full_like(texture, 255), H, SIZE) > 250
        photo[inside] = seen[inside]
    return photo


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("world")
    scene = folder / "scenes" / "room"
    (scene / "images").mkdir(parents=True)
    (scene / "sparse").mkdir()
    cameras, images = [], []
    for number in range(3):
        R, t = camera_pose(number)
        cv2.imwrite(str(scene / "images" / f"{number}.png"), photograph(R, t))
        # COLMAP's first pixel has its centre at (0.5, 0.5).
        cameras.append(f"{number + 1} PINHOLE {SIZE[0]} {SIZE[1]} 300 300 160 120")
        axis = cv2.Rodrigues(R)[0].ravel()
        angle = np.linalg.norm(axis)
        xyz = np.sin(angle / 2) * axis / max(angle, 1e-12)
        pose = " ".join(f"{value:.12f}" for value in (np.cos(angle / 2), *xyz, *t))
        images.append(f"{number + 1} {pose} {number + 1} {number}.png\n")
    (scene / "sparse" / "cameras.txt").write_text("\n".join(cameras) + "\n")
    (scene / "sparse" / "images.txt").write_text("\n".join(images) + "\n")
    (scene / "pairs.txt").write_text("0.png 1.png\n1.png 2.png\n2.png 0.png\n")
    torch.manual_seed(0)
    weights = folder / "tiny.safetensors"
    save_network(weights, ANANet(ANANetSettings(blocks=2, width=32, heads=2)))
    return World(folder / "scenes", weights)


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """Workers are a thread: processes take seconds to start."""

    @contextmanager
    def worker_pool(_workers, initializer, *arguments):
        with ThreadPoolExecutor(1, initializer=initializer, initargs=arguments) as pool:
            yield pool

    monkeypatch.setattr(runner, "worker_pool", worker_pool)


@pytest.fixture(scope="session")
def evaluation(world, tmp_path_factory) -> Evaluation:
    """Keeping all, and two networks that were not trained, one of them without second order."""
    folder = tmp_path_factory.mktemp("weights")
    save_network(folder / "first.safetensors", ANANet(ANANetSettings(blocks=1, width=32, heads=2, second_order=False)))
    save_network(folder / "second.safetensors", ANANet(ANANetSettings(blocks=1, width=32, heads=2, form="quadratic")))
    pruners = ["all", *(str(folder / f"{name}.safetensors") for name in ("first", "second"))]
    options = {"max_keypoints": 100, "neighbours": True, "workers": 1, "device": "cpu", "progress": False}
    return evaluate(world.folder, pruners, **options)[0]
