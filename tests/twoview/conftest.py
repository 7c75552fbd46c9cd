import cv2
import numpy as np
import pytest


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """The demo's left photo, grey."""
    data = pytest.importorskip("skimage.data")
    return cv2.cvtColor(data.stereo_motorcycle()[0], cv2.COLOR_RGB2GRAY)
