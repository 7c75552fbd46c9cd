import re

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError
from ananet.core import correspondences
from ananet.core.correspondences import PER_MATCH

K = np.array([[500.0, 0, 320], [0, 510, 240], [0, 0, 1]])


def points(n: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(n).uniform(0, 480, (n, 2)).astype(dtype)


def test_calibrated_points_are_k_inverse_p():
    a, b = points(9), points(9) + 1
    skewed = K + np.array([[0, 3.0, 0], [0, 0, 0], [0, 0, 0]])
    normalized = Correspondences(a, b, K0=K, K1=skewed).normalized()
    expected0 = (np.c_[a, np.ones(9)] @ np.linalg.inv(K).T)[:, :2]
    expected1 = (np.c_[b, np.ones(9)] @ np.linalg.inv(skewed).T)[:, :2]
    np.testing.assert_allclose(normalized, np.c_[expected0, expected1], atol=1e-12)


def test_sized_points_lie_in_the_unit_range_with_one_scale():
    corners = np.array([[0, 0], [640, 480], [320, 240]])
    normalized = Correspondences(corners, corners, image_size0=(640, 480), image_size1=(640, 480)).normalized()
    assert np.abs(normalized).max() <= 1
    assert normalized[2].tolist() == [0, 0, 0, 0]
    assert normalized[1, 0] / normalized[1, 1] == pytest.approx(640 / 480)


def test_cameras_go_before_sizes():
    both = Correspondences(points(4), points(4), K0=K, K1=K, image_size0=(640, 480), image_size1=(640, 480))
    cameras = Correspondences(points(4), points(4), K0=K, K1=K)
    assert both.calibrated
    assert np.array_equal(both.normalized(), cameras.normalized())


def test_without_cameras_and_sizes_there_is_no_normalisation():
    with pytest.raises(InputError, match="K0, K1.*image_size0, image_size1"):
        Correspondences(points(4), points(4)).normalized()


@pytest.mark.parametrize("n", [0, 1, 7])
def test_small_sets(n):
    matches = Correspondences(points(n), points(n), K0=K, K1=K)
    assert len(matches) == n
    assert matches.normalized().shape == (n, 4)


def test_empty_list_is_an_empty_set():
    assert len(Correspondences([], [])) == 0


@pytest.mark.parametrize("shape", [(0,), (0, 2), (0, 0), (0, 3)])
def test_arrays_without_rows_are_no_matches(shape):
    assert len(Correspondences(np.zeros(shape), torch.zeros(shape), indices=np.zeros(shape))) == 0


@pytest.mark.parametrize("shape", [(8, 0), (1, 0), (), (0, 2, 2)])
def test_rows_without_coordinates_are_not_no_matches(shape):
    message = f"expected shape (N, 2), got {shape}"
    for given in (np.zeros(shape), torch.zeros(shape)):
        with pytest.raises(InputError, match=re.escape(f"points0: {message}")):
            Correspondences(given, points(8))
    with pytest.raises(InputError, match=re.escape(f"indices: expected shape (0, 2), got {shape}")):
        Correspondences([], [], indices=np.zeros(shape, int))


def test_all_identical_points_are_fine():
    same = np.full((7, 2), 5.0)
    assert np.isfinite(Correspondences(same, same, K0=K, K1=K).normalized()).all()


def test_dtypes_and_layouts():
    assert Correspondences(points(3), points(3)).points0.dtype == np.float64
    assert Correspondences(points(3, "float32"), points(3, "float32")).points0.dtype == np.float32
    assert Correspondences(points(3, "int32"), points(3, "int32")).points0.dtype == np.float32
    assert Correspondences(points(3), points(3, "float32")).points1.dtype == np.float64
    transposed = np.ascontiguousarray(points(5).T).T
    assert not transposed.flags.c_contiguous
    np.testing.assert_array_equal(Correspondences(transposed, transposed).points0, points(5))
    reversed_view = points(5)[::-1]
    np.testing.assert_array_equal(Correspondences(reversed_view, reversed_view).points0, reversed_view)


def test_foreign_number_formats():
    for dtype in (">f8", ">f4", "longdouble", "uint16", "float16", ">i4"):
        given = np.arange(6).reshape(3, 2).astype(dtype)
        np.testing.assert_array_equal(Correspondences(given, given).points0, np.arange(6).reshape(3, 2))


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
    assert np.abs(matches.points0).sum() > 0


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
        ({"image_size1": (3, 4)}, "image_size0 and image_size1: expected both or neither, image_size0 is missing"),
        ({"K0": np.eye(4), "K1": K}, r"K0: expected shape \(3, 3\), got \(4, 4\)"),
        ({"K0": K * 1j, "K1": K}, "K0: expected real numbers"),
        ({"K0": -K, "K1": K}, "K0: expected positive focal lengths"),
        ({"K0": K.T, "K1": K}, "K0: expected .*fx"),
        ({"image_size0": (0, 4), "image_size1": (3, 4)}, "image_size0: expected .width, height."),
        ({"image_size0": (3, 4, 3), "image_size1": (3, 4)}, "image_size0: expected .width, height."),
        ({"ratio": np.ones(4)}, r"ratio: expected shape \(5,\), got \(4,\)"),
        ({"ratio": np.full(5, 1.5)}, r"ratio: expected values in \[0, 1\], got 1.5"),
        ({"mutual": np.full(5, 2)}, "mutual: expected True/False"),
        ({"scores": np.full(5, np.nan)}, "scores: expected finite"),
        (
            {"keypoint_sizes0": np.ones(5)},
            "keypoint_sizes0 and keypoint_sizes1: expected both or neither, keypoint_sizes1 is missing",
        ),
        ({"angles1": np.ones(5)}, "angles0 and angles1: expected both or neither, angles0 is missing"),
        (
            {"keypoint_sizes0": np.ones(5), "keypoint_sizes1": np.zeros(5)},
            "keypoint_sizes1: expected positive numbers of pixels, got 0",
        ),
        ({"angles0": np.ones(4), "angles1": np.ones(5)}, r"angles0: expected shape \(5,\), got \(4,\)"),
        ({"angles0": np.full(5, np.inf), "angles1": np.ones(5)}, "angles0: expected finite"),
        ({"indices": np.zeros((5, 3), int)}, r"indices: expected shape \(5, 2\), got \(5, 3\)"),
        ({"indices": np.full((5, 2), -1)}, "indices: expected whole numbers of at least 0"),
        ({"indices": np.zeros((5, 2))}, "indices: expected whole numbers of at least 0"),
        ({"indices": np.zeros((5, 2), bool)}, "indices: expected whole numbers of at least 0"),
        ({"points0": np.zeros((5, 2), bool)}, "points0: expected real numbers, got torch.bool"),
        ({"points0": [[1, 2], [3]]}, "points0: expected an array of numbers, got list"),
        ({"points0": None}, "points0: expected an array of numbers, got NoneType"),
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
    matches = Correspondences(
        torch.zeros(2, 2), torch.zeros(2, 2), image_size0=(4, 4), image_size1=(4, 4), mutual=[1, 0]
    )
    assert not matches.given_as_numpy
    assert repr(matches) == "Correspondences(2 matches, image_size, mutual)"
    assert matches.to("cpu").image_size0 == (4.0, 4.0)


@pytest.fixture
def full() -> Correspondences:
    """Six matches with all that matches can have."""
    return Correspondences(
        points(6),
        points(6) + 1,
        K0=K,
        K1=K,
        image_size0=(640, 480),
        image_size1=(320, 240),
        ratio=np.linspace(0, 1, 6),
        mutual=np.arange(6) % 2,
        scores=np.arange(6),
        keypoint_sizes0=np.arange(1, 7),
        keypoint_sizes1=np.arange(2, 8),
        angles0=np.linspace(0, 3, 6),
        angles1=np.linspace(3, 0, 6),
        indices=np.stack([np.arange(6), np.arange(6)[::-1]], axis=1),
    )


def check_selection(matches: Correspondences, picked: Correspondences, expected: np.ndarray) -> None:
    """Everything there is of every match was selected alike, and the rest is the same."""
    for name in PER_MATCH:
        np.testing.assert_array_equal(getattr(picked, name), getattr(matches, name)[expected], name)
    assert picked._K0 is matches._K0 and picked.image_size1 == matches.image_size1


@pytest.mark.parametrize(
    "which",
    [
        slice(None, None, -1),
        slice(4, 1, -2),
        slice(None, None, 2),
        slice(-3, None),
        slice(2, 99),
        slice(5, 2),
        slice(np.int64(1), np.int64(4)),
        [4, 1, 4],
        [-1, -6],
        np.array([], int),
        np.array([True, False] * 3),
        np.array([5, 0, 3])[::-1],
    ],
    ids=str,
)
def test_a_selection_selects_in_everything(which, full):
    check_selection(full, full[which], np.arange(6)[which])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", ">i4"])
def test_small_and_foreign_integers_are_indices(dtype, full):
    which = np.array([5, 0, 1], dtype)
    check_selection(full, full[which], np.array([5, 0, 1]))
    if dtype != ">i4":
        check_selection(full, full[torch.from_numpy(which)], np.array([5, 0, 1]))


def test_ones_and_zeros_of_bytes_are_indices_not_a_mask(full):
    which = np.array([1, 0, 0, 0, 0, 1], np.uint8)
    check_selection(full, full[which], np.array([1, 0, 0, 0, 0, 1]))


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (np.ones(5, bool), "which: expected a mask of 6 matches, got one of 5"),
        (np.ones(7, bool), "which: expected a mask of 6 matches, got one of 7"),
        ([0, 6], "which: expected indices below 6, got 0 to 6"),
        ([-7, 2], "which: expected indices below 6, got -7 to 2"),
        (np.array([255], np.uint8), "which: expected indices below 6, got 255 to 255"),
        ([0.0, 1.0], "which: expected a mask, indices or a slice, got numbers of torch.float64"),
        (np.array([1j]), "which: expected a mask, indices or a slice, got numbers of torch.complex128"),
        (3, r"which: expected a mask, indices or a slice, got shape \(\)"),
        ([[0, 1]], r"which: expected a mask, indices or a slice, got shape \(1, 2\)"),
        (None, "which: expected an array of numbers, got NoneType"),
        ("all", "which: expected an array of numbers, got str"),
    ],
)
def test_wrong_selections_are_named(which, message, full):
    with pytest.raises(InputError, match=message):
        full[which]


