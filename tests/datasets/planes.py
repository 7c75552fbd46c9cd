"""Photos of a textured plane with known homographies, in the layouts that data sets have."""

from pathlib import Path

import cv2
import numpy as np

SIZE = (320, 240)
# From the first photo to the second: a slight turn and tilt; to the third: the same again.
STEP = np.array([[0.97, -0.05, 14.0], [0.04, 0.98, -9.0], [1e-4, -5e-5, 1.0]])
HOMOGRAPHIES = {2: STEP, 3: STEP @ STEP}
LAYOUTS = {"oxford": ("img{}.png", "H1to{}p"), "hpatches": ("{}.ppm", "H_1_{}")}


def write_planes(folder: Path, layout: str = "oxford") -> Path:
    """Write a scene of three photos; return its folder."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    layers = [cv2.resize(rng.normal(0, 1, (SIZE[1] // s, SIZE[0] // s)), SIZE) * s for s in (1, 2, 4, 8)]
    texture = cv2.GaussianBlur((128 + 16 * sum(layers)).clip(0, 255), (0, 0), 0.8).astype(np.uint8)
    texture = cv2.cvtColor(texture, cv2.COLOR_GRAY2BGR)
    photo, text = LAYOUTS[layout]
    cv2.imwrite(str(folder / photo.format(1)), texture)
    for number, H in HOMOGRAPHIES.items():
        cv2.imwrite(str(folder / photo.format(number)), cv2.warpPerspective(texture, H, SIZE))
        (folder / text.format(number)).write_text("\n".join(" ".join(map(str, row)) for row in H) + "\n")
    return folder


def write_plane_matches(path: Path, count: int = 40, wrong: int = 20) -> Path:
    """Write matches that STEP relates and wrong ones, of which only the first ten right ones have label 1."""
    rng = np.random.default_rng(0)
    points0 = rng.uniform((10, 10), (300, 230), (count + wrong, 2))
    points1 = cv2.perspectiveTransform(points0[None], STEP)[0]
    points1[count:] += 60
    rows = np.c_[points0, points1]
    labels = (np.arange(count + wrong) < 10).astype(int)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{' '.join(map(str, row))} 0.5 MSER RootSIFT {one}\n" for row, one in zip(rows, labels, strict=True))
    path.write_text("".join(lines))
    return path
