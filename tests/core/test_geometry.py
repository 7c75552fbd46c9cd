import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ananet.core import geometry
from tests.conftest import make_problem


def rays(problem):
    normalized = problem.matches._as_tensors().normalized()
    return normalized[:, :2], normalized[:, 2:]


def rotation_about(axis, degrees):
    axis = torch.tensor(axis, dtype=torch.float64)
    return torch.linalg.matrix_exp(geometry.cross_matrix(axis / axis.norm()) * math.radians(degrees))


def test_true_matches_have_no_epipolar_distance():
    clean = make_problem(noise=0.0)
    p0, p1 = rays(clean)
    inlier = torch.from_numpy(clean.inlier)
    for distance in (
        geometry.symmetric_epipolar_distance_squared,
        geometry.epipolar_distance,
        geometry.sampson_distance,
    ):
        values = distance(p0, p1, clean.E)
        assert values[inlier].max() < 1e-12
        assert values[~inlier].median() > 1e-3


def test_distances_by_hand():
    # E of a sideways step: epipolar lines are rows, so distances are differences in y.
    E = geometry.essential_from_pose(torch.eye(3), torch.tensor([1.0, 0.0, 0.0]))
    p0, p1 = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.3, 0.2]])
    assert geometry.epipolar_distance(p0, p1, E).item() == pytest.approx(0.2)
    assert geometry.symmetric_epipolar_distance_squared(p0, p1, E).item() == pytest.approx(2 * 0.2**2)
    assert geometry.sampson_distance(p0, p1, E).item() == pytest.approx(0.2 / math.sqrt(2))


def test_degenerate_geometry_gives_finite_distances():
    zero = torch.zeros(3, 3)
    points = torch.zeros(4, 2)
    assert geometry.symmetric_epipolar_distance_squared(points, points, zero).isfinite().all()


def test_fundamental_works_on_pixels(problem):
    m = problem.matches._as_tensors()
    K = m.K0.double()
    F = geometry.fundamental_from_essential(problem.E, K, K)
    pixels = geometry.epipolar_distance(m.points0, m.points1, F)
    p0, p1 = rays(problem)
    calibrated = geometry.epipolar_distance(p0, p1, problem.E)
    torch.testing.assert_close(pixels / 500, calibrated, rtol=1e-6, atol=1e-9)


def test_relative_pose_maps_first_camera_to_second():
    R0, R1 = rotation_about([1.0, 2.0, 3.0], 40), rotation_about([0.0, 1.0, -1.0], 70)
    t0, t1 = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([-1.0, 0.5, 2.0]).double()
    R, t = geometry.relative_pose(R0, t0, R1, t1)
    X = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(R @ (R0 @ X + t0) + t, R1 @ X + t1)


def test_recover_pose_finds_the_truth(problem):
    p0, p1 = rays(problem)
    keep = torch.from_numpy(problem.inlier)
    R, t, in_front = geometry.recover_pose(-2 * problem.E, p0[keep], p1[keep])
    assert in_front == keep.sum()
    torch.testing.assert_close(R, problem.R)
    torch.testing.assert_close(t, problem.t)


def test_depths_triangulate(problem):
    clean = make_problem(noise=0.0, outliers=0)
    p0, p1 = rays(clean)
    depth0, depth1 = geometry.depths(p0, p1, clean.R, clean.t)
    X1 = (geometry.homogeneous(p0) * depth0[:, None]) @ clean.R.T + clean.t
    torch.testing.assert_close(X1, geometry.homogeneous(p1) * depth1[:, None])


def test_eight_point_recovers_the_essential_matrix():
    clean = make_problem(noise=0.0)
    p0, p1 = rays(clean)
    weights = torch.from_numpy(clean.inlier).double()
    expected = clean.E / torch.linalg.matrix_norm(clean.E)
    for normalize in (True, False):
        E = geometry.weighted_eight_point(p0, p1, weights, normalize=normalize)
        assert min((E - expected).abs().max(), (E + expected).abs().max()) < 1e-9
    batched = geometry.weighted_eight_point(p0.expand(3, -1, -1), p1.expand(3, -1, -1), weights.expand(3, -1))
    assert batched.shape == (3, 3, 3)
    assert geometry.weighted_eight_point(p0.float(), p1.float(), weights.float()).dtype == torch.float32


def test_eight_point_is_differentiable():
    p0, p1 = (x[:12] for x in rays(make_problem(inliers=40, outliers=0, noise=1.0)))
    weights = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1

    def loss(w):
        E = geometry.weighted_eight_point(p0, p1, w)
        return geometry.symmetric_epipolar_distance_squared(p0, p1, E)

    assert torch.autograd.gradcheck(loss, weights.requires_grad_())