def test_what_was_checked_is_not_checked_again(full, monkeypatch):
    def fail(*_):
        raise AssertionError("checked again")

    monkeypatch.setattr(correspondences, "_check_finite", fail)
    monkeypatch.setattr(Correspondences, "__init__", fail)
    assert len(full[1:4]) == len(full[[1, 2, 3]]) == 3
    assert len(full.to("cpu")) == 6


def test_a_copy_with_other_values(full):
    changed = full.replace(K0=None, K1=None)
    assert not changed.calibrated and full.calibrated
    assert changed._points0 is full._points0 and changed.given_as_numpy
    assert np.abs(changed.normalized()).max() <= 2


def test_masked_arrays_have_no_gaps():
    whole = np.ma.masked_array(points(5), mask=False)
    np.testing.assert_array_equal(Correspondences(whole, whole).points0, points(5))
    gaps = np.ma.masked_array(points(5), mask=np.eye(5, 2, dtype=bool))
    with pytest.raises(InputError, match="points1: expected an array without gaps, got a masked one"):
        Correspondences(points(5), gaps)
    ratio = np.ma.masked_greater(np.linspace(0, 1, 5), 0.5)
    with pytest.raises(InputError, match="ratio: expected an array without gaps"):
        Correspondences(points(5), points(5), ratio=ratio)


