"""Second-order attention in plain PyTorch: reads like the paper's equations, keeps the whole map in memory.

Names follow the paper: A is the first-order attention map, a_ij how much match i attends to match j, with
sum_j a_ij = 1. The second-order map W = A^T A compares *columns*: w_ij = sum_k a_ki a_kj is large when the
same matches attend to i and to j. The attention-consistent context h_i is drawn from row i of W.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

Form = Literal["linear", "quadratic", "cubic"]
"""Form of the second-order context: Eq. 5, Eq. 4 or Eq. 1 of the paper."""
FORMS: tuple[Form, ...] = get_args(Form)
"""All forms."""


def attention_map(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    """A = softmax(Q K^T / sqrt(d)), [B x H x N x N]; rows and columns of padding are zero.

    Args:
        query, key: [B x H x N x D].
        mask: [B x N], True where a match is real.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is None:
        return scores.softmax(dim=-1)
    real_key = mask[:, None, None, :]
    real_query = mask[:, None, :, None]
    # A finite minimum, not -inf: a pair without any match has no NaN rows, and zeros replace them below.
    scores = scores.masked_fill(~real_key, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1) * (real_key & real_query)


def cubic_form(A: Tensor, count: Tensor | int) -> Tensor:
    """Eq. 1: h_i = sqrt(l_i^T l_i) with L = D - W, [... x N x N] to [... x N]."""
    W = A.transpose(-2, -1) @ A
    off_diagonal = W - torch.diag_embed(torch.diagonal(W, dim1=-2, dim2=-1))
    square = off_diagonal.sum(-1).square() + off_diagonal.square().sum(-1)
    # The square root has no slope at 0, where a lone match stands.
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()


def quadratic_form(A: Tensor, count: Tensor | int) -> Tensor:
    """Eq. 4: h_i = sqrt(2) (sum_k a_ki - sum_k a_ki^2), the upper bound of Eq. 1 given by Eq. 3."""
    return math.sqrt(2) * (A.sum(-2) - A.square().sum(-2))


def linear_form(A: Tensor, count: Tensor | int) -> Tensor:
    """Eq. 5: h_i = sqrt(2) (sum_k a_ki - (sum_k a_ki)^2 / N), an upper bound of Eq. 4; needs column sums only."""
    column_sum = A.sum(-2)
    return math.sqrt(2) * (column_sum - column_sum.square() / count)


CONTEXT: dict[Form, Callable[[Tensor, Tensor | int], Tensor]] = {
    "linear": linear_form,
    "quadratic": quadratic_form,
    "cubic": cubic_form,
}


def second_order_attention(
    query: Tensor, key: Tensor, value: Tensor, form: Form | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """First-order output and attention-consistent context of one attention map.

    Args:
        query, key, value: [B x H x N x D].
        form: which of the paper's three forms of the context; None for first-order attention alone.
        mask: [B x N], True where a match is real; None if all are.

    Returns:
        The output A V, [B x H x N x D], and the context h, [B x H x N] (None without a form).
        Both are zero at padding, but for a cubic context, which is about 1e-19 there.
    """
    A = attention_map(query, key, mask)
    if form is None:
        return A @ value, None
    count = A.shape[-1] if mask is None else mask.sum(-1).clamp_min(1)[:, None, None]
    return A @ value, CONTEXT[form](A, count)
