"""Which backend answers, and which arguments are refused."""

import pytest
import torch

from ananet import InputError, MissingExtraError
from ananet.attention import choose_backend, second_order_attention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_device_decides(monkeypatch):
    monkeypatch.delenv("ANANET_ATTENTION", raising=False)
    monkeypatch.setattr("ananet.attention.second_order.HAS_TRITON", True)
    assert choose_backend(CPU) == "blocked"
    assert choose_backend(CUDA) == "fused"
    monkeypatch.setattr("ananet.attention.second_order.HAS_TRITON", False)
    assert choose_backend(CUDA) == "blocked"


def test_environment_and_argument_override(monkeypatch):
    monkeypatch.setenv("ANANET_ATTENTION", "reference")
    assert choose_backend(CPU) == "reference"
    assert choose_backend(CPU, "blocked") == "blocked"
    monkeypatch.setenv("ANANET_ATTENTION", "flash")
    with pytest.raises(InputError, match="ANANET_ATTENTION: expected one of reference, blocked, fused, got 'flash'"):
        choose_backend(CPU)
    with pytest.raises(InputError, match="backend: expected one of"):
        choose_backend(CPU, "flash")


def test_fused_without_triton_names_the_extra(monkeypatch):
    monkeypatch.setattr("ananet.attention.second_order.HAS_TRITON", False)
    with pytest.raises(MissingExtraError, match="pip install triton .ananet's extra 'gpu'"):
        choose_backend(CUDA, "fused")


def test_onnx_sees_plain_operators(monkeypatch):
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert choose_backend(CUDA) == "reference"


def test_wrong_arguments_are_named():
    x = torch.randn(2, 2, 5, 4)
    for arguments, message in [
        ((x[0], x, x, "linear"), r"query: expected \[B x H x N x D\], got shape \(2, 5, 4\)"),
        ((x, x[:1], x, "linear"), "key: expected .* as the query, got"),
        ((x, x, x.double(), "linear"), "value: expected .* got .* torch.float64"),
        ((x, x, x, "quartic"), "form: expected one of linear, quadratic, cubic or None, got 'quartic'"),
        ((x, x, x, "linear", torch.ones(2, 5)), r"mask: expected \(2, 5\) of torch.bool"),
    ]:
        with pytest.raises(InputError, match=message):
            second_order_attention(*arguments)
    with pytest.raises(InputError, match="signs: expected at least 1 and the cubic form, got 4 and 'linear'"):
        second_order_attention(x, x, x, "linear", signs=4)
