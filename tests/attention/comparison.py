"""Runs one attention backend, forward and backward, so that two can be compared number by number."""

import torch
from torch import Tensor

from ananet.attention import second_order_attention

NAMES = ("output", "context", "d query", "d key", "d value")


def inputs(batch: int, heads: int, length: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, batch, heads, length, width, dtype=torch.float64).unbind(0)


def padding(batch: int, length: int) -> Tensor:
    """A mask with holes, the last pair of several without any match."""
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[-1] &= batch == 1
    return mask


def results(
    backend, query, key, value, form, mask=None, dtype=torch.float64, shared=False, attend=second_order_attention
) -> dict[str, Tensor]:
    """Output, context and gradients in double precision, of inputs rounded to the given type."""
    query, key, value = (x.detach().to(dtype).requires_grad_() for x in (query, key, value))
    value = key if shared else value
    # What no kernel writes would show as NaN.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        output, context = attend(query, key, value, form, mask, backend=backend)
        generator = torch.Generator().manual_seed(2)
        loss = torch.zeros((), dtype=torch.float64)
        for x in (output, context):
            if x is not None:
                weight = torch.randn(x.shape, generator=generator, dtype=torch.float64)
                if mask is not None:
                    weight = weight * mask[:, None].view(len(mask), 1, -1, *[1] * (x.dim() - 3))
                loss = loss + (x.double() * weight).sum()
        loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    values = (output, context, query.grad, key.grad, None if shared else value.grad)
    return {name: x.detach().double() for name, x in zip(NAMES, values, strict=True) if x is not None}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, truth in expected.items():
        assert found[name].isfinite().all(), name
        size = truth.abs().max().clamp_min(1.0) if truth.numel() else 1.0
        error = (found[name] - truth).abs() / size
        assert (error <= tolerance).all(), f"{name}: off by {error.max().item():.1e}"
