"""Seeded attention against its equations, the reference and the whole map; and which matches are seeds."""

import math

import pytest
import torch

from ananet import InputError
from ananet.attention import SEEDED_FORMS, Seeds, blocked, move_seeds, second_order_attention, seeded_attention
from tests.attention.comparison import assert_same, inputs, padding, results

CONTEXTS = [None, *SEEDED_FORMS]


def some_seeds(batch: int, length: int, count: int, mask: torch.Tensor | None = None) -> Seeds:
    """Random groups, some of them empty; a group for every match if there are enough."""
    count = min(length, count)
    drawn = torch.randint(max(count - 1, 1), (batch, length), generator=torch.Generator().manual_seed(3))
    group = drawn if count < length else torch.arange(length).expand(batch, -1).contiguous()
    real = torch.ones(batch, length) if mask is None else mask.float()
    return Seeds(group, torch.zeros(batch, count).scatter_add(1, group, real))


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
    group, N = [0, 1, 3, 0, 0, 3, 1], 7  # group 2 is empty
    members = [[i for i in range(N) if group[i] == k] for k in range(4)]
    # A seed that stands for three matches is three equal ones.
    query_s, key_s, value_s = (
        torch.stack([x[matches].mean(0) for matches in members for _ in matches]) for x in (query, key, value)
    )
    T = torch.stack([(key_s @ query[i]).div(math.sqrt(3)).softmax(0) for i in range(N)])
    S = torch.stack([(key @ seed).div(math.sqrt(3)).softmax(0) for seed in query_s])
    received = S.sum(0)
    expected = {
        "linear": math.sqrt(2) * (received - received**2 / N),
        "quadratic": math.sqrt(2) * (received - (S**2).sum(0)),
    }
    seeds = Seeds(torch.tensor([group]), torch.tensor([[3.0, 2, 0, 2]]))
    for form in SEEDED_FORMS:
        given = (x[None, None] for x in (query, key, value))
        output, context = seeded_attention(*given, seeds, form, backend=backend)
        torch.testing.assert_close(output[0, 0], T @ value_s)
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
    all_six = Seeds(torch.arange(6)[None], torch.ones(1, 6))
    output, context = seeded_attention(*alone, all_six, "linear", backend=backend)
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


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_equal_matches_in_groups_are_the_whole_map(backend):
    query, key, _ = (x.repeat_interleave(3, dim=2) for x in inputs(1, 2, 20, 4))
    seeds = Seeds(torch.arange(20).repeat_interleave(3)[None], torch.full((1, 20), 3.0))
    for form in CONTEXTS:
        expected = second_order_attention(query, key, key, form)
        found = seeded_attention(query, key, key, seeds, form, backend=backend)
        torch.testing.assert_close(found[0], expected[0])
        if form is not None:
            torch.testing.assert_close(found[1], expected[1])


def test_no_thin_map_in_memory():
    import resource

    query = torch.randn(1, 4, 40_000, 16, requires_grad=True)
    seeds = some_seeds(1, 40_000, 512)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    output, context = seeded_attention(query, query, query, seeds, "quadratic", backend="blocked")
    (output.sum() + context.square().sum()).backward()
    move_seeds(query[:, 0].detach(), seeds, backend="blocked")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 0.5 * 4 * 4 * 40_000 * 512


def test_export_sees_two_operators():
    class Attention(torch.nn.Module):
        def forward(self, query, key, group):
            seeds = move_seeds(query[:, 0], Seeds(group, torch.full((1, 8), 3.0)))
            return seeded_attention(query, key, key, seeds, "linear")

    length = torch.export.Dim("length", min=9, max=4096)
    given = (*torch.randn(2, 1, 2, 20, 16), torch.randint(8, (1, 20)))
    program = torch.export.export(Attention(), given, dynamic_shapes=({2: length}, {2: length}, {1: length}))
    assert sum("ananet" in str(node.target) for node in program.graph.nodes) == 2
    for count in (10, 33):
        given = (*torch.randn(2, 1, 2, count, 16), torch.randint(8, (1, count)))
        torch.testing.assert_close(program.module()(*given), Attention()(*given))


