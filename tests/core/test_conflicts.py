"""Matches that share a point: what a plain loop over all pairs of matches says, at every size, alone and in batches."""

import math

import pytest
import torch

import ananet
from ananet import Correspondences, InputError
from ananet.core.conflicts import APART, penalize_conflicts
from ananet.networks import ANANet, ANANetSettings, save_network


def crowded(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """[N] logits and [N x 4] matches of which many share a point, in either image, some from nearly the same place."""
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.rand(max(n // 2, 1), 2, generator=generator) - 0.5 for _ in range(2)]
    matches = torch.cat([end[torch.randint(len(end), (n,), generator=generator)] for end in ends], dim=1)
    close = torch.rand(n, 1, generator=generator) < 0.2
    matches = torch.where(close, matches.roll(1, 0) + torch.tensor([APART / 4, 0, 0, 0]), matches)
    return torch.randn(n, generator=generator) * 3, matches


def outdone(logits: torch.Tensor, matches: torch.Tensor) -> torch.Tensor:
    """Whether the best match at either end of a match lies apart from it at the other."""
    verdict = torch.zeros(len(logits), dtype=torch.bool)
    for n, match in enumerate(matches):
        for here, there in ((slice(0, 2), slice(2, 4)), (slice(2, 4), slice(0, 2))):
            sharing = [m for m in range(len(matches)) if torch.equal(matches[m, here], match[here])]
            best = max(sharing, key=lambda m: float(logits[m]))
            verdict[n] |= (matches[best, there] - match[there]).norm() > APART
    return verdict


@pytest.mark.parametrize("n", [0, 1, 2, 7, 64, 201])
def test_as_a_plain_loop_says(n):
    logits, matches = crowded(n)
    doubted = penalize_conflicts(logits[None], matches[None], 10.0)[0]
    expected = torch.where(outdone(logits, matches), logits - math.log(10), logits)
    torch.testing.assert_close(doubted, expected)
    assert n < 64 or 0 < (doubted < logits).sum() < n


def test_padding_conflicts_with_nothing():
    rows = [crowded(n, seed=n) for n in (5, 40, 23)]
    # The image centre has the coordinates of padding.
    rows[0][1][:2] = torch.tensor([[0.0, 0.0, 0.3, 0.3], [-0.0, 0.0, 0.1, 0.1]])
    rows[0][0][:2] = torch.tensor([-2.0, -1.0])
    logits = torch.nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)
    matches = torch.nn.utils.rnn.pad_sequence([row[1] for row in rows], batch_first=True)
    mask = torch.arange(40) < torch.tensor([[5], [40], [23]])
    together = penalize_conflicts(logits, matches, 5.0, mask)
    for row, (own_logits, own_matches) in zip(together, rows, strict=True):
        torch.testing.assert_close(
            row[: len(own_logits)], penalize_conflicts(own_logits[None], own_matches[None], 5.0)[0]
        )


def test_odds_from_none_to_infinite():
    logits, matches = crowded(80)
    torch.testing.assert_close(penalize_conflicts(logits[None], matches[None], 1.0)[0], logits)
    strict = penalize_conflicts(logits[None], matches[None], math.inf)[0]
    assert strict.isfinite().all()
    torch.testing.assert_close(strict > 0, (logits > 0) & ~outdone(logits, matches))


def test_the_pruner_doubts_conflicting_matches(tmp_path):
    torch.manual_seed(0)
    network = ANANet(ANANetSettings(blocks=1))
    torch.nn.init.constant_(network.head.bias, 1.0)  # so that it keeps all of them
    save_network(tmp_path / "w.safetensors", network)
    points = torch.rand(30, 2) * 600
    matches = Correspondences(points, points[:1].expand(30, 2), image_size0=(640, 480), image_size1=(640, 480))
    kept = {odds: ananet.load(tmp_path / "w.safetensors", conflict_odds=odds)(matches) for odds in (1, 2, math.inf)}
    assert kept[1].mask.sum() == 30
    assert kept[math.inf].mask.sum() == 1
    doubt = kept[1].logits - kept[2].logits
    torch.testing.assert_close(doubt.sort().values, torch.tensor([0.0] + [math.log(2)] * 29))
    for wrong in (0.5, -1, 0):
        with pytest.raises(InputError, match="conflict_odds: expected a number of at least 1"):
            ananet.load(tmp_path / "w.safetensors", conflict_odds=wrong)
    for wrong in (math.nan, "a", None, True):
        with pytest.raises(InputError, match="conflict_odds: expected a number, got"):
            ananet.load(tmp_path / "w.safetensors", conflict_odds=wrong)