@pytest.fixture(params=["decomposition", "powers of the inverse"])
def road(request, monkeypatch):
    """Both ways to the eigenvector: on the CPU, and what GPUs, compilers and exporters take."""
    if request.param != "decomposition":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


@pytest.mark.usefixtures("road")
def test_smallest_eigenvector_is_that_of_a_decomposition():
    rows = torch.randn(50, 20, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrices = rows.mT @ rows
    expected = torch.linalg.eigh(matrices)[1][..., 0]
    torch.testing.assert_close(
        (geometry.smallest_eigenvector(matrices) * expected).sum(-1).abs(), torch.ones(50).double()
    )

    def projector(matrix):
        vector = geometry.smallest_eigenvector((matrix + matrix.mT) / 2)
        return vector[..., :, None] * vector[..., None, :]

    assert torch.autograd.gradcheck(projector, matrices[:2].requires_grad_())


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("matrix", [torch.zeros(9, 9), torch.eye(9), torch.ones(9, 9), torch.zeros(9, 9) + 1e-20])
def test_eigenvectors_that_are_not_unique_have_finite_slopes(matrix):
    matrix = matrix.double().requires_grad_()
    vector = geometry.smallest_eigenvector(matrix)
    assert vector.norm().item() == pytest.approx(1)
    (vector * torch.arange(9.0)).sum().backward()
    assert matrix.grad.isfinite().all()


@pytest.mark.parametrize("n", [0, 1, 7])
def test_eight_point_of_too_few_is_finite(n):
    assert geometry.weighted_eight_point(torch.rand(n, 2), torch.rand(n, 2)).isfinite().all()


@settings(deadline=None, max_examples=50)
@given(
    st.floats(1e-4, 180), st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda a: np.linalg.norm(a) > 0.1)
)
def test_rotation_error_is_the_angle(degrees, axis):
    R = rotation_about(axis, degrees)
    assert geometry.rotation_error(R, torch.eye(3, dtype=torch.float64)).item() == pytest.approx(degrees, rel=1e-5)


def test_translation_error():
    x, y = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 3.0, 0.0])
    assert geometry.translation_error(x, y).item() == pytest.approx(90)
    assert geometry.translation_error(x, -5 * x).item() == 0
    assert geometry.translation_error(torch.zeros(3), x).item() == 90


def homography_matches(H, n=200):
    p0 = torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 400
    mapped = geometry.homogeneous(p0) @ H.T
    return p0, mapped[:, :2] / mapped[:, 2:]


def test_homography_distance_by_hand():
    p0 = torch.tensor([[10.0, 20.0]])
    # Both photos share the error of a match: half of it each.
    same = geometry.homography_distance(p0, p0 + torch.tensor([[3.0, 4.0]]), torch.eye(3))
    assert same.item() == pytest.approx(5 / math.sqrt(2))
    # Under a zoom by 3 the error lies nearly all in the larger photo.
    zoom = torch.diag(torch.tensor([3.0, 3.0, 1.0]))
    found = geometry.homography_distance(p0, 3 * p0 + torch.tensor([[3.0, 4.0]]), zoom)
    assert found.item() == pytest.approx(5 / math.sqrt(10))


def test_homography_distance_is_the_same_in_both_directions_and_for_any_scale():
    H = torch.tensor([[0.9, -0.2, 60.0], [0.15, 1.1, -30.0], [3e-4, -2e-4, 1.0]], dtype=torch.float64)
    p0, p1 = homography_matches(H)
    p1 = p1 + torch.randn(p1.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    forward = geometry.homography_distance(p0, p1, H)
    torch.testing.assert_close(geometry.homography_distance(p0, p1, -7 * H), forward)
    torch.testing.assert_close(geometry.homography_distance(p1, p0, torch.linalg.inv(H)), forward, rtol=0.02, atol=0)


def test_points_beyond_the_horizon_fit_no_homography():
    H = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-1 / 300, 0, 1]], dtype=torch.float64)
    p0, p1 = homography_matches(H)
    distance = geometry.homography_distance(p0, p1, H)
    assert (distance[p0[:, 0] < 300] < 1e-6).all() and distance[p0[:, 0] > 300].isinf().all()
    on_it = torch.tensor([[300.0, 1.0], [1.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    assert geometry.homography_distance(on_it, on_it, H)[0].isinf()


def test_homography_from_weighted_matches():
    H = torch.tensor([[0.9, -0.2, 60.0], [0.15, 1.1, -30.0], [3e-4, -2e-4, 1.0]], dtype=torch.float64)
    p0, p1 = homography_matches(H)
    p1[100:] += 50
    weights = (torch.arange(200) < 100).double()
    found = geometry.weighted_homography(p0, p1, weights)
    torch.testing.assert_close(found / found[2, 2], H)
    assert geometry.weighted_homography(p0[:0], p1[:0], weights[:0]).shape == (3, 3)
