import math
from dataclasses import replace

import pytest
import torch

from ananet.core import geometry
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.networks import inlier_weights
from ananet.training.loss import (
    class_loss,
    geometric_loss,
    loss_of_solution,
    matrix_loss,
    virtual_loss,
    virtual_matches,
)
from tests.conftest import make_problem


def test_class_loss_by_hand():
    logits = torch.tensor([[2.0, -1.0, 0.5, 9.0]])
    inlier = torch.tensor([[True, False, False, True]])
    mask = torch.tensor([[True, True, True, False]])

    def entropy(o, y):
        return math.log(1 + math.exp(-o if y else o))

    expected = 0.5 * entropy(2, True) + 0.5 * (entropy(-1, False) + entropy(0.5, False)) / 2
    assert class_loss(logits, inlier, mask).item() == pytest.approx(expected, rel=1e-6)


def test_class_loss_weighs_pairs_and_classes_equally():
    logits = torch.zeros(2, 100)
    inlier = torch.arange(100) < torch.tensor([[5], [95]])
    mask = torch.ones(2, 100, dtype=torch.bool)
    assert class_loss(logits, inlier, mask).item() == pytest.approx(math.log(2))


def test_without_balance_every_match_weighs_the_same():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 40, generator=generator)
    inlier = torch.rand(3, 40, generator=generator) < torch.tensor([[0.1], [0.5], [0.0]])
    mask = torch.ones(3, 40, dtype=torch.bool)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(logits, inlier.float())
    losses = [class_loss(logits, inlier, mask, balance) for balance in (0.0, 0.2, 1.0)]
    torch.testing.assert_close(losses[0], plain)
    torch.testing.assert_close(losses[1], 0.8 * losses[0] + 0.2 * losses[2])


def plain_class_loss(logits, inlier, mask, balance):
    """The loss of matches that are right or wrong."""
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits, inlier.float(), reduction="none")
    positive, negative = inlier & mask, ~inlier & mask
    of_inliers, of_outliers = ((entropy * side).sum(1) / side.sum(1).clamp_min(1) for side in (positive, negative))
    share = balance * 0.5 + (1 - balance) * positive.sum(1) / mask.sum(1).clamp_min(1)
    return (share * of_inliers + (1 - share) * of_outliers).mean()


@pytest.mark.parametrize("balance", [0.0, 0.3, 1.0])
def test_hard_targets_give_the_plain_loss_and_its_gradient(balance):
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(4, 50, generator=generator)).requires_grad_()
    inlier = torch.rand(4, 50, generator=generator) < torch.tensor([[0.1], [0.5], [0.0], [1.0]])
    mask = torch.arange(50) < torch.tensor([[50], [20], [50], [7]])
    losses = [
        plain_class_loss(logits, inlier, mask, balance),
        class_loss(logits, inlier.float(), mask.float(), balance),
    ]
    assert losses[0] == losses[1]
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in losses]
    assert torch.equal(*gradients)


def test_soft_targets_and_weights_by_hand():
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    target, weight = torch.tensor([[1.0, 0.0, 0.3]]), torch.tensor([[1.0, 2.0, 0.4]])
    right, wrong = (torch.nn.functional.softplus(sign * logits[0]) for sign in (-1, 1))
    of_inliers = (right[0] + 0.12 * right[2]) / 1.12
    of_outliers = (2 * wrong[1] + 0.28 * wrong[2]) / 2.28
    torch.testing.assert_close(class_loss(logits, target, weight), (of_inliers + of_outliers) / 2)
    everything = (1.12 * of_inliers + 2.28 * of_outliers) / 3.4
    torch.testing.assert_close(class_loss(logits, target, weight, 0.0), everything)


@pytest.mark.parametrize("balance", [0.0, 1.0])
def test_what_is_unknown_teaches_nothing(balance):
    logits = torch.randn(2, 5, requires_grad=True)
    target = torch.full((2, 5), 0.7)
    loss = class_loss(logits, target, torch.zeros(2, 5), balance)
    loss.backward()
    assert loss == 0 and not logits.grad.any()


