"""The pictures of docs/gallery.md, and the numbers of its table: right answers and wrong ones, with known truth.

    python tools/make_gallery.py [docs/images]

Needs the extra `demo`. All photos come with scikit-image.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from skimage import data

import ananet
from ananet._util.tables import format_table
from ananet.cli.demo import MeasuredPair, match_errors, motorcycle
from ananet.core.cameras import centred_camera
from ananet.core.geometry import epipolar_distance, essential_from_pose, rotation_error, translation_error
from ananet.io.files import atomic_path
from ananet.twoview.drawing import draw_motions, draw_right_wrong, stack

# What the page's numbers were made with.
DETECTOR = "sift@root=false@max_keypoints=2000"
# A match is right if it ends within this many pixels of the true place.
CORRECT_WITHIN = 3.0
PANEL_HEIGHT = 300
QUALITY = 82
GREY = (128, 128, 128)
FINER = 4
# More lines would hide the photos.
MAX_LINES = 120


@dataclass(frozen=True, eq=False)
class Case:
    """Two photos, and how far from the truth a match ends."""

    image0: np.ndarray
    image1: np.ndarray
    errors: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """[N x 2], [N x 2] -> [N] pixels; NaN where the truth is not known."""
    K0: np.ndarray | None = None
    K1: np.ndarray | None = None

    def answer(self) -> "Answer":
        found = ananet.match_photos(self.image0, self.image1, detector=DETECTOR, K0=self.K0, K1=self.K1)
        return Answer(self, found, self.errors(*found.matches.numpy_points()))


@dataclass(frozen=True, eq=False)
class Answer:
    case: Case
    found: ananet.PhotoMatches
    error: np.ndarray
    """[N] pixels; NaN where the truth is not known."""

    @property
    def numbers(self) -> dict[str, int | float | str]:
        """A row of the page's table. Precision and recall count matches whose truth is known."""
        known, right, kept = ~np.isnan(self.error), self.error < CORRECT_WITHIN, self.found.kept.mask
        kept_right = int((kept & right).sum())
        return {
            "matches": len(kept),
            "right": f"{right.sum() / known.sum():.1%}",
            "kept": int(kept.sum()),
            "precision": f"{kept_right / (kept & known).sum():.2f}" if (kept & known).any() else "-",
            "recall": f"{kept_right / right.sum():.2f}" if right.any() else "-",
            "overlap": "yes" if self.found.overlap.found else "no",
        }

    def picture(self, title: str) -> np.ndarray:
        """The kept matches, right ones green, wrong ones red."""
        known = np.flatnonzero(self.found.kept.mask & ~np.isnan(self.error))
        right = self.error < CORRECT_WITHIN
        points0, points1 = (points[known] for points in self.found.matches.numpy_points())
        photos = self.case.image0, self.case.image1
        caption = f"{title}: {len(known)} kept matches"
        return draw_right_wrong(*photos, points0, points1, right[known], caption, PANEL_HEIGHT, MAX_LINES)


def measured() -> Case:
    pair = motorcycle()
    return Case(pair.image0, pair.image1, lambda *points: match_errors(pair, *points), pair.K0, pair.K1)


def tilted(picture: np.ndarray, degrees: float, first: float = 0) -> Case:
    """A flat picture from two cameras that went around it by so many degrees, the first one by none."""
    height, width = picture.shape[:2]
    K = centred_camera(1.5 * width, (width, height))
    to_middle = np.array([[1, 0, -K[0, 2]], [0, 1, -K[1, 2]], [0, 0, 1]])

    def view(degrees: float) -> np.ndarray:
        angle = np.radians(degrees)
        # Columns: where the picture's x axis, its y axis and its middle lie before the camera.
        plane = np.array([[np.cos(angle), 0, 0], [0, 1, 0], [-np.sin(angle), 0, K[0, 0]]])
        return K @ plane @ to_middle

    return seen_through(picture, view(degrees), view(first) if first else None)


def zoomed(picture: np.ndarray, zoom: int, crop: int = 1) -> Case:
    """A picture, and its middle so many times as large. The first photo may be cut to its middle and enlarged too.

    The larger photo has no details that the first lacks, so a match is right within a pixel of the first photo.
    """
    height, width = picture.shape[:2]
    larger, cut = (
        np.array([[scale, 0, (1 - scale) * width / 2], [0, scale, (1 - scale) * height / 2], [0, 0, 1]], float)
        for scale in (zoom, crop)
    )
    case = seen_through(picture, larger, cut if crop > 1 else None)
    return Case(case.image0, case.image1, lambda *points: case.errors(*points) * CORRECT_WITHIN / zoom)


