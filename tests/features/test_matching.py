"""Nearest neighbours against brute force and OpenCV, and what travels along with a match."""

import os
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ananet import InputError
from ananet.features import Features, load_detector, match, matching, nearest_neighbours
from ananet.features.matching import BYTE_ROWS_AT_ONCE, ROWS_AT_ONCE
from tests.photos import photo


def literal_neighbours(a, b):
    distance = np.linalg.norm(a[:, None].astype(float) - b[None], axis=-1)
    index = distance.argmin(1)
    ordered = np.sort(distance, axis=1)
    ratio = ordered[:, 0] / ordered[:, 1]
    return index, ratio, distance.argmin(0)[index] == np.arange(len(a))


@pytest.mark.parametrize(("n", "m"), [(1, 2), (7, 30), (ROWS_AT_ONCE + 3, 50), (50, 700)])
def test_neighbours_by_brute_force(n, m):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(n, 16)).astype(np.float32), rng.normal(size=(m, 16)).astype(np.float32)
    index, ratio, mutual = literal_neighbours(a, b)
    found = nearest_neighbours(a, b)
    np.testing.assert_array_equal(found.index, index)
    np.testing.assert_allclose(found.ratio, ratio, atol=1e-3)
    np.testing.assert_array_equal(found.mutual, mutual)


def test_neighbours_agree_with_opencv():
    rng = np.random.default_rng(0)
    a, b = rng.random((200, 128), np.float32), rng.random((300, 128), np.float32)
    pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(a, b, k=2)
    found = nearest_neighbours(a, b)
    assert found.index.tolist() == [first.trainIdx for first, _ in pairs]
    np.testing.assert_allclose(found.ratio, [f.distance / s.distance for f, s in pairs], atol=1e-4)


@pytest.mark.parametrize(("n", "m"), [(0, 4), (4, 0), (1, 1), (3, 1), (5, 17), (BYTE_ROWS_AT_ONCE + 3, 700)])
@pytest.mark.parametrize("neighbours", [1, 3])
def test_bytes_give_the_same_as_floats(n, m, neighbours):
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-128, 128, (count, 128)).astype(np.int8) for count in (n, m))
    if m > 600:
        # Matches, and equally near ones.
        a[:200], b[0] = b[100:300], b[1]
    expected = nearest_neighbours(a.astype(np.float32), b.astype(np.float32), neighbours)
    for found in (
        nearest_neighbours(a, b, neighbours),
        nearest_neighbours(a, b.astype(np.float64), neighbours),
        nearest_neighbours(torch.from_numpy(a), torch.from_numpy(b), neighbours),
    ):
        for name in ("index", "ratio", "mutual"):
            np.testing.assert_array_equal(np.asarray(getattr(found, name)), getattr(expected, name))


@pytest.mark.parametrize("width", [1, 2, 3, 61, 129])
def test_bytes_of_any_width(width):
    rng = np.random.default_rng(width)
    a, b = (rng.integers(-128, 128, (count, width)).astype(np.int8) for count in (33, 50))
    found, expected = nearest_neighbours(a, b), nearest_neighbours(a.astype(np.float32), b.astype(np.float32))
    for name in ("index", "ratio", "mutual"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_bytes_without_fast_products(monkeypatch):
    monkeypatch.setattr(matching, "_has_byte_products", lambda: False)
    monkeypatch.setattr(torch, "_int_mm", None)
    a = np.random.default_rng(0).integers(-128, 128, (40, 128)).astype(np.int8)
    assert nearest_neighbours(a, a[::-1].copy()).index.tolist() == list(range(39, -1, -1))


def test_binary_neighbours_agree_with_opencv():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (100, 32), np.uint8), rng.integers(0, 256, (150, 32), np.uint8)
    pairs = cv2.BFMatcher(cv2.NORM_HAMMING).knnMatch(a, b, k=2)
    found = nearest_neighbours(a, b)
    assert found.index.tolist() == [first.trainIdx for first, _ in pairs]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 1000))
def test_mutual_matches_are_one_to_one_even_among_duplicates(n, m, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, (n, 3)).astype(np.float32), rng.integers(0, 2, (m, 3)).astype(np.float32)
    found = nearest_neighbours(a, b)
    targets = found.index[found.mutual]
    assert len(np.unique(targets)) == len(targets)
    assert ((found.ratio >= 0) & (found.ratio <= 1)).all()


def test_every_descriptor_is_its_own_mutual_neighbour():
    descriptors = load_detector("sift", max_keypoints=200).detect(photo()).descriptors
    descriptors = np.unique(descriptors, axis=0)
    found = nearest_neighbours(descriptors, descriptors)
    np.testing.assert_array_equal(found.index, np.arange(len(descriptors)))
    assert found.mutual.all()


def test_neighbours_at_the_edges():
    empty = np.zeros((0, 8), np.float32)
    some = np.ones((3, 8), np.float32)
    for a, b in ((empty, some), (some, empty), (empty, empty)):
        assert len(nearest_neighbours(a, b).index) == 0
    assert nearest_neighbours(some, some[:1]).ratio.tolist() == [1, 1, 1]
    assert nearest_neighbours(some, some).ratio.tolist() == [1, 1, 1]
    with pytest.raises(InputError, match="same kind and width"):
        nearest_neighbours(some, np.ones((3, 9), np.float32))
    with pytest.raises(InputError, match="same kind and width"):
        nearest_neighbours(some, np.ones((3, 1), np.uint8))
    with pytest.raises(InputError, match=r"descriptors0: expected an array of shape \(N, D\)"):
        nearest_neighbours(np.ones(3), some)
    with pytest.raises(InputError, match="descriptors1: expected finite"):
        nearest_neighbours(some, some * np.nan)


