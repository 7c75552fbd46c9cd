"""Base class of detectors that are networks, weights of detectors and matchers, and SuperPoint."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import warnings
from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ananet._util.checks import check_share, check_whole_number
from ananet._util.defaults import LEARNED_KEYPOINTS, LONGEST_SIDE
from ananet.errors import InputError
from ananet.features.base import Features, ImageDetector
from ananet.io.files import is_file

logger = logging.getLogger(__name__)

# Environment variable: a folder with weights, for machines that cannot download them.
WEIGHTS_VARIABLE = "ANANET_WEIGHTS"
SUFFIXES = (".safetensors", ".pth", ".pt")
# Images are padded to multiples of this, the coarsest stride of these networks.
CELL = 32


class LearnedDetector(ImageDetector):
    """A network that finds keypoints without size and angle. A subclass calls `use` and implements `find`.

    All have the options of `Detector` (2000 keypoints if None) and `weights`, a file; without one, weights are looked
    for by name in the folder ANANET_WEIGHTS, then downloaded.
    """

    licence: ClassVar[str]
    """Licence of the published weights."""
    channels: ClassVar[int] = 3
    """3 for RGB, 1 for grey."""

    def __init__(self, max_keypoints: int | None, longest_side: int | None, device: str | torch.device) -> None:
        super().__init__(LEARNED_KEYPOINTS if max_keypoints is None else max_keypoints, longest_side)
        self.device = torch.device(device)

    def use(
        self,
        network: nn.Module,
        weights_name: str,
        given: Path | None,
        download: Callable[[], dict[str, Any]],
        not_needed: tuple[str, ...] = (),
        channels_last: bool = True,
    ) -> nn.Module:
        """Return the network with weights, ready to run; see `take_weights` and `fill`."""
        weights, source = take_weights(weights_name, given, download, "--detector-weights")
        fill(network, weights, weights_name, source, not_needed)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return network.eval().requires_grad_(False).to(self.device, memory_format=layout)  # type: ignore[call-overload]

    @abstractmethod
    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return points [N x 2], descriptors [N x D] of unit length and scores [N] of one image, in any order.

        Args:
            image: [1 x channels x H x W] from 0 to 1; H and W are multiples of `CELL`.
            size: (width, height) of the photo; the rest is padding, without keypoints.
        """

    def extract(self, image: np.ndarray) -> Features:
        height, width = image.shape[:2]
        with torch.inference_mode():
            points, descriptors, scores = self.find(self._as_tensor(image), (width, height))
            order = scores.argsort(descending=True, stable=True)[: self.max_keypoints]
            found = [values[order].float().cpu().numpy() for values in (points, descriptors, scores)]
        return Features(found[0], found[1], (width, height), scores=found[2])

    def _as_tensor(self, image: np.ndarray) -> Tensor:
        """[1 x channels x H x W] from 0 to 1, padded at the right and the bottom."""
        if self.channels == 3:
            image = cv2.cvtColor(image, cv2.COLOR_GRAY2RGB if image.ndim == 2 else cv2.COLOR_BGR2RGB)
        elif image.ndim == 3:
            image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        height, width = image.shape[:2]
        # Replicated pixels, since other padding would make edges.
        image = cv2.copyMakeBorder(image, 0, -height % CELL, 0, -width % CELL, cv2.BORDER_REPLICATE)
        tensor = torch.from_numpy(image).to(self.device)
        tensor = tensor[None] if self.channels == 1 else tensor.permute(2, 0, 1)
        return tensor[None].float() / 255


def inside(points: Tensor, size: tuple[int, int], border: int) -> Tensor:
    """[N] bool mask of the points at least so many pixels from the border of a photo."""
    most = points.new_tensor(size) - 1 - border
    return ((points >= border) & (points <= most)).all(dim=1)


