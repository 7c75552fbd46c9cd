"""Norms that padding does not touch and norms by moments agree with PyTorch's own norms."""

import pytest
import torch
import torch.nn.functional as F

from ananet.networks.layers import (
    ContextBatchNorm,
    MaskedBatchNorm,
    OrderAware,
    PointCN,
    PointwiseMLP,
    Pool,
    PreActivated,
    Unpool,
    moments,
)
from tests.networks.checks import points


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


@pytest.mark.parametrize("affine", [True, False])
def test_context_norm_then_batch_norm(affine):
    torch.manual_seed(0)
    norm, plain = ContextBatchNorm(5, affine=affine).double(), torch.nn.BatchNorm1d(5, affine=affine).double()
    if affine:
        for one in (norm, plain):
            torch.manual_seed(1)
            torch.nn.init.normal_(one.weight)
            torch.nn.init.normal_(one.bias)
    for step in range(3):
        x = (step + 1) * points(4, 30, 5) + 2
        torch.testing.assert_close(norm(x), plain(F.instance_norm(x.mT, eps=1e-3)).mT)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(norm.named_buffers())[name], buffer, msg=name)
    norm.eval(), plain.eval()
    norm.running_mean += 0.3
    plain.running_mean += 0.3
    torch.testing.assert_close(norm(x), plain(F.instance_norm(x.mT, eps=1e-3)).mT)


def test_slopes_are_those_of_the_two_norms():
    norm, plain = ContextBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    x = points(2, 9, 3).requires_grad_()
    found = torch.autograd.grad(norm(x).sin().sum(), x)[0]
    expected = torch.autograd.grad(plain(F.instance_norm(x.mT, eps=1e-3)).sin().sum(), x)[0]
    torch.testing.assert_close(found, expected)


def test_padding_is_not_counted():
    x, mask = points(2, 8, 3), torch.arange(8) < torch.tensor([[3], [8]])
    found = [value[0, 0] for value in moments(x, mask / mask.sum(1, keepdim=True).double())]
    torch.testing.assert_close(found[0], x[0, :3].mean(0))
    torch.testing.assert_close(found[1], x[0, :3].var(0, correction=0))
    norm = ContextBatchNorm(3).double()
    assert norm(x, mask)[0, 3:].abs().sum() == 0


def test_features_that_are_all_the_same_have_no_slope():
    layers = [PreActivated(8, 8, 1e-5) for _ in range(40)]
    x = torch.full((2, 50, 8), 0.1, requires_grad=True)
    out = x
    for layer in layers:
        out = layer(out)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


def test_half_precision_features_have_exact_moments():
    x = (1000 + points(1, 400, 4)).float()
    norm = ContextBatchNorm(4).eval()
    half = x.bfloat16()
    torch.testing.assert_close(norm(half).float(), norm(half.float()), atol=0.02, rtol=0.01)
    assert norm(half).dtype == torch.bfloat16


def test_clusters_are_weighted_means():
    pool, unpool = Pool(6, 4).double(), Unpool(6, 4).double()
    x = points(2, 11, 6)
    clusters = pool(x)
    weights = pool.assign(x).softmax(1)
    torch.testing.assert_close(clusters, torch.einsum("bnk,bnc->bkc", weights, x))
    weights = unpool.assign(x).softmax(-1)
    torch.testing.assert_close(unpool(x, clusters), torch.einsum("bnk,bkc->bnc", weights, clusters))


def test_blocks_keep_what_comes_in():
    """With last layers of 0 only the shortcut is left."""
    wide, same = PointCN(6, 4).double(), PointCN(6).double()
    ordered, narrow = OrderAware(6, 5).double(), OrderAware(6, 5, bottleneck=2).double()
    for last in (wide.second.linear, same.second.linear, ordered.last.linear, narrow.last.linear):
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
    x = points(2, 5, 6)
    torch.testing.assert_close(wide(x), wide.shortcut(x))
    for block in (same, ordered, narrow):
        torch.testing.assert_close(block(x), x)


def test_order_aware_blocks_mix_clusters():
    block = OrderAware(6, 5).double().eval()
    x = points(1, 5, 6)
    order = torch.tensor([1, 0, 2, 3, 4])
    assert not torch.allclose(block(x[:, order]), block(x)[:, order])
