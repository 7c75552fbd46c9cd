"""Every picture the product makes."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

GREEN = (96, 200, 64)
RED = (56, 56, 224)
BLUE = (224, 112, 32)
YELLOW = (32, 224, 255)
WHITE = (255, 255, 255)
# The photos should stay visible: not all of thousands of matches are drawn, and removed ones translucent.
MAX_LINES = 400
REMOVED_OPACITY = 0.55
PANEL_HEIGHT = 640
# A strip of a panorama would otherwise make a picture of a hundred thousand columns.
PANEL_WIDTH = 4096
GAP = 8
BAR = 36
# In pixels of the picture: of ordinary matches and of those that should catch the eye.
THICKNESS, RADIUS = 1, 1.5
STRONG_THICKNESS, STRONG_RADIUS, RIM = 4, 8.0, 2
RIM_COLOUR = (16, 16, 16)
# Of matches that motions tell apart: lines that let the photos through, and end points of several shapes.
LINE_OPACITY, MARKER_RADIUS = 0.3, 5.0
MARKERS = {
    1: np.array([[-0.8, -0.8], [0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]]),
    2: np.array([[0.0, -1.0], [0.95, 0.8], [-0.95, 0.8]]),
    3: np.array([[0.0, -1.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]),
}

Colour = tuple[int, int, int]

# Okabe and Ito's colours, which the colour-blind tell apart too, brightest first, in BGR: for motions by size.
MOTION_COLOURS: tuple[Colour, ...] = (
    (66, 228, 240),  # yellow
    (233, 180, 86),  # sky blue
    (167, 121, 204),  # reddish purple
    (0, 94, 213),  # vermilion
    (115, 158, 0),  # bluish green
    (178, 114, 0),  # blue
    (0, 159, 230),  # orange
)


@dataclass(frozen=True, eq=False)
class Panel:
    """A photo at the size it has in a picture: what is left to keep of it where many pictures show it."""

    pixels: np.ndarray
    """[H x W x 3] uint8 BGR."""
    scale: float
    """Of the photo's pixels."""


def make_panel(image: np.ndarray, height: int = PANEL_HEIGHT, size: tuple[int, int] | None = None) -> Panel:
    """A photo at the given height, or lower where it would become wider than 4096 pixels.

    Args:
        size: (width, height) of the photo that points refer to, if the image is a reduced copy of it.
    """
    scale = min(height / image.shape[0], PANEL_WIDTH / image.shape[1])
    shape = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    whole = image.shape[0] if size is None else size[1]
    return Panel(cv2.resize(image, shape, interpolation=interpolation), scale * image.shape[0] / whole)


def draw_matches(
    image0: np.ndarray | Panel,
    image1: np.ndarray | Panel,
    points0: np.ndarray,
    points1: np.ndarray,
    good: np.ndarray,
    caption: str = "",
    height: int = PANEL_HEIGHT,
    equally: bool = False,
) -> np.ndarray:
    """Two photos side by side, matches between them: good ones green, on top; the others red and translucent.

    At most 400 are drawn, chosen at random; the caption then says so.

    Args:
        image0, image1: [H x W x 3] uint8 BGR, or what `make_panel` gives.
        points0, points1: [N x 2] pixel coordinates.
        good: [N] bool.
        caption: one line under the photos.
        height: of the photos in the picture; less where one would be wider than 4096 pixels.
        equally: green and red alike, none on top: for matches that are right and wrong, where red must not hide.

    Returns:
        [H x W x 3] uint8 BGR.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    shown = _some(len(good))
    if equally:
        for one in np.random.default_rng(0).permutation(shown):
            _draw_lines(canvas, starts[[one]], ends[[one]], GREEN if good[one] else RED)
    else:
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
    if count <= MAX_LINES:
        return np.arange(count)
    return np.random.default_rng(0).choice(count, MAX_LINES, replace=False)


def draw_groups(
    image0: np.ndarray | Panel,
    image1: np.ndarray | Panel,
    points0: np.ndarray,
    points1: np.ndarray,
    groups: Sequence[tuple[np.ndarray, Colour]],
    caption: str = "",
    height: int = PANEL_HEIGHT,
    strong: Sequence[tuple[np.ndarray, Colour]] = (),
) -> np.ndarray:
    """Two photos side by side and groups of matches, each of a colour, later ones on top; other matches are not drawn.

    Args:
        groups: (indices into the matches, BGR colour) each; the rest as for `draw_matches`.
        strong: groups too, drawn last: thick, with large end points and a dark rim.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    for chosen, colour in groups:
        _draw_lines(canvas, starts[chosen], ends[chosen], colour)
    for chosen, colour in strong:
        thickness, radius = STRONG_THICKNESS + 2 * RIM, STRONG_RADIUS + RIM
        _draw_lines(canvas, starts[chosen], ends[chosen], RIM_COLOUR, thickness, radius)
        _draw_lines(canvas, starts[chosen], ends[chosen], colour, STRONG_THICKNESS, STRONG_RADIUS)
    return _write_caption(canvas, caption)


