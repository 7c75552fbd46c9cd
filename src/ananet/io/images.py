"""Photos in every form people have them: files, bytes, arrays, PIL images, tensors; their EXIF focal length."""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ananet.errors import InputError
from ananet.io.files import atomic_path, check_output

# Full frame, whose width the 35 mm equivalent of a focal length refers to.
FULL_FRAME_WIDTH = 36.0
# Tags of EXIF 2.3.
ORIENTATION = 0x0112
EXIF_IFD, FOCAL_LENGTH, FOCAL_LENGTH_35MM = 0x8769, 0x920A, 0xA405
PLANE_RESOLUTION, PLANE_UNIT, PIXELS_X, PIXELS_Y = 0xA20E, 0xA210, 0xA002, 0xA003
# Millimetres per unit of the focal plane's resolution; inches by default.
UNITS = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
# Focal lengths over the longest side outside this range are treated as wrong EXIF data.
MIN_FOCAL, MAX_FOCAL = 0.1, 100.0
HEADERS: dict[bytes, Any] = {b"\xff\xd8\xff": JpegImageFile, b"\x89PNG": PngImageFile, b"RIFF": WebPImageFile}
HEADERS |= dict.fromkeys((b"II*\0", b"MM\0*"), TiffImageFile)
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
# JPEG alone can be decoded at a fraction of its size; other formats take 3 bytes per pixel.
REDUCED = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
MAX_PIXELS = 500_000_000
# What Pillow raises on damaged headers and EXIF data, besides InputError's bases.
DAMAGED = (OSError, ArithmeticError, ValueError, LookupError, TypeError, SyntaxError, struct.error, EOFError)
KINDS = "a file path, a numpy array, a PIL image or a torch tensor"


@dataclass(frozen=True, eq=False)
class Photo:
    """A photo, scaled down if it was large."""

    pixels: np.ndarray
    """[H x W x 3] uint8 BGR, upright."""
    size: tuple[int, int]
    """(width, height) of the upright photo before it was scaled down."""
    exif_focal: float | None = None
    """Focal length in pixels of the photo before it was scaled down; None if EXIF does not tell it."""


def as_photo(source: Any, *, longest_side: int | None = None, name: str = "image") -> Photo:
    """Read a photo and scale it down to a longest side.

    Args:
        source: a file path or the bytes of a file, whose EXIF orientation is applied; a numpy array [H x W],
            [H x W x 3] (BGR, as OpenCV reads it) or [H x W x 4], uint8, uint16 or float in 0..1; a PIL image; or a
            torch tensor [C x H x W] (RGB), uint8 or float in 0..1.
        longest_side: larger photos are scaled down to this. Large JPEG files are then decoded at a fraction of
            their size, which takes a fraction of the memory.
        name: used in error messages, unless there is a path.
    """
    focal = None
    if isinstance(source, str | Path):
        source, name = check_image_file(source).read_bytes(), str(source)
    if isinstance(source, bytes):
        focal = exif_focal(source)
        pixels, size = _decode(source, name, longest_side)
    else:
        if isinstance(source, Image.Image):
            focal = exif_focal(source)
            pixels = _from_pillow(source, name)
        elif isinstance(source, np.ndarray):
            pixels = _from_array(source, name)
        elif hasattr(source, "detach") and hasattr(source, "cpu"):
            pixels = _from_tensor(source, name)
        else:
            raise InputError(f"{name}: expected {KINDS}, got {type(source).__name__}")
        size = (pixels.shape[1], pixels.shape[0])
    return Photo(reduce(pixels, longest_side), size, focal)


