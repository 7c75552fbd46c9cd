"""The GPU engine on the CPU, in Triton's interpreter. `attention/test_fused.py` runs this file in its own process."""

import math

import pytest
import torch

from ananet._util.seeds import generator
from ananet.core.conflicts import penalize_conflicts
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.inference.ananet.consensus import find_distances
from ananet.inference.ananet.folded import FoldedANANet
from ananet.inference.ananet.fused import FusedANANet
from ananet.networks.consensus import distance_to_consensus
from tests.core.test_conflicts import crowded
from tests.inference.test_ananet import trained


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"form": "quadratic", "share_kv": False, "side": ("ratio", "mutual"), "learnable_normalization": False},
        {"form": "cubic", "width": 64, "side": ("size", "angle", "ratio")},
        {"second_order": False, "width": 32, "heads": 2},
        {"feedback": True, "side": ("ratio", "mutual")},
        {"feedback": True, "width": 32, "heads": 1, "blocks": 3},
        {"seeds": 20},
        {"seeds": 1, "second_order": False, "width": 32, "heads": 2, "side": ("size", "mutual")},
        {"seeds": 100, "form": "quadratic", "share_kv": False, "side": ("ratio",), "width": 64, "feedback": True},
        {"seeds": 1000, "form": "quadratic", "width": 32, "heads": 2, "blocks": 3},
    ],
)
def test_agrees_with_the_network(settings, monkeypatch):
    network = trained(**{"blocks": 2, **settings})
    matches = torch.rand(2, 140, network.settings.channels) * 2 - 1
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


def test_padding_changes_no_choice_of_seeds_even_if_it_is_nan():
    engine = FusedANANet(FoldedANANet(trained(blocks=2, width=32, heads=2, seeds=20)), torch.float32)
    matches = torch.rand(3, 40, 4) * 2 - 1
    lengths = torch.tensor([40, 12, 0])
    expected = engine(matches, lengths)
    matches[torch.arange(40) >= lengths[:, None]] = math.nan
    # What no kernel writes is NaN, too.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = engine(matches, lengths)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    torch.testing.assert_close(engine(matches[1:2, :12]), expected[1:2, :12], atol=0, rtol=0)


def test_distance_to_consensus_agrees_with_the_plain_road():
    problems = synthesize(3, generator("cpu", "consensus", 0), SyntheticSettings(matches=300, min_matches=100))
    lengths = problems.mask.sum(1)
    logits = torch.where(problems.inlier, 2.0, -2.0) + torch.randn(problems.mask.shape)
    belief = torch.sigmoid(logits) * problems.mask
    found = find_distances(problems.matches, logits, lengths.int())
    expected = distance_to_consensus(problems.matches, belief)
    torch.testing.assert_close(found[problems.mask], expected[problems.mask], atol=1e-9, rtol=1e-3)


# None, too few for a solution, a whole part and a bit; all at one place.
@pytest.mark.parametrize("n", [1, 7, 129])
def test_distance_to_consensus_of_degenerate_matches_is_finite(n):
    matches = torch.full((2, n, 4), 0.3)
    found = find_distances(matches, torch.zeros(2, n), torch.tensor([n, 0], dtype=torch.int32))
    assert found[0].isfinite().all() and (found[0] <= 1).all()


# Less than a tile, several and a bit, and matches with side input.
@pytest.mark.parametrize(("n", "channels"), [(0, 4), (1, 4), (2, 4), (7, 6), (64, 4), (201, 6)])
@pytest.mark.parametrize("odds", [10.0, math.inf])
def test_doubt_in_conflicting_matches_agrees_with_the_plain_road(n, channels, odds, monkeypatch):
    rows = [crowded(n, seed) for seed in range(3)]
    logits = torch.stack([row[0] for row in rows]).round()  # so that some are equal: the first of them wins
    matches = torch.cat([torch.stack([row[1] for row in rows]), torch.rand(3, n, channels - 4)], dim=-1)
    matches[:, : n // 8, :2] = torch.tensor([0.0, -0.0])
    mask = torch.arange(n) < torch.tensor([[n], [n // 2], [0]])
    answers = {}
    for backend in ("fused", "reference"):
        monkeypatch.setenv("ANANET_ATTENTION", backend)
        answers[backend] = [
            penalize_conflicts(logits, matches, odds),
            penalize_conflicts(logits, matches, odds, mask)[mask],
        ]
    torch.testing.assert_close(answers["fused"], answers["reference"], atol=0, rtol=0)
