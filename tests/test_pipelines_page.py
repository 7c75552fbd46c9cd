"""What the page "Use it in your pipeline" says can be copied and runs. COLMAP's section is run by its own tests."""

import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest

from ananet.cli import main
from ananet.cli.demo import motorcycle
from tests.integrations.test_hloc import stand_in, write_features, write_matches  # noqa: F401 (a fixture)

PAGE = Path(__file__).parent.parent / "docs" / "pipelines.md"


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]


def run_python(title):
    (block,) = re.findall(r"```python\n(.*?)```", section(title), re.DOTALL)
    names = {}
    exec(compile(block, "pipelines.md", "exec"), names)
    return names


@pytest.fixture
def photos(tmp_path, monkeypatch):
    pair = motorcycle()
    cv2.imwrite(str(tmp_path / "a.jpg"), pair.image0)
    cv2.imwrite(str(tmp_path / "b.jpg"), pair.image1)
    monkeypatch.chdir(tmp_path)


def test_hloc(problem, tmp_path, monkeypatch, stand_in):  # noqa: F811 (the fixture)
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    points0, points1 = problem.matches.numpy_points()
    write_features("features.h5", {"a.jpg": (points0, (640, 480)), "b.jpg": (points1, (640, 480))})
    write_matches("matches.h5", {"a.jpg/b.jpg": np.arange(500)})
    (command,) = re.findall(r"^    ananet (.*)", section("hloc"), re.MULTILINE)
    assert main(shlex.split(command)) == 0 and Path("pruned.h5").is_file()

    conf = run_python("hloc")["conf"]
    from hloc import matchers
    from hloc.utils.base_model import dynamic_load

    assert dynamic_load(matchers, conf["model"]["name"])(conf["model"])


def test_opencv(photos):
    names = run_python("OpenCV")
    assert 100 < len(names["good"]) < len(names["matches"])


def test_kornia(photos):
    pytest.importorskip("kornia")
    found = run_python("kornia")["found"]
    assert len(found["keypoints0"]) > 100 and (found["confidence"] > 0.39).all()
