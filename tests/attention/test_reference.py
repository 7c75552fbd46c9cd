"""The plain forms against a literal evaluation of the paper's equations in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ananet.attention import FORMS
from ananet.attention.reference import (
    CONTEXT,
    attention_map,
    cubic_form,
    linear_form,
    quadratic_form,
    second_order_attention,
)


def random_map(n: int, seed: int, sharpness: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(n, n, dtype=torch.float64, generator=generator)).softmax(-1)


def literal_cubic(A: np.ndarray) -> np.ndarray:
    """W = A^T A, D = diag(sum_j w_ij), L = D - W, h_i = sqrt(l_i^T l_i): word for word."""
    n = len(A)
    W = np.array([[sum(A[k, i] * A[k, j] for k in range(n)) for j in range(n)] for i in range(n)])
    D = np.diag(W.sum(axis=1))
    L = D - W
    return np.array([math.sqrt(L[:, i] @ L[:, i]) for i in range(n)])


@pytest.mark.parametrize("n", [1, 2, 7, 23])
def test_cubic_form_is_the_norm_of_the_laplacian_column(n):
    A = random_map(n, seed=n)
    np.testing.assert_allclose(cubic_form(A, n).numpy(), literal_cubic(A.numpy()), atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 23])
def test_quadratic_and_linear_forms_word_for_word(n):
    A = random_map(n, seed=n).numpy()
    W = A.T @ A
    off_diagonal = W.sum(1) - W.diagonal()
    np.testing.assert_allclose(quadratic_form(torch.from_numpy(A), n).numpy(), math.sqrt(2) * off_diagonal, atol=1e-12)
    column = A.sum(0)
    np.testing.assert_allclose(
        linear_form(torch.from_numpy(A), n).numpy(), math.sqrt(2) * (column - column**2 / n), atol=1e-12
    )


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 24), st.integers(0, 10_000), st.floats(0.01, 20))
def test_bounds_of_equation_3_and_order_of_the_forms(n, seed, sharpness):
    A = random_map(n, seed, sharpness)
    W = A.T @ A
    off_diagonal = W.sum(1) - W.diagonal()
    h = cubic_form(A, n)
    slack = 1e-9
    assert (math.sqrt(2) * off_diagonal >= h - slack).all()
    assert (h >= math.sqrt((n + 1) / n) * off_diagonal - slack).all()
    # The quadratic form is the upper bound of the cubic one, the linear form that of the quadratic one.
    assert (quadratic_form(A, n) >= h - slack).all()
    assert (linear_form(A, n) >= quadratic_form(A, n) - slack).all()


def test_rows_sum_to_one_and_padding_is_zero():
    query, key = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    A = attention_map(query, key, mask, mask)
    torch.testing.assert_close(A[0].sum(-1), torch.ones(3, 5))
    torch.testing.assert_close(A[1, :, :3].sum(-1), torch.ones(3, 3))
    assert A[1, :, 3:].abs().sum() == 0
    assert A[1, :, :, 3:].abs().sum() == 0


@pytest.mark.parametrize("form", FORMS)
def test_masked_equals_unpadded(form):
    query, key, value = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64).unbind(0)
    mask = torch.tensor([[True] * 6 + [False] * 3])
    padded, padded_context = second_order_attention(query, key, value, form, mask)
    plain, context = second_order_attention(query[:, :, :6], key[:, :, :6], value[:, :, :6], form)
    torch.testing.assert_close(padded[:, :, :6], plain)
    torch.testing.assert_close(padded_context[..., :6], context)


@pytest.mark.parametrize("form", FORMS)
def test_empty_pair_in_a_batch_is_finite(form):
    x = torch.randn(2, 2, 4, 4)
    mask = torch.tensor([[True] * 4, [False] * 4])
    output, context = second_order_attention(x, x, x, form, mask)
    assert output.isfinite().all() and context.isfinite().all()
    assert output[1].abs().sum() == 0


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    query, key, value = (torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True] * 4 + [False]])
    assert torch.autograd.gradcheck(lambda q, k, v: second_order_attention(q, k, v, form, mask), (query, key, value))


def test_first_order_alone():
    x = torch.randn(1, 2, 6, 4)
    output, context = second_order_attention(x, x, x, None)
    assert context is None
    torch.testing.assert_close(output, torch.nn.functional.scaled_dot_product_attention(x, x, x))


def test_every_form_is_listed():
    assert set(CONTEXT) == set(FORMS) == {"linear", "quadratic", "cubic"}