@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|quantize_per_tensor)")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: torch.eye(5, 2).to_sparse(), "sparse"),
        (lambda: torch.eye(5, 2).to_sparse_csr(), "sparse"),
        (lambda: torch.zeros(5, 2, device="meta"), "meta"),
        (lambda: torch.quantize_per_tensor(torch.eye(5, 2), 0.1, 0, torch.quint8), "quantised"),
    ],
    ids=["coo", "csr", "meta", "quantised"],
)
def test_only_plain_tensors_are_taken(make, kind):
    with pytest.raises(InputError, match=f"points0: expected a plain tensor, got a {kind} one"):
        Correspondences(make(), torch.zeros(5, 2))
    with pytest.raises(InputError, match=f"K1: expected a plain tensor, got a {kind} one"):
        Correspondences(points(5), points(5), K0=K, K1=make())


def test_gradients_are_left_behind():
    given = torch.rand(4, 2, requires_grad=True)
    matches = Correspondences(given, given * 2)
    assert not matches.points0.requires_grad and not matches.points1.requires_grad
    assert matches.numpy_points()[0].dtype == np.float64


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.int64])
def test_indices_of_keypoints_in_any_whole_number(dtype):
    given = torch.tensor([[0, 3], [1, 2]]).to(dtype)
    matches = Correspondences(points(2), points(2), indices=given)
    assert matches.indices.dtype == np.int64 and matches.indices.tolist() == [[0, 3], [1, 2]]
    assert Correspondences([], [], indices=[]).indices.shape == (0, 2)


def test_sizes_are_normalised_as_points_are(full):
    focal = (500 + 510) / 2
    expected = np.stack([np.arange(1, 7), np.arange(2, 8)], axis=1) / focal
    np.testing.assert_allclose(full.normalized_sizes(), expected, rtol=1e-6)
    sized = full.replace(K0=None, K1=None)
    expected = np.stack([np.arange(1, 7) / 640, np.arange(2, 8) / 320], axis=1) / 0.7
    np.testing.assert_allclose(sized.normalized_sizes(), expected, rtol=1e-6)
    assert Correspondences(points(3), points(3)).normalized_sizes() is None
    with pytest.raises(InputError, match="K0, K1.*image_size0, image_size1"):
        Correspondences(points(3), points(3), keypoint_sizes0=[1, 1, 1], keypoint_sizes1=[1, 1, 1]).normalized_sizes()


