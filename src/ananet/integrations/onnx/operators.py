# mypy: ignore-errors
# onnxscript compiles the scripts below from their source text; their types are ONNX's, not Python's.
"""ONNX graphs for PyTorch operators that the exporter lacks or translates badly."""

import math

import numpy as np
import onnx_ir
from onnxscript import FLOAT, graph, script
from onnxscript import opset18 as op

# Numbers of the attention map in memory at once: 8 MB, as on the CPU without ONNX.
BLOCK_NUMBERS = 2**21
MIN_ROWS = 16
# Added to the score of padding; finite, so that no row becomes NaN.
HIDDEN = -1e30


@script(default_opset=op)
def attend(queries: FLOAT, keys: FLOAT, values: FLOAT) -> FLOAT:
    """[blocks x B x H x R x D] attention output of blocks of rows."""

    @graph()
    def block(rows):
        return op.MatMul(op.Softmax(op.MatMul(rows, keys), axis=-1), values)

    return op.Scan(queries, body=block, num_scan_inputs=1)


@script(default_opset=op)
def attend_and_sum(queries: FLOAT, weights: FLOAT, keys: FLOAT, values: FLOAT, nothing: FLOAT) -> tuple[FLOAT, FLOAT]:
    """The same, and column sums [B x H x 1 x N]."""

    @graph()
    def block(sums, rows, weight):
        attention = op.Softmax(op.MatMul(rows, keys), axis=-1)
        new_sums = op.Add(sums, op.MatMul(weight, attention))
        output = op.MatMul(attention, values)
        return new_sums, output

    sums, output = op.Scan(nothing, queries, weights, body=block, num_scan_inputs=2)
    return output, sums


@script(default_opset=op)
def attend_and_sum_squares(
    queries: FLOAT, weights: FLOAT, keys: FLOAT, values: FLOAT, nothing: FLOAT
) -> tuple[FLOAT, FLOAT, FLOAT]:
    """The same, and sums of squares too."""

    @graph()
    def block(sums, squares, rows, weight):
        attention = op.Softmax(op.MatMul(rows, keys), axis=-1)
        new_sums = op.Add(sums, op.MatMul(weight, attention))
        new_squares = op.Add(squares, op.MatMul(weight, op.Mul(attention, attention)))
        output = op.MatMul(attention, values)
        return new_sums, new_squares, output

    sums, squares, output = op.Scan(nothing, nothing, queries, weights, body=block, num_scan_inputs=2)
    return output, sums, squares


def attend_and_sum_columns(query, key, value, query_weight, key_weight, moments, backend):
    """`ananet.attention.custom_op` as a Scan over blocks of rows, without an M x N map in memory.

    Args:
        query: [B x H x M x D].
        key: [B x H x N x D].
        value: [B x H x N x V]; the key where it is None.
        query_weight, key_weight: [B x M] and [B x N], how many matches each stands for, or a mask.
        moments: 0, 1 or 2 of sum_k w_k a_ki and sum_k w_k a_ki^2.
    """
    values = key if value is None else value
    heads, width = query.shape[1], query.shape[3]
    shape = op.Shape(query)
    batch, count = op.Slice(shape, [0], [1]), op.Slice(shape, [2], [3])
    columns = op.Slice(op.Shape(key), [2], [3])
    blocks, rows = _blocks(batch, heads, count, columns)
    more = op.Sub(op.Mul(blocks, rows), count)
    query_weight, key_weight = (op.Cast(weight, to=onnx_ir.DataType.FLOAT) for weight in (query_weight, key_weight))

    # One more channel, 1 in queries and log w in keys, weighs keys without a pass over the map.
    channel = op.Concat(batch, _numbers(heads), columns, _numbers(1), axis=0)
    log_weight = op.Expand(op.Unsqueeze(op.Max(op.Log(key_weight), HIDDEN), [1, 3]), channel)
    keys = op.Transpose(op.Concat(key, log_weight, axis=-1), perm=[0, 1, 3, 2])
    channel = op.Concat(batch, _numbers(heads), count, _numbers(1), axis=0)
    ones = op.Expand(op.Constant(value_floats=[1.0]), channel)
    queries = op.Concat(op.Mul(query, 1 / math.sqrt(width)), ones, axis=-1)
    queries = op.Pad(queries, op.Concat(_numbers(0, 0, 0, 0, 0, 0), more, _numbers(0), axis=0))
    queries = op.Reshape(queries, op.Concat(batch, _numbers(heads), blocks, rows, _numbers(width + 1), axis=0))
    queries = op.Transpose(queries, perm=[2, 0, 1, 3, 4])
    # Rows of padding have weight 0 in column sums.
    weights = op.Pad(query_weight, op.Concat(_numbers(0, 0, 0), more, axis=0))
    weights = op.Reshape(weights, op.Concat(batch, _numbers(1, 1), blocks, rows, axis=0))
    weights = op.Transpose(weights, perm=[3, 0, 1, 2, 4])
    nothing = op.Expand(op.Constant(value_floats=[0.0]), op.Concat(batch, _numbers(heads, 1), columns, axis=0))

    sums = []
    if moments == 0:
        output = attend(queries, keys, values)
    else:
        scan = attend_and_sum if moments == 1 else attend_and_sum_squares
        output, *sums = scan(queries, weights, keys, values, nothing)
    output = op.Transpose(output, perm=[1, 2, 0, 3, 4])
    shape = op.Concat(batch, _numbers(heads), op.Mul(blocks, rows), _numbers(values.shape[3]), axis=0)
    output = op.Reshape(output, shape)
    output = op.Mul(op.Slice(output, [0], count, [2]), op.Unsqueeze(op.Min(op.Ceil(query_weight), 1.0), [1, 3]))
    none = op.Constant(value_floats=[0.0])
    sums = op.Concat(*(op.Transpose(each, perm=[2, 0, 1, 3]) for each in sums), axis=0) if sums else none
    return output, sums, none


def _blocks(batch, heads, count, columns):
    """Return number and rows of blocks: about equal ones, as few as memory allows."""
    one = _numbers(1)
    length = op.Max(count, one)
    of_a_row = op.Mul(op.Mul(op.Max(batch, one), op.Max(columns, one)), _numbers(heads))
    most = op.Max(op.Div(_numbers(BLOCK_NUMBERS), of_a_row), _numbers(MIN_ROWS))
    blocks = op.Div(op.Sub(op.Add(length, most), one), most)
    return blocks, op.Div(op.Sub(op.Add(length, blocks), one), blocks)


def _numbers(*values):
    return op.Constant(value_ints=list(values))


def stable_sort(x, stable=True, dim=-1, descending=False):
    """Sort by TopK, which is stable."""
    length = op.Slice(op.Shape(x), [dim], [dim + 1])
    return op.TopK(x, length, axis=dim, largest=int(descending))


def scalar(value, dtype=onnx_ir.DataType.FLOAT, **_):
    """Make a constant without the exporter's rounding to single precision, which flushes small doubles to 0."""
    return op.Constant(value=onnx_ir.tensor(np.array(value, onnx_ir.DataType(dtype).numpy())))
