"""Base class of detectors that are networks, and the weights of detectors and matchers."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import warnings
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

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
    """A network that finds keypoints without size and angle.

    A subclass makes its network with `use` and implements `find`.
    """

    licence: ClassVar[str]
    """Licence of the published weights."""
    channels: ClassVar[int] = 3
    """3 for RGB, 1 for grey."""

    def __init__(self, max_keypoints: int, longest_side: int | None, device: str | torch.device) -> None:
        super().__init__(max_keypoints, longest_side)
        self.device = torch.device(device)

    def use(
        self,
        network: nn.Module,
        weights_name: str,
        given: Path | None,
        download: Callable[[], dict[str, Any]],
        *,
        not_needed: tuple[str, ...] = (),
        channels_last: bool = True,
    ) -> nn.Module:
        """Return the network with weights, ready to run.

        Args:
            weights_name: of the file, without suffix.
            given: a file of weights; None to look for them by name, or download them.
            download: returns the published weights.
            not_needed: prefixes of weights that may be missing.
            channels_last: memory layout of the weights, which matters for the speed on a CPU.
        """
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
        if self.channels == 1:
            image = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        else:
            image = cv2.cvtColor(image, cv2.COLOR_GRAY2RGB if image.ndim == 2 else cv2.COLOR_BGR2RGB)
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
    """Return weights from the given file, the folder of weights or a download, and where they come from.

    Args:
        name: of the file, without suffix.
        download: returns the published weights.
        option: of commands that takes a file, for the error message.
    """
    path = find_weights(name, given)
    return (_downloaded(name, download, option), name) if path is None else (read_weights(path), str(path))


def fill(network: nn.Module, weights: dict[str, Any], name: str, source: str, not_needed: tuple[str, ...] = ()) -> None:
    """Load weights into a network; raise if they belong to another one.

    Args:
        name, source: expected weights, and where these come from, for the error message.
        not_needed: prefixes of weights that may be missing.
    """
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


def _downloaded(name: str, download: Callable[[], dict[str, Any]], option: str) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            # kornia warns about every attempt.
            warnings.simplefilter("ignore")
            return download()
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"weights: {name} was not found and could not be downloaded. Put {name}.safetensors or {name}.pth "
            f"into a folder, and its path into the environment variable {WEIGHTS_VARIABLE}; or give the file, as in "
            f"{option} {name}.pth ({_first_line(error)})"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@cache
def tell_once(notice: str) -> None:
    """Log a warning once, and not in worker processes."""
    if multiprocessing.parent_process() is None:
        logger.warning(notice)
