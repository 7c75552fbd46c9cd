"""Matches in .npz files; what can be wrong with them is in cli/test_prune.py."""

import numpy as np
import pytest

from ananet import InputError
from ananet.io.npz import read_arrays, read_matches, read_some

POINTS = np.random.default_rng(0).uniform(0, 100, (5, 2))


def test_names_of_0_2_are_read(tmp_path):
    old = {"size0": [640, 480], "size1": [320, 240], "sizes0": np.arange(1.0, 6), "sizes1": np.arange(2.0, 7)}
    np.savez(tmp_path / "old.npz", points0=POINTS, points1=POINTS, **old)
    matches = read_matches(tmp_path / "old.npz")
    assert matches.image_size0 == (640, 480) and matches.image_size1 == (320, 240)
    np.testing.assert_array_equal(matches.keypoint_sizes0, np.arange(1.0, 6))
    np.testing.assert_array_equal(matches.keypoint_sizes1, np.arange(2.0, 7))
    np.savez(tmp_path / "both.npz", points0=POINTS, points1=POINTS, size0=[1, 1], image_size0=[1, 1])
    with pytest.raises(InputError, match="expected every array once, got image_size0 more than once"):
        read_matches(tmp_path / "both.npz")


def test_arrays_beside_the_matches(tmp_path):
    np.savez(tmp_path / "a.npz", points0=POINTS, points1=POINTS, motion=np.arange(5), other=np.zeros(2))
    assert set(read_arrays(tmp_path / "a.npz", ("motion",))) == {"points0", "points1", "motion"}
    assert set(read_some(tmp_path / "a.npz", ("motion", "none"))) == {"motion"}
    with pytest.raises(
        InputError,
        match="unknown array motion, other: expected arrays points0.*did you mean 'motions'",
    ):
        read_arrays(tmp_path / "a.npz")
    data = (tmp_path / "a.npz").read_bytes()
    with pytest.raises(InputError, match=r"sent: expected at most 100 bytes of arrays, got \d+"):
        read_arrays(tmp_path.with_name("sent"), ("motion",), data=data, max_bytes=100)
