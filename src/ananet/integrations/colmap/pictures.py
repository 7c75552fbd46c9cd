"""A picture of a model: its points and cameras, from above and from the front."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from ananet.twoview.drawing import GAP, INK, ORANGE, PADDING, WHITE

PANEL = (720, 720)
BACKGROUND = INK
# Points beyond these percentiles of the distance from the middle do not decide what is in view.
IN_VIEW = 95.0
MARGIN = 0.06
# Of a camera's picture, in focal lengths, and its size as a share of the view.
HALF_WIDTH, CAMERA_SHARE = 0.6, 0.035


def draw_model(model: Any, caption: str) -> np.ndarray:
    """Picture of a pycolmap reconstruction: from above on the left, from the front on the right."""
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    colours = np.array([point.color for point in model.points3D.values()], np.uint8).reshape(-1, 3)[:, ::-1]
    poses = [image.cam_from_world() for image in model.images.values() if image.has_pose]
    rotations = np.array([pose.rotation.matrix() for pose in poses])
    centres = np.array([-pose.rotation.matrix().T @ pose.translation for pose in poses])
    axes = view_axes(rotations, centres)
    panels = [
        _draw_view(points @ axes.T, colours, centres @ axes.T, rotations @ axes.T, across, label)
        for across, label in (((0, 1, 2), "from above"), ((0, 2, 1), "from the front"))
    ]
    canvas = np.full((PANEL[1] + 36, 2 * PANEL[0] + GAP, 3), 255, np.uint8)
    canvas[: PANEL[1], : PANEL[0]], canvas[: PANEL[1], PANEL[0] + GAP :] = panels
    text = caption.encode("ascii", "replace").decode()
    cv2.putText(canvas, text, (PADDING, PANEL[1] + 25), cv2.FONT_HERSHEY_SIMPLEX, 0.6, INK, 1, cv2.LINE_AA)
    return canvas


def view_axes(rotations: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """[3 x 3] rows: to the right, away and up, for cameras [N x 3 x 3] held upright at centres [N x 3].

    Most photos are taken upright, so up is the middle of where the cameras have it. From the side one looks the way
    that most of them look.
    """
    up = -np.median(rotations[:, 1], axis=0)
    up /= max(np.linalg.norm(up), 1e-12)
    ahead = rotations[:, 2].mean(axis=0)
    ahead = ahead - up * (ahead @ up)
    # Around an object the directions cancel out: then along the path of the cameras.
    if np.linalg.norm(ahead) < 0.3:
        spread = centres - centres.mean(axis=0)
        spread = spread - np.outer(spread @ up, up)
        right = np.linalg.svd(spread)[2][0]
    else:
        right = np.cross(ahead, up)
    right = right - up * (right @ up)
    right /= max(np.linalg.norm(right), 1e-12)
    return np.stack([right, np.cross(up, right), up])


def _draw_view(
    points: np.ndarray, colours: np.ndarray, centres: np.ndarray, rotations: np.ndarray, across: Any, label: str
) -> np.ndarray:
    """One panel: the first two axes of `across` lie in the picture, the third points to the viewer or away from it."""
    x, y, depth = across
    flat, seats = points[:, [x, y]], centres[:, [x, y]]
    middle = np.median(flat, axis=0) if len(flat) else seats.mean(axis=0)
    reach = np.percentile(np.abs(flat - middle).max(axis=1), IN_VIEW) if len(flat) else 0.0
    inside = flat[np.abs(flat - middle).max(axis=1) <= reach] if len(flat) else seats
    both = np.concatenate([inside, seats])
    low, high = both.min(axis=0), both.max(axis=0)
    extent = float(max((high - low).max(), 1e-9)) * (1 + 2 * MARGIN)
    scale = min(PANEL) / extent
    canvas = np.full((PANEL[1], PANEL[0], 3), BACKGROUND, np.uint8)

    def place(values: np.ndarray) -> np.ndarray:
        shifted = (values - (low + high) / 2) * scale
        return np.stack([PANEL[0] / 2 + shifted[..., 0], PANEL[1] / 2 - shifted[..., 1]], axis=-1)

    # From above the highest are nearest; from the side those with the least depth are.
    nearest_last = np.argsort(points[:, depth] if depth == 2 else -points[:, depth])
    pixels = place(flat[nearest_last]).round().astype(int)
    seen = ((pixels >= 1) & (pixels < np.array(PANEL) - 1)).all(axis=1)
    # Two by two pixels are seen on a screen.
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        canvas[pixels[seen, 1] + dy, pixels[seen, 0] + dx] = colours[nearest_last][seen]
    size = CAMERA_SHARE * extent
    corners = np.array([[-1, -0.75, 1.5], [1, -0.75, 1.5], [1, 0.75, 1.5], [-1, 0.75, 1.5]]) * [
        HALF_WIDTH,
        HALF_WIDTH,
        1,
    ]
    for centre, R in zip(centres, rotations, strict=True):
        rim = place((centre + size * corners @ R)[:, [x, y]])
        seat = place(centre[[x, y]])
        lines = [np.stack([seat, corner]) for corner in rim]
        for line in (*lines, np.concatenate([rim, rim[:1]])):
            whole = (line * 16).round().astype(np.int32)
            cv2.polylines(canvas, [whole], False, ORANGE, 1, cv2.LINE_AA, shift=4)
    cv2.putText(canvas, label, (PADDING, 24), cv2.FONT_HERSHEY_SIMPLEX, 0.6, WHITE, 1, cv2.LINE_AA)
    return canvas
