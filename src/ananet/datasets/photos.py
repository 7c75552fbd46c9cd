"""Photos whose cameras are known, read the way their cameras see them."""

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
