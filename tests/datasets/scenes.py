"""Small posed scenes on disk: photos of textured walls, rendered by homographies, with an exact COLMAP model."""

from pathlib import Path

import cv2
import numpy as np

WIDTH, HEIGHT, FOCAL = 320, 240, 280.0
# The first pixel's centre is (0, 0) here and (0.5, 0.5) in COLMAP.
K = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])


def texture(seed: int, size: int = 900) -> np.ndarray:
    rng = np.random.default_rng(seed)
    layers = [cv2.resize(rng.random((size // s, size // s, 3), np.float32), (size, size)) for s in (4, 12, 40)]
    return (np.mean(layers, axis=0) * 255).astype(np.uint8)


def write_scene(
    folder: Path, images: int = 4, seed: int = 0, pairs: list[tuple[str, str]] | None = None, behind: int = 0
) -> Path:
    """A camera that moves sideways before two walls at different depths.

    `behind` more photos look the other way, at walls that look the same.
    """
    (folder / "images").mkdir(parents=True)
    (folder / "sparse").mkdir()
    near, far = texture(seed), texture(seed + 1)
    cameras, poses = [], []
    for number in range(images + behind):
        turned = number >= images
        angle = np.radians(3.0 * (number % images))
        R = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        centre = np.array([-0.35, 0.05, 0.0]) * (number % images)
        t = -R @ centre
        name = f"{number:03d}.png"
        canvas = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        for wall, depth, left in ((far, 6.0, -5.0), (near, 4.0, 0.2)):
            # World points of the wall: (left + u s, v s, depth); a homography maps its pixels (u, v) to the photo.
            scale = 10.0 / wall.shape[0]
            world = np.array([[scale, 0, left], [0, scale, -5.0], [0, 0, depth]])
            H = K @ (R @ world + np.outer(t, [0, 0, 1]))
            drawn = cv2.warpPerspective(wall, H, (WIDTH, HEIGHT), flags=cv2.INTER_AREA)
            inside = cv2.warpPerspective(np.full(wall.shape[:2], 255, np.uint8), H, (WIDTH, HEIGHT)) > 127
            canvas[inside] = drawn[inside]
        cv2.imwrite(str(folder / "images" / name), canvas)
        half = angle / 2 + turned * np.pi / 2
        quaternion = (np.cos(half), 0.0, np.sin(half), 0.0)
        cameras.append(f"{number + 1} PINHOLE {WIDTH} {HEIGHT} {FOCAL} {FOCAL} {WIDTH / 2 + 0.5} {HEIGHT / 2 + 0.5}")
        values = " ".join(repr(float(v)) for v in (*quaternion, *t))
        poses.append(f"{number + 1} {values} {number + 1} {name}\n")
    (folder / "sparse" / "cameras.txt").write_text("\n".join(cameras) + "\n")
    (folder / "sparse" / "images.txt").write_text("\n".join(poses) + "\n")
    if pairs is not None:
        (folder / "pairs.txt").write_text("".join(f"{a} {b}\n" for a, b in pairs))
    return folder