def test_pairs_with_nothing_in_common_have_no_geometry_to_learn():
    batch = synthesize(3, torch.Generator().manual_seed(0), SyntheticSettings(matches=60))
    for kind in ("inliers", "virtual", "matrix"):
        for share in (torch.nan, 0.0):
            weights = torch.rand(3, 60, requires_grad=True)
            loss = loss_of_solution(kind, weights, replace(batch, share=torch.full((3,), share)))
            loss.backward()
            assert loss.isfinite() and weights.grad.isfinite().all()
            assert bool(weights.grad.any()) == (share != 0.0) and (loss > 0) == (share != 0.0)


@pytest.mark.parametrize("inlier", [torch.zeros(1, 6, dtype=torch.bool), torch.ones(1, 6, dtype=torch.bool)])
def test_losses_of_one_class_and_of_nothing_are_finite(inlier):
    logits = torch.randn(1, 6, requires_grad=True)
    matches = torch.randn(1, 6, 4)
    for mask in (torch.ones(1, 6, dtype=torch.bool), torch.zeros(1, 6, dtype=torch.bool)):
        loss = class_loss(logits, inlier, mask) + geometric_loss(inlier_weights(logits), matches, inlier, mask)
        assert loss.isfinite()
        loss.backward()
        assert logits.grad.isfinite().all()


def test_geometric_loss_prefers_the_true_inliers():
    problem = make_problem(noise=0.1)
    matches = problem.matches._as_tensors().normalized()[None]
    inlier = torch.from_numpy(problem.inlier)[None]
    mask = torch.ones_like(inlier)
    right = geometric_loss(inlier_weights(inlier.double() * 6 - 3), matches, inlier, mask)
    wrong = geometric_loss(inlier_weights(torch.ones_like(matches[..., 0])), matches, inlier, mask)
    assert right < 1e-5 < wrong


def test_virtual_matches_fit_the_geometry_and_fill_both_images():
    E = make_problem().E.float()[None].repeat(2, 1, 1)
    E[1] = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])  # sideways
    points0, points1 = virtual_matches(E)
    distance = geometry.symmetric_epipolar_distance_squared(points0, points1, E)
    assert (distance < 1e-8).float().mean() > 0.98
    assert points0.shape == (2, 400, 2)
    for points in (points0, points1):
        assert (points.std(dim=1) > 0.4).all() and (points.abs() < 3).float().mean() > 0.98


@pytest.mark.parametrize("loss", [virtual_loss, matrix_loss])
def test_losses_of_the_true_geometry_prefer_the_true_inliers(loss):
    problem = make_problem(noise=0.1)
    matches = problem.matches._as_tensors().normalized().float()[None]
    E, inlier = problem.E.float()[None], torch.from_numpy(problem.inlier)[None]
    mask = torch.ones_like(inlier)
    right, wrong = loss(inlier.float(), matches, E, mask), loss(mask.float(), matches, E, mask)
    assert right < 1e-3 < wrong
    # Neither sign nor length of a geometry means anything.
    torch.testing.assert_close(loss(inlier.float(), matches, -3 * E, mask), right, atol=1e-6, rtol=1e-3)
    weights = torch.full_like(matches[..., 0], 0.5).requires_grad_()
    loss(weights, matches, E, mask).backward()
    # More weight on right matches makes it smaller.
    assert weights.grad[inlier].mean() < weights.grad[~inlier].mean()


@pytest.mark.parametrize("loss", [virtual_loss, matrix_loss])
@pytest.mark.parametrize("n", [1, 8, 30])
def test_losses_of_the_true_geometry_are_finite_where_there_is_none(loss, n):
    E = make_problem().E.float()[None]
    for matches in (torch.zeros(1, n, 4), torch.full((1, n, 4), 0.3)):
        for true in (E, torch.zeros_like(E)):
            weights = torch.ones(1, n, requires_grad=True)
            found = loss(weights, matches, true, torch.ones(1, n, dtype=torch.bool))
            found.backward()
            assert found.isfinite() and weights.grad.isfinite().all()
