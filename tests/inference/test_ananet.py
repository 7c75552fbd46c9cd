"""The engine answers what the network answers."""

import pytest
import torch

from ananet.attention import FORMS
from ananet.inference import engine_for
from ananet.inference.ananet import folded
from ananet.inference.ananet.folded import FoldedANANet
from ananet.inference.ananet.fused import FusedANANet, bucket
from ananet.networks import ANANet, ANANetSettings

CPU = torch.device("cpu")


def trained(**settings) -> ANANet:
    """A network whose batch norms and biases all do something."""
    torch.manual_seed(0)
    network = ANANet(ANANetSettings(**settings)).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 1.5)
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.LayerNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.3)
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.bias, 0, 0.1)
    if network.side_encoder is not None:
        torch.nn.init.normal_(network.side_encoder.linears[-1].weight, 0, 0.1)
    if network.feedback is not None:
        torch.nn.init.normal_(network.feedback.encoder.linears[-1].weight, 0, 0.1)
    return network


@pytest.mark.parametrize(
    "settings",
    [
        *({"form": form} for form in FORMS),
        {"second_order": False},
        {"learnable_normalization": False, "share_kv": False, "side": ("ratio", "mutual")},
        {"side": ("size", "angle", "ratio", "mutual")},
        {"width": 36, "heads": 3},
        {"feedback": True},
        {"feedback": True, "side": ("ratio",), "width": 64},
        {"seeds": 12},
        {"seeds": 40, "form": "quadratic", "side": ("ratio", "mutual"), "share_kv": False, "feedback": True},
        {"seeds": 12, "second_order": False, "side": ("size",)},
    ],
)
def test_folded_network_gives_the_same_logits(settings):
    network = trained(**{"blocks": 2, **settings})
    engine = engine_for(network, CPU)
    matches = torch.rand(2, 50, network.settings.channels) * 2 - 1
    lengths = torch.tensor([50, 31])
    mask = torch.arange(50) < lengths[:, None]
    with torch.no_grad():
        torch.testing.assert_close(engine(matches, lengths), network(matches, mask), atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(engine(matches, None), network(matches), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"form": "quadratic", "share_kv": False}, {"second_order": False}])
@pytest.mark.parametrize("threads", [1, 2])
def test_seeds_by_parts_give_the_same_logits(settings, threads, monkeypatch):
    network = trained(blocks=3, seeds=12, feedback=True, **settings)
    monkeypatch.setattr(folded, "PART_BYTES", 7 * 4 * (4 * 12 + 128))
    matches = torch.rand(2, 50, 4) * 2 - 1
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = engine_for(network, CPU)(matches, None)
    finally:
        torch.set_num_threads(before)
    with torch.no_grad():
        torch.testing.assert_close(found, network(matches), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("seeds", [0, 4])
@pytest.mark.parametrize("length", [0, 1])
def test_hardly_any_match(length, seeds):
    engine = engine_for(trained(blocks=2, seeds=seeds), CPU)
    assert engine(torch.rand(1, length, 4), None).isfinite().all()


def test_progress_is_told_after_each_block():
    engine = engine_for(trained(blocks=3), CPU)
    matches, calls = torch.rand(1, 20, 4), []
    told = engine(matches, None, lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert torch.equal(told, engine(matches))


def test_the_cpu_gets_the_folded_network():
    assert isinstance(engine_for(trained(blocks=1), CPU), FoldedANANet)


def test_which_networks_the_kernels_can_run():
    assert FusedANANet.supports(ANANetSettings())
    assert FusedANANet.supports(ANANetSettings(form="cubic", side=("ratio", "mutual", "size", "angle")))
    assert not FusedANANet.supports(ANANetSettings(width=36, heads=3))
    assert FusedANANet.supports(ANANetSettings(seeds=256, form="quadratic", feedback=True))


def test_buckets_are_few_and_close():
    sizes = [bucket(length) for length in range(1, 20_000)]
    assert all(0 <= size - length < max(128, length / 4) for length, size in enumerate(sizes, start=1))
    assert len(set(sizes)) < 50
