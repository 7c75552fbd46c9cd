"""Find and draw the motions of three pictures that move in front of a textured wall.

pip install "ananet[demo]"
python examples/tell_motions_apart.py [motions.jpg]
"""

import sys

import cv2
import numpy as np
from skimage import data

import ananet

# Corners of each picture in the first photo and in the second.
THINGS = (
    (data.chelsea, ((60, 60), (330, 40), (330, 240), (60, 250)), ((150, 90), (410, 110), (400, 320), (140, 290))),
    (data.coffee, ((480, 90), (760, 70), (770, 290), (490, 280)), ((520, 30), (770, 90), (720, 300), (480, 240))),
    (
        data.astronaut,
        ((250, 320), (500, 300), (500, 540), (260, 540)),
        ((330, 340), (540, 370), (520, 570), (300, 540)),
    ),
)
WALL = ((-20, -40), (870, -10), (880, 620), (-30, 610)), ((-60, -20), (860, -60), (900, 640), (-20, 650))
SIZE = (840, 580)


def photo(which: int) -> np.ndarray:
    """[H x W x 3] uint8 BGR: the first photo or the second."""
    canvas = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    # Blurred, or most keypoints would be the wall's.
    wall = cv2.cvtColor(cv2.GaussianBlur(data.gravel(), (0, 0), 2.5), cv2.COLOR_GRAY2BGR)
    pictures = [(cv2.cvtColor(make(), cv2.COLOR_RGB2BGR), corners) for make, *corners in THINGS]
    for picture, corners in [(wall, WALL), *pictures]:
        height, width = picture.shape[:2]
        source = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        H = cv2.getPerspectiveTransform(source, np.array(corners[which], np.float32))
        covered = cv2.warpPerspective(np.full((height, width), 255, np.uint8), H, SIZE) > 127
        canvas[covered] = cv2.warpPerspective(picture, H, SIZE, flags=cv2.INTER_AREA)[covered]
    return canvas


def main() -> None:
    image0, image1 = photo(0), photo(1)
    found = ananet.match_photos(image0, image1, motions=True)
    print(found.motions)
    found.draw(sys.argv[1] if len(sys.argv) > 1 else "motions.jpg")


if __name__ == "__main__":
    main()
