"""Photos of a rendered room with known cameras, for the notebooks. The pictures in it come with scikit-image."""

from pathlib import Path

import cv2
import numpy as np
from skimage import data

WIDTH, HEIGHT, FOCAL = 640, 480, 560.0
K = np.array([[FOCAL, 0, (WIDTH - 1) / 2], [0, FOCAL, (HEIGHT - 1) / 2], [0, 0, 1]])
"""Camera matrix; the centre of the first pixel is (0, 0)."""
PICTURES = (data.rocket, data.coffee, data.astronaut, data.chelsea)
# Photos are drawn so many times as large and then reduced, which smooths edges.
FINER = 2
# Standard deviation of the grey values' noise, so that no two photos of a thing are equal.
NOISE = 4.0


def camera_at(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """R and t (X_camera = R X_room + t) of a camera on a circle around the middle of the room, looking at it."""
    angle = np.radians(degrees)
    R = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    return R, np.array([0, 0, 7.0]) - R @ [0, 0, 7.0]


def make_room(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Flat things, far ones first: pixels, and [3 x 3] top left corner, right edge and bottom edge.

    x is right, y is down, z is away from the camera at 0 degrees. Seed 0 is a fixed arrangement, others are random.
    """
    wall, ground = (cv2.cvtColor(texture(), cv2.COLOR_GRAY2BGR) for texture in (data.brick, data.gravel))
    places = np.array(
        [
            [(-4, -2, 8.5), (3, 0, -0.8), (0, 2, 0)],
            [(1.5, -1.6, 8), (2.6, 0, 0.6), (0, 1.8, 0)],
            [(-1.2, -0.4, 6.5), (1.6, 0, 0.5), (0, 1.8, 0)],
            [(1.2, 0.4, 5.6), (1.5, 0, -0.4), (0, 1.1, 0)],
        ],
        float,
    )
    pictures = [cv2.cvtColor(picture(), cv2.COLOR_RGB2BGR) for picture in PICTURES]
    if seed:
        rng = np.random.default_rng(seed)
        pictures = [pictures[number] for number in rng.permutation(len(pictures))]
        # Edges to the right stay level, edges down stay upright.
        places += rng.uniform(-0.4, 0.4, places.shape) * [[1, 1, 1], [1, 0, 1], [0, 1, 0]]
    # Mirrored copies beside each other: exact copies, which no real wall has, would match each other.
    wall = np.hstack([wall, wall[:, ::-1], wall[::-1]])
    ground = np.hstack([ground, ground[:, ::-1], ground[::-1]])
    return [
        (wall, np.array([(-6, -3, 9), (12, 0, 0), (0, 5, 0)], float)),
        (np.vstack([ground, ground[::-1, ::-1]]), np.array([(-6, 2, 9), (12, 0, 0), (0, 0, -6)], float)),
        *zip(pictures, places, strict=True),
    ]


def photograph(room: list[tuple[np.ndarray, np.ndarray]], degrees: float, seed: int = 0) -> np.ndarray:
    """[H x W x 3] uint8 BGR: the room from a camera on the circle."""
    R, t = camera_at(degrees)
    size = (FINER * WIDTH, FINER * HEIGHT)
    enlarge = np.array([[FINER, 0, (FINER - 1) / 2], [0, FINER, (FINER - 1) / 2], [0, 0, 1]])
    photo = np.full((size[1], size[0], 3), 180, np.uint8)
    for picture, (corner, right, down) in room:
        height, width = picture.shape[:2]
        # A homography takes pixels of the picture to the room and on to the photo.
        to_room = np.array([right / width, down / height, corner]).T
        H = enlarge @ K @ (R @ to_room + np.outer(t, [0, 0, 1]))
        covered = cv2.warpPerspective(np.full((height, width), 255, np.uint8), H, size) > 127
        photo[covered] = cv2.warpPerspective(picture, H, size)[covered]
    noise = np.random.default_rng(seed).normal(0, NOISE, (HEIGHT, WIDTH, 3))
    return (cv2.resize(photo, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA) + noise).clip(0, 255).astype(np.uint8)


def write_photos(folder: str | Path, angles: list[float], seed: int = 0) -> Path:
    """Photos of a room as JPEG files; gives their folder."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    room = make_room(seed)
    for number, degrees in enumerate(angles):
        cv2.imwrite(str(folder / f"{number:03d}.jpg"), photograph(room, degrees, number))
    return folder


def write_scene(folder: str | Path, angles: list[float], seed: int = 0) -> Path:
    """Photos and their true cameras: images/ beside sparse/, a COLMAP model in text form."""
    folder = Path(folder)
    photos = sorted(write_photos(folder / "images", angles, seed).iterdir())
    (folder / "sparse").mkdir()
    # In COLMAP, the centre of the first pixel is (0.5, 0.5).
    camera = f"1 PINHOLE {WIDTH} {HEIGHT} {FOCAL} {FOCAL} {WIDTH / 2} {HEIGHT / 2}\n"
    (folder / "sparse" / "cameras.txt").write_text(camera)
    with open(folder / "sparse" / "images.txt", "w") as file:
        for number, (photo, degrees) in enumerate(zip(photos, angles, strict=True), start=1):
            half = np.radians(degrees) / 2
            quaternion = (np.cos(half), 0, np.sin(half), 0)
            values = " ".join(str(float(value)) for value in (*quaternion, *camera_at(degrees)[1]))
            file.write(f"{number} {values} 1 {photo.name}\n\n")
    return folder
