"""The plot of accuracy against time."""

from importlib.util import module_from_spec, spec_from_file_location
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]
spec = spec_from_file_location("draw_accuracy", ROOT / "tools" / "draw_accuracy.py")
tool = module_from_spec(spec)
spec.loader.exec_module(tool)


def test_names_cover_neither_each_other_nor_a_dot():
    rng = np.random.default_rng(0)
    names = (*tool.CLASSICAL, *tool.NETWORKS)
    # Dots as close as those of networks that are about as good.
    near = {name: (10 ** rng.uniform(-1, 0.5), rng.uniform(70, 75)) for name in names} | {"ratio": (1e-3, 60.0)}
    picture, panels = tool.draw({"one": near, "other": near})
    assert picture.ndim == 3 and len(panels) == 2
    for boxes in panels:
        assert len(boxes) == len(names)
        assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
        height, width = picture.shape[:2]
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)


@pytest.mark.usefixtures("in_this_process")
def test_the_picture_of_two_pairs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "RUNS", 1)
    # Summaries of this test are no tables of the documentation.
    monkeypatch.setattr(tool, "SUMMARIES", tmp_path / "summaries")
    output = tmp_path / "a.png"
    monkeypatch.setattr(
        "sys.argv", ["draw", "--limit", "1", "--pruner", "ratio,gms", "--workers", "1", "-o", str(output)]
    )
    assert tool.main() == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2] for line in lines] == ["ratio", "gms"] * 2
    assert all(float(line[4]) > 0 for line in lines)
    assert cv2.imread(str(output)) is not None and output.stat().st_size < 100_000
