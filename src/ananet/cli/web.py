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
# What `pip install ananet[web]` brings, by names of modules.
PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
# Connections beyond the requests in flight: of those who are told to come again, look at the page, or wait idly.
MORE_CONNECTIONS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 opens it to the network (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    add_pruner(parser)
    parser.add_argument(
        "--detectors", default="sift,orb", metavar="A,B,...", help="detectors to offer (default: sift,orb)"
    )
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="a site whose pages may call the service"
    )
    limits = parser.add_argument_group(
        "limits", f"With a token in the environment variable {TOKEN}, requests without it are refused."
    )
    limits.add_argument("--max-upload", type=int, default=32, metavar="MB", help="size of a request (default: 32)")
    limits.add_argument("--max-megapixels", type=int, default=40, metavar="N", help="size of a photo (default: 40)")
    limits.add_argument(
        "--max-matches", type=int, default=10_000, metavar="N", help="matches per request (default: 10000)"
    )
    limits.add_argument("--max-requests", type=int, default=64, metavar="N", help="requests at a time (default: 64)")
    limits.add_argument("--timeout", type=float, default=60.0, metavar="S", help="time for a request (default: 60)")
    limits.add_argument(
        "--longest-side",
        type=int,
        default=1600,
        metavar="PX",
        help="larger photos are reduced before keypoints are detected (default: 1600)",
    )
    limits.add_argument(
        "--batch-wait", type=float, default=5.0, metavar="MS", help="how long a pair waits for others (default: 5)"
    )
    limits.add_argument(
        "--batch-pairs", type=int, default=16, metavar="N", help="most pairs pruned together (default: 16)"
    )


def run(arguments: argparse.Namespace) -> int:
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise MissingExtraError(" ".join(missing), "web")
    check_whole_number("--port", arguments.port, 0, 65535)
    for option in ("max_upload", "max_megapixels", "max_matches", "max_requests", "longest_side", "batch_pairs"):
        check_whole_number(f"--{option.replace('_', '-')}", getattr(arguments, option), 1)
    check_positive("--timeout", arguments.timeout, " of seconds")
    check_positive("--batch-wait", arguments.batch_wait, " of milliseconds")
    check_address(arguments.host, arguments.port)
    token = os.environ.get(TOKEN)
    if token is not None and (not token or not token.isascii() or not token.isprintable()):
        raise InputError(f"{TOKEN}: expected printable signs, got {'none' if not token else 'others'}")

    import uvicorn

    from ananet.web.app import create_app
    from ananet.web.limits import Limits

    limits = Limits(
        upload_bytes=arguments.max_upload * 2**20,
        pixels=arguments.max_megapixels * 1_000_000,
        matches=arguments.max_matches,
        in_flight=arguments.max_requests,
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
        longest_wait=arguments.batch_wait / 1000,
        most_pairs=arguments.batch_pairs,
        examples=examples(),
    )
    # uvicorn raises the signal that ended it once more: a service that stopped as it was told to is no failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        log_level="info",
        # Who asked for what is nobody's business, unless the one who runs it says so with a proxy.
        access_log=False,
        server_header=False,
        limit_concurrency=limits.in_flight + MORE_CONNECTIONS,
        # SIGTERM: no new requests, and those in flight are finished.
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    return 0


def check_address(host: str, port: int) -> None:
    """Raises where nobody can listen, before networks are loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise InputError(f"--host and --port: expected an address to listen at, got {host}:{port} ({reason})") from None


def examples() -> dict[str, Example]:
    """Pairs of pictures that come with scikit-image; none without it."""
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
    # A picture that moves by itself: down to the left in the first photo, up and turned in the second.
    picture = data.astronaut()[:300, 80:380, ::-1]
    moving = []
    for photo, where in (
        (pair.image0, [[0.6, 0.0, 20.0], [0.0, 0.6, 300.0]]),
        (pair.image1, [[0.6, -0.2, 550.0], [0.2, 0.6, 20.0]]),
    ):
        size = photo.shape[1::-1]
        pasted = cv2.warpAffine(picture, np.array(where), size, photo.copy(), borderMode=cv2.BORDER_TRANSPARENT)
        moving.append(jpeg(pasted))
    return {
        "motorcycle": Example("Motorcycle, camera turned", (left, right), (cameras[0], cameras[1])),
        "motions": Example("Two motions", (moving[0], moving[1])),
        "different": Example("Two different scenes", (left, coffee)),
    }
