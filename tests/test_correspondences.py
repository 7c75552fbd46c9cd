import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError

K = np.array([[500.0, 0, 320], [0, 510, 240], [0, 0, 1]])


def points(n: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(n).uniform(0, 480, (n, 2)).astype(dtype)


def test_calibrated_points_are_k_inverse_p():
    a, b = points(9), points(9) + 1
    skewed = K + np.array([[0, 3.0, 0], [0, 0, 0], [0, 0, 0]])
    normalized = Correspondences(a, b, K0=K, K1=skewed).normalized().numpy()
    expected0 = (np.c_[a, np.ones(9)] @ np.linalg.inv(K).T)[:, :2]
    expected1 = (np.c_[b, np.ones(9)] @ np.linalg.inv(skewed).T)[:, :2]
    np.testing.assert_allclose(normalized, np.c_[expected0, expected1], atol=1e-12)


def test_sized_points_lie_in_the_unit_range_with_one_scale():
    corners = np.array([[0, 0], [640, 480], [320, 240]])
    normalized = Correspondences(corners, corners, size0=(640, 480), size1=(640, 480)).normalized()
    assert normalized.abs().max() <= 1
    assert normalized[2].tolist() == [0, 0, 0, 0]
    assert normalized[1, 0] / normalized[1, 1] == pytest.approx(640 / 480)


def test_cameras_go_before_sizes():
    both = Correspondences(points(4), points(4), K0=K, K1=K, size0=(640, 480), size1=(640, 480))
    cameras = Correspondences(points(4), points(4), K0=K, K1=K)
    assert both.calibrated
    assert torch.equal(both.normalized(), cameras.normalized())


def test_without_cameras_and_sizes_there_is_no_normalisation():
    with pytest.raises(InputError, match="K0, K1.*size0, size1"):
        Correspondences(points(4), points(4)).normalized()


@pytest.mark.parametrize("n", [0, 1, 7])
def test_small_sets(n):
    matches = Correspondences(points(n), points(n), K0=K, K1=K)
    assert len(matches) == n
    assert matches.normalized().shape == (n, 4)


def test_empty_list_is_an_empty_set():
    assert len(Correspondences([], [])) == 0


def test_all_identical_points_are_fine():
    same = np.full((7, 2), 5.0)
    assert Correspondences(same, same, K0=K, K1=K).normalized().isfinite().all()


def test_dtypes_and_layouts():
    assert Correspondences(points(3), points(3)).points0.dtype == torch.float64
    assert Correspondences(points(3, "float32"), points(3, "float32")).points0.dtype == torch.float32
    assert Correspondences(points(3, "int32"), points(3, "int32")).points0.dtype == torch.float32
    assert Correspondences(points(3), points(3, "float32")).points1.dtype == torch.float64
    transposed = np.ascontiguousarray(points(5).T).T
    assert not transposed.flags.c_contiguous
    np.testing.assert_array_equal(Correspondences(transposed, transposed).points0.numpy(), points(5))
    reversed_view = points(5)[::-1]
    np.testing.assert_array_equal(Correspondences(reversed_view, reversed_view).points0.numpy(), reversed_view)


def test_foreign_number_formats():
    for dtype in (">f8", ">f4", "longdouble", "uint16", "float16", ">i4"):
        given = np.arange(6).reshape(3, 2).astype(dtype)
        np.testing.assert_array_equal(Correspondences(given, given).points0.numpy(), np.arange(6).reshape(3, 2))


def test_scores_can_be_attached_later():
    matches = Correspondences(points(3), points(3), K0=K, K1=K)
    assert matches.with_scores([1, 2, 3]).scores.tolist() == [1, 2, 3]
    assert matches.scores is None
    with pytest.raises(InputError, match="scores: expected shape"):
        matches.with_scores([1, 2])


def test_input_is_not_aliased():
    mine = points(3)
    matches = Correspondences(mine, mine)
    mine[:] = 0
    assert matches.points0.abs().sum() > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["points0", "points1"])
def test_non_finite_points_are_named(bad, name):
    given = {"points0": points(5), "points1": points(5)}
    given[name][3, 1] = bad
    with pytest.raises(InputError, match=rf"{name}: .*1 of 5 rows \(first: row 3\)"):
        Correspondences(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points0": np.zeros((5, 3))}, r"points0: expected shape \(N, 2\), got \(5, 3\)"),
        ({"points0": np.zeros(5)}, r"points0: expected shape \(N, 2\), got \(5,\)"),
        ({"points1": np.zeros((4, 2))}, "same number of rows, got 5 and 4"),
        ({"points0": "abc"}, "points0: expected an array of numbers"),
        ({"points0": np.zeros((5, 2), complex)}, "points0: expected real numbers"),
        ({"K0": K}, "K0 and K1: expected both or neither, K1 is missing"),
        ({"size1": (3, 4)}, "size0 and size1: expected both or neither, size0 is missing"),
        ({"K0": np.eye(4), "K1": K}, r"K0: expected shape \(3, 3\), got \(4, 4\)"),
        ({"K0": K * 1j, "K1": K}, "K0: expected real numbers"),
        ({"K0": -K, "K1": K}, "K0: expected positive focal lengths"),
        ({"K0": K.T, "K1": K}, "K0: expected .*fx"),
        ({"size0": (0, 4), "size1": (3, 4)}, "size0: expected .width, height."),
        ({"size0": (3, 4, 3), "size1": (3, 4)}, "size0: expected .width, height."),
        ({"ratio": np.ones(4)}, r"ratio: expected shape \(5,\), got \(4,\)"),
        ({"ratio": np.full(5, 1.5)}, r"ratio: expected values in \[0, 1\], got 1.5"),
        ({"mutual": np.full(5, 2)}, "mutual: expected True/False"),
        ({"scores": np.full(5, np.nan)}, "scores: expected finite"),
    ],
)
def test_errors_name_the_argument(change, message):
    with pytest.raises(InputError, match=message):
        Correspondences(**{"points0": points(5), "points1": points(5), **change})


def test_selection_by_mask_index_and_slice():
    matches = Correspondences(points(6), points(6), K0=K, K1=K, ratio=np.linspace(0, 1, 6), mutual=np.arange(6) % 2)
    assert len(matches[np.arange(6) < 2]) == 2
    picked = matches[[4, 1]]
    assert picked.ratio.tolist() == pytest.approx([0.8, 0.2])
    assert picked.mutual.tolist() == [False, True]
    assert picked.calibrated and picked.given_as_numpy
    assert len(matches[1:4]) == 3
    assert len(matches[[]]) == 0


def test_torch_stays_torch_and_repr_tells():
    matches = Correspondences(torch.zeros(2, 2), torch.zeros(2, 2), size0=(4, 4), size1=(4, 4), mutual=[1, 0])
    assert not matches.given_as_numpy
    assert repr(matches) == "Correspondences(2 matches, size, mutual)"
    assert matches.to("cpu").size0 == (4.0, 4.0)