def seen_through(picture: np.ndarray, H: np.ndarray, first: np.ndarray | None = None) -> Case:
    """A picture, as it is or through a first homography, and through another."""
    true = H if first is None else H @ np.linalg.inv(first)
    image0 = picture if first is None else warp(picture, first)
    return Case(image0, warp(picture, H), lambda *points: distance_to(true, *points))


def warp(picture: np.ndarray, H: np.ndarray) -> np.ndarray:
    height, width = picture.shape[:2]
    # Drawn larger and reduced: warpPerspective alone skips pixels where it makes things smaller.
    enlarge = np.array([[FINER, 0, (FINER - 1) / 2], [0, FINER, (FINER - 1) / 2], [0, 0, 1]])
    large = cv2.warpPerspective(picture, enlarge @ H, (FINER * width, FINER * height), borderValue=GREY)
    return cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA)


def distance_to(H: np.ndarray, points0: np.ndarray, points1: np.ndarray) -> np.ndarray:
    """[N] pixels from where the homography takes the first points."""
    return np.linalg.norm(cv2.perspectiveTransform(points0[None].astype(float), H)[0] - points1, axis=1)


def unrelated(image0: np.ndarray, image1: np.ndarray) -> Case:
    return Case(image0, image1, lambda points0, points1: np.full(len(points0), np.inf))


def shelf(cat: bool = False) -> Case:
    """A long shelf of equal cups.

    The camera moves by two cups, so that the second photo shows two of the first's four columns and two new ones that
    look the same. A cat may take the place of one cup that both photos show.
    """
    cup = cv2.resize(bgr(data.coffee())[20:380, 100:460], (180, 180), interpolation=cv2.INTER_AREA)
    face = cv2.resize(bgr(data.chelsea())[:, 100:400], (180, 180), interpolation=cv2.INTER_AREA)
    step = 205

    def photo(column_of_cat: int) -> np.ndarray:
        canvas = np.full((420, 840, 3), 200, np.uint8)
        for row, column in np.ndindex(2, 4):
            top, left = 20 + 200 * row, 20 + step * column
            canvas[top : top + 180, left : left + 180] = face if cat and (row, column) == (0, column_of_cat) else cup
        return canvas

    corners = np.array([[0, 0], [840, 0], [840, 420], [0, 420]], np.float32)
    view = cv2.getPerspectiveTransform(corners, np.array([[10, 20], [830, 5], [820, 415], [25, 400]], np.float32))
    moved = np.array([[1, 0, -2 * step], [0, 1, 0], [0, 0, 1]])
    return Case(photo(3), warp(photo(1), view), lambda *points: distance_to(view @ moved, *points))


def poster() -> tuple[Case, MeasuredPair]:
    """The motorcycle, and before it a poster that moves on its own between the photos."""
    pair = motorcycle()
    image0, image1 = pair.image0.copy(), pair.image1.copy()
    picture = bgr(data.astronaut())
    side = picture.shape[0]
    corners = np.array([[0, 0], [side, 0], [side, side], [0, side]], np.float32)
    places = (
        [(180, 60), (480, 60), (480, 360), (180, 360)],
        [(300, 20), (615, 40), (595, 335), (280, 335)],
    )
    to_photo = [cv2.getPerspectiveTransform(corners, np.array(place, np.float32)) for place in places]
    covered = []
    for image, H in zip((image0, image1), to_photo, strict=True):
        size = image.shape[1::-1]
        covered.append(cv2.warpPerspective(np.full((side, side), 255, np.uint8), H, size) > 127)
        image[covered[-1]] = cv2.warpPerspective(picture, H, size, flags=cv2.INTER_AREA)[covered[-1]]
    moved = to_photo[1] @ np.linalg.inv(to_photo[0])

    def errors(points0: np.ndarray, points1: np.ndarray) -> np.ndarray:
        column, row = points0.round().astype(int).T
        on_poster, elsewhere = distance_to(moved, points0, points1), match_errors(pair, points0, points1)
        return np.where(covered[0][row, column], on_poster, elsewhere)

    return Case(image0, image1, errors, pair.K0, pair.K1), pair


