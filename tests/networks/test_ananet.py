import pytest
import torch

from ananet import InputError
from ananet.attention import FORMS
from ananet.networks import ANANet, ANANetSettings, inlier_weights, load_network, save_network


def network(**settings) -> ANANet:
    torch.manual_seed(0)
    made = ANANet(ANANetSettings(**settings)).eval()
    # Running statistics other than 0 and 1, so that batch norm does something.
    for name, buffer in made.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return made


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
    assert parameters(side_channels=2) - parameters() == (2 + 1 + 2) * 16 + (16 + 1 + 2) * 32 + (32 + 1) * 128


def test_alpha_starts_at_two():
    for block in ANANet().blocks:
        assert block.second_order.alpha.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("form", FORMS)
def test_padded_equals_unpadded(form):
    net = network(form=form)
    short, long = torch.randn(13, 4), torch.randn(20, 4)
    padded = torch.stack([torch.cat([short, torch.full((7, 4), 99.0)]), long])
    mask = torch.arange(20) < torch.tensor([[13], [20]])
    with torch.no_grad():
        logits = net(padded, mask)
        torch.testing.assert_close(logits[0, :13], net(short), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(logits[1], net(long), atol=1e-5, rtol=1e-4)
    assert logits[0, 13:].abs().sum() == 0


@pytest.mark.parametrize("form", FORMS)
def test_permuting_the_input_permutes_the_output(form):
    net = network(form=form).double()
    matches = torch.randn(17, 4, dtype=torch.float64)
    order = torch.randperm(17)
    with torch.no_grad():
        torch.testing.assert_close(net(matches[order]), net(matches)[order])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_small_and_identical_input(form, n):
    net = network(form=form)
    with torch.no_grad():
        assert net(torch.randn(n, 4)).shape == (n,)
        same = net(torch.ones(n, 4))
    assert same.isfinite().all()
    assert same.unique().numel() <= 1 or torch.allclose(same, same[0].expand(n), atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"second_order": False},
        {"learnable_normalization": False},
        {"share_kv": False},
        {"side_channels": 2},
        {"blocks": 2},
    ],
)
def test_variants_run_and_learn(settings):
    net = ANANet(ANANetSettings(**settings))
    logits = net(torch.randn(2, 30, 4 + settings.get("side_channels", 0)))
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
    with pytest.raises(InputError, match="unknown network setting blokcs"):
        ANANetSettings.from_dict({"blokcs": 3})
    for wrong, message in [
        ({"form": "quartic"}, "form: expected one of linear, quadratic, cubic"),
        ({"blocks": 0}, "blocks: expected a whole number of at least 1, got 0"),
        ({"heads": 3}, "width: expected a multiple of heads"),
        ({"second_order": 1}, "second_order: expected true or false, got 1"),
        ({"width": 12.5}, "width: expected a whole number"),
    ]:
        with pytest.raises(InputError, match=message):
            ANANetSettings(**wrong)


def test_weights_lie_in_zero_to_below_one():
    w = inlier_weights(torch.tensor([-5.0, 0.0, 0.5, 100.0]))
    assert w[0] == 0 and w[1] == 0
    assert w[2] == torch.tanh(torch.tensor(0.5))
    assert 0.999 < w[3] < 1


@pytest.mark.parametrize("form", FORMS)
def test_exports_with_a_dynamic_number_of_matches(form):
    net = network(form=form, blocks=2)
    n = torch.export.Dim("n", min=2, max=8192)
    program = torch.export.export(net, (torch.randn(1, 11, 4),), dynamic_shapes=({1: n},)).module()
    for count in (2, 7, 50):
        x = torch.randn(1, count, 4)
        torch.testing.assert_close(program(x), net(x), atol=1e-5, rtol=1e-4)


def test_saved_weights_come_back(tmp_path):
    net = network(form="quadratic", side_channels=2)
    save_network(tmp_path / "a.safetensors", net, {"data": "none"})
    loaded, card = load_network(tmp_path / "a.safetensors")
    assert card == {"data": "none"}
    assert loaded.settings == net.settings
    x = torch.randn(9, 6)
    torch.testing.assert_close(loaded(x), net(x))


def test_unreadable_weights_are_named(tmp_path):
    from safetensors.torch import save_file

    with pytest.raises(InputError, match="no file"):
        load_network(tmp_path / "none.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a safetensors file")
    with pytest.raises(InputError, match="not a safetensors file"):
        load_network(broken)
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, other)
    with pytest.raises(InputError, match="holds no ANA-Net"):
        load_network(other)
    for header in ({"settings": "{"}, {}, {"settings": "[1]"}, {"settings": "{}", "card": "{"}):
        save_file({"x": torch.zeros(1)}, other, {"network": "ananet", **header})
        with pytest.raises(InputError, match="broken header|unknown network setting"):
            load_network(other)
    broken_net = network()
    broken_net.head.bias.data.fill_(float("nan"))
    save_network(other, broken_net)
    with pytest.raises(InputError, match="holds NaN or infinity in head.bias"):
        load_network(other)
    tampered = tmp_path / "tampered.safetensors"
    save_file({"x": torch.zeros(1)}, tampered, {"network": "ananet", "settings": "{}"})
    with pytest.raises(InputError, match="does not fit its own settings"):
        load_network(tampered)