def _from_array(array: np.ndarray, name: str) -> np.ndarray:
    """[H x W x 3] uint8 of an array of one of the kinds that `as_photo` takes."""
    shape = array.shape
    if array.ndim not in (2, 3) or 0 in shape or (array.ndim == 3 and shape[2] not in (1, 3, 4)):
        raise InputError(f"{name}: expected an array of shape (H, W), (H, W, 3) or (H, W, 4), got {shape}")
    if array.dtype == np.uint16:
        array = np.round(array / np.float32(257)).astype(np.uint8)
    elif array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):
            found = f"{array.dtype} from {low:g} to {high:g}"
            raise InputError(f"{name}: expected floats in 0..1 or uint8, got {found}; scale them to 0..1")
        array = np.round(array.astype(np.float32) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise InputError(f"{name}: expected uint8, uint16 or floats in 0..1, got {array.dtype}")
    if array.ndim == 2 or shape[2] == 1:
        return cv2.cvtColor(np.ascontiguousarray(array), cv2.COLOR_GRAY2BGR)
    return np.ascontiguousarray(array[..., :3])


def _from_pillow(image: Image.Image, name: str) -> np.ndarray:
    try:
        image = ImageOps.exif_transpose(image)
        # 16 bit grey: Pillow would clip it to 8 bit.
        if image.mode.startswith("I;16"):
            return _from_array(np.asarray(image).astype(np.uint16), name)
        return _from_array(np.asarray(image.convert("RGB")), name)[..., ::-1].copy()
    except (*DAMAGED, MemoryError) as error:
        raise InputError(f"{name}: Pillow cannot decode this image ({error})") from None


def _from_tensor(tensor: Any, name: str) -> np.ndarray:
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3):
        shape = tuple(tensor.shape)
        raise InputError(f"{name}: expected a tensor of shape (C, H, W) with 1 or 3 channels, got {shape}")
    tensor = tensor.detach().cpu()
    array = (tensor.float() if tensor.dtype.is_floating_point else tensor).numpy()
    return _from_array(array.transpose(1, 2, 0), name)[..., ::-1].copy()


def check_image_file(path: str | Path) -> Path:
    """Raise unless there is a file; whether it holds an image shows on reading."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected an image file, got a directory")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    return path


def read_image(path: str | Path, upright: bool = True) -> np.ndarray:
    """[H x W x 3] uint8 BGR at full size, upright: its EXIF orientation is applied, as in every viewer.

    Camera matrices must belong to the upright image, unless `upright` is False, which gives the pixels as stored.
    """
    return _decode(check_image_file(path).read_bytes(), str(path), None, upright)[0]


def _decode(
    data: bytes, name: str, longest_side: int | None, upright: bool = True
) -> tuple[np.ndarray, tuple[int, int]]:
    """[H x W x 3] uint8 BGR, scaled down if it is a large JPEG, and the (width, height) of the whole."""
    if data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS:
        image: Any = _from_pillow(_open_heic(data, name), name)
        return image, (image.shape[1], image.shape[0])
    header = _read_header(data)
    width, height = (0, 0) if header is None else header.size
    factor, flags = 1, cv2.IMREAD_COLOR
    if longest_side is not None:
        if isinstance(header, JpegImageFile):
            factor = max((n for n in REDUCED if max(width, height) >= n * longest_side), default=1)
        elif width * height > MAX_PIXELS:
            size = f"{width} x {height}"
            raise InputError(f"{name}: expected JPEG or at most {MAX_PIXELS:,} pixels, got {size}; convert it to JPEG")
    if factor > 1 or not upright:
        flags = REDUCED.get(factor, flags) | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    except (cv2.error, MemoryError) as error:
        reason = getattr(error, "err", "") or str(error) or "out of memory"
        raise InputError(f"{name}: OpenCV does not read this image ({reason})") from None
    if image is None:
        raise InputError(f"{name}: not an image that OpenCV can read")
    if factor == 1 or longest_side is None:
        return image, (image.shape[1], image.shape[0])
    scale = longest_side / max(width, height)
    shape = (max(1, round(width * scale)), max(1, round(height * scale)))
    # The last reduced pixel may reach beyond the photo, so that only a fraction of it counts.
    box = (0, 0, width / factor, height / factor)
    reduced = Image.fromarray(image).resize(shape, Image.Resampling.BICUBIC, box)
    reduced.getexif()[ORIENTATION] = turned = _exif(header).get(ORIENTATION, 1)
    return np.array(ImageOps.exif_transpose(reduced)), (height, width) if turned in (5, 6, 7, 8) else (width, height)


def _open_heic(data: bytes, name: str) -> Image.Image:
    try:
        import pillow_heif  # type: ignore[import-not-found]
    except ImportError:
        package = "pillow-heif (pip install pillow-heif)"
        raise InputError(f"{name}: HEIC photos need the package {package}, or convert them to JPEG") from None
    pillow_heif.register_heif_opener()
    try:
        return Image.open(io.BytesIO(data))
    except (*DAMAGED, Image.DecompressionBombError) as error:
        raise InputError(f"{name}: not a HEIC photo that pillow-heif can read ({error})") from None


def image_size(source: str | Path | bytes) -> tuple[int, int] | None:
    """(width, height) from the header of a JPEG, PNG, WebP or TIFF file, as stored; None for anything else.

    No pixels are decoded, so a small file that claims many pixels does no harm.
    """
    header = _read_header(source)
    return None if header is None or min(header.size) < 1 else header.size


def _read_header(source: str | Path | bytes) -> Image.Image | None:
    """The file as Pillow's classes see it: `Image.open` would warn of large photos and refuse the largest."""
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
            start = file.read(12)
            file.seek(0)
            kind = next((found for magic, found in HEADERS.items() if start.startswith(magic)), None)
            return None if kind is None else kind(file)
    except DAMAGED:
        return None


