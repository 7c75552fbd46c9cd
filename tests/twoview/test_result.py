"""What is known about two photos: as JSON, file and picture."""

import json

import cv2
import numpy as np
import pytest

from ananet import InputError, match_photos
from ananet.cli.demo import motorcycle
from ananet.core.correspondences import PER_MATCH


@pytest.fixture(scope="module")
def pair():
    return motorcycle()


@pytest.fixture(scope="module")
def found(pair):
    return match_photos(pair.image0, pair.image1, pruner="mutual+ratio", K0=pair.K0, K1=pair.K1, motions=True)


def test_one_schema_for_json(pair, found):
    result = found.to_dict()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["photos"][0] == {"name": "image0", "width": 741, "height": 500, "keypoints": len(found.features0)}
    assert result["kept"] == found.count == found.kept.mask.sum() < result["matches"] == len(found.matches)
    told = {"found", "probability", "reasons", "consistent", "tested", "log10_false_alarms", "summary"}
    assert set(result["overlap"]) == told
    assert result["overlap"]["found"] and result["overlap"]["log10_false_alarms"] < -6
    assert result["cameras"] == {"source": "given", "K0": pair.K0.tolist(), "K1": pair.K1.tolist(), "doubt": None}
    assert set(result["pose"]) == {
        "R", "t", "E", "inliers", "parallax_degrees", "rotation_only", "estimator", "pose_threshold", "match_selection",
    }  # fmt: skip
    summary = result["pose_summary"]
    assert summary.startswith("The camera turned by 1") and " and moved right. " in summary
    assert result["motions"]["count"] == 1 and not {"points0", "mask"} & set(result)
    full = found.to_dict(matches=True)
    json.dumps(full, allow_nan=False)
    assert {*PER_MATCH, "mask", "motion_labels"} <= set(full) and full["mask"] == found.kept.mask.tolist()
    np.testing.assert_allclose(full["points1"], found.matches.points1, atol=1e-4)
    assert full["scores"] == pytest.approx(found.kept.scores.tolist(), abs=1e-6)


def test_without_cameras_or_overlap(pair):
    found = match_photos(pair.image0, pair.image1, pruner="ratio")
    assert found.to_dict()["pose"] is None and "focal length is not known" in found.pose_summary
    still = match_photos(pair.image0, pair.image0, pruner="ratio", K0=pair.K0, K1=pair.K0)
    assert "hardly moved" in still.pose_summary
    apart = match_photos(pair.image0, np.random.default_rng(0).random((90, 120)), pruner="ratio")
    assert json.dumps(apart.to_dict(matches=True), allow_nan=False) and not apart.overlap.found


def test_saving(found, tmp_path):
    found.save(tmp_path / "m.npz")
    found.save(str(tmp_path / "m.csv"))
    with np.load(tmp_path / "m.npz") as stored:
        np.testing.assert_array_equal(stored["mask"], found.kept.mask)
        assert {"points0", "K1", "image_size0", "scores", "logits", "R", "t", "motions"} <= set(stored)
        assert stored["overlap"]
    assert len((tmp_path / "m.csv").read_text().splitlines()) == len(found.matches) + 1
    with pytest.raises(InputError, match=r"path: expected a file that ends in .npz or .csv, got '.*m.txt'"):
        found.save(tmp_path / "m.txt")


def test_drawing(pair, found, tmp_path):
    picture = found.draw(tmp_path / "p.png")
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "p.png")), picture)
    features = match_photos(found.features0, found.features1, pruner="ratio")
    with pytest.raises(InputError, match="images: expected both photos, since the matches were made from Features"):
        features.draw()
    assert features.draw(images=(pair.image0, pair.image1)).shape == picture.shape


def test_a_picture_does_not_replace_a_photo(pair, tmp_path):
    paths = [tmp_path / name for name in ("a.png", "b.png")]
    for path, image in zip(paths, (pair.image0, pair.image1), strict=True):
        cv2.imwrite(str(path), image)
    found = match_photos(*paths, pruner="ratio")
    with pytest.raises(InputError, match="is an input and would be overwritten"):
        found.draw(paths[1])
    assert cv2.imread(str(paths[1])).shape == pair.image1.shape
