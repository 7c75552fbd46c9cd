"""Translations that the exporter lacks, or does worse: ONNX Runtime answers what PyTorch answers."""

import numpy as np
import pytest
import torch
from torch import nn

from ananet.attention import SEEDED_FORMS, move_seeds, seeded_attention
from ananet.attention.custom_op import attend_and_sum_columns
from ananet.networks.seeds import first_seeds

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from ananet.integrations.onnx import operators  # noqa: E402

TABLE = {
    torch.ops.ananet.attend_and_sum_columns.default: operators.attend_and_sum_columns,
    torch.ops.aten.scalar_tensor.default: operators.scalar,
    torch.ops.aten.sort.stable: operators.stable_sort,
}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def translated(function, *example, shapes=None):
    traced = torch.export.export(Function(function), example, dynamic_shapes=None if shapes is None else (shapes,))
    program = torch.onnx.export(traced, dynamo=True, opset_version=18, custom_translation_table=TABLE, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda *inputs: session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})


@pytest.mark.filterwarnings("ignore")
def test_numbers_of_double_precision_stay_so():
    values = torch.tensor([0.0, 1e-250, 1.0], dtype=torch.float64)
    (found,) = translated(lambda x: x.clamp_min(1e-300) * 0.1, values)(values)
    np.testing.assert_array_equal(found, (values.clamp_min(1e-300) * 0.1).numpy())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("descending", [True, False])
def test_sorting_keeps_the_order_of_equals(descending):
    values = torch.randint(0, 4, (3, 50), generator=torch.Generator().manual_seed(0)).float()

    def order(x):
        return x.sort(dim=1, descending=descending, stable=True).indices

    (found,) = translated(order, values)(values)
    np.testing.assert_array_equal(found, order(values).numpy())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("moments", [0, 1, 2])
def test_attention_by_blocks(moments, monkeypatch):
    # So small that even few matches make several blocks, the last one shorter.
    monkeypatch.setattr(operators, "BLOCK_NUMBERS", 2 * 2 * 64 * 20)

    def attend(query, key, value, mask):
        output, columns, _ = attend_and_sum_columns(query, key, value, mask, mask, moments, "blocked")
        return (output, columns) if moments else (output,)

    def example(count):
        generator = torch.Generator().manual_seed(count)
        mask = torch.rand(2, count, generator=generator) < 0.8
        return *torch.randn(3, 2, 2, count, 8, generator=generator).unbind(0), mask

    dynamic = torch.export.Dim.DYNAMIC
    run = translated(attend, *example(50), shapes=(*[{2: dynamic}] * 3, {1: dynamic}))
    for count in (1, 16, 20, 50, 131):
        for found, expected in zip(run(*example(count)), attend(*example(count)), strict=True):
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", SEEDED_FORMS)
def test_attention_through_seeds(form, monkeypatch):
    monkeypatch.setattr(operators, "BLOCK_NUMBERS", 2 * 2 * 64 * 20)

    def attend(query, key, points, mask):
        seeds = move_seeds(query[:, 0], first_seeds(points, 24, mask), mask)
        return seeded_attention(query, key, key, seeds, form, mask)

    def example(count):
        generator = torch.Generator().manual_seed(count)
        mask = torch.rand(2, count, generator=generator) < 0.8
        return *torch.randn(2, 2, 2, count, 8, generator=generator), torch.rand(2, count, 4, generator=generator), mask

    dynamic = torch.export.Dim.DYNAMIC
    run = translated(attend, *example(50), shapes=({2: dynamic}, {2: dynamic}, {1: dynamic}, {1: dynamic}))
    for count in (1, 16, 24, 50, 131):
        for found, expected in zip(run(*example(count)), attend(*example(count)), strict=True):
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
