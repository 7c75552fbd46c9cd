"""Pictures of two photos and the matches between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

Colour = tuple[int, int, int]
Legend = Sequence[tuple[list[Colour], str]]

# All colours are BGR.
GREEN: Colour = (96, 200, 64)
RED: Colour = (56, 56, 224)
BLUE: Colour = (224, 112, 32)
ORANGE: Colour = (0, 150, 255)
GREY: Colour = (176, 176, 176)
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


Image = np.ndarray | Panel


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
    image0: Image,
    image1: Image,
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
        inliers: [N] bool, the inliers of a model, which are drawn stronger than other kept matches.
        show_removed: draw the other matches too: red, below the kept ones.

    Returns:
        [H x W x 3] uint8 BGR.
    """
    drawing = _Drawing(image0, image1, points0, points1, height)
    grey = cv2.cvtColor(cv2.cvtColor(drawing.canvas, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    drawing.canvas = cv2.addWeighted(grey, GREY_SHARE, drawing.canvas, 1 - GREY_SHARE, 0)
    strong = mask if inliers is None else mask & inliers
    weak = mask & ~strong
    rainbow = _colours_of_places(np.column_stack([np.linspace(0, 1, 12), np.zeros(12)]))
    legend = [(rainbow, f"{mask.sum()} kept")]
    if inliers is not None:
        legend = [(rainbow, f"{strong.sum()} inliers (large)"), (rainbow, f"{weak.sum()} others kept (small)")]
    if show_removed:
        drawing.blend_lines(np.flatnonzero(~mask), [RED] * len(mask), REMOVED_OPACITY)
        legend.append(([RED], f"{(~mask).sum()} removed"))
    colours = _colours_of_places(drawing.starts)
    # The more lines, the fainter, so that the photos stay visible.
    opacity = float(np.clip(9 / np.sqrt(max(1, mask.sum())), 0.25, 0.9))
    for chosen, share, radius in ((weak, WEAK, 2.0), (strong, 1.0, 3.0)):
        numbers = np.random.default_rng(0).permutation(np.flatnonzero(chosen))
        drawing.blend_lines(numbers, colours, opacity * share)
        drawing.mark(numbers, colours, np.zeros(len(mask), int), radius)
    return drawing.finish(caption, legend)


def draw_right_wrong(
    image0: Image,
    image1: Image,
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
    shown = np.random.default_rng(0).permutation(len(right))[:max_lines]
    kinds = {"right": (GREEN, right), "wrong": (RED, ~right)}
    return draw_kinds(image0, image1, points0, points1, kinds, shown, caption, height)


def draw_kinds(
    image0: Image,
    image1: Image,
    points0: np.ndarray,
    points1: np.ndarray,
    kinds: Mapping[str, tuple[Colour, np.ndarray]],
    shown: np.ndarray,
    caption: str = "",
    height: int = PANEL_HEIGHT,
) -> np.ndarray:
    """Two photos side by side and matches of several kinds, each of a colour; the legend counts all of them.

    Args:
        kinds: BGR colour and [N] bool by name; every match is of one kind. The rest as for `draw_matches`.
        shown: indices of the matches that are drawn, later ones on top.
    """
    drawing = _Drawing(image0, image1, points0, points1, height)
    for number in shown:
        drawing.draw_lines([number], next(colour for colour, members in kinds.values() if members[number]))
    legend = [([colour], f"{members.sum()} {name}") for name, (colour, members) in kinds.items()]
    return drawing.finish(caption, legend + [([], f"{len(shown)} drawn")] * (len(shown) < len(points0)))


def draw_groups(
    image0: Image,
    image1: Image,
    points0: np.ndarray,
    points1: np.ndarray,
    groups: Sequence[tuple[np.ndarray, Colour]],
    caption: str = "",
    strong: Sequence[tuple[np.ndarray, Colour]] = (),
) -> np.ndarray:
    """Two photos side by side and groups of matches, each of a colour, later ones on top; other matches are not drawn.

    Args:
        groups: (indices into the matches, BGR colour) each; the rest as for `draw_matches`.
        strong: groups too, drawn last: thick, with large end points and a dark rim.
    """
    drawing = _Drawing(image0, image1, points0, points1, PANEL_HEIGHT)
    for chosen, colour in groups:
        drawing.draw_lines(chosen, colour)
    for chosen, colour in strong:
        drawing.draw_lines(chosen, RIM, 8, 10.0)
        drawing.draw_lines(chosen, colour, 4, 8.0)
    return drawing.finish(caption)


def draw_motions(
    image0: Image,
    image1: Image,
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
    drawing = _Drawing(image0, image1, points0, points1, height)
    colours = [MOTION_COLOURS[label % len(MOTION_COLOURS)] for label in labels]
    shown = np.random.default_rng(0).permutation(np.flatnonzero(labels >= 0))
    drawing.blend_lines(shown, colours, MOTION_OPACITY)
    drawing.mark(shown, colours, labels, MARKER_RADIUS)
    motions = enumerate(MOTION_COLOURS[: labels.max(initial=-1) + 1])
    return drawing.finish(caption, [([colour], f"{(labels == number).sum()}") for number, colour in motions])


def draw_epipolar_lines(
    image0: Image,
    image1: Image,
    points0: np.ndarray,
    points1: np.ndarray,
    F: np.ndarray,
    caption: str = "",
    count: int = 12,
    height: int = PANEL_HEIGHT,
) -> np.ndarray:
    """Two photos side by side, a few matches, and through each point the line that its partner defines.

    Args:
        F: [3 x 3] with p1^T F p0 = 0; the rest as for `draw_matches`.
        count: how many matches at most, each far from those before it.
    """
    drawing = _Drawing(image0, image1, points0, points1, height)
    both = [np.c_[points, np.ones(len(points))] for points in (points0, points1)]
    lines = both[1] @ F, both[0] @ F.T
    for order, number in enumerate(_far_apart(points0, count)):
        colour = MOTION_COLOURS[order % len(MOTION_COLOURS)]
        for side in (0, 1):
            drawing.draw_line_across(side, lines[side][number], colour)
        drawing.mark([number], {number: colour}, {number: order}, MARKER_RADIUS)
    return drawing.finish(caption)


def _far_apart(points: np.ndarray, count: int) -> list[int]:
    """Indices of at most so many of the [N x 2] points, each as far as possible from those before it."""
    if len(points) == 0:
        return []
    chosen = [int(np.linalg.norm(points - points.mean(axis=0), axis=1).argmin())]
    distance = np.full(len(points), np.inf)
    while len(chosen) < min(count, len(points)):
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
        chosen.append(int(distance.argmax()))
    return chosen


def without_far_side(image: np.ndarray, H: np.ndarray, near: np.ndarray) -> np.ndarray:
    """The image with what lies beyond the horizon of a homography black: warping would mirror it into the picture.

    Args:
        image: [H x W] or [H x W x 3] uint8.
        near: [N x 2] pixels on the side that is kept, as most of them are.
    """
    height, width = image.shape[:2]
    depth = H[2, 0] * np.arange(width, dtype=np.float32) + (H[2, 1] * np.arange(height) + H[2, 2])[:, None]
    sides = np.sign(near @ H[2, :2] + H[2, 2])
    kept = depth > 0 if sides.sum() >= 0 else depth < 0
    if kept.all():
        return image
    cut = image.copy()
    cut[~kept] = 0
    return cut


def stack(*pictures: np.ndarray) -> np.ndarray:
    """Pictures below each other, narrower ones padded with white on the right."""
    width = max(picture.shape[1] for picture in pictures)
    margins = [((0, 0), (0, width - picture.shape[1]), (0, 0)) for picture in pictures]
    return np.concatenate([np.pad(*pair, constant_values=255) for pair in zip(pictures, margins, strict=True)])


def grid(pictures: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Pictures in rows with white gaps; each keeps its size, in the top left of its cell."""
    height, width = np.max([picture.shape[:2] for picture in pictures], axis=0)
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    sheet = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // columns * (height + GAP), number % columns * (width + GAP)
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return sheet


class _Drawing:
    """Both photos on a white canvas, and the places of the points on it."""

    def __init__(self, image0: Image, image1: Image, points0: np.ndarray, points1: np.ndarray, height: int) -> None:
        panel0, panel1 = (one if isinstance(one, Panel) else make_panel(one, height) for one in (image0, image1))
        (height0, width0), (height1, width1) = panel0.pixels.shape[:2], panel1.pixels.shape[:2]
        offset = width0 + GAP
        self.canvas = np.full((max(height0, height1), offset + width1, 3), 255, np.uint8)
        self.canvas[:height0, :width0] = panel0.pixels
        self.canvas[:height1, offset:] = panel1.pixels
        self.panels = (panel0, panel1)
        self.offsets = (0, offset)
        self.starts = (points0 + 0.5) * panel0.scale - 0.5
        self.ends = (points1 + 0.5) * panel1.scale - 0.5 + np.array([offset, 0])

    def draw_lines(
        self, numbers: Sequence[int] | np.ndarray, colour: Colour, thickness: int = 1, radius: float = 1.5
    ) -> None:
        """Draw lines of these matches, then discs at their ends."""
        starts, ends = self.starts[numbers], self.ends[numbers]
        for start, end in zip(_sixteenths(starts), _sixteenths(ends), strict=True):
            cv2.line(self.canvas, start, end, colour, thickness, cv2.LINE_AA, shift=4)
        if radius:
            for point in (*starts, *ends):
                self._disc(point, radius, colour)

    def draw_line_across(self, side: int, line: np.ndarray, colour: Colour) -> None:
        """Draw the line a x + b y + c = 0, in pixels of a photo, across that photo: side 0 or 1."""
        panel, offset = self.panels[side], self.offsets[side]
        height, width = panel.pixels.shape[:2]
        # In pixels of the panel, p = (q + 0.5) / scale - 0.5.
        a, b = line[:2] / panel.scale
        c = line[2] + (line[0] + line[1]) * (0.5 / panel.scale - 0.5)
        length = float(np.hypot(a, b))
        if not length > 0:
            return
        foot, along = -c * np.array([a, b]) / length**2, np.array([-b, a]) / length
        centre = np.array([width, height]) / 2
        # From the point nearest to the centre, far enough both ways to leave the panel.
        middle, reach = foot + along * ((centre - foot) @ along), float(width + height)
        if np.abs(middle - centre).max() > reach:
            return
        layer = np.ascontiguousarray(self.canvas[:height, offset : offset + width])
        start, end = _sixteenths(np.stack([middle - reach * along, middle + reach * along]))
        cv2.line(layer, start, end, RIM, 4, cv2.LINE_AA, shift=4)
        cv2.line(layer, start, end, colour, 2, cv2.LINE_AA, shift=4)
        self.canvas[:height, offset : offset + width] = layer

    def blend_lines(self, numbers: np.ndarray, colours: Sequence[Colour], opacity: float) -> None:
        """Draw translucent lines of these matches; colours are those of all matches."""
        before = self.canvas.copy()
        for number in numbers:
            self.draw_lines([number], colours[number], radius=0)
        self.canvas = cv2.addWeighted(self.canvas, opacity, before, 1 - opacity, 0)

    def mark(self, numbers: Sequence[int] | np.ndarray, colours: Any, labels: Any, radius: float) -> None:
        """Draw discs, squares, triangles or diamonds by label at both ends of these matches, with a dark rim."""
        for number in numbers:
            marker = MARKERS.get(labels[number] % 4)
            for point in (self.starts[number], self.ends[number]):
                if marker is None:
                    self._disc(point, radius + 1, RIM)
                    self._disc(point, radius, colours[number])
                    continue
                corners = np.array([_sixteenths(point + radius * 1.3 * marker)], np.int32)
                cv2.fillPoly(self.canvas, corners, colours[number], cv2.LINE_AA, shift=4)
                cv2.polylines(self.canvas, corners, True, RIM, 1, cv2.LINE_AA, shift=4)

    def _disc(self, point: np.ndarray, radius: float, colour: Colour) -> None:
        cv2.circle(self.canvas, _sixteenths(point), round(16 * radius), colour, -1, cv2.LINE_AA, shift=4)

    def finish(self, caption: str, legend: Legend = ()) -> np.ndarray:
        """The picture with rows of text below: the caption, then legend entries with their colours, wrapped to fit."""
        width = self.canvas.shape[1]
        x, row, placed = PADDING, 0, []
        for colours, text in [([], caption), *legend] if caption else legend:
            # OpenCV's fonts are ASCII only.
            text = text.encode("ascii", "replace").decode()
            scale = 0.6
            sample = 36 if colours else 0
            needed = sample + cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)[0][0]
            if needed > width - 2 * PADDING:
                scale *= max(0.5, (width - 2 * PADDING) / needed)
            if x > PADDING and x + needed > width - PADDING:
                x, row = PADDING, row + 1
            placed.append((x, row * ROW + 25, sample, colours, text, scale))
            x += needed + 24
        bar = np.full(((row + 1) * ROW + PADDING, width, 3), 255, np.uint8)
        for x, y, sample, colours, text, scale in placed:
            for number, colour in enumerate(colours):
                left, right = (x + 30 * n // len(colours) for n in (number, number + 1))
                cv2.rectangle(bar, (left, y - 8), (right, y - 4), colour, -1)
            cv2.putText(bar, text, (x + sample, y), cv2.FONT_HERSHEY_SIMPLEX, scale, INK, 1, cv2.LINE_AA)
        return np.concatenate([self.canvas, bar])


def _sixteenths(points: np.ndarray) -> list[Any]:
    """Coordinates in sixteenths of a pixel: OpenCV's way to draw between pixels."""
    return (points * 16).round().astype(int).tolist()


def _colours_of_places(places: np.ndarray) -> list[Colour]:
    """A bright colour for each of [N x 2] places: hue by x, from orange to violet, and saturation by y."""
    if len(places) == 0:
        return []
    low, high = places.min(axis=0), places.max(axis=0)
    x, y = ((places - low) / np.maximum(high - low, 1e-9)).T
    hsv = np.stack([15 + x * 135, 255 - 110 * y, np.full_like(x, 255)], axis=1).round().astype(np.uint8)
    return [(int(b), int(g), int(r)) for b, g, r in cv2.cvtColor(hsv[None], cv2.COLOR_HSV2BGR)[0]]
