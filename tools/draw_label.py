"""The picture of docs/data.md that shows what a right match is: a made-up wall, seen by made-up cameras.

    python tools/draw_label.py [docs/images/right-match.png]

Needs the extra `plots`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, ConnectionPatch, Polygon, Rectangle

from ananet.io.files import atomic_path

INK, FAINT = "#222222", "#8a8f94"
SKY, WALL, GLASS, GROUND = "#d8e8f5", "#efe4d4", "#a9bccb", "#d5dccb"
PALE_GREEN, PALE_GREY, PALE_RED = "#c9e8d2", "#e4e6e8", "#f9dddd"
RIGHT, ACCIDENTAL, WRONG, UNKNOWN, LINE = "#14803a", "#c96a00", "#c62828", "#5f6368", "#1f5fbf"

# x to the right, y downwards, z away from the cameras. The windows look the same, so that accidents are likely.
WALL_DEPTH, WALL_SIDE, WALL_TOP, WALL_FOOT = 10.0, 4.6, -2.4, 1.6
COLUMNS, ROWS, WINDOW = (-3.4, -1.7, 0.0, 1.7, 3.4), (-1.2, 0.4), (0.8, 0.9)
WIDTH, HEIGHT, FOCAL, HORIZON = 10.0, 6.4, 8.6, 3.5


@dataclass(frozen=True)
class Camera:
    """A camera at (x, 0, z) that looks at the middle of the wall."""

    x: float
    z: float = 0.0

    def image(self, points: Any) -> np.ndarray:
        """Project points [... x 3] to [... x 2]."""
        ahead = np.array([-self.x, 0, WALL_DEPTH - self.z]) / np.hypot(self.x, WALL_DEPTH - self.z)
        R = np.stack([np.cross([0, 1, 0], ahead), [0, 1, 0], ahead])
        seen = (np.asarray(points) - [self.x, 0, self.z]) @ R.T
        return FOCAL * seen[..., :2] / seen[..., 2:] + [WIDTH / 2, HORIZON]


def corner(column: int, row: int) -> np.ndarray:
    """The upper left corner of a window."""
    return np.array([COLUMNS[column] - WINDOW[0] / 2, ROWS[row] - WINDOW[1] / 2, WALL_DEPTH])


FIRST, SECOND, OTHERS = Camera(-2.4), Camera(2.4), (Camera(-5.8, 1.0), Camera(6.0, 1.6))
POINT, NEIGHBOUR, BELOW = corner(2, 0), corner(1, 0), corner(3, 1)
CLOUD = np.array([-23.0, -46.0, 160.0])


def draw_photo(axes: Axes, camera: Camera, title: str) -> None:
    def patch(corners: Any, **style: Any) -> None:
        shape = Polygon(camera.image(corners), **style)
        axes.add_patch(shape)
        shape.set_clip_path(frame)

    frame = Rectangle((0, 0), WIDTH, HEIGHT, facecolor=SKY, edgecolor=INK, linewidth=1.2)
    axes.add_patch(frame)
    z, far = WALL_DEPTH, 3 * WALL_DEPTH
    patch([(-40, WALL_FOOT, far), (40, WALL_FOOT, far), (9, WALL_FOOT, 2.5), (-9, WALL_FOOT, 2.5)], facecolor=GROUND)
    x, y = camera.image(CLOUD)
    for dx, dy, size in ((0, 0, 0.42), (0.45, 0.05, 0.32), (-0.45, 0.08, 0.3)):
        axes.add_patch(Circle((x + dx, y + dy), size, facecolor="white"))
    ends = [(-WALL_SIDE, WALL_TOP), (WALL_SIDE, WALL_TOP), (WALL_SIDE, WALL_FOOT), (-WALL_SIDE, WALL_FOOT)]
    patch([(x, y, z) for x, y in ends], facecolor=WALL, edgecolor=FAINT, linewidth=0.8)
    around = np.array([(0, 0, 0), (WINDOW[0], 0, 0), (*WINDOW, 0), (0, WINDOW[1], 0)])
    for column in range(len(COLUMNS)):
        for row in range(len(ROWS)):
            patch(corner(column, row) + around, facecolor=GLASS, edgecolor=FAINT, linewidth=0.8)
    axes.set(xlim=(-0.1, WIDTH + 0.1), ylim=(HEIGHT + 0.1, -0.1), aspect="equal")
    axes.text(0, -0.2, title, fontsize=10.5, color=INK)
    axes.axis("off")


def draw_keypoint(axes: Axes, place: np.ndarray, colour: str, marker: str = "o") -> None:
    axes.plot(*place, marker, color=colour, markersize=7, markeredgecolor="white", markeredgewidth=1, zorder=5)


def say(axes: Axes, text: str, place: Any, at: Any, colour: str, **style: Any) -> None:
    """Text with a line to what it is about."""
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colour, "linewidth": 0.8}
    arrow = {"arrowstyle": "-", "color": INK, "linewidth": 0.7, "shrinkB": 4}
    style = {"fontsize": 8.5, "color": colour, "ha": "center", "va": "center", "zorder": 6} | style
    axes.annotate(text, place, at, bbox=box, arrowprops=arrow, **style)


def draw_first(axes: Axes) -> None:
    draw_photo(axes, FIRST, "first photo")
    point, cloud = FIRST.image(POINT), FIRST.image(CLOUD)
    draw_keypoint(axes, point, LINE)
    say(axes, "keypoint of known depth", point, (4.6, 5.7), LINE)
    draw_keypoint(axes, cloud, UNKNOWN, "s")
    say(axes, "keypoint without depth", cloud, (6.6, 0.6), UNKNOWN)


def draw_second(axes: Axes) -> Rectangle:
    """Return the frame around the predicted place."""
    draw_photo(axes, SECOND, "second photo")
    for end, style in ((POINT, {"color": LINE}), (CLOUD, {"color": UNKNOWN, "linestyle": "--"})):
        # Points on the ray of a keypoint have their images on its epipolar line.
        start = np.array([FIRST.x, 0, FIRST.z])
        near, far = SECOND.image([start + share * (end - start) for share in (0.5, 1)])
        axes.axline(near, far, linewidth=1.6, **style).set_clip_path(axes.patches[0])
    point, neighbour, below, cloud = (SECOND.image(each) for each in (POINT, NEIGHBOUR, BELOW, CLOUD))
    axes.add_patch(Circle(point, 0.22, facecolor="none", edgecolor=RIGHT, linewidth=1.6, zorder=4))
    frame = Rectangle(point - 0.66, 1.32, 1.32, facecolor="none", edgecolor=INK, linewidth=0.8, zorder=4)
    axes.add_patch(frame)
    draw_keypoint(axes, point, RIGHT)
    draw_keypoint(axes, neighbour, ACCIDENTAL, "D")
    draw_keypoint(axes, below, WRONG, "X")
    draw_keypoint(axes, cloud, UNKNOWN, "s")
    say(axes, "right: at the\npredicted place", point, (5.0, 5.65), RIGHT)
    say(axes, "accidental: on the\nline, elsewhere", neighbour, (1.8, 5.65), ACCIDENTAL)
    say(axes, "wrong: off\nthe line", below, (8.1, 5.65), WRONG)
    say(axes, "unknown: no depth", cloud, (1.75, 0.6), UNKNOWN)
    say(axes, "epipolar line", SECOND.image(corner(4, 0) + np.array([1.9, 0, 0])), (8.6, 0.6), LINE)
    return frame


def draw_from_above(axes: Axes) -> None:
    """Cameras, wall and rays, from above; the two axes have different scales."""
    axes.plot((-WALL_SIDE, WALL_SIDE), (WALL_DEPTH, WALL_DEPTH), color="#c8b08c", linewidth=7, solid_capstyle="butt")
    for x in COLUMNS:
        axes.plot((x - WINDOW[0] / 2, x + WINDOW[0] / 2), (WALL_DEPTH, WALL_DEPTH), color=GLASS, linewidth=7)
    x, _, z = POINT
    for camera in OTHERS:
        axes.plot((camera.x, x), (camera.z, z), color=RIGHT, linewidth=1.5)
    axes.plot((FIRST.x, x), (FIRST.z, z), color=LINE, linewidth=1.8)
    axes.plot((SECOND.x, NEIGHBOUR[0]), (SECOND.z, z), color=ACCIDENTAL, linewidth=1.5, linestyle="--")
    # Where the two rays meet; both cameras have z = 0.
    along = (SECOND.x - FIRST.x) / (SECOND.x - FIRST.x + x - NEIGHBOUR[0])
    false = np.array([FIRST.x + along * (x - FIRST.x), along * z])
    draw_keypoint(axes, false, ACCIDENTAL, "D")
    draw_keypoint(axes, np.array([x, z]), RIGHT)
    names = ("first photo", "second photo: not used\nfor the depth in this pair", "other photo", "other photo")
    for camera, name in zip((FIRST, SECOND, *OTHERS), names, strict=True):
        axes.plot(camera.x, camera.z, "^", color=INK, markersize=10)
        axes.text(camera.x, camera.z - 0.7, name, fontsize=8.5, ha="center", va="top", color=INK)
    say(axes, "other photos give\nthe keypoint its depth", (x, z), (-5.2, 7.6), RIGHT)
    say(axes, "an accidental match\nwould put it here", false, (4.9, 7.4), ACCIDENTAL)
    axes.set(xlim=(-7.6, 7.6), ylim=(-2.2, 10.4))
    axes.set_title("the scene from above", fontsize=10.5, color=INK, pad=5)
    axes.axis("off")


def draw_distances(axes: Axes) -> None:
    """Which distances from the predicted place are right and wrong, 24 px of the photo enlarged."""
    axes.add_patch(Rectangle((-12, -12), 24, 24, facecolor=PALE_RED, edgecolor=INK, linewidth=1.2))
    axes.add_patch(Circle((0, 0), 8, facecolor=PALE_GREY, edgecolor=UNKNOWN, linewidth=1.2))
    axes.add_patch(Circle((0, 0), 4, facecolor=PALE_GREEN, edgecolor=RIGHT, linewidth=1.6))
    near, far = SECOND.image([POINT - [1, 0, 0], POINT])
    axes.axline((0, 0), slope=-(far - near)[1] / (far - near)[0], color=LINE, linewidth=1.6)
    axes.plot(0, 0, "+", color=INK, markersize=9)
    for text, y, colour in (
        ("wrong", 9.9, WRONG), ("unknown", 5.9, UNKNOWN), ("right", 2.1, RIGHT), ("4 px", -2.2, RIGHT),
        ("8 px", -6, UNKNOWN),
    ):  # fmt: skip
        axes.text(0, y, text, fontsize=9, ha="center", va="center", color=colour)
    axes.set(xlim=(-12, 12), ylim=(-12, 12), aspect="equal")
    axes.set_title("around the predicted place", fontsize=10.5, color=INK, pad=5)
    axes.axis("off")


def main(path: str = "docs/images/right-match.png") -> None:
    figure = Figure(figsize=(8, 6.0), facecolor="white")
    draw_from_above(figure.add_axes((0.01, 0.485, 0.62, 0.46)))
    enlarged, photo = figure.add_axes((0.645, 0.505, 0.33, 0.44)), figure.add_axes((0.505, 0.005, 0.485, 0.43))
    draw_first(figure.add_axes((0.01, 0.005, 0.485, 0.43)))
    draw_distances(enlarged)
    left, top, right, _ = draw_second(photo).get_bbox().extents
    for start, end in (((-12, -12), (left, top)), ((12, -12), (right, top))):
        line = ConnectionPatch(start, end, "data", "data", axesA=enlarged, axesB=photo)
        line.set(color=INK, linewidth=0.7, linestyle=":")
        figure.add_artist(line)
    with atomic_path(Path(path)) as temporary:
        figure.savefig(temporary, dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
