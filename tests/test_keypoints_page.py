"""What the page "Which keypoints" says can be copied and runs."""

import re
from pathlib import Path

import cv2

from ananet.cli.demo import motorcycle
from ananet.features import DETECTORS

PAGE = (Path(__file__).parent.parent / "docs" / "keypoints.md").read_text(encoding="utf-8")


def test_keypoints_of_ones_own(tmp_path, monkeypatch):
    pair = motorcycle()
    cv2.imwrite(str(tmp_path / "a.jpg"), pair.image0)
    cv2.imwrite(str(tmp_path / "b.jpg"), pair.image1)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(block, "keypoints.md", "exec"), names)
    assert names["found"].overlap.found and names["found"].kept.mask.sum() > 50


def test_every_detector_is_listed_with_its_licence():
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE, re.MULTILINE))
    for name in DETECTORS.names:
        if name == "stored":
            continue
        licence = getattr(DETECTORS[name], "licence", "none needed")
        assert rows[name].strip("*") == licence
