"""Photos whose cameras are known, read the way their cameras see them."""

import cv2
import numpy as np

from ananet.datasets.base import PosedImage
from ananet.errors import InputError
from ananet.features import read_image


def read_posed_image(image: PosedImage) -> np.ndarray:
    """The photo in the orientation that its camera was calibrated for: as viewers show it, or as it is stored."""
    sizes = []
    for upright in (True, False):
        picture = read_image(image.path, upright)
        sizes.append((picture.shape[1], picture.shape[0]))
        if image.size in (None, sizes[-1]):
            return picture
    raise InputError(f"{image.path}: its camera is for {image.size} pixels, the photo has {sizes[0]}")


def resize(pixels: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The photo at another size, and the [3 x 3] matrix from its old pixels to its new ones."""
    height, width = pixels.shape[:2]
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    # Scaling keeps the image's corner, which is half a pixel before the first pixel's centre.
    scale_x, scale_y = size[0] / width, size[1] / height
    return pixels, np.array([[scale_x, 0, (scale_x - 1) / 2], [0, scale_y, (scale_y - 1) / 2], [0, 0, 1]])
