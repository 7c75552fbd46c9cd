import cv2
import numpy as np
import pytest

from ananet.cli.demo import motorcycle
from ananet.cli.main import main


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Two photos of a motorcycle, one of nothing, and a camera matrix."""
    folder = tmp_path_factory.mktemp("photos")
    pair = motorcycle()
    cv2.imwrite(str(folder / "a.jpg"), pair.image0)
    cv2.imwrite(str(folder / "b.jpg"), pair.image1)
    rng = np.random.default_rng(0)
    other = cv2.resize(rng.integers(0, 256, (60, 80, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(folder / "other.jpg"), other)
    np.savetxt(folder / "K1.txt", pair.K1)
    return folder


@pytest.fixture
def run(capsys):
    """Runs a command; gives its exit code and what it printed on both streams."""

    def call(*arguments) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
