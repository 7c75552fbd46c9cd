"""The blocked backend, and the cubic form without the map, against the reference."""

import pytest
import torch

from ananet.attention import FORMS, blocked, cubic, second_order_attention
from tests.attention.comparison import assert_same, inputs, padding, results


@pytest.fixture
def _many_small_blocks(monkeypatch):
    """Blocks and panels so small that every loop goes round more than once."""
    monkeypatch.setattr(blocked, "BLOCK_BYTES", 8 * 16 * 40)
    monkeypatch.setattr(blocked, "MIN_ROWS", 16)
    monkeypatch.setattr(cubic, "PANEL", 16)


@pytest.mark.usefixtures("_many_small_blocks")
@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_the_reference(form, shared, masked):
    query, key, value = inputs(2, 3, 41, 5)
    mask = padding(2, 41) if masked else None
    expected = results("reference", query, key, value, form, mask, shared=shared)
    assert_same(results("blocked", query, key, value, form, mask, shared=shared), expected, 1e-12)


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("shape", [(1, 1, 0, 4), (1, 2, 1, 4), (0, 2, 5, 4)])
def test_hardly_any_input(form, shape):
    query, key, value = inputs(*shape)
    expected = results("reference", query, key, value, form)
    assert_same(results("blocked", query, key, value, form), expected, 1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_added_up_in_single(dtype):
    query, key, value = (x.to(dtype) for x in inputs(1, 2, 300, 16))
    exact = results("reference", query, key, value, "quadratic")
    found = results("blocked", query, key, value, "quadratic", dtype=dtype)
    assert_same(found, exact, max(4 * torch.finfo(dtype).eps, 1e-5))
    output, context = second_order_attention(query, key, value, "quadratic", backend="blocked")
    assert output.dtype == dtype
    assert context.dtype == torch.float32


@pytest.mark.usefixtures("_many_small_blocks")
@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    query, key, value = (x.requires_grad_() for x in inputs(1, 2, 18, 3))
    mask = torch.arange(18)[None] < 17
    assert torch.autograd.gradcheck(
        lambda q, k, v: second_order_attention(q, k, v, form, mask, backend="blocked"),
        (query, key, value),
        fast_mode=True,
    )


def test_random_signs_estimate_the_cubic_form():
    torch.manual_seed(0)
    query, key, _ = inputs(1, 2, 200, 8)
    energy = cubic.column_energy(query, key, None, None)
    few = torch.stack([cubic.estimated_column_energy(query, key, None, 4) for _ in range(100)])
    # Unbiased: the mean of many estimates is as close as its own spread allows.
    spread = few.std(0) / 10
    assert ((few.mean(0) - energy).abs() < 5 * spread).all()
    many = cubic.estimated_column_energy(query, key, None, 4096)
    torch.testing.assert_close(many, energy, rtol=0.2, atol=0)


def test_gradients_of_the_estimate():
    query, key, _ = (x.requires_grad_() for x in inputs(1, 2, 9, 3))
    z = torch.randint(0, 2, (2, 9, 4)).double() * 2 - 1
    mask = torch.arange(9)[None] < 8
    assert torch.autograd.gradcheck(lambda q, k: cubic.project_columns(q, k, mask, z), (query, key))


def test_no_map_in_memory():
    """Peak memory of a forward and backward pass stays far below one map of 4 bytes x 4 heads x N x N."""
    import resource

    query = torch.randn(1, 4, 6000, 16, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    output, context = second_order_attention(query, query, query, "quadratic", backend="blocked")
    (output.sum() + context.square().sum()).backward()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 0.25 * 4 * 4 * 6000**2
