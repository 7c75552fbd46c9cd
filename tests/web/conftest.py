"""Photos as clients send them, and a service to send them to."""

import cv2
import pytest
from fastapi.testclient import TestClient

from ananet.cli.demo import motorcycle
from ananet.web.app import create_app
from tests.photos import photo


def encoded(pixels, kind: str = ".jpg") -> bytes:
    return cv2.imencode(kind, pixels)[1].tobytes()


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    """Two of a motorcycle, and one of nothing."""
    pair = motorcycle()
    return {"left": encoded(pair.image0), "right": encoded(pair.image1), "other": encoded(photo(640, 480))}


@pytest.fixture(scope="session")
def client():
    with TestClient(create_app(device="cpu"), base_url="http://localhost", raise_server_exceptions=False) as made:
        yield made