def draw_motions(
    image0: np.ndarray | Panel,
    image1: np.ndarray | Panel,
    points0: np.ndarray,
    points1: np.ndarray,
    labels: np.ndarray,
    caption: str = "",
    height: int = PANEL_HEIGHT,
) -> np.ndarray:
    """Draw two photos side by side, and matches in the colour of their motion, the largest yellow.

    Matches that belong to no motion are not drawn.
    End points are discs, squares, triangles and diamonds in turn, so that motions differ by more than colour. At most
    400 matches are drawn, chosen at random; the caption then says so.

    Args:
        labels: [N] motion of each match, -1 for none; the rest as for `draw_matches`.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    moving = np.flatnonzero(labels >= 0)
    shown = moving[_some(len(moving))]
    lines = canvas.copy()
    colours = [MOTION_COLOURS[label % len(MOTION_COLOURS)] for label in labels[shown]]
    for number, colour in zip(shown, colours, strict=True):
        _draw_lines(lines, starts[number : number + 1], ends[number : number + 1], colour, THICKNESS, RADIUS)
    canvas = cv2.addWeighted(lines, LINE_OPACITY, canvas, 1 - LINE_OPACITY, 0)
    for number, colour in zip(shown, colours, strict=True):
        for point in (starts[number], ends[number]):
            _draw_marker(canvas, point, int(labels[number]), colour)
    if caption and len(shown) < len(moving):
        caption += f"; {len(shown)} drawn"
    return _write_caption(canvas, caption)


def _draw_marker(canvas: np.ndarray, point: np.ndarray, label: int, colour: Colour) -> None:
    """A disc, square, triangle or diamond with a dark rim, by label."""
    if label % 4 == 0:
        outline = MARKER_RADIUS * np.array([[np.cos(a), np.sin(a)] for a in np.linspace(0, 2 * np.pi, 17)[:-1]])
    else:
        outline = MARKER_RADIUS * 1.3 * MARKERS[label % 4]
    corners = ((point + outline) * 16).round().astype(np.int32)[None]
    cv2.fillPoly(canvas, corners, colour, cv2.LINE_AA, shift=4)
    cv2.polylines(canvas, corners, True, RIM_COLOUR, 1, cv2.LINE_AA, shift=4)


def _side_by_side(
    image0: np.ndarray | Panel, image1: np.ndarray | Panel, points0: np.ndarray, points1: np.ndarray, height: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both photos above a white bar for the caption, and where the points of each lie on this canvas."""
    panel0, panel1 = (image if isinstance(image, Panel) else make_panel(image, height) for image in (image0, image1))
    (height0, width0), (height1, width1) = panel0.pixels.shape[:2], panel1.pixels.shape[:2]
    offset = width0 + GAP
    canvas = np.full((max(height0, height1) + BAR, offset + width1, 3), 255, np.uint8)
    canvas[:height0, :width0] = panel0.pixels
    canvas[:height1, offset:] = panel1.pixels
    starts, ends = (points0 + 0.5) * panel0.scale - 0.5, (points1 + 0.5) * panel1.scale - 0.5
    return canvas, starts, ends + np.array([offset, 0])


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


def _draw_lines(
    canvas: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    colour: Colour,
    thickness: int = THICKNESS,
    radius: float = RADIUS,
) -> None:
    # Coordinates in sixteenths of a pixel, OpenCV's way to draw between pixels.
    for start, end in zip((starts * 16).round().astype(int), (ends * 16).round().astype(int), strict=True):
        cv2.line(canvas, start.tolist(), end.tolist(), colour, thickness, cv2.LINE_AA, shift=4)
        for point in (start, end):
            cv2.circle(canvas, point.tolist(), round(16 * radius), colour, -1, cv2.LINE_AA, shift=4)
