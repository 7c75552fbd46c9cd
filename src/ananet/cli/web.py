"""`ananet web`: a page in the browser, and an HTTP service."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ananet._util.checks import check_positive, check_whole_number
from ananet.cli.arguments import add_pruner
from ananet.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from ananet.web.app import Example

TOKEN = "ANANET_WEB_TOKEN"
# Modules and packages of the extra `web`.
PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
# Option, default, unit and meaning.
LIMITS: tuple[tuple[str, int | float, str, str], ...] = (
    ("--max-upload", 32, "MB", "size of a request"),
    ("--max-megapixels", 40, "N", "size of a photo"),
    ("--max-matches", 10_000, "N", "matches per request"),
    ("--max-requests", 64, "N", "requests at a time"),
    ("--max-connections", 100, "N", "connections of one client (or one proxy) at a time"),
    ("--timeout", 60.0, "S", "seconds per request"),
    ("--longest-side", 1600, "PX", "larger photos are scaled down before keypoints are detected"),
    ("--batch-wait", 5.0, "MS", "how long a pair waits for others"),
    ("--batch-pairs", 16, "N", "maximum number of pairs pruned together"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    words = "address to listen at; 0.0.0.0 opens it to the network (default: 127.0.0.1)"
    add("--host", default="127.0.0.1", help=words)
    add("--port", type=int, default=8000, help="default: 8000")
    add_pruner(parser)
    add("--detectors", default="sift,orb", metavar="A,B,...", help="detectors to offer (default: sift,orb)")
    add("--allow-origin", action="append", default=[], metavar="URL", help="a site whose pages may call the service")
    words = f"If the environment variable {TOKEN} has a token, requests without it are refused."
    words = "a name of this service beside localhost and IP addresses, as in http://NAME:8000 (also that of --host)"
    add("--allow-host", action="append", default=[], metavar="NAME", help=words)
    add = parser.add_argument_group("limits", words).add_argument
    for option, default, unit, words in LIMITS:
        add(option, type=type(default), default=default, metavar=unit, help=f"{words} (default: {default:g})")


def run(arguments: argparse.Namespace) -> int:
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise MissingExtraError(" ".join(missing), "web")
    check_whole_number("--port", arguments.port, 0, 65535)
    for option, default, _, _ in LIMITS:
        value = getattr(arguments, option[2:].replace("-", "_"))
        check_whole_number(option, value, 1) if isinstance(default, int) else check_positive(option, value)
    check_address(arguments.host, arguments.port)
    token = os.environ.get(TOKEN)
    if token is not None and (not token or not token.isascii() or not token.isprintable()):
        raise InputError(f"{TOKEN}: expected printable ASCII characters, got {'other ones' if token else 'nothing'}")

    import uvicorn

    from ananet.web.app import create_app
    from ananet.web.connections import Connections
    from ananet.web.limits import Limits

    limits = Limits(
        upload_bytes=arguments.max_upload * 2**20,
        pixels=arguments.max_megapixels * 1_000_000,
        matches=arguments.max_matches,
        in_flight=arguments.max_requests,
        connections=arguments.max_connections,
        seconds=arguments.timeout,
        longest_side=arguments.longest_side,
    )
    app = create_app(
        pruner=arguments.pruner,
        detectors=[name for name in arguments.detectors.split(",") if name],
        device=arguments.device,
        limits=limits,
        token=token,
        origins=arguments.allow_origin,
        hosts=[arguments.host, *arguments.allow_host],
        max_wait=arguments.batch_wait / 1000,
        max_pairs=arguments.batch_pairs,
        examples=examples(),
    )
    # uvicorn raises SIGTERM again after a graceful stop: exit with 0 nevertheless.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        log_level="info",
        # Addresses of clients are not logged. A proxy may do so.
        access_log=False,
        server_header=False,
        http=Connections(limits).protocol,  # type: ignore[arg-type]
        # On SIGTERM, finish the requests in flight.
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    return 0


def check_address(host: str, port: int) -> None:
    """Raise if the address cannot be used, before networks are loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise InputError(f"--host and --port: expected an address to listen at, got {host}:{port} ({reason})") from None


def examples() -> dict[str, Example]:
    """Return pairs of pictures from scikit-image; none without it."""
    if find_spec("skimage") is None:
        return {}
    import cv2
    import numpy as np
    from skimage import data

    from ananet.cli.demo import motorcycle
    from ananet.core.cameras import camera_parameters
    from ananet.web.app import Example

    def jpeg(pixels: object) -> bytes:
        return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes()

    pair = motorcycle()
    left, right = jpeg(pair.image0), jpeg(pair.image1)
    cameras = tuple(",".join(f"{value:.3f}" for value in camera_parameters(K)) for K in (pair.K0, pair.K1))
    coffee = jpeg(data.coffee()[..., ::-1])
    # A picture that moves by itself: at the bottom left of the first photo, at the top right and turned in the second.
    picture = data.astronaut()[:300, 80:380, ::-1]

    def pasted(photo: np.ndarray, *where: list[float]) -> bytes:
        size, border = photo.shape[1::-1], cv2.BORDER_TRANSPARENT
        return jpeg(cv2.warpAffine(picture, np.array(where), size, photo.copy(), borderMode=border))

    moving0 = pasted(pair.image0, [0.6, 0.0, 20.0], [0.0, 0.6, 300.0])
    moving1 = pasted(pair.image1, [0.6, -0.2, 550.0], [0.2, 0.6, 20.0])
    return {
        "motorcycle": Example("Motorcycle, camera turned", (left, right), (cameras[0], cameras[1])),
        "motions": Example("Two motions", (moving0, moving1)),
        "different": Example("Two different scenes", (left, coffee)),
    }
