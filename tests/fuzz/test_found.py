"""What the campaign found, each as the smallest case."""

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError, group_motions
from ananet.core import metrics
from ananet.core.cameras import parse_camera
from ananet.estimators import load_estimator
from ananet.features import Features, load_detector
from ananet.integrations import hloc
from ananet.io.npz import read_some

POINTS, DESCRIPTORS = np.zeros((3, 2)), np.eye(3, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, DESCRIPTORS, (9, 9)), "points: expected an array or a tensor, got NoneType"),
        ((POINTS, None, (9, 9)), "descriptors: expected an array or a tensor, got NoneType"),
        ((POINTS, torch.eye(3).to_sparse(), (9, 9)), "descriptors: expected an array or a plain tensor"),
        ((POINTS, torch.zeros(3, 8, device="meta"), (9, 9)), "descriptors: expected an array or a plain tensor"),
        ((POINTS, DESCRIPTORS, None), "image_size: expected"),
        ((POINTS, DESCRIPTORS, (9, float("nan"))), "image_size: expected"),
        ((POINTS, DESCRIPTORS, (9, 0)), "image_size: expected"),
        ((POINTS, DESCRIPTORS, "9x"), "image_size: expected"),
    ],
)
def test_features(arguments, message):
    with pytest.raises(InputError, match=message):
        Features(*arguments)
    assert Features(POINTS, DESCRIPTORS, np.array([9, 9.0])).image_size == (9, 9)


RAGGED = [1, [2]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.precision_recall_f1(RAGGED, [True]),
        lambda: metrics.misclassification_error(RAGGED, [1]),
        lambda: metrics.pose_auc(RAGGED),
        lambda: metrics.recall_curve([1.0], np.array([None, {}])),
        lambda: metrics.mean_by_bin([1.0], [1.0], np.float64(3)),
        lambda: metrics.average_precision(RAGGED, [True]),
        lambda: metrics.reliability([0.5], [True], bins=0.5),
        lambda: metrics.reliability([0.5], [True, False]),
        lambda: metrics.inlier_neighbour_ratio(POINTS, [True] * 3, [0.5]),
        lambda: metrics.inlier_neighbour_ratio(RAGGED, [True], [1]),
    ],
)
def test_metrics(call):
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize("mask", [RAGGED, torch.zeros(9).to_sparse(), torch.zeros(9, device="meta")])
def test_motions_of_what_is_no_mask(mask):
    pair = Correspondences(np.zeros((9, 2)), np.zeros((9, 2)))
    with pytest.raises(InputError, match="mask: expected 9 bool"):
        group_motions(pair, mask=mask)


def test_eight_points_beyond_all_reason():
    K = np.diag([1e-9, 1e-9, 1.0])
    points = np.random.default_rng(0).uniform(0, 640, (2, 8, 2))
    pair = Correspondences(points[0] * 1e150, points[1] * 1e300, K0=K, K1=K)
    estimator = load_estimator("eight-point")
    assert estimator.pose(pair) is None
    F = estimator.fundamental(pair)
    assert F is None or np.isfinite(F).all()


def test_labels_of_motions_may_be_any_numbers():
    labels, truth = np.array([7, 7, 2**40, 2**40, -1]), np.array([2**50, 2**50, 3, 0, 0])
    assert metrics.misclassification_error(labels, truth) == 0.2


def test_damaged_files_of_hloc(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "features.h5", "w") as file:
        for name in ("a.jpg", "b.jpg"):
            group = file.create_group(name)
            group["keypoints"], group["image_size"] = POINTS, np.array([9, 9])
            group["descriptors"] = DESCRIPTORS[:2].T
    with h5py.File(tmp_path / "matches.h5", "w") as file:
        file["a.jpg/b.jpg/matches0"] = np.arange(3)
    with pytest.raises(InputError, match=r"descriptors: expected shape \(3, D\), got \(2, 8\)"):
        hloc.prune_matches(
            tmp_path / "features.h5", tmp_path / "matches.h5", tmp_path / "out.h5", pruner="all", descriptors=True
        )
    assert not (tmp_path / "out.h5").exists()
    (tmp_path / "broken.h5").write_bytes((tmp_path / "features.h5").read_bytes()[:900])
    with pytest.raises(InputError, match=r"broken\.h5: not a readable HDF5 file"):
        load_detector("stored", path=tmp_path / "broken.h5").detect(np.zeros((9, 9), np.uint8), tmp_path / "a.jpg")


def test_features_are_read_as_carefully_as_matches(tmp_path):
    np.savez(tmp_path / "a.npz", points=POINTS, descriptors=np.array([["x"]]), more=np.zeros(2))
    assert set(read_some(tmp_path / "a.npz", ["points"])) == {"points"}
    with pytest.raises(InputError, match="descriptors: expected real numbers, got an array of <U1"):
        load_detector("stored", path=tmp_path).detect(np.zeros((9, 9), np.uint8), tmp_path / "a.jpg")


@pytest.mark.parametrize("side", [-1, 10**400])
def test_cameras_of_impossible_photos(side):
    with pytest.raises(InputError, match=r"here: expected a width and a height of 0 to 2,147,483,647 pixels, got \("):
        parse_camera("SIMPLE_PINHOLE", (640, side), (500, 320, 240), "here")
