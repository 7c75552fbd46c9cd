"""The GPU engine's kernels on the CPU, in Triton's interpreter. `test_fused.py` runs this file in its own process."""

import pytest
import torch

from ananet.networks.engine import FusedANANet
from ananet.networks.folded import FoldedANANet
from tests.networks.test_engine import trained


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"form": "quadratic", "share_kv": False, "side_channels": 2, "learnable_normalization": False},
        {"form": "cubic", "width": 64},
        {"second_order": False, "width": 32, "heads": 2},
    ],
)
def test_agrees_with_the_network(settings, monkeypatch):
    network = trained(blocks=2, **settings)
    matches = torch.rand(2, 140, 4 + settings.get("side_channels", 0)) * 2 - 1
    lengths = torch.tensor([140, 90])
    mask = torch.arange(140) < lengths[:, None]
    monkeypatch.setenv("ANANET_ATTENTION", "reference")
    with torch.no_grad():
        exact = network.double()(matches.double(), mask)
    folded = FoldedANANet(network.float())
    single = FusedANANet(folded, torch.float32)(matches, lengths)
    torch.testing.assert_close(single.double(), exact, atol=2e-5, rtol=1e-4)
    half = FusedANANet(folded, torch.float16)(matches, lengths)
    assert (half - exact).norm() < 1e-2 * max(exact.norm(), 1.0)  # of 230 logits
    assert half[1, 90:].abs().sum() == 0
