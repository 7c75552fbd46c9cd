"""Which backend answers, what compilers and exporters see, and which arguments are refused."""

import pytest
import torch

from ananet import InputError, MissingExtraError, attention
from ananet.attention import FORMS, choose_backend, second_order_attention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_device_decides(monkeypatch):
    monkeypatch.delenv("ANANET_ATTENTION", raising=False)
    monkeypatch.setattr(attention, "HAS_TRITON", True)
    assert choose_backend(CPU) == "blocked"
    assert choose_backend(CUDA) == "fused"
    monkeypatch.setattr(attention, "HAS_TRITON", False)
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
    monkeypatch.setattr(attention, "HAS_TRITON", False)
    with pytest.raises(MissingExtraError, match="ananet\\[gpu\\]"):
        choose_backend(CUDA, "fused")


def test_onnx_sees_plain_operators(monkeypatch):
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert choose_backend(CUDA) == "reference"


@pytest.mark.parametrize(("form", "nodes"), [(None, 1), ("linear", 1), ("quadratic", 1), ("cubic", 2)])
def test_export_sees_one_node_for_each_operator(form, nodes):
    class Attention(torch.nn.Module):
        def forward(self, query, key):
            output, context = second_order_attention(query, key, key, form)
            return output if context is None else (output, context)

    length = torch.export.Dim("length", min=2, max=4096)
    query, key = torch.randn(2, 1, 2, 20, 16)
    program = torch.export.export(Attention(), (query, key), dynamic_shapes=({2: length}, {2: length}))
    assert sum("ananet" in str(node.target) for node in program.graph.nodes) == nodes
    query, key = torch.randn(2, 1, 2, 33, 16)
    torch.testing.assert_close(program.module()(query, key), Attention()(query, key))


@pytest.mark.parametrize("form", FORMS)
def test_compiles_in_one_piece(form):
    torch._dynamo.reset()
    query, key = (torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(2))

    def loss(query, key):
        output, context = second_order_attention(query, key, key, form)
        return output.square().sum() + context.square().sum()

    expected = torch.autograd.grad(loss(query, key), (query, key))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(query, key), (query, key)), expected)


def test_operators_are_registered_correctly():
    query, key = (torch.randn(2, 2, 9, 4, requires_grad=True) for _ in range(2))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    torch.library.opcheck(torch.ops.ananet.attend_and_sum_columns, (query, key, None, mask, 2, "blocked"))
    torch.library.opcheck(torch.ops.ananet.column_energy, (query, key, mask, None))
    torch.library.opcheck(torch.ops.ananet.project_columns, (query, key, mask, torch.ones(4, 9, 3)))


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
