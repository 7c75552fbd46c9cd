"""Photos of nothing in particular, with plenty of keypoints."""

import cv2
import numpy as np


def photo(width: int = 320, height: int = 240, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