def test_angles_of_both_keypoints(full):
    expected = np.stack([np.linspace(0, 3, 6), np.linspace(3, 0, 6)], axis=1)
    np.testing.assert_allclose(full.angles(), expected, atol=1e-6)
    assert Correspondences(points(3), points(3)).angles() is None


def test_repr_tells_everything_that_is_known(full):
    assert (
        repr(full)
        == "Correspondences(6 matches, K, image_size, ratio, mutual, scores, keypoint_sizes, angles, indices)"
    )


def test_unsigned_numbers_that_would_become_negative():
    points = np.array([[2**63, 1]], np.uint64)
    with pytest.raises(InputError, match=r"points0: expected numbers below 2\*\*63, got 9223372036854775808"):
        Correspondences(points, points)
    with pytest.raises(InputError, match="indices: expected numbers below"):
        Correspondences([[1, 2]], [[1, 2]], indices=points)
    assert Correspondences(points - np.uint64(1), points - np.uint64(1)).points0[0, 0] == 2.0**63
    assert Correspondences(torch.from_numpy(points), torch.from_numpy(points)).points0[0, 0] == 2.0**63


def test_only_unchecked_points_may_be_the_callers_memory():
    given = points(3)
    copied, used = Correspondences(given, given), Correspondences._unchecked(given, given)
    given[0] = 7.0
    assert used.points0[0, 0] == 7.0 != copied.points0[0, 0]
    # Torch warns of memory that it may not write to, and knows no other order of bytes.
    given.flags.writeable = False
    for other in (given, points(3).astype(">f8"), np.asfortranarray(points(3)), points(6)[::2]):
        assert np.array_equal(Correspondences._unchecked(other, other).points1, other)


def test_values_nobody_has_looked_at_yet():
    matches = Correspondences._unchecked(points(3), points(3), K0=K, K1=K)
    assert not matches._values_are_checked
    matches._check_values()
    assert matches._values_are_checked
    for given in (points(3), torch.from_numpy(points(3))):
        given[1] = np.nan
        with pytest.raises(InputError, match=r"points0: expected finite numbers, .* \(first: row 1\)"):
            Correspondences._unchecked(given, points(3))._check_values()
    with pytest.raises(InputError, match="scores: expected finite numbers"):  # which no network reads
        Correspondences._unchecked(points(1), points(1), scores=[np.nan])
    with pytest.raises(TypeError, match="colour"):
        Correspondences._unchecked(points(3), points(3), colour=1)


def test_values_can_be_checked_later():
    wrong = torch.tensor([[1.0, np.inf]])
    later = Correspondences._unchecked(wrong, wrong)
    assert not later._values_are_checked and not later.replace(points1=wrong)._values_are_checked
    with pytest.raises(InputError, match="points0: expected finite numbers"):
        later._check_values()
    good = later.replace(points0=torch.ones(1, 2), points1=torch.ones(1, 2))
    good._check_values()
    assert good._values_are_checked


def test_numpy_in_numpy_out_tensors_in_tensors_out(full):
    """Every attribute and result is of the kind of the points."""
    tensors = full.to("cpu")
    made = Correspondences(torch.from_numpy(full.points0), full.points1, K0=K, K1=K, ratio=full.ratio)
    for name in (*PER_MATCH, "K0", "K1"):
        assert isinstance(getattr(full, name), np.ndarray), name
        assert isinstance(getattr(full[:2], name), np.ndarray), name
        assert isinstance(getattr(tensors, name), torch.Tensor), name
        np.testing.assert_array_equal(getattr(full, name), getattr(tensors, name))
    for values in (made.points1, made.K0, made.ratio):
        assert isinstance(values, torch.Tensor)
    for result in ("normalized", "normalized_sizes", "angles"):
        assert isinstance(getattr(full, result)(), np.ndarray) and isinstance(getattr(tensors, result)(), torch.Tensor)
    twin = full._as_tensors()
    assert isinstance(twin.points0, torch.Tensor) and isinstance(twin._as_given(twin.points0), np.ndarray)
    assert isinstance(full.replace(ratio=np.zeros(6, np.float32)).ratio, np.ndarray)
    with pytest.raises(TypeError, match="no attribute 'colour'"):
        full.replace(colour=1)
