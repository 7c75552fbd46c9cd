"""Attention through seeds: linear in the number of matches.

`reference` has the two equations; the other paths never hold more than blocks or tiles of the two thin maps.
"""

import torch
from torch import Tensor

from ananet.attention import reference
from ananet.attention.reference import SEEDED_FORMS, Form, real_count, take_seeds
from ananet.attention.second_order import (
    MOMENTS,
    Backend,
    attention_operator,
    check_attention,
    choose_backend,
    linear_form,
    quadratic_form,
)
from ananet.errors import InputError


def seeded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seeds: Tensor,
    form: Form | None,
    mask: Tensor | None = None,
    *,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor | None]:
    """First-order output and attention-consistent context through m of N matches, the seeds, in O(N m).

    All matches attend to the seeds, which gives the output. The seeds attend to all matches, and N / m times what a
    match receives from them takes the place of what it would receive from all. With all matches as seeds it is
    `second_order_attention`.

    Args:
        query, key, value: [B x H x N x D].
        seeds: [B x m] different indices of matches, as `best_matches` gives them; those of padding are left out.
        form: "linear" or "quadratic" context; None for first-order attention alone.
        mask: [B x N], True where a match is real; None if all are. Padding may hold anything.
        backend: "reference", "blocked" or "fused"; None for the best one here.

    Returns:
        The output, [B x H x N x D], and the context h, [B x H x N] (None without a form), in single precision
        where the input is in half. Both are zero at padding.
    """
    check_attention(query, key, value, form, SEEDED_FORMS, mask)
    if seeds.dim() != 2 or seeds.shape[0] != query.shape[0] or seeds.dtype != torch.int64:
        raise InputError(f"seeds: expected ({query.shape[0]}, m) of int64, got {tuple(seeds.shape)} of {seeds.dtype}")
    shared = value is key
    if mask is not None:
        padding = ~mask[:, None, :, None]
        query, key = query.masked_fill(padding, 0.0), key.masked_fill(padding, 0.0)
        value = key if shared else value.masked_fill(padding, 0.0)
    chosen = choose_backend(query.device, backend)
    if chosen == "reference":
        return reference.seeded_attention(query, key, value, seeds, form, mask)
    attend = attention_operator(query)
    seed_mask = None if mask is None else mask.gather(1, seeds)
    seed_value = None if shared else take_seeds(value, seeds)
    output, _, _ = attend(query, take_seeds(key, seeds), seed_value, mask, seed_mask, 0, chosen)
    if form is None:
        return output, None
    seed_query = take_seeds(query, seeds)
    _, columns, _ = attend(seed_query, key, key[..., :0], seed_mask, mask, MOMENTS[form], chosen)
    count = real_count(query, mask)
    columns = columns * count / real_count(seed_query, seed_mask)
    return output, linear_form(columns, count) if form == "linear" else quadratic_form(columns)


def best_matches(scores: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
    """[B x min(count, N)] indices of the matches with the highest scores [B x N], best first, ties by index.

    Padding comes last, so it is among them only in pairs of fewer than `count` matches.
    """
    scores = scores.detach()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    # topk does not say which of equals it takes.
    order = scores.sort(dim=1, descending=True, stable=True).indices
    # By index, not by slice, which an exporter would bind to N >= count.
    return order.index_select(1, torch.arange(torch.sym_min(count, scores.shape[1]), device=scores.device))
