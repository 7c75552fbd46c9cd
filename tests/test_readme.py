"""The README's Python example runs as it stands, and the public face is what the documentation says."""

import re
from pathlib import Path

import cv2

import ananet
from ananet.cli.demo import motorcycle

ROOT = Path(__file__).parent.parent


def test_python_examples_run(tmp_path, monkeypatch):
    pair = motorcycle()
    cv2.imwrite(str(tmp_path / "a.jpg"), pair.image0)
    cv2.imwrite(str(tmp_path / "b.jpg"), pair.image1)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_linked_files_exist():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_public_face():
    assert set(ananet.__all__) <= set(dir(ananet))
    for name in ananet.__all__:
        assert getattr(ananet, name).__doc__, name
