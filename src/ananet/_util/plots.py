"""matplotlib, which comes with an extra."""

from typing import Any

import cv2
import numpy as np

from ananet.errors import MissingExtraError


def import_matplotlib() -> Any:
    """matplotlib.pyplot on a backend that needs no screen."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plots") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def figure_to_picture(figure: Any) -> np.ndarray:
    """A matplotlib figure as [H x W x 3] uint8 BGR; the figure is closed."""
    figure.canvas.draw()
    picture = cv2.cvtColor(np.asarray(figure.canvas.buffer_rgba()), cv2.COLOR_RGBA2BGR)
    import_matplotlib().close(figure)
    return picture
