import json
import sys

import numpy as np

from ananet.cli.demo import match_errors, motorcycle, rotation


def test_demo(tmp_path, run):
    code, out, _ = run("demo", "-o", tmp_path / "demo.png", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["after"]["precision"] > result["before"]["precision"] + 0.3
    assert result["after"]["f1"] > 0.7
    assert (tmp_path / "demo.png").stat().st_size > 100_000


def test_demo_without_scikit_image(monkeypatch, run):
    monkeypatch.setattr("ananet.pruners.load", lambda *_, **__: 1 / 0)
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    code, _, err = run("demo")
    assert code == 2
    assert "pip install scikit-image (ananet's extra 'demo')" in err


def test_a_picture_that_cannot_be_written_is_found_before_the_work(monkeypatch, run):
    monkeypatch.setattr("ananet.cli.demo.motorcycle", lambda: 1 / 0)
    code, _, err = run("demo", "-o", "demo.xyz")
    assert code == 2 and "expected a picture file" in err


def test_the_pair_is_measured():
    pair = motorcycle()
    height, width = pair.disparity.shape
    assert pair.image0.shape == pair.image1.shape == (height, width, 3)
    np.testing.assert_allclose(pair.R, rotation(4.0, -6.0, 15.0))
    np.testing.assert_allclose(pair.R @ pair.R.T, np.eye(3), atol=1e-12)
    x, y = np.array([200.0, 300, 400]), np.array([200.0, 250, 300])
    disparity = pair.disparity[y.astype(int), x.astype(int)]
    target = np.stack([x - disparity, y, np.ones(3)], axis=1) @ pair.turning.T
    found = match_errors(pair, np.stack([x, y], axis=1), target[:, :2] / target[:, 2:] + [3.0, 4.0])
    np.testing.assert_allclose(found[~np.isnan(disparity)], 5.0)
    # Rays through matching points and the baseline lie in one plane.
    measured = ~np.isnan(disparity)
    rays0 = np.stack([x, y, np.ones(3)], axis=1)[measured] @ np.linalg.inv(pair.K0).T
    rays1 = target[measured] @ np.linalg.inv(pair.K1).T
    triple = np.einsum("ij,ij->i", np.cross(pair.t, rays0 @ pair.R.T), rays1 / np.linalg.norm(rays1, axis=1)[:, None])
    np.testing.assert_allclose(triple, 0, atol=1e-9)
