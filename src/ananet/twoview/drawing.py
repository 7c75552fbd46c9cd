"""Pictures of two photos and the matches between them."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

Colour = tuple[int, int, int]

# All colours are BGR.
GREEN: Colour = (96, 200, 64)
RED: Colour = (56, 56, 224)
BLUE: Colour = (224, 112, 32)
YELLOW: Colour = (32, 224, 255)
WHITE: Colour = (255, 255, 255)
INK: Colour = (32, 32, 32)
RIM: Colour = (16, 16, 16)
# Right and wrong matches together hide the photos if there are more.
MAX_LINES = 400
PANEL_HEIGHT = 640
# A panorama would otherwise make a picture of a hundred thousand columns.
PANEL_WIDTH = 4096
GAP, ROW, PADDING = 8, 28, 8
# Photos lose a part of their colour, so that the lines' colours stand out.
GREY_SHARE = 0.5
# Opacity of the lines of removed matches, of motions, and of kept matches that are not inliers of the pose, relative to
# those that are.
REMOVED_OPACITY, MOTION_OPACITY, WEAK = 0.3, 0.3, 0.45
MARKER_RADIUS = 5.0
MARKERS = {
    1: np.array([[-0.8, -0.8], [0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]]),
    2: np.array([[0.0, -1.0], [0.95, 0.8], [-0.95, 0.8]]),
    3: np.array([[0.0, -1.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]),
}
# The colours of Okabe and Ito, which colour-blind people can tell apart, brightest first: for motions by size.
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
    """A photo at the size it has in a picture, so that the photo itself need not be kept."""

    pixels: np.ndarray
    """[H x W x 3] uint8 BGR."""
    scale: float
    """Pixels of the panel per pixel of the photo."""


def make_panel(image: np.ndarray, height: int = PANEL_HEIGHT, size: tuple[int, int] | None = None) -> Panel:
    """A photo at the given height, or lower if it would become wider than 4096 pixels.

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
    mask: np.ndarray,
    caption: str = "",
    height: int = PANEL_HEIGHT,
    *,
    inliers: np.ndarray | None = None,
    show_removed: bool = False,
) -> np.ndarray:
    """Two photos side by side and all kept matches, coloured by their position in the first photo, with a legend.

    Args:
        image0, image1: [H x W x 3] uint8 BGR, or what `make_panel` returns.
        points0, points1: [N x 2] pixel coordinates.
        mask: [N] bool, the kept matches.
        caption: line under the photos.
        height: of the photos in the picture; less if one would be wider than 4096 pixels.
        inliers: [N] bool, the inliers of a pose, which are drawn stronger than other kept matches.
        show_removed: draw the other matches too: red, below the kept ones.

    Returns:
        [H x W x 3] uint8 BGR.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    grey = cv2.cvtColor(cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    canvas = cv2.addWeighted(grey, GREY_SHARE, canvas, 1 - GREY_SHARE, 0)
    strong, weak, removed = (mask, ~mask & mask, ~mask) if inliers is None else (mask & inliers, mask & ~inliers, ~mask)
    colours = _colours_of_places(starts)
    legend: list[tuple[list[Colour], str]] = []
    if show_removed:
        canvas = _blend_lines(canvas, starts, ends, [RED] * len(mask), np.flatnonzero(removed), REMOVED_OPACITY)
        legend.append(([RED], f"{removed.sum()} removed"))
    # The more lines, the fainter, so that the photos stay visible.
    opacity = float(np.clip(9 / np.sqrt(max(1, mask.sum())), 0.25, 0.9))
    for chosen, share, radius in ((weak, WEAK, 2.0), (strong, 1.0, 3.0)):
        numbers = np.random.default_rng(0).permutation(np.flatnonzero(chosen))
        canvas = _blend_lines(canvas, starts, ends, colours, numbers, opacity * share)
        for number in numbers:
            for point in (starts[number], ends[number]):
                _draw_disc(canvas, point, radius + 1, RIM)
                _draw_disc(canvas, point, radius, colours[number])
    rainbow = _colours_of_places(np.column_stack([np.linspace(0, 1, 12), np.zeros(12)]))
    if inliers is None:
        legend.insert(0, (rainbow, f"{mask.sum()} kept"))
    else:
        legend[:0] = [(rainbow, f"{strong.sum()} pose inliers (large)"), (rainbow, f"{weak.sum()} others kept (small)")]
    return _add_bar(canvas, caption, legend)


def draw_right_wrong(
    image0: np.ndarray | Panel,
    image1: np.ndarray | Panel,
    points0: np.ndarray,
    points1: np.ndarray,
    right: np.ndarray,
    caption: str = "",
    height: int = PANEL_HEIGHT,
    max_lines: int = MAX_LINES,
) -> np.ndarray:
    """Two photos side by side and matches whose truth is known: right ones green, wrong ones red, none on top.

    Args:
        right: [N] bool; the rest as for `draw_matches`.
        max_lines: how many are drawn at most, chosen at random; the legend counts all.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    shown = np.random.default_rng(0).permutation(len(right))[:max_lines]
    for number in shown:
        _draw_lines(canvas, starts[[number]], ends[[number]], GREEN if right[number] else RED)
    legend = [([GREEN], f"{right.sum()} right"), ([RED], f"{(~right).sum()} wrong")]
    if len(shown) < len(right):
        legend.append(([], f"{len(shown)} drawn"))
    return _add_bar(canvas, caption, legend)


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
        _draw_lines(canvas, starts[chosen], ends[chosen], RIM, 8, 10.0)
        _draw_lines(canvas, starts[chosen], ends[chosen], colour, 4, 8.0)
    return _add_bar(canvas, caption)