def find_weights(name: str, given: Path | None = None) -> Path | None:
    """Return the given file, else the file of this name in the folder ANANET_WEIGHTS, else None."""
    if given is not None:
        if not is_file(given):
            raise InputError(f"weights: expected a file, got {given}")
        return given
    folder = os.environ.get(WEIGHTS_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise InputError(f"{WEIGHTS_VARIABLE}: expected a folder, got {folder!r}")
    files = [Path(folder) / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((file for file in files if is_file(file)), None)


def take_weights(
    name: str, given: Path | None, download: Callable[[], dict[str, Any]], option: str
) -> tuple[dict[str, Any], str]:
    """Return weights and where they come from: the given file, the folder of weights, or a download.

    `name` is that of the file without suffix, `option` that of the command line which takes a file.
    """
    path = find_weights(name, given)
    if path is not None:
        return read_weights(path), str(path)
    try:
        with warnings.catch_warnings():
            # kornia warns about every attempt.
            warnings.simplefilter("ignore")
            return download(), name
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"weights: {name} was not found and could not be downloaded. Put {name}.safetensors or {name}.pth "
            f"into a folder, and its path into the environment variable {WEIGHTS_VARIABLE}; or give the file, as in "
            f"{option} {name}.pth ({_first_line(error)})"
        ) from None


def fill(network: nn.Module, weights: dict[str, Any], name: str, source: str, not_needed: tuple[str, ...] = ()) -> None:
    """Load weights of `name` into a network; raise if those of `source` lack more than `not_needed` (prefixes)."""
    try:
        found = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise InputError(f"weights: expected weights of {name}, got {source} ({reason})") from None
    missing = [key for key in found.missing_keys if not key.startswith(not_needed)]
    if missing or found.unexpected_keys:
        example = f"it lacks {missing[0]}" if missing else f"it has {found.unexpected_keys[0]}"
        raise InputError(f"weights: expected weights of {name}, got {source}: {example}")


def read_weights(path: Path) -> dict[str, Any]:
    """Read tensors by name from .safetensors, .pth or .pt; nothing else is unpickled."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"weights: expected a file that ends in {', '.join(SUFFIXES)}, got {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise InputError(f"weights: {path} cannot be read ({_first_line(error)})") from None
    if not isinstance(weights, dict):
        raise InputError(f"weights: expected tensors by name in {path}, got {type(weights).__name__}")
    # Files of DISK's authors nest them.
    return weights.get("extractor", weights)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@cache
def tell_once(notice: str) -> None:
    """Log a warning once, and not in worker processes."""
    if multiprocessing.parent_process() is None:
        logger.warning(notice)


SUPERPOINT_URL = "https://github.com/magicleap/SuperPointPretrainedNetwork/raw/master/superpoint_v1.pth"
SUPERPOINT_NOTICE = "SuperPoint: the weights of its authors are for non-commercial research only (Magic Leap's licence)"
# Side of the network's cells, in pixels.
SUPERPOINT_CELL = 8
# Keypoints nearer than this to the border are left out, as by the authors.
SUPERPOINT_BORDER = 4


class SuperPointNetwork(nn.Module):
    """Eight layers that halve the image three times, and heads for keypoints and descriptors; the authors' names."""

    def __init__(self) -> None:
        super().__init__()
        width = 1
        for number, channels in enumerate((64, 64, 128, 128), 1):
            for letter in "ab":
                setattr(self, f"conv{number}{letter}", nn.Conv2d(width, channels, 3, padding=1))
                width = channels
        self.convPa = nn.Conv2d(width, 256, 3, padding=1)
        self.convPb = nn.Conv2d(256, SUPERPOINT_CELL**2 + 1, 1)
        self.convDa = nn.Conv2d(width, 256, 3, padding=1)
        self.convDb = nn.Conv2d(256, 256, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B x 1 x H x W] to probabilities of keypoints [B x H x W] and descriptors [B x 256 x H/8 x W/8]."""
        x = image
        for number in range(1, 5):
            x = x if number == 1 else F.max_pool2d(x, 2)
            for letter in "ab":
                x = F.relu(getattr(self, f"conv{number}{letter}")(x))
        # The last channel is for cells without keypoint.
        in_cells = self.convPb(F.relu(self.convPa(x))).softmax(dim=1)[:, :-1]
        descriptors = self.convDb(F.relu(self.convDa(x)))
        return F.pixel_shuffle(in_cells, SUPERPOINT_CELL)[:, 0], F.normalize(descriptors, dim=1)


class SuperPoint(LearnedDetector):
    """SuperPoint (DeTone et al. 2018): whole pixels, descriptors of 256 numbers.

    `threshold` is the lowest probability of keypoints, `radius` that of non-maximum suppression in pixels.
    """

    name = "superpoint"
    licence = "non-commercial research only"
    channels = 1

    def __init__(
        self,
        max_keypoints: int | None = None,
        threshold: float = 0.0005,
        radius: int = 4,
        weights: Path | None = None,
        longest_side: int | None = LONGEST_SIDE,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(max_keypoints, longest_side, device)
        check_share("threshold", threshold)
        self.threshold, self.radius = threshold, check_whole_number("radius", radius, 0)
        tell_once(SUPERPOINT_NOTICE)
        download = partial(torch.hub.load_state_dict_from_url, SUPERPOINT_URL, map_location="cpu", weights_only=True)
        self.network = self.use(SuperPointNetwork(), "superpoint_v1", weights, download)

    def find(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        probability, descriptors = self.network(image)
        probability = strongest_around(probability, self.radius)[0]
        rows, columns = (probability > self.threshold).nonzero().unbind(1)
        points, scores = torch.stack([columns, rows], dim=1).float(), probability[rows, columns]
        seen = inside(points, size, SUPERPOINT_BORDER)
        points, scores = points[seen], scores[seen]
        return points, sample(descriptors, points), scores


def strongest_around(values: Tensor, radius: int) -> Tensor:
    """[B x H x W] values that are the largest within a radius, 0 elsewhere; ridges keep more than their peak."""

    def largest(image: Tensor) -> Tensor:
        return F.max_pool2d(image, 2 * radius + 1, stride=1, padding=radius)

    peaks = torch.zeros_like(values, dtype=torch.bool)
    for _ in range(3):
        open_ = values.masked_fill(largest(peaks.float()) > 0, 0)
        peaks |= (open_ == largest(open_)) & (open_ > 0)
    return values.masked_fill(~peaks, 0)


def sample(descriptors: Tensor, points: Tensor) -> Tensor:
    """[N x D] of unit length: descriptors of cells, [1 x D x h x w], interpolated at pixels, [N x 2]."""
    height, width = descriptors.shape[-2:]
    # The centre of the first cell is at 3.5 pixels, that of the last 8 (width - 1) further. Published code divides by
    # this instead, and matchers were trained with it.
    extent = SUPERPOINT_CELL * points.new_tensor([width, height]) - SUPERPOINT_CELL / 2 - 0.5
    grid = (points - (SUPERPOINT_CELL / 2 - 0.5)) / extent * 2 - 1
    sampled = F.grid_sample(descriptors, grid[None, None], align_corners=True)[0, :, 0].T
    return F.normalize(sampled, dim=1)
