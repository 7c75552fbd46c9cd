"""Attention through seeds: linear in the number of matches.

Matches with similar features attend alike, and are attended to alike: the features of a match follow from its own
input and from what all matches have in common. So a group of them can act as one, its mean, the seed. `reference` has
the two equations; the other paths never hold more than blocks or tiles of the two thin maps.
"""

import torch
from torch import Tensor

from ananet.attention import blocked, reference
from ananet.attention.reference import SEEDED_FORMS, Form, Seeds, group_means, real_count
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

# Leading features that say which seed is nearest: as good as all 128 (docs/speed.md), in a quarter of the time.
COMPARED = 32


def seeded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seeds: Seeds,
    form: Form | None,
    mask: Tensor | None = None,
    *,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor | None]:
    """First-order output and attention-consistent context through m seeds, in O(N m).

    A seed is the mean of a group of matches and counts as many times as the group has members. All matches attend to
    the seeds, which gives the output. The seeds attend to all matches, and the weighted sum of what a match receives
    from them takes the place of what it would receive from all. With every match in a group of its own it is
    `second_order_attention`.

    Args:
        query, key, value: [B x H x N x D].
        seeds: as `ananet.networks.seeds.first_seeds` and `move_seeds` give them.
        form: "linear" or "quadratic" context; None for first-order attention alone.
        mask: [B x N], True where a match is real; None if all are. Padding may hold anything.
        backend: "reference", "blocked" or "fused"; None for the best one here.

    Returns:
        The output, [B x H x N x D], and the context h, [B x H x N] (None without a form), in single precision
        where the input is in half. Both are zero at padding.
    """
    check_attention(query, key, value, form, SEEDED_FORMS, mask)
    check_seeds(seeds, query.shape[0], query.shape[2])
    shared = value is key
    if mask is not None:
        padding = ~mask[:, None, :, None]
        query, key = query.masked_fill(padding, 0.0), key.masked_fill(padding, 0.0)
        value = key if shared else value.masked_fill(padding, 0.0)
    chosen = choose_backend(query.device, backend)
    if chosen == "reference":
        return reference.seeded_attention(query, key, value, seeds, form, mask)
    attend, weights = attention_operator(query), seeds.weights
    # A mask even where all are real: seeds have weights, and either both sides have or none.
    real = torch.ones_like(query[:, 0, :, 0], dtype=torch.bool) if mask is None else mask
    seed_value = None if shared else group_means(value, seeds)
    output, _, _ = attend(query, group_means(key, seeds), seed_value, real, weights, 0, chosen)
    if form is None:
        return output, None
    _, columns, _ = attend(group_means(query, seeds), key, key[..., :0], weights, real, MOMENTS[form], chosen)
    return output, linear_form(columns, real_count(query, mask)) if form == "linear" else quadratic_form(columns)


@torch.no_grad()
def move_seeds(
    features: Tensor, seeds: Seeds, mask: Tensor | None = None, steps: int = 1, *, backend: Backend | None = None
) -> Seeds:
    """Put every match into the group whose mean is nearest, by its features: steps of k-means, in O(N m).

    Groups follow the features from block to block, so one step before each is enough. Pairs with no more matches than
    groups keep a group for every match. Of equally near groups the first is taken.

    Args:
        features: [B x N x C].
        seeds: the groups so far.
        mask: [B x N], True where a match is real; None if all are. Padding may hold anything.
        steps: how many.
        backend: as for `seeded_attention`.
    """
    check_seeds(seeds, *features.shape[:2])
    chosen = choose_backend(features.device, backend)
    count = seeds.weights.shape[1]
    compared = features[..., :COMPARED]
    compared = compared.to(torch.promote_types(compared.dtype, torch.float32))
    real = torch.ones_like(seeds.group, dtype=torch.bool) if mask is None else mask
    if mask is not None:
        compared = compared.masked_fill(~mask[..., None], 0.0)
    # Distances are small differences of products: never in half precision.
    with torch.autocast(features.device.type, enabled=False):
        for _ in range(steps):
            means = group_means(compared[:, None], seeds)[:, 0]
            # |x - c|^2 but for |x|^2, which is the same for all groups.
            offset = means.square().sum(-1).masked_fill(seeds.weights == 0, torch.inf)
            if chosen == "blocked" and not torch.compiler.is_compiling():
                group = blocked.nearest(compared, means, offset)
            else:
                group = (offset[:, None] - 2 * compared @ means.mT).argmin(-1) if count else seeds.group
            group = torch.where(real.sum(1, keepdim=True) > count, group, seeds.group)
            members = real.to(seeds.weights.dtype)
            seeds = Seeds(group, torch.zeros_like(seeds.weights).scatter_add(1, group, members))
    return seeds


def check_seeds(seeds: Seeds, batch: int, length: int) -> None:
    group, weights = seeds
    if group.shape != (batch, length) or group.dtype != torch.int64:
        expected = f"({batch}, {length}) of torch.int64"
        raise InputError(f"seeds.group: expected {expected}, got {tuple(group.shape)} of {group.dtype}")
    few = weights.dim() != 2 or weights.shape[0] != batch or (weights.shape[1] == 0 and length > 0)
    if few or weights.dtype != torch.float32:
        expected = f"({batch}, m) of torch.float32, m at least 1"
        raise InputError(f"seeds.weights: expected {expected}, got {tuple(weights.shape)} of {weights.dtype}")
