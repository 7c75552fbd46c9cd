import pytest
import torch

from ananet import InputError
from ananet.attention import FORMS, SEEDED_FORMS, move_seeds
from ananet.networks import ANANet, ANANetSettings
from ananet.networks.seeds import FIRST_STEPS, first_seeds
from tests.networks import checks
from tests.networks.networks import network


def parameters(**settings) -> int:
    return sum(p.numel() for p in ANANet(ANANetSettings(**settings)).parameters())


def test_parameter_counts_of_the_paper():
    assert parameters() == 664_517
    without = parameters(second_order=False)
    assert without == 525_457
    assert abs(without - 524_000) < 2_000
    # Learnable normalisation costs one alpha a head and block.
    assert parameters() - parameters(learnable_normalization=False) == 20
    assert parameters(share_kv=False) - parameters() == 5 * (128 * 128 + 128)
    for side, channels in ((("ratio", "mutual"), 2), (("size", "ratio", "angle"), 5)):
        more = (channels + 1 + 2) * 16 + (16 + 1 + 2) * 32 + (32 + 1) * 128
        assert parameters(side=side) - parameters() == more


def test_alpha_starts_at_two():
    for block in ANANet().blocks:
        assert block.second_order.alpha.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("form", FORMS)
def test_padded_equals_unpadded(form):
    net = network(form=form)
    short, long = torch.randn(1, 13, 4), torch.randn(1, 20, 4)
    padded = torch.cat([torch.cat([short, torch.full((1, 7, 4), 99.0)], dim=1), long])
    mask = torch.arange(20) < torch.tensor([[13], [20]])
    with torch.no_grad():
        logits = net(padded, mask)
        torch.testing.assert_close(logits[:1, :13], net(short), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(logits[1:], net(long), atol=1e-5, rtol=1e-4)
    assert logits[0, 13:].abs().sum() == 0


@pytest.mark.parametrize("form", FORMS)
def test_permuting_the_input_permutes_the_output(form):
    net = network(form=form).double()
    matches = torch.randn(1, 17, 4, dtype=torch.float64)
    order = torch.randperm(17)
    with torch.no_grad():
        torch.testing.assert_close(net(matches[:, order]), net(matches)[:, order])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_small_and_identical_input(form, n):
    net = network(form=form)
    with torch.no_grad():
        assert net(torch.randn(1, n, 4)).shape == (1, n)
        same = net(torch.ones(1, n, 4))[0]
    assert same.isfinite().all()
    assert same.unique().numel() <= 1 or torch.allclose(same, same[0].expand(n), atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"second_order": False},
        {"learnable_normalization": False},
        {"share_kv": False},
        {"side": ("ratio", "mutual")},
        {"side": ("ratio", "mutual", "size", "angle")},
        {"blocks": 2},
    ],
)
def test_variants_run_and_learn(settings):
    net = ANANet(ANANetSettings(**settings))
    logits = net(torch.randn(2, 30, net.settings.channels))
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_padding_does_not_touch_batch_statistics():
    torch.manual_seed(1)
    short, long = torch.randn(13, 4), torch.randn(20, 4)
    mask = torch.arange(20) < torch.tensor([[13], [20]])
    first, second = ANANet(), ANANet()
    second.load_state_dict(first.state_dict())
    for net, filler in ((first, 0.0), (second, 1e3)):
        net(torch.stack([torch.cat([short, torch.full((7, 4), filler)]), long]), mask)
    for name, buffer in first.named_buffers():
        torch.testing.assert_close(buffer, dict(second.named_buffers())[name], msg=name)


def test_unmasked_training_equals_masked_with_a_full_mask():
    # In double precision: batch norms of nearly constant context magnify rounding.
    net = ANANet().double()
    copy = ANANet().double()
    copy.load_state_dict(net.state_dict())
    x = torch.randn(2, 16, 4, dtype=torch.float64)
    torch.testing.assert_close(net(x), copy(x, torch.ones(2, 16, dtype=torch.bool)))
    for name, buffer in net.named_buffers():
        torch.testing.assert_close(buffer, dict(copy.named_buffers())[name], msg=name)


