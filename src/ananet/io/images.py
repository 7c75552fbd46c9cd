"""Photos: reading, resizing, and the focal length that a camera wrote into them."""

import io
import math
import struct
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np

from ananet.errors import InputError
from ananet.io.files import atomic_path, check_output

# Full frame, whose width the 35 mm equivalent of a focal length refers to.
FULL_FRAME_WIDTH = 36.0
# Tags of EXIF 2.3.
EXIF_IFD, FOCAL_LENGTH, FOCAL_LENGTH_35MM = 0x8769, 0x920A, 0xA405
PLANE_RESOLUTION, PLANE_UNIT, PIXELS_X, PIXELS_Y = 0xA20E, 0xA210, 0xA002, 0xA003
# Millimetres of a unit of the focal plane's resolution; inches where none is said.
UNITS = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
# struct's letters for numbers of TIFF: byte, short, long, signed ones, and float. Rationals are two longs.
SHORT_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 11: "f"}
LONG_NUMBERS = {5: "II", 10: "ii", 12: "d"}
# Focal lengths over the longest side that no lens has are mistakes of whoever wrote them.
MIN_FOCAL, MAX_FOCAL = 0.1, 100.0


def check_image_file(path: str | Path) -> Path:
    """Raises unless there is a file; whether it holds an image shows on reading."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected an image file, got a directory")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    return path


def read_image(path: str | Path, upright: bool = True) -> np.ndarray:
    """[H x W x 3] uint8 BGR, upright: its EXIF orientation is applied, as in every viewer.

    Camera matrices must belong to the upright image, unless `upright` is False, which gives the pixels as stored.
    """
    path = check_image_file(path)
    flags = cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
        image = cv2.imdecode(data, flags) if data.size else None
    except (cv2.error, MemoryError) as error:
        # Larger than OpenCV allows, whatever the file really holds, or than the memory.
        reason = getattr(error, "err", "") or str(error) or "out of memory"
        raise InputError(f"{path}: OpenCV does not read this image ({reason})") from None
    if image is None:
        raise InputError(f"{path}: not an image that OpenCV can read")
    return image


def exif_focal(source: str | Path | bytes) -> float | None:
    """Focal length in pixels from the EXIF data of a JPEG file or of its bytes; None if there is none or it is broken.

    It comes from the 35 mm equivalent, else from the focal length and the resolution of the focal plane. It is the
    same for the stored and the upright image, and that of the file's own size: resized photos often keep their EXIF.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
            exif, size = scan_jpeg(file)
        if exif is None or size is None:
            return None
        focal = _focal_over_longest_side(_read_tags(exif), max(size)) * max(size)
    except (OSError, ArithmeticError, ValueError, LookupError, struct.error):
        return None
    return focal if MIN_FOCAL * max(size) <= focal <= MAX_FOCAL * max(size) else None


def scan_jpeg(file: BinaryIO) -> tuple[bytes | None, tuple[int, int] | None]:
    """The EXIF block, which is a TIFF file, and the width and height of the stored image."""
    exif, size = None, None
    if file.read(2) != b"\xff\xd8":
        return None, None
    while exif is None or size is None:
        if file.read(1) != b"\xff":
            break
        while (kind := file.read(1)) == b"\xff":  # padding
            pass
        # The pixels start or the file ends.
        if kind in (b"", b"\xda", b"\xd9"):
            break
        if kind == b"\x01" or b"\xd0" <= kind <= b"\xd7":  # markers without a segment
            continue
        (length,) = struct.unpack(">H", file.read(2))
        segment = file.read(length - 2) if length > 2 else b""
        if kind == b"\xe1" and segment.startswith(b"Exif\0\0"):
            exif = exif or segment[6:]
        # Start of frame; three of the numbers in between mean other things.
        elif b"\xc0" <= kind <= b"\xcf" and kind not in (b"\xc4", b"\xc8", b"\xcc"):
            height, width = struct.unpack_from(">HH", segment, 1)
            size = (width, height)
    return exif, size


def _read_tags(exif: bytes) -> dict[int, float]:
    """Numbers of the first directory and of the EXIF directory, by tag."""
    order = {b"II": "<", b"MM": ">"}[exif[:2]]
    magic, first = struct.unpack_from(order + "HI", exif, 2)
    if magic != 42:
        raise ValueError("no TIFF header")
    tags = _read_directory(exif, order, first)
    if EXIF_IFD in tags:
        tags |= _read_directory(exif, order, int(tags[EXIF_IFD]))
    return tags


def _read_directory(exif: bytes, order: str, offset: int) -> dict[int, float]:
    tags: dict[int, float] = {}
    (count,) = struct.unpack_from(order + "H", exif, offset)
    for place in range(offset + 2, offset + 2 + 12 * count, 12):
        if place + 12 > len(exif):
            break
        tag, kind, values = struct.unpack_from(order + "HHI", exif, place)
        if values != 1:
            continue
        if kind in SHORT_NUMBERS:
            (tags[tag],) = struct.unpack_from(order + SHORT_NUMBERS[kind], exif, place + 8)
        elif kind in LONG_NUMBERS:
            # Too long for the entry, which says where it is instead.
            (where,) = struct.unpack_from(order + "I", exif, place + 8)
            if where + 8 <= len(exif):
                above, *below = struct.unpack_from(order + LONG_NUMBERS[kind], exif, where)
                tags[tag] = math.nan if below == [0] else above / (below[0] if below else 1)
    return tags


def _focal_over_longest_side(tags: dict[int, float], longest: int) -> float:
    """NaN where the tags do not tell."""
    # Zero says that it is not known.
    if tags.get(FOCAL_LENGTH_35MM, 0) > 0:
        return tags[FOCAL_LENGTH_35MM] / FULL_FRAME_WIDTH
    per_millimetre = tags.get(PLANE_RESOLUTION, math.nan) / UNITS[int(tags.get(PLANE_UNIT, 2))]
    # The resolution is that of the photo as taken.
    taken = max(tags.get(PIXELS_X, 0), tags.get(PIXELS_Y, 0)) or longest
    return tags.get(FOCAL_LENGTH, math.nan) * per_millimetre / taken


def reduce(pixels: np.ndarray, longest_side: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The photo scaled down to this longest side if it is larger, and the [3 x 3] matrix as of `resize`."""
    scale = 1.0 if longest_side is None else longest_side / max(pixels.shape[:2])
    return resize(pixels, scale) if scale < 1 else (pixels, np.eye(3))


def resize(pixels: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The photo at another size, and the [3 x 3] matrix from its old pixels to its new ones."""
    # Here, since it brings torch: a file that is no photo should be found before that.
    from ananet.core.cameras import pixel_scaling

    height, width = pixels.shape[:2]
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    return resized, pixel_scaling(size[0] / width, size[1] / height)


def check_picture(path: str | Path, *inputs: Path) -> None:
    """Raises unless a picture can be written there; `inputs` are files that must not be overwritten."""
    check_output(path, *inputs)
    suffix = Path(path).suffix
    if not suffix or not cv2.haveImageWriter(f"x{suffix}"):
        raise InputError(f"output: expected a picture file such as .png or .jpg, got {str(path)!r}")


def save_picture(path: str | Path, picture: np.ndarray) -> None:
    """Write a picture; the file extension decides the format. A failed write leaves nothing behind."""
    check_picture(path)
    with atomic_path(path) as temporary:
        if not cv2.imwrite(str(temporary), picture):
            raise OSError(f"could not write {path}")
