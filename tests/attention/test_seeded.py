"""Seeded attention against its equations, the reference and the whole map; and which matches are seeds."""

import math

import pytest
import torch

from ananet import InputError
from ananet.attention import SEEDED_FORMS, best_matches, blocked, second_order_attention, seeded_attention
from tests.attention.comparison import assert_same, inputs, padding, results

CONTEXTS = [None, *SEEDED_FORMS]


def some_seeds(batch: int, length: int, count: int, mask: torch.Tensor | None = None) -> torch.Tensor:
    return best_matches(torch.rand(batch, length, generator=torch.Generator().manual_seed(3)), count, mask)


def seeded(seeds):
    """Seeded attention in the place of `second_order_attention`."""
    return lambda query, key, value, form, mask, backend: seeded_attention(
        query, key, value, seeds, form, mask, backend=backend
    )


@pytest.fixture
def _many_small_blocks(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_BYTES", 8 * 16 * 40)
    monkeypatch.setattr(blocked, "MIN_ROWS", 4)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_the_two_equations_word_for_word(backend):
    query, key, value = (x[0, 0] for x in inputs(1, 1, 7, 3))
    seeds, N, m = [4, 1, 6], 7, 3
    T = torch.stack([torch.stack([query[i] @ key[s] for s in seeds]).div(math.sqrt(3)).softmax(0) for i in range(N)])
    S = torch.stack([torch.stack([query[s] @ key[i] for i in range(N)]).div(math.sqrt(3)).softmax(0) for s in seeds])
    received = N / m * S.sum(0)
    expected = {
        "linear": math.sqrt(2) * (received - received**2 / N),
        "quadratic": math.sqrt(2) * (received - N / m * (S**2).sum(0)),
    }
    for form in SEEDED_FORMS:
        given = (x[None, None] for x in (query, key, value))
        output, context = seeded_attention(*given, torch.tensor([seeds]), form, backend=backend)
        torch.testing.assert_close(output[0, 0], T @ value[seeds])
        torch.testing.assert_close(context[0, 0], expected[form])


@pytest.mark.usefixtures("_many_small_blocks")
@pytest.mark.parametrize("form", CONTEXTS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [1, 13, 37])
def test_blocked_agrees_with_the_reference(form, shared, masked, count):
    query, key, value = inputs(3, 2, 41, 5)
    mask = padding(3, 41) if masked else None
    attend = seeded(some_seeds(3, 41, count, mask))
    expected = results("reference", query, key, value, form, mask, shared=shared, attend=attend)
    assert_same(results("blocked", query, key, value, form, mask, shared=shared, attend=attend), expected, 1e-12)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("form", CONTEXTS)
@pytest.mark.parametrize("masked", [False, True])
def test_all_matches_as_seeds_are_the_whole_map(backend, form, masked):
    query, key, value = inputs(3, 2, 23, 5)
    mask = padding(3, 23) if masked else None
    attend = seeded(some_seeds(3, 23, 256, mask))
    expected = results("reference", query, key, value, form, mask)
    assert_same(results(backend, query, key, value, form, mask, attend=attend), expected, 1e-12)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("form", CONTEXTS)
@pytest.mark.parametrize("shape", [(1, 1, 0, 4), (1, 2, 1, 4), (0, 2, 5, 4)])
def test_hardly_any_input(backend, form, shape):
    query, key, value = inputs(*shape)
    found = results(backend, query, key, value, form, attend=seeded(some_seeds(shape[0], shape[2], 4)))
    assert all(x.isfinite().all() for x in found.values())
    assert found["output"].shape == shape
    if shape[2] == 1:
        torch.testing.assert_close(found["output"], value)


@pytest.mark.usefixtures("_many_small_blocks")
@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("form", SEEDED_FORMS)
def test_gradients(backend, form):
    query, key, value = (x.requires_grad_() for x in inputs(2, 2, 11, 3))
    mask = torch.arange(11) < torch.tensor([[10], [3]])
    seeds = some_seeds(2, 11, 5, mask)
    assert torch.autograd.gradcheck(
        lambda q, k, v: seeded_attention(q, k, v, seeds, form, mask, backend=backend), (query, key, value)
    )


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("shared", [False, True])
def test_padding_changes_nothing_even_if_it_is_nan(backend, shared):
    query, key, value = inputs(2, 2, 20, 5)
    lengths = torch.tensor([20, 6])
    mask = torch.arange(20) < lengths[:, None]
    poisoned = [x.masked_fill(~mask[:, None, :, None], math.nan) for x in (query, key, value)]
    attend = seeded(some_seeds(2, 20, 9, mask))
    expected = results(backend, query, key, value, "linear", mask, shared=shared, attend=attend)
    found = results(backend, *poisoned, "linear", mask, shared=shared, attend=attend)
    assert_same(found, expected, 1e-14)
    assert not found["output"][1, :, 6:].any() and not found["context"][1, :, 6:].any()
    assert not found["d query"][1, :, 6:].any() and not found["d key"][1, :, 6:].any()
    alone = [x[1:, :, :6] for x in (query, key, value)]
    output, context = seeded_attention(*alone, torch.arange(6)[None], "linear", backend=backend)
    if not shared:
        torch.testing.assert_close(found["output"][1:, :, :6], output)
    torch.testing.assert_close(found["context"][1:, :, :6], context)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_added_up_in_single(dtype):
    query, key, value = (x.to(dtype) for x in inputs(1, 2, 300, 16))
    attend = seeded(some_seeds(1, 300, 64))
    exact = results("reference", query, key, value, "quadratic", attend=attend)
    found = results("blocked", query, key, value, "quadratic", dtype=dtype, attend=attend)
    assert_same(found, exact, max(8 * torch.finfo(dtype).eps, 1e-5))


def test_random_seeds_estimate_what_all_matches_give_together():
    query, key, _ = inputs(1, 2, 60, 4)
    _, whole = second_order_attention(query, key, key, "quadratic")
    few = torch.stack(
        [seeded_attention(query, key, key, torch.randperm(60)[None, :20], "quadratic")[1] for _ in range(400)]
    )
    assert ((few.mean(0) - whole).abs() < 5 * few.std(0) / 20).all()


def test_no_thin_map_in_memory():
    import resource

    query = torch.randn(1, 4, 40_000, 16, requires_grad=True)
    seeds = torch.arange(512)[None]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    output, context = seeded_attention(query, query, query, seeds, "quadratic", backend="blocked")
    (output.sum() + context.square().sum()).backward()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 0.5 * 4 * 4 * 40_000 * 512


def test_export_sees_two_operators():
    class Attention(torch.nn.Module):
        def forward(self, query, key, scores):
            return seeded_attention(query, key, key, best_matches(scores, 8), "linear")

    length = torch.export.Dim("length", min=2, max=4096)
    given = (*torch.randn(2, 1, 2, 20, 16), torch.rand(1, 20))
    program = torch.export.export(Attention(), given, dynamic_shapes=({2: length}, {2: length}, {1: length}))
    assert sum("ananet" in str(node.target) for node in program.graph.nodes) == 2
    for count in (5, 33):
        given = (*torch.randn(2, 1, 2, count, 16), torch.rand(1, count))
        torch.testing.assert_close(program.module()(*given), Attention()(*given))


def test_best_matches_ties_by_index_and_padding_last():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [5.0, torch.nan, 1.0, 5.0, 7.0]])
    mask = torch.tensor([[True] * 5, [True, False, True, False, True]])
    assert best_matches(scores, 4, mask).tolist()[0] == [1, 2, 4, 3]
    assert best_matches(scores, 3, mask).tolist()[1] == [4, 0, 2]
    assert best_matches(scores[:1], 9).tolist() == [[1, 2, 4, 3, 0]]
    assert best_matches(torch.zeros(1, 3), 0).shape == (1, 0)
    assert best_matches(torch.zeros(2, 0), 4).shape == (2, 0)
    assert best_matches(torch.zeros(1, 50), 6).tolist() == [list(range(6))]