def draw_motions(
    image0: np.ndarray | Panel,
    image1: np.ndarray | Panel,
    points0: np.ndarray,
    points1: np.ndarray,
    labels: np.ndarray,
    caption: str = "",
    height: int = PANEL_HEIGHT,
) -> np.ndarray:
    """Two photos side by side and matches in the colour of their motion, the largest yellow.

    Matches without a motion are not drawn. End points are discs, squares, triangles and diamonds in turn, so that
    motions differ by more than colour.

    Args:
        labels: [N] motion of each match, -1 for none; the rest as for `draw_matches`.
    """
    canvas, starts, ends = _side_by_side(image0, image1, points0, points1, height)
    colours = [MOTION_COLOURS[label % len(MOTION_COLOURS)] for label in labels]
    shown = np.random.default_rng(0).permutation(np.flatnonzero(labels >= 0))
    canvas = _blend_lines(canvas, starts, ends, colours, shown, MOTION_OPACITY)
    for number in shown:
        for point in (starts[number], ends[number]):
            _draw_marker(canvas, point, int(labels[number]), colours[number])
    motions = range(min(len(MOTION_COLOURS), int(labels.max(initial=-1)) + 1))
    return _add_bar(canvas, caption, [([MOTION_COLOURS[n]], f"{(labels == n).sum()}") for n in motions])


def stack(*pictures: np.ndarray) -> np.ndarray:
    """Pictures below each other, narrower ones padded with white on the right."""
    width = max(picture.shape[1] for picture in pictures)
    padded = [
        cv2.copyMakeBorder(picture, 0, 0, 0, width - picture.shape[1], cv2.BORDER_CONSTANT, value=WHITE)
        for picture in pictures
    ]
    return np.concatenate(padded, axis=0)


