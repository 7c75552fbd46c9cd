"""Batch norm that padding does not touch, and the MLPs built on it."""

import pytest
import torch

from ananet.networks.layers import MaskedBatchNorm, PointwiseMLP


def test_statistics_are_those_of_the_real_matches_alone():
    torch.manual_seed(0)
    x = torch.randn(2, 6, 3, dtype=torch.float64) * 3 + 1
    mask = torch.arange(6) < torch.tensor([[6], [2]])
    norm, plain = MaskedBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    found, expected = norm(x, mask)[mask], plain(x[mask])
    torch.testing.assert_close(found, expected)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(norm.named_buffers())[name], buffer, msg=name)


def test_evaluation_is_plain_batch_norm():
    norm, plain = MaskedBatchNorm(3), torch.nn.BatchNorm1d(3)
    with torch.no_grad():
        for one in (norm, plain):
            one.running_mean.copy_(torch.tensor([1.0, -2, 0.5]))
            one.running_var.copy_(torch.tensor([0.3, 2, 1]))
            one.weight.copy_(torch.tensor([2.0, 1, -1]))
            one.eval()
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(norm(x), plain(x.flatten(0, 1)).view_as(x))


@pytest.mark.parametrize("real", [0, 1])
def test_hardly_any_real_match_is_finite(real):
    norm = MaskedBatchNorm(3)
    x = torch.randn(1, 4, 3, requires_grad=True)
    norm(x, torch.arange(4)[None] < real).sum().backward()
    assert x.grad.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in norm.buffers())


def test_an_mlp_has_norms_between_its_layers():
    mlp = PointwiseMLP((4, 8, 16, 2))
    assert [linear.out_features for linear in mlp.linears] == [8, 16, 2]
    assert [norm.num_features for norm in mlp.norms] == [8, 16]
    assert mlp.linears[-1].bias.tolist() == [0, 0]
    assert mlp(torch.randn(2, 7, 4)).shape == (2, 7, 2)
