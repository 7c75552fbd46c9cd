"""Photos: reading and resizing."""

from pathlib import Path

import cv2
import numpy as np

from ananet.cameras import pixel_scaling
from ananet.errors import InputError


def read_image(path: str | Path, upright: bool = True) -> np.ndarray:
    """[H x W x 3] uint8 BGR, turned upright as its EXIF orientation says, like every viewer shows it.

    Camera matrices must belong to the upright image, unless `upright` is False, which gives the pixels as stored.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected an image file, got a directory")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    data = np.frombuffer(path.read_bytes(), np.uint8)
    flags = cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(data, flags) if data.size else None
    except cv2.error as error:
        # Larger than OpenCV allows, whatever the file really holds.
        raise InputError(f"{path}: OpenCV does not read this image ({error.err or error})") from None
    if image is None:
        raise InputError(f"{path}: not an image that OpenCV can read")
    return image


def resize(pixels: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The photo at another size, and the [3 x 3] matrix from its old pixels to its new ones."""
    height, width = pixels.shape[:2]
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    return resized, pixel_scaling(size[0] / width, size[1] / height)