def bgr(picture: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)


def cases() -> dict[str, Case]:
    """By the name that the page's table has."""
    coffee = bgr(data.coffee())
    left = motorcycle().image0
    return {
        "motorcycle": measured(),
        "plane at 60°": tilted(coffee, 60),
        "plane at 75°": tilted(coffee, 75),
        "plane from 45° to 75°": tilted(coffee, 75, first=45),
        "zoom 4x": zoomed(left, 4),
        "zoom 10x": zoomed(left, 10),
        "zoom 10x, first photo cropped": zoomed(left, 10, crop=4),
        "nothing in common": unrelated(left, bgr(data.astronaut())),
        "equal cups": shelf(),
        "equal cups and a cat": shelf(cat=True),
        "moving poster": poster()[0],
    }


def pose_errors(pose: ananet.Pose | None, pair: MeasuredPair) -> str:
    if pose is None:
        return "no pose"
    R, t = (torch.from_numpy(array) for array in (pose.R, pose.t))
    rotation = rotation_error(R, torch.from_numpy(pair.R)).item()
    translation = translation_error(t, torch.from_numpy(pair.t)).item()
    return f"rotation off by {rotation:.1f}°, translation by {translation:.1f}°"


def tell_epipolar_distances(answer: Answer) -> None:
    """How many of the wrong kept matches of the motorcycle lie near their true epipolar line."""
    pair, found = motorcycle(), answer.found
    E = essential_from_pose(torch.from_numpy(pair.R), torch.from_numpy(pair.t))
    inverse0, inverse1 = (torch.from_numpy(np.linalg.inv(K)) for K in (pair.K0, pair.K1))
    points0, points1 = (torch.from_numpy(points).double() for points in found.matches.numpy_points())
    near = epipolar_distance(points0, points1, inverse1.T @ E @ inverse0).numpy() < CORRECT_WITHIN
    wrong = found.kept.mask & (answer.error >= CORRECT_WITHIN)
    inlier = np.zeros(len(wrong), bool) if found.pose is None else found.pose.inliers
    print(
        f"\nmotorcycle, wrong kept matches: {wrong.sum()}, of these within 3 px of their epipolar line: "
        f"{(wrong & near).sum()}, inliers of the pose: {(wrong & inlier).sum()}"
    )


def tell_motions(answer: Answer, pair: MeasuredPair) -> np.ndarray:
    """The motions of the poster's pair drawn, and the poses that follow from each printed."""
    found, case = answer.found, answer.case
    motions = ananet.group_motions(found.matches, found.kept)
    print(f"\nmoving poster, pose of all kept matches: {pose_errors(found.pose, pair)}")
    for number, motion in enumerate(motions.motions):
        pose = ananet.estimate_pose(found.matches[motions.labels == number])
        print(f"motion {number}, {motion.kind}, {motion.support} matches: {pose_errors(pose, pair)}")
    points = found.matches.numpy_points()
    caption = f"the same in {len(motions)} motions, each in a colour"
    return draw_motions(case.image0, case.image1, *points, motions.labels, caption, PANEL_HEIGHT)


def main(folder: str = "docs/images") -> None:
    answers = {name: case.answer() for name, case in cases().items()}
    print(format_table([{"case": name, **answer.numbers} for name, answer in answers.items()], "markdown"))
    tell_epipolar_distances(answers["motorcycle"])
    drawn = {name: answer.picture(name.replace("°", " degrees")) for name, answer in answers.items()}
    pictures = {
        "motorcycle": drawn["motorcycle"],
        "plane": stack(drawn["plane at 60°"], drawn["plane at 75°"]),
        "zoom": stack(drawn["zoom 4x"], drawn["zoom 10x"], drawn["zoom 10x, first photo cropped"]),
        "nothing-in-common": drawn["nothing in common"],
        "equal-cups": stack(drawn["equal cups"], drawn["equal cups and a cat"]),
        "moving-poster": stack(drawn["moving poster"], tell_motions(answers["moving poster"], poster()[1])),
    }
    for name, picture in pictures.items():
        with atomic_path(Path(folder) / f"gallery-{name}.jpg") as path:
            cv2.imwrite(str(path), picture, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])


if __name__ == "__main__":
    main(*sys.argv[1:])
