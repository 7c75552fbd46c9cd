"""The Triton kernels on the CPU, in Triton's interpreter. `test_fused.py` runs this file in a process of its own."""

import pytest
import torch

from tests.attention.comparison import assert_same, inputs, padding, results

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


@pytest.mark.parametrize(("shape", "form", "shared", "masked"), CASES)
def test_agrees_with_the_reference(shape, form, shared, masked):
    query, key, value = (x.float() for x in inputs(*shape))
    mask = padding(shape[0], shape[2]) if masked else None
    expected = results("reference", query, key, value, form, mask, shared=shared)
    assert_same(results("fused", query, key, value, form, mask, torch.float32, shared), expected, 1e-5)


def test_half_precision():
    """Error at most twice that of plain PyTorch in the same precision; the interpreter has no bfloat16 products."""
    dtype = torch.float16
    query, key, value = (x.to(dtype) for x in inputs(1, 2, 70, 16))
    exact = results("reference", query, key, value, "quadratic")
    plain = results("reference", query, key, value, "quadratic", dtype=dtype)
    fused = results("fused", query, key, value, "quadratic", dtype=dtype)
    for name, truth in exact.items():
        assert (fused[name] - truth).norm() <= 2 * (plain[name] - truth).norm(), name


def test_operator_is_registered_correctly():
    query, key = (torch.randn(2, 1, 9, 16, requires_grad=True) for _ in range(2))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    torch.library.opcheck(torch.ops.ananet.attend_and_sum_columns, (query, key, None, mask, mask, 2, "fused"))