def grid(pictures: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Pictures in rows with white gaps; each keeps its size, in the top left of its cell."""
    height = max(picture.shape[0] for picture in pictures)
    width = max(picture.shape[1] for picture in pictures)
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    sheet = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // columns * (height + GAP), number % columns * (width + GAP)
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return sheet


def _side_by_side(
    image0: np.ndarray | Panel, image1: np.ndarray | Panel, points0: np.ndarray, points1: np.ndarray, height: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both photos on a white canvas, and the points' places on it."""
    panel0, panel1 = (image if isinstance(image, Panel) else make_panel(image, height) for image in (image0, image1))
    (height0, width0), (height1, width1) = panel0.pixels.shape[:2], panel1.pixels.shape[:2]
    offset = width0 + GAP
    canvas = np.full((max(height0, height1), offset + width1, 3), 255, np.uint8)
    canvas[:height0, :width0] = panel0.pixels
    canvas[:height1, offset:] = panel1.pixels
    starts, ends = (points0 + 0.5) * panel0.scale - 0.5, (points1 + 0.5) * panel1.scale - 0.5
    return canvas, starts, ends + np.array([offset, 0])


def _add_bar(canvas: np.ndarray, caption: str, legend: Sequence[tuple[list[Colour], str]] = ()) -> np.ndarray:
    """Add rows of text below: the caption, then legend entries with a line of their colours each, wrapped to fit."""
    width = canvas.shape[1]
    items: list[tuple[list[Colour], str]] = [([], caption)] if caption else []
    x, row, placed = PADDING, 0, []
    for colours, text in (*items, *legend):
        # OpenCV's fonts are ASCII only.
        text = text.encode("ascii", "replace").decode()
        scale = 0.6
        sample = 36 if colours else 0
        needed = sample + cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)[0][0]
        if needed > width - 2 * PADDING:
            scale *= max(0.5, (width - 2 * PADDING) / needed)
        if x > PADDING and x + needed > width - PADDING:
            x, row = PADDING, row + 1
        placed.append((x, row, colours, text, scale))
        x += needed + 24
    bar = np.full(((row + 1) * ROW + PADDING, width, 3), 255, np.uint8)
    for x, row, colours, text, scale in placed:
        y = row * ROW + 25
        for number, colour in enumerate(colours):
            left, right = (x + 30 * n // len(colours) for n in (number, number + 1))
            cv2.rectangle(bar, (left, y - 8), (right, y - 4), colour, -1)
        place = (x + (36 if colours else 0), y)
        cv2.putText(bar, text, place, cv2.FONT_HERSHEY_SIMPLEX, scale, INK, 1, cv2.LINE_AA)
    return np.concatenate([canvas, bar])


def _colours_of_places(places: np.ndarray) -> list[Colour]:
    """A bright colour for each of [N x 2] places: hue by x, from orange to violet, and saturation by y."""
    if len(places) == 0:
        return []
    low, high = places.min(axis=0), places.max(axis=0)
    x, y = ((places - low) / np.maximum(high - low, 1e-9)).T
    hsv = np.stack([15 + x * 135, 255 - 110 * y, np.full_like(x, 255)], axis=1).round().astype(np.uint8)
    return [(int(b), int(g), int(r)) for b, g, r in cv2.cvtColor(hsv[None], cv2.COLOR_HSV2BGR)[0]]


def _blend_lines(
    canvas: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    colours: Sequence[Colour],
    numbers: np.ndarray,
    opacity: float,
) -> np.ndarray:
    """The canvas with lines of these matches, translucent."""
    lines = canvas.copy()
    for number in numbers:
        _draw_lines(lines, starts[[number]], ends[[number]], colours[number], radius=0)
    return cv2.addWeighted(lines, opacity, canvas, 1 - opacity, 0)


def _draw_lines(
    canvas: np.ndarray, starts: np.ndarray, ends: np.ndarray, colour: Colour, thickness: int = 1, radius: float = 1.5
) -> None:
    # Coordinates in sixteenths of a pixel: OpenCV's way to draw between pixels.
    for start, end in zip((starts * 16).round().astype(int), (ends * 16).round().astype(int), strict=True):
        cv2.line(canvas, start.tolist(), end.tolist(), colour, thickness, cv2.LINE_AA, shift=4)
    if radius:
        for point in (*starts, *ends):
            _draw_disc(canvas, point, radius, colour)


def _draw_disc(canvas: np.ndarray, point: np.ndarray, radius: float, colour: Colour) -> None:
    place = (point * 16).round().astype(int).tolist()
    cv2.circle(canvas, place, round(16 * radius), colour, -1, cv2.LINE_AA, shift=4)


def _draw_marker(canvas: np.ndarray, point: np.ndarray, label: int, colour: Colour) -> None:
    """A disc, square, triangle or diamond with a dark rim, by label."""
    if label % 4 == 0:
        _draw_disc(canvas, point, MARKER_RADIUS + 1, RIM)
        _draw_disc(canvas, point, MARKER_RADIUS, colour)
        return
    corners = ((point + MARKER_RADIUS * 1.3 * MARKERS[label % 4]) * 16).round().astype(np.int32)[None]
    cv2.fillPoly(canvas, corners, colour, cv2.LINE_AA, shift=4)
    cv2.polylines(canvas, corners, True, RIM, 1, cv2.LINE_AA, shift=4)
