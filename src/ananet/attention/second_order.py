"""Second-order attention: the attention output together with what the attention map says of itself.

Three implementations stand side by side: `reference` reads like the paper, `blocked` is for the CPU, `fused` for
the GPU. `second_order_attention` picks one; the argument `backend` or the variable ANANET_ATTENTION overrides it.
"""

import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from ananet.attention import reference
from ananet.attention.cubic import column_energy, estimated_column_energy
from ananet.attention.custom_op import attend_and_sum_columns, attend_and_sum_columns_plainly
from ananet.attention.reference import FORMS, Form
from ananet.errors import InputError, MissingExtraError

Backend = Literal["reference", "blocked", "fused"]
"""What computes the attention: plain PyTorch, blocks of rows, or Triton kernels."""
BACKENDS: tuple[Backend, ...] = get_args(Backend)
"""All backends."""
VARIABLE = "ANANET_ATTENTION"
HAS_TRITON = find_spec("triton") is not None
# Column moments sum_k a_ki^p that each form needs.
MOMENTS = {None: 0, "linear": 1, "quadratic": 2, "cubic": 2}


def second_order_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    form: Form | None,
    mask: Tensor | None = None,
    *,
    backend: Backend | None = None,
    signs: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """First-order output and attention-consistent context of one attention map.

    Args:
        query, key, value: [B x H x N x D].
        form: which of the paper's three forms of the context; None for first-order attention alone.
        mask: [B x N], True where a match is real; None if all are.
        backend: "reference", "blocked" or "fused"; None for the best one here.
        signs: estimate the cubic form from this many random sign vectors, in O(N^2); None for the exact O(N^3).

    Returns:
        The output A V, [B x H x N x D], and the context h, [B x H x N] (None without a form), in single precision
        where the input is in half. Both are zero at padding, but for a cubic context, which is about 1e-19 there.
    """
    check_attention(query, key, value, form, FORMS, mask)
    if signs is not None and (form != "cubic" or signs < 1):
        raise InputError(f"signs: expected at least 1 and the cubic form, got {signs} and {form!r}")
    chosen = choose_backend(query.device, backend)
    if chosen == "reference" and signs is None:
        return reference.second_order_attention(query, key, value, form, mask)
    inner = "blocked" if chosen == "reference" else chosen
    attend = attention_operator(query)
    # Where values are keys, their gradients add up inside the kernels.
    output, columns, log_sum = attend(query, key, None if value is key else value, mask, mask, MOMENTS[form], inner)
    if form is None:
        return output, None
    if form == "linear":
        return output, linear_form(columns, reference.real_count(query, mask))
    if form == "quadratic":
        return output, quadratic_form(columns)
    if signs is None:
        energy = column_energy(query, key, mask, log_sum.detach() if inner == "fused" else None)
    else:
        energy = estimated_column_energy(query, key, mask, signs)
    return output, cubic_form(columns, energy)


def attention_operator(query: Tensor) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """`attend_and_sum_columns` as a registered operator only if somebody looks: its first call takes a second."""
    watched = torch.is_grad_enabled() or torch.compiler.is_compiling() or type(query) is not Tensor
    return attend_and_sum_columns if watched else attend_and_sum_columns_plainly


def linear_form(columns: Tensor, count: Tensor | int) -> Tensor:
    """Eq. 5 from column moments."""
    return math.sqrt(2) * (columns[0] - columns[0].square() / count)


def quadratic_form(columns: Tensor) -> Tensor:
    """Eq. 4 from column moments."""
    return math.sqrt(2) * (columns[0] - columns[1])


def cubic_form(columns: Tensor, energy: Tensor) -> Tensor:
    """Eq. 1 from column moments: rows of A sum to one, so sum_j w_ij = sum_k a_ki; and w_ii = sum_k a_ki^2."""
    off_diagonal_sum = columns[0] - columns[1]
    # Rounding, or few signs, may leave less than the diagonal's part.
    off_diagonal_energy = (energy - columns[1].square()).clamp_min(0.0)
    square = off_diagonal_sum.square() + off_diagonal_energy
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()


def choose_backend(device: torch.device, backend: str | None = None) -> Backend:
    """The backend asked for by argument or environment, else the best one for the device."""
    # Importing Triton takes 25 ms.
    if "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export():
        return "reference"  # ONNX knows plain operators only
    asked = backend or os.environ.get(VARIABLE) or None
    if asked is None:
        return "fused" if device.type == "cuda" and HAS_TRITON else "blocked"
    for name in BACKENDS:
        if asked == name:
            if name == "fused" and not HAS_TRITON:
                raise MissingExtraError("triton", "gpu")
            return name
    source = "backend" if backend else VARIABLE
    raise InputError(f"{source}: expected one of {', '.join(BACKENDS)}, got {asked!r}")


def check_attention(
    query: Tensor, key: Tensor, value: Tensor, form: str | None, forms: Sequence[str], mask: Tensor | None
) -> None:
    if query.dim() != 4:
        raise InputError(f"query: expected [B x H x N x D], got shape {tuple(query.shape)}")
    for name, x in (("key", key), ("value", value)):
        if x.shape != query.shape or x.dtype != query.dtype:
            expected = f"{tuple(query.shape)} of {query.dtype}, as the query"
            raise InputError(f"{name}: expected {expected}, got {tuple(x.shape)} of {x.dtype}")
    if form is not None and form not in forms:
        raise InputError(f"form: expected one of {', '.join(forms)} or None, got {form!r}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (query.shape[0], query.shape[2])):
        expected = f"({query.shape[0]}, {query.shape[2]}) of torch.bool"
        raise InputError(f"mask: expected {expected}, got {tuple(mask.shape)} of {mask.dtype}")
