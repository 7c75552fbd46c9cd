"""One PyTorch operator: attention output and column moments, without the attention map in memory.

`torch.compile` and `torch.export` see one node; what runs inside is `blocked` or `fused`.
"""

import torch
from torch import Tensor

from ananet.attention import blocked


def attend_and_sum_columns_plainly(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    moments: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, column moments, and what the backward pass keeps of the rows.

    Args:
        query: [B x H x M x D].
        key: [B x H x N x D].
        value: [B x H x N x V], V being D, or 0 if column moments are all that is wanted; the key where it is None.
        query_weight, key_weight: [B x M] and [B x N], how many matches each stands for (0: padding), or a mask; both
            None if each stands for itself. A key of weight w counts as w equal ones, a query as w rows.
        moments: how many of sum_k w_k a_ki and sum_k w_k a_ki^2 are wanted: 0, 1 or 2.
        backend: "blocked" or "fused".

    Returns:
        [B x H x M x V] output, [moments x B x H x N] moments in at least single precision, and the row
        log-sums [B x H x M] of the fused backend (empty from the blocked one, which needs none).
    """
    if backend == "fused":
        from ananet.attention import fused

        with torch.cuda.device_of(query):
            output, log_sum, columns = fused.forward(query, key, value, query_weight, key_weight, moments)
        return output, columns, log_sum
    output, columns = blocked.forward(query, key, value, query_weight, key_weight, moments)
    return output, columns, query.new_empty(0)


attend_and_sum_columns = torch.library.custom_op(
    "ananet::attend_and_sum_columns", attend_and_sum_columns_plainly, mutates_args=()
)


@attend_and_sum_columns.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    moments: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, length, width = query.shape
    columns = query.new_empty(moments, *key.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    values = width if value is None else value.shape[3]
    if backend == "fused":
        output = query.new_empty(batch, length, heads, values).transpose(1, 2)
        return output, columns, query.new_empty(batch, heads, length, dtype=torch.float32)
    return query.new_empty(batch, heads, length, values), columns, query.new_empty(0)


@torch.library.custom_op("ananet::attend_and_sum_columns_backward", mutates_args=())
def attend_and_sum_columns_backward(
    grad_output: Tensor,
    grad_columns: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; the last is empty where the value is None."""
    if backend == "fused":
        from ananet.attention import fused

        with torch.cuda.device_of(query):
            given = (query, key, value, query_weight, key_weight)
            grads = fused.backward(grad_output, grad_columns, *given, output, log_sum)
    else:
        grads = blocked.backward(grad_output, grad_columns, query, key, value, query_weight, key_weight)
    return grads[0], grads[1], query.new_empty(0) if grads[2] is None else grads[2]


@attend_and_sum_columns_backward.register_fake
def _(
    grad_output: Tensor,
    grad_columns: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    def like(x: Tensor) -> Tensor:
        batch, heads, length, width = x.shape
        return x.new_empty(batch, length, heads, width).transpose(1, 2) if backend == "fused" else x.new_empty(x.shape)

    return like(query), like(key), query.new_empty(0) if value is None else like(value)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *given, _, ctx.backend = inputs
    attended, _, log_sum = output
    ctx.save_for_backward(*given, attended, log_sum)


def _backward(ctx, grad_output, grad_columns, _):  # type: ignore[no-untyped-def]
    grads = attend_and_sum_columns_backward(grad_output, grad_columns, *ctx.saved_tensors, ctx.backend)
    return grads[0], grads[1], grads[2] if ctx.saved_tensors[2] is not None else None, None, None, None, None


attend_and_sum_columns.register_autograd(_backward, setup_context=_save)
