"""What compilers and exporters see of the operators."""

import pytest
import torch

from ananet.attention import FORMS, second_order_attention


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
    torch.library.opcheck(torch.ops.ananet.attend_and_sum_columns, (query, key, None, mask, mask, 2, "blocked"))
    torch.library.opcheck(torch.ops.ananet.column_energy, (query, key, mask, None))
    torch.library.opcheck(torch.ops.ananet.project_columns, (query, key, mask, torch.ones(4, 9, 3)))