@pytest.mark.usefixtures("_many_small_blocks")
@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("width", [3, 40])
def test_matches_move_to_the_nearest_mean(backend, width):
    features, seeds = torch.randn(2, 60, width), some_seeds(2, 60, 9)
    moved = move_seeds(features, seeds, backend=backend)
    for n in range(2):
        used = [k for k in range(9) if (seeds.group[n] == k).any()]
        compared = features[n, :, :32].double()
        means = torch.stack([compared[seeds.group[n] == k].mean(0) for k in used])
        assert moved.group[n].tolist() == [used[k] for k in torch.cdist(compared, means).argmin(1)]
        assert torch.equal(moved.group[n].bincount(minlength=9).float(), moved.weights[n])
    again, both = move_seeds(features, moved, backend=backend), move_seeds(features, seeds, steps=2, backend=backend)
    assert torch.equal(again.group, both.group) and torch.equal(again.weights, both.weights)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_moving_ignores_padding_and_other_pairs_and_follows_a_permutation(backend):
    features = torch.randn(3, 40, 5)
    mask = torch.arange(40) < torch.tensor([[40], [25], [5]])
    seeds = some_seeds(3, 40, 7, mask)
    poisoned = features.masked_fill(~mask[..., None], math.nan)
    together = move_seeds(poisoned, seeds, mask, backend=backend)
    for n, length in enumerate((40, 25, 5)):
        given = Seeds(seeds.group[n : n + 1, :length], seeds.weights[n : n + 1])
        alone = move_seeds(features[n : n + 1, :length], given, backend=backend)
        assert torch.equal(together.group[n, :length], alone.group[0])
        assert torch.equal(together.weights[n], alone.weights[0])
    order = torch.randperm(40)
    given = Seeds(seeds.group[:1, order], seeds.weights[:1])
    moved = move_seeds(features[:1, order], given, backend=backend)
    assert torch.equal(moved.group[0], together.group[0, order])


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_moving_does_not_depend_on_autocast(backend):
    # Far from zero, so that products are large and their differences small.
    features, seeds = torch.randn(1, 400, 32) + 5, some_seeds(1, 400, 20)
    expected = move_seeds(features, seeds, steps=2, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(move_seeds(features, seeds, steps=2, backend=backend).group, expected.group)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_a_group_for_every_match_stays(backend):
    for length in (0, 1, 7):
        seeds = Seeds(torch.arange(length)[None], torch.ones(1, length))
        moved = move_seeds(torch.ones(1, length, 4), seeds, backend=backend)
        assert torch.equal(moved.group, seeds.group) and torch.equal(moved.weights, seeds.weights)
    everything = move_seeds(torch.ones(1, 9, 4), some_seeds(1, 9, 4), backend=backend)
    assert everything.weights.max() == 9  # equal features: all of one group


def test_wrong_arguments_are_named():
    x, seeds = torch.randn(2, 2, 5, 4), Seeds(torch.zeros(2, 5, dtype=torch.int64), torch.tensor([[5.0], [5.0]]))
    for arguments, message in [
        ((x, x, x, seeds, "cubic"), "form: expected one of linear, quadratic or None, got 'cubic'"),
        ((x, x, x, seeds._replace(group=seeds.group[:1]), "linear"), r"seeds.group: expected \(2, 5\) .* got \(1, 5\)"),
        ((x, x, x, seeds._replace(group=seeds.group.int()), "linear"), "seeds.group: expected .* got .* torch.int32"),
        ((x, x, x, seeds._replace(weights=seeds.group), "linear"), "seeds.weights: expected .* got .* torch.int64"),
        ((x, x, x, seeds._replace(weights=seeds.weights[:, :0]), "linear"), r"seeds.weights: expected .* got \(2, 0\)"),
        ((x, x, x, seeds, "linear", torch.ones(2, 5)), r"mask: expected \(2, 5\) of torch.bool"),
    ]:
        with pytest.raises(InputError, match=message):
            seeded_attention(*arguments)
    with pytest.raises(InputError, match=r"seeds.group: expected \(2, 6\)"):
        move_seeds(torch.randn(2, 6, 4), seeds)


def test_compiles_in_one_piece():
    torch._dynamo.reset()
    query, key = (torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(2))
    seeds = some_seeds(1, 20, 8)

    def loss(query, key):
        output, context = seeded_attention(query, key, key, move_seeds(query[:, 0], seeds), "linear")
        return output.square().sum() + context.square().sum()

    expected = torch.autograd.grad(loss(query, key), (query, key))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(query, key), (query, key)), expected)
