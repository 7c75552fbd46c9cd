"""The Triton kernels on the CPU, in Triton's interpreter. `test_fused.py` runs this file in a process of its own."""

import math

import pytest
import torch

from ananet.attention import fused_seeds, move_seeds, seeded_attention
from ananet.attention import seeded as seeded_module
from ananet.attention.reference import group_means
from tests.attention.comparison import assert_same, inputs, padding, results
from tests.attention.test_seeded import seeded, some_seeds

# One tile and a bit, less than a tile, and exactly one; widths that are powers of two and not.
CASES = [
    ((1, 2, 70, 16), None, False, True),
    ((1, 1, 70, 32), None, True, False),
    ((2, 2, 67, 16), "linear", True, True),
    ((1, 1, 130, 32), "linear", False, False),
    ((1, 1, 33, 24), "quadratic", True, False),
    ((2, 1, 64, 16), "quadratic", False, True),
    ((1, 1, 20, 128), "quadratic", True, True),
    ((2, 1, 40, 16), "cubic", True, True),
    ((1, 2, 1, 16), "quadratic", True, False),
    ((1, 2, 0, 16), "linear", True, False),
]
# With so many seeds: less than a tile, one and a bit, as many as matches, more than there are.
SEEDED_CASES = [
    ((1, 2, 70, 16), 9, None, False, True),
    ((1, 1, 33, 32), 1, None, True, False),
    ((2, 2, 67, 16), 35, "linear", True, True),
    ((1, 1, 130, 24), 33, "linear", False, False),
    ((1, 1, 41, 24), 13, "quadratic", True, False),
    ((3, 1, 64, 16), 40, "quadratic", False, True),
    ((2, 1, 20, 128), 20, "quadratic", True, True),
    ((1, 2, 5, 16), 64, "linear", False, False),
    ((1, 2, 1, 16), 4, "quadratic", True, False),
    ((1, 2, 0, 16), 4, "linear", False, False),
    ((0, 2, 5, 16), 4, "linear", True, False),
]


@pytest.mark.parametrize(("shape", "form", "shared", "masked"), CASES)
def test_agrees_with_the_reference(shape, form, shared, masked):
    query, key, value = (x.float() for x in inputs(*shape))
    mask = padding(shape[0], shape[2]) if masked else None
    expected = results("reference", query, key, value, form, mask, shared=shared)
    assert_same(results("fused", query, key, value, form, mask, torch.float32, shared), expected, 1e-5)


@pytest.mark.parametrize(("shape", "count", "form", "shared", "masked"), SEEDED_CASES)
def test_seeded_attention_agrees_with_the_reference(shape, count, form, shared, masked):
    query, key, value = (x.float() for x in inputs(*shape))
    mask = padding(shape[0], shape[2]) if masked else None
    attend = seeded(some_seeds(shape[0], shape[2], count, mask))
    expected = results("reference", query, key, value, form, mask, shared=shared, attend=attend)
    found = results("fused", query, key, value, form, mask, torch.float32, shared, attend)
    assert_same(found, expected, 1e-5)


@pytest.mark.parametrize("form", [None, "linear", "quadratic"])
def test_seeds_of_padding_alone_give_nothing(form):
    query, key, value = (x.float() for x in inputs(2, 1, 40, 16))
    mask = torch.arange(40) < torch.tensor([[40], [33]])
    attend = seeded(some_seeds(2, 40, 12, mask)._replace(weights=torch.tensor([[4.0], [0.0]]).expand(2, 12)))
    expected = results("reference", query, key, value, form, mask, attend=attend)
    found = results("fused", query, key, value, form, mask, torch.float32, attend=attend)
    assert_same(found, expected, 1e-5)
    assert not any(x[1].any() for x in found.values())


@pytest.mark.parametrize("shared", [False, True])
def test_seeded_attention_ignores_padding_even_if_it_is_nan(shared):
    query, key, value = (x.float() for x in inputs(2, 2, 40, 16))
    mask = padding(1, 40).expand(2, -1) & (torch.arange(40) < torch.tensor([[40], [9]]))
    poisoned = [x.masked_fill(~mask[:, None, :, None], math.nan) for x in (query, key, value)]
    attend = seeded(some_seeds(2, 40, 12, mask))
    given = ("quadratic", mask, torch.float32, shared, attend)
    expected = results("fused", query, key, value, *given)
    assert_same(results("fused", *poisoned, *given), expected, 0.0)
    assert not any(x.transpose(1, 2)[~mask].any() for x in expected.values())