@pytest.mark.parametrize("wrong", [np.ones((3, 8), complex), np.full((3, 8), "a"), np.ones((3, 8), bool)])
def test_descriptors_are_real_numbers(wrong):
    some = np.ones((3, 8), np.float32)
    with pytest.raises(InputError, match="descriptors0: expected real numbers, got"):
        nearest_neighbours(wrong, some)
    with pytest.raises(InputError, match="descriptors1: expected real numbers, got"):
        nearest_neighbours(some, wrong)


def test_a_match_knows_its_keypoints():
    detector = load_detector("sift", max_keypoints=150)
    features0, features1 = detector.batch([photo(), np.roll(photo(), 5, axis=1)])
    K = np.diag([300.0, 300.0, 1.0])
    matches = match(features0, features1, K0=K, K1=K)
    first, second = matches.indices.T
    np.testing.assert_array_equal(first, np.arange(len(features0)))
    np.testing.assert_array_equal(second, nearest_neighbours(features0.descriptors, features1.descriptors).index)
    for name, values0, values1 in (
        ("points", features0.points, features1.points),
        ("keypoint_sizes", features0.sizes, features1.sizes),
        ("angles", features0.angles, features1.angles),
    ):
        np.testing.assert_array_equal(getattr(matches, f"{name}0"), values0[first])
        np.testing.assert_array_equal(getattr(matches, f"{name}1"), values1[second])
    assert matches.calibrated and matches.image_size0 == (320.0, 240.0)


def test_keypoints_without_size_and_angle_match_too():
    bare = Features(np.zeros((2, 2), np.float32), np.eye(2, dtype=np.float32), (10, 10))
    full = load_detector("sift", max_keypoints=2).detect(photo())
    matches = match(bare, bare)
    assert matches.keypoint_sizes0 is None and matches.angles1 is None
    assert matches.indices.tolist() == [[0, 0], [1, 1]]
    half = Features(full.points, np.eye(len(full), 2, dtype=np.float32), (10, 10), full.sizes, full.angles)
    assert match(bare, half).keypoint_sizes0 is None
    assert match(half, bare).angles1 is None


def test_only_features_are_matched():
    features = load_detector("sift", max_keypoints=10).detect(photo())
    with pytest.raises(InputError, match="features1: expected Features, as a detector gives them, got ndarray"):
        match(features, features.descriptors)


def test_tensors_are_matched_as_arrays_are():
    rng = np.random.default_rng(0)
    a, b = rng.random((20, 8), np.float32), rng.random((30, 8), np.float32)
    arrays, tensors = nearest_neighbours(a, b), nearest_neighbours(torch.from_numpy(a), torch.from_numpy(b))
    for name in ("index", "ratio", "mutual"):
        np.testing.assert_array_equal(getattr(arrays, name), getattr(tensors, name))
        assert isinstance(getattr(tensors, name), torch.Tensor)
    points = torch.rand(20, 2)
    matches = match(Features(points, torch.from_numpy(a), (9, 9)), Features(points, a, (9, 9)))
    assert matches.mutual.all() and np.array_equal(matches.points0, points)
    with pytest.raises(InputError, match="descriptors0: expected an array or a tensor, got list"):
        nearest_neighbours([[1.0]], b)


@pytest.mark.parametrize(("n", "m", "count"), [(7, 30, 2), (ROWS_AT_ONCE + 3, 50, 3), (5, 2, 3), (4, 1, 2)])
def test_several_neighbours_by_brute_force(n, m, count):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(n, 16)).astype(np.float32), rng.normal(size=(m, 16)).astype(np.float32)
    nearest, found = nearest_neighbours(a, b), nearest_neighbours(a, b, count)
    count = min(count, m)
    order = np.linalg.norm(a[:, None].astype(float) - b[None], axis=-1).argsort(axis=1)[:, :count]
    np.testing.assert_array_equal(found.index, order.T.reshape(-1))
    # The nearest are as they are alone; nothing speaks for the others.
    for name in ("index", "ratio", "mutual"):
        np.testing.assert_array_equal(getattr(found, name)[:n], getattr(nearest, name))
    assert (found.ratio[n:] == 1).all() and not found.mutual[n:].any()


def test_several_matches_of_a_keypoint():
    detector = load_detector("sift", max_keypoints=100)
    features0, features1 = detector.batch([photo(), np.roll(photo(), 5, axis=1)])
    matches = match(features0, features1, neighbours=2)
    count = len(features0)
    assert len(matches) == 2 * count
    first, second = matches.indices.T
    np.testing.assert_array_equal(first, np.tile(np.arange(count), 2))
    assert (second[:count] != second[count:]).all()
    np.testing.assert_array_equal(matches.points0, features0.points[first])
    np.testing.assert_array_equal(matches.keypoint_sizes1, features1.sizes[second])
    with pytest.raises(InputError, match="neighbours: expected a whole number of at least 1, got 0"):
        match(features0, features1, neighbours=0)


FORKED = """
import multiprocessing
import numpy as np, torch
from ananet.features.matching import nearest_neighbours

torch.set_num_threads(2)
a, b = np.random.default_rng(0).random((2, 1500, 128), np.float32)

def count(_):
    return int(nearest_neighbours(a, b).mutual.sum())

before = count(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(count, range(2)) == [before, before]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_matches_too():
    finished = subprocess.run([sys.executable, "-c", FORKED], timeout=120, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
