"""Every picture the product makes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ananet.errors import InputError, MissingExtraError
from ananet.files import atomic_path, check_output

GREEN = (96, 200, 64)
RED = (56, 56, 224)
BLUE = (224, 112, 32)
YELLOW = (32, 224, 255)
WHITE = (255, 255, 255)
# The photos should stay visible: not all of thousands of matches are drawn, and removed ones translucent.
MOST_LINES = 400
REMOVED_OPACITY = 0.55
PANEL_HEIGHT = 640
GAP = 8
BAR = 36


def draw_matches(
    image0: np.ndarray,
    image1: np.ndarray,
    points0: np.ndarray,
    points1: np.ndarray,
    good: np.ndarray,
    caption: str = "",
    height: int = PANEL_HEIGHT,
) -> np.ndarray:
    """Two photos side by side, matches between them: good ones green, on top; the others red and translucent.

    At most 400 are drawn, chosen at random; the caption then says so.

    Args:
        image0, image1: [H x W x 3] uint8 BGR.
        points0, points1: [N x 2] pixel coordinates.
        good: [N] bool.
        caption: one line under the photos.
        height: of the photos in the picture.

    Returns:
        [H x W x 3] uint8 BGR.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    shown = _some(len(good))
    red, green = shown[~good[shown]], shown[good[shown]]
    below = canvas.copy()
    _draw_lines(below, starts[red], ends[red], RED)
    canvas = cv2.addWeighted(below, REMOVED_OPACITY, canvas, 1 - REMOVED_OPACITY, 0)
    _draw_lines(canvas, starts[green], ends[green], GREEN)
    if caption and len(shown) < len(good):
        caption += f"; {len(shown)} drawn"
    return _write_caption(canvas, caption)


def _some(count: int) -> np.ndarray:
    """Numbers of as many matches as a picture can show, drawn at random, always the same ones."""
    if count <= MOST_LINES:
        return np.arange(count)
    return np.random.default_rng(0).choice(count, MOST_LINES, replace=False)


def draw_groups(
    image0: np.ndarray,
    image1: np.ndarray,
    points0: np.ndarray,
    points1: np.ndarray,
    groups: Sequence[tuple[np.ndarray, tuple[int, int, int]]],
    caption: str = "",
    height: int = PANEL_HEIGHT,
) -> np.ndarray:
    """Two photos side by side and groups of matches, each of a colour, later ones on top; other matches are not drawn.

    Args:
        groups: (indices into the matches, BGR colour) each; the rest as for `draw_matches`.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    for chosen, colour in groups:
        _draw_lines(canvas, starts[chosen], ends[chosen], colour)
    return _write_caption(canvas, caption)


def _side_by_side(
    image0: np.ndarray, image1: np.ndarray, points0: np.ndarray, points1: np.ndarray, height: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both photos above a white bar for the caption, and where the points of each lie on this canvas."""
    panel0, scale0 = _panel(image0, height)
    panel1, scale1 = _panel(image1, height)
    offset = panel0.shape[1] + GAP
    canvas = np.full((height + BAR, offset + panel1.shape[1], 3), 255, np.uint8)
    canvas[:height, : panel0.shape[1]] = panel0
    canvas[:height, offset:] = panel1
    return canvas, (points0 + 0.5) * scale0 - 0.5, (points1 + 0.5) * scale1 - 0.5 + (offset, 0)


def _write_caption(canvas: np.ndarray, caption: str) -> np.ndarray:
    if caption:
        # OpenCV's fonts are ASCII only.
        text = caption.encode("ascii", "replace").decode()
        place = (8, canvas.shape[0] - 11)
        cv2.putText(canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (32, 32, 32), 1, cv2.LINE_AA)
    return canvas


def stack(*pictures: np.ndarray) -> np.ndarray:
    """Pictures under each other, narrower ones padded with white on the right."""
    width = max(picture.shape[1] for picture in pictures)
    padded = [
        cv2.copyMakeBorder(picture, 0, 0, 0, width - picture.shape[1], cv2.BORDER_CONSTANT, value=WHITE)
        for picture in pictures
    ]
    return np.concatenate(padded, axis=0)


def grid(pictures: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Pictures in rows of so many, with white gaps; each keeps its size, in the top left of its cell."""
    height = max(picture.shape[0] for picture in pictures)
    width = max(picture.shape[1] for picture in pictures)
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    sheet = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // columns * (height + GAP), number % columns * (width + GAP)
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return sheet


def check_picture(path: str | Path, *inputs: Path) -> None:
    """Raises unless a picture can be written there; `inputs` are files that must not be overwritten."""
    check_output(path, *inputs)
    suffix = Path(path).suffix
    if not suffix or not cv2.haveImageWriter(f"x{suffix}"):
        raise InputError(f"output: expected a picture file such as .png or .jpg, got {str(path)!r}")


def save_picture(path: str | Path, picture: np.ndarray) -> None:
    """Write a picture; the file's ending says the format. A failed write leaves nothing behind."""
    check_picture(path)
    with atomic_path(path) as temporary:
        if not cv2.imwrite(str(temporary), picture):
            raise OSError(f"could not write {path}")


def _panel(image: np.ndarray, height: int) -> tuple[np.ndarray, float]:
    scale = height / image.shape[0]
    size = (max(1, round(image.shape[1] * scale)), height)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC), scale


def _draw_lines(canvas: np.ndarray, starts: np.ndarray, ends: np.ndarray, colour: tuple[int, int, int]) -> None:
    # Coordinates in sixteenths of a pixel, OpenCV's way to draw between pixels.
    for start, end in zip((starts * 16).round().astype(int), (ends * 16).round().astype(int), strict=True):
        cv2.line(canvas, start.tolist(), end.tolist(), colour, 1, cv2.LINE_AA, shift=4)
        for point in (start, end):
            cv2.circle(canvas, point.tolist(), 24, colour, -1, cv2.LINE_AA, shift=4)


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