def exif_focal(source: str | Path | bytes | Image.Image) -> float | None:
    """Focal length in pixels from the EXIF data of a photo; None if there is none or it is damaged.

    It comes from the 35 mm equivalent, else from the focal length and the resolution of the focal plane. It is the
    same for the stored and the upright image, and refers to the file's own size: resized photos often keep their EXIF.
    """
    try:
        if isinstance(source, bytes) and source[4:8] == b"ftyp":
            source = _open_heic(source, "")
        image = source if isinstance(source, Image.Image) else _read_header(source)
        if image is None:
            return None
        longest = max(image.size)
        focal = _focal_over_longest_side(_exif(image), longest) * longest
    except (*DAMAGED, InputError):
        return None
    return focal if MIN_FOCAL * longest <= focal <= MAX_FOCAL * longest else None


def _exif(image: Any) -> dict[int, Any]:
    """Tags of a photo's main and EXIF directories; not by `getexif`, which decodes PNG files to look for them."""
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif"))
        return {**exif, **exif.get_ifd(EXIF_IFD)}
    except DAMAGED:
        return {}


def _focal_over_longest_side(tags: dict[int, Any], longest: int) -> float:
    """NaN where the tags do not tell."""

    def number(tag: int, default: float) -> float:
        value = tags.get(tag, default)
        return default if isinstance(value, tuple | str | bytes) else float(value)

    # Zero means unknown.
    if number(FOCAL_LENGTH_35MM, 0) > 0:
        return number(FOCAL_LENGTH_35MM, 0) / FULL_FRAME_WIDTH
    per_millimetre = number(PLANE_RESOLUTION, math.nan) / UNITS[int(number(PLANE_UNIT, 2))]
    # The resolution is that of the photo as taken.
    taken = max(number(PIXELS_X, 0), number(PIXELS_Y, 0)) or longest
    return number(FOCAL_LENGTH, math.nan) * per_millimetre / taken


def reduce(pixels: np.ndarray, longest_side: int | None) -> np.ndarray:
    """The photo scaled down to this longest side if it is larger."""
    scale = 1.0 if longest_side is None else longest_side / max(pixels.shape[:2])
    return resize(pixels, scale)[0] if scale < 1 else pixels


def to_grey(image: np.ndarray) -> np.ndarray:
    """[H x W] of a grey or BGR image."""
    return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image


def resize(pixels: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The photo at another size, and the [3 x 3] matrix from its old pixels to its new ones."""
    # Here, since it brings torch: a file that is no photo should be found before that.
    from ananet.core.cameras import pixel_scaling

    height, width = pixels.shape[:2]
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    return resized, pixel_scaling(size[0] / width, size[1] / height)


def check_picture(path: str | Path, *inputs: Path) -> None:
    """Raise unless a picture can be written there; `inputs` are files that must not be overwritten."""
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