def test_unknown_and_wrong_settings_are_errors():
    with pytest.raises(InputError, match="unknown setting blokcs: expected some of name, side, form, blocks"):
        ANANetSettings.from_dict({"blokcs": 3})
    for wrong, message in [
        ({"form": "quartic"}, "form: expected one of linear, quadratic, cubic"),
        ({"blocks": 0}, "blocks: expected a whole number from 1 to 100, got 0"),
        ({"heads": 3}, "width: expected a multiple of heads"),
        ({"second_order": 1}, "second_order: expected true or false, got 1"),
        ({"width": 12.5}, "width: expected a whole number"),
        ({"width": 40_000}, "width: expected a whole number from 1 to 4096, got 40000"),
        ({"seeds": -1}, "seeds: expected a whole number from 0 to 1048576, got -1"),
        ({"seeds": 256, "form": "cubic"}, "form: expected one of linear, quadratic with seeds, got 'cubic'"),
    ]:
        with pytest.raises(InputError, match=message):
            ANANetSettings(**wrong)


@pytest.mark.parametrize("form", FORMS)
def test_exports_with_a_dynamic_number_of_matches(form):
    net = network(form=form, blocks=2)
    n = torch.export.Dim("n", min=2, max=8192)
    program = torch.export.export(net, (torch.randn(1, 11, 4),), dynamic_shapes=({1: n},)).module()
    for count in (2, 7, 50):
        x = torch.randn(1, count, 4)
        torch.testing.assert_close(program(x), net(x), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_logits_are_rescaled_inside_the_network():
    net, matches = network(blocks=1), torch.randn(2, 9, 4)
    before = net(matches)
    net.rescale_logits(0.5, -1.25)
    torch.testing.assert_close(net(matches), 0.5 * before - 1.25)
    torch.testing.assert_close(net.stages(matches)[-1], net(matches))


@torch.no_grad()
@pytest.mark.parametrize("side", [(), ("ratio", "angle")])
def test_features_of_every_block_lead_to_the_logits(side):
    net = network(blocks=3, side=side)
    matches = torch.randn(2, 9, net.settings.channels)
    features = net.block_features(matches)
    assert [tuple(one.shape) for one in features] == [(2, 9, 128)] * 4
    torch.testing.assert_close(features[0], net.encode(matches))
    torch.testing.assert_close(net.head(features[-1])[..., 0], net(matches))


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_views_show_what_the_blocks_use(form):
    net = network(form=form, blocks=2)
    matches = torch.randn(2, 9, 4)
    views = net.block_views(matches)
    assert len(views) == 2
    for view, block, features in zip(views, net.blocks, net.block_features(matches), strict=False):
        assert view.attention.shape == (4, 9, 9)
        torch.testing.assert_close(view.attention.sum(-1), torch.ones(4, 9))
        assert view.context.shape == view.normalized.shape == (4, 9)
        alpha = block.second_order.alpha[:, None]
        torch.testing.assert_close(view.normalized, torch.sigmoid(alpha * view.context))
        attended = view.attention @ block.heads(block.key(features[:1]))[0]
        merged = torch.cat(
            [
                features[:1] + block.second_order(view.context[None], None),
                block.output(attended.transpose(0, 1).flatten(1))[None],
            ],
            dim=-1,
        )
        torch.testing.assert_close(block.norm(block.merge(merged)), block(features[:1]), atol=1e-5, rtol=1e-4)
    (first_order,) = network(second_order=False, blocks=1).block_views(matches)
    assert first_order.context is None and first_order.normalized is None


@torch.no_grad()
def test_training_goes_on_from_other_weights():
    plain, matches = network(blocks=2), torch.randn(1, 9, 6)
    with_side = ANANet(ANANetSettings(blocks=2, side=("ratio", "mutual"))).eval()
    with_side.start_from(plain)
    torch.testing.assert_close(with_side(matches), plain(matches[..., :4]))
    cubic = network(blocks=2, form="cubic")
    cubic.start_from(plain)
    assert torch.equal(cubic.head.weight, plain.head.weight) and cubic.settings.form == "cubic"
    for other, message in (
        (network(blocks=1), "it has blocks = 1, the run wants blocks = 2"),
        (network(blocks=2, side=("size",)), "it has side = .*size.*, the run wants side = "),
    ):
        with pytest.raises(InputError, match=message):
            plain.start_from(other)


def test_a_network_may_tell_what_is_right_and_what_is_near_the_line():
    one, matches = network(blocks=2, feedback=True), torch.randn(2, 9, 4)
    both = network(blocks=2, feedback=True, right=True)
    both.start_from(one)
    for label in ("right", "line", None):
        torch.testing.assert_close(both.telling(label)(matches), one(matches))
    both.rescale_logits(2.0, 1.0, "right")
    torch.testing.assert_close(both(matches), 2 * one(matches) + 1)
    torch.testing.assert_close(both.telling()(matches), both(matches))
    torch.testing.assert_close(both.telling("line")(matches), one(matches))
    assert both.telling().settings == one.settings and one.telling("line") is one
    supervised = both.supervision(matches)
    assert len(supervised.stages) == 2 and len(supervised.right) == 1
    torch.testing.assert_close(supervised.right[0], both(matches))
    torch.testing.assert_close(supervised.stages[-1], one(matches))
    with pytest.raises(InputError, match="label: expected line of these weights, got 'right'"):
        one.telling("right")


@pytest.mark.parametrize("shape", [(2, 9, 10), (9, 4)])
def test_input_of_another_shape_is_named(shape):
    with pytest.raises(InputError, match=r"matches: expected shape \[B x N x 4\], got"):
        ANANet().eval()(torch.zeros(shape))


def seeded(**settings) -> ANANet:
    return network(**{"seeds": 6, "blocks": 3, **settings})


@pytest.mark.parametrize("settings", [{}, {"side": ("ratio", "mutual"), "feedback": True}, {"blocks": 1}])
@pytest.mark.parametrize("check", checks.OF_EVERY_NETWORK)
def test_seeds_hold_what_every_network_holds(check, settings):
    # Half precision rounds scores, so it may choose other seeds.
    few = 64 if check is checks.check_half_precision else 6
    # Of constant input, batch norms of three blocks make infinite gradients, with and without seeds.
    blocks = 2 if check is checks.check_degenerate else 3
    net = checks.made("ananet", seeds=few, width=32, heads=2, **{"blocks": blocks, **settings})
    check(net)


def test_networks_with_seeds_learn():
    checks.check_learns(ANANet(ANANetSettings(seeds=32, blocks=3)))
    net = seeded(feedback=True).train()
    sum(logits.sigmoid().mean() for logits in net.stages(torch.randn(2, 30, 4))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@torch.no_grad()
@pytest.mark.parametrize("form", SEEDED_FORMS)
def test_no_fewer_seeds_than_matches_is_the_whole_map(form):
    whole = network(form=form, feedback=True, side=("ratio",)).double()
    net = network(form=form, feedback=True, side=("ratio",), seeds=20).double()
    net.start_from(whole)
    matches = torch.rand(2, 20, 5, dtype=torch.float64)
    mask = torch.arange(20) < torch.tensor([[20], [9]])
    torch.testing.assert_close(net(matches, mask), whole(matches, mask), atol=1e-10, rtol=0)
    net.seeds = 3
    assert not torch.allclose(net(matches), whole(matches), atol=1e-9, rtol=0)


def test_groups_follow_the_features_from_block_to_block():
    net, matches = seeded(feedback=True), torch.rand(1, 40, 4)
    steps = net._steps(matches)
    seeds = first_seeds(matches, 6)
    for number, (features, found) in enumerate(zip(steps.features[:-1], steps.seeds, strict=True)):
        seeds = move_seeds(features, seeds, steps=FIRST_STEPS if number == 0 else 1)
        assert torch.equal(found.group, seeds.group) and torch.equal(found.weights, seeds.weights)


@torch.no_grad()
def test_views_of_seeds():
    net, matches = seeded(), torch.rand(2, 40, 4)
    for view, seeds in zip(net.block_views(matches), net._steps(matches[:1]).seeds, strict=True):
        assert view.attention.shape == (4, 40, 40) and view.context.shape == (4, 40)
        torch.testing.assert_close(view.attention.sum(-1), torch.ones(4, 40))
        for group in seeds.group[0].unique():
            received = view.attention[..., seeds.group[0] == group]
            torch.testing.assert_close(received, received[..., :1].expand_as(received))


def test_weights_work_with_any_number_of_seeds():
    whole, net = network(blocks=3), ANANet(ANANetSettings(blocks=3, seeds=12))
    net.start_from(whole)
    assert all(torch.equal(own, net.state_dict()[name]) for name, own in whole.state_dict().items())
    assert len(net.state_dict()) == len(whole.state_dict())


def test_seeds_export_with_a_dynamic_number_of_matches():
    net = seeded(seeds=16)
    n = torch.export.Dim("n", min=2, max=8192)
    program = torch.export.export(net, (torch.rand(1, 31, 4),), dynamic_shapes=({1: n},)).module()
    for count in (2, 7, 50):
        x = torch.rand(1, count, 4)
        torch.testing.assert_close(program(x), net(x), atol=1e-5, rtol=1e-4)