# The whole map, and the two thin ones.
@pytest.mark.parametrize("count", [None, 20])
def test_half_precision(count):
    """Error at most twice that of plain PyTorch in the same precision; the interpreter has no bfloat16 products."""
    dtype = torch.float16
    query, key, value = (x.to(dtype) for x in inputs(1, 2, 70, 16))
    attend = {} if count is None else {"attend": seeded(some_seeds(1, 70, count))}
    exact = results("reference", query, key, value, "quadratic", **attend)
    plain = results("reference", query, key, value, "quadratic", dtype=dtype, **attend)
    fused = results("fused", query, key, value, "quadratic", dtype=dtype, **attend)
    for name, truth in exact.items():
        assert (fused[name] - truth).norm() <= 2 * (plain[name] - truth).norm(), name


# Fewer groups than fit in a tile, a tile and a bit; one part of the matches, several and a bit.
@pytest.mark.parametrize(("length", "count", "width", "part"), [(50, 7, 24, 4096), (130, 70, 40, 64), (1, 1, 16, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_groups_agree_with_the_reference(length, count, width, part, dtype, monkeypatch):
    monkeypatch.setattr(fused_seeds, "cut_for", lambda filled: fused_seeds.Cut(part, 64, 4))
    x = torch.randn(2, length, width).to(dtype)
    lengths = torch.tensor([length, length // 2], dtype=torch.int32)
    mask = torch.arange(length) < lengths[:, None]
    seeds = some_seeds(2, length, count, mask)
    x[~mask] = math.nan
    group = seeds.group.int().masked_fill(~mask, 10**6)
    means, weights = fused_seeds.mean_groups(x, group, count, lengths)
    assert torch.equal(weights, seeds.weights)
    expected = group_means(x[:, None].masked_fill(~mask[:, None, :, None], 0), seeds)[:, 0]
    torch.testing.assert_close(means, expected, atol=1e-3 if dtype == torch.float16 else 1e-6, rtol=0)
    compared = x[..., : seeded_module.COMPARED]
    fused_seeds.move_to_nearest(compared, means[..., : compared.shape[2]].contiguous(), weights, group, lengths)
    moved = move_seeds(x, seeds, mask, backend="reference")
    same = (group == moved.group)[mask]
    assert same.all() if dtype == torch.float32 else same.float().mean() > 0.95 or length == 1
    assert (group[~mask] == 10**6).all()


@pytest.mark.parametrize(("count", "part"), [(7, 4096), (70, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_projected_means_of_groups_agree_with_the_reference(count, part, dtype, monkeypatch):
    monkeypatch.setattr(fused_seeds, "cut_for", lambda filled: fused_seeds.Cut(part, 128, 8))
    x, matrices, biases = torch.randn(2, 90, 32).to(dtype), (torch.randn(2, 32, 32) / 6).to(dtype), torch.randn(2, 32)
    lengths = torch.tensor([90, 40], dtype=torch.int32)
    mask = torch.arange(90) < lengths[:, None]
    seeds = some_seeds(2, 90, count, mask)
    x[~mask] = math.nan
    group = seeds.group.int().masked_fill(~mask, 10**6)
    projected, weights = fused_seeds.project_groups(x, group, count, lengths, matrices, biases)
    assert torch.equal(weights, seeds.weights)
    means = group_means(x.float()[:, None].masked_fill(~mask[:, None, :, None], 0), seeds)[:, 0]
    expected = torch.einsum("bmi,pio->bmpo", means, matrices.float()) + biases
    torch.testing.assert_close(projected.float(), expected, atol=5e-3 if dtype == torch.float16 else 1e-5, rtol=0)


def test_operator_is_registered_correctly():
    query, key = (torch.randn(2, 1, 9, 16, requires_grad=True) for _ in range(2))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    torch.library.opcheck(torch.ops.ananet.attend_and_sum_columns, (query, key, None, mask, mask, 2, "fused"))
    seed_mask = torch.tensor([[1.0, 2.0, 2.0, 4.0], [1.0, 1.0, 0.0, 0.0]])
    for value, query_mask, moments in (
        (None, seed_mask, 1),
        (key[..., :0], seed_mask, 2),
        (torch.randn_like(key), None, 0),
    ):
        masks = (query_mask, None if query_mask is None else mask)
        given = (query[:, :, :4], key, value, *masks, moments, "fused")
        torch.library.opcheck(torch.ops.ananet.attend_and_sum_columns, given)


def test_without_gradients():
    query, key, value = (x.float() for x in inputs(1, 2, 20, 16))
    seeds = some_seeds(1, 20, 6)
    with torch.no_grad():
        found = seeded_attention(query, key, value, seeds, "linear", backend="fused")
    torch.testing.assert_close(found, seeded_attention(query, key, value, seeds, "linear", backend="reference"))