def test_best_matches_follow_a_permutation_and_do_not_see_other_pairs():
    scores, order = torch.rand(3, 40), torch.randperm(40)
    best = best_matches(scores, 7)
    assert torch.equal(order[best_matches(scores[:, order], 7)], best)
    assert torch.equal(best_matches(scores[1:2], 7), best[1:2])


def test_wrong_arguments_are_named():
    x, seeds = torch.randn(2, 2, 5, 4), torch.zeros(2, 1, dtype=torch.int64)
    for arguments, message in [
        ((x, x, x, seeds, "cubic"), "form: expected one of linear, quadratic or None, got 'cubic'"),
        ((x, x, x, seeds[:1], "linear"), r"seeds: expected \(2, m\) of int64, got \(1, 1\) of torch.int64"),
        ((x, x, x, seeds.float(), "linear"), "seeds: expected .* got .* torch.float32"),
        ((x, x, x, seeds, "linear", torch.ones(2, 5)), r"mask: expected \(2, 5\) of torch.bool"),
    ]:
        with pytest.raises(InputError, match=message):
            seeded_attention(*arguments)


def test_compiles_in_one_piece():
    torch._dynamo.reset()
    query, key = (torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(2))
    scores = torch.rand(1, 20)

    def loss(query, key):
        output, context = seeded_attention(query, key, key, best_matches(scores, 8), "linear")
        return output.square().sum() + context.square().sum()

    expected = torch.autograd.grad(loss(query, key), (query, key))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(query, key), (query, key)), expected)
