from dataclasses import fields, replace

import pytest
import torch

from ananet.datasets.base import Batch
from ananet.datasets.batches import BatchSettings, PairBatches
from ananet.datasets.formats.shards import PairShards
from ananet.training import data as batch_data
from ananet.training.data import BatchSource, MixedBatches, known_side_input

CPU = torch.device("cpu")


@pytest.fixture
def pairs(data) -> PairShards:
    return PairShards(data / "pairs")


def same(a: Batch, b: Batch) -> bool:
    return all(
        torch.allclose(getattr(a, f.name), getattr(b, f.name), rtol=0, atol=0, equal_nan=True) for f in fields(Batch)
    )


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_side_input_is_withheld_in_every_way():
    known = known_side_input(3000, 2, 0.6, draw())
    shares = [(known == torch.tensor(kind)).all(1).float().mean() for kind in ([1, 1], [1, 0], [0, 1], [0, 0])]
    assert torch.stack(shares).tolist() == pytest.approx([0.4, 0.1, 0.1, 0.4], abs=0.04)
    assert known_side_input(9, 2, 0.0, draw()).all()
    four = known_side_input(3000, 4, 1.0, draw())
    assert len(four.unique(dim=0)) == 15 and not four.all(1).any(), "any of them, or several"


def test_batches_mix_real_pairs_and_synthetic_problems(settings, pairs):
    batch, full = BatchSource(settings, pairs, CPU, 0, 1).draw(0)
    assert len(batch.matches) == 4 and full == bool(batch.mask.all())
    # Sizes of keypoints are known of photos alone.
    assert batch.sizes[:2].isfinite().all() and batch.sizes[2:].isnan().all()
    for share, synthetic in ((0.0, 0), (0.25, 1), (1.0, 4)):
        batch, _ = BatchSource(replace(settings, synthetic_share=share), pairs, CPU, 0, 1).draw(0)
        assert int(batch.sizes.isnan().all((1, 2)).sum()) == synthetic
    alone, _ = BatchSource(replace(settings, pairs=None), None, CPU, 0, 1).draw(0)
    assert alone.matches.shape == (4, 128, 4) and alone.sizes.isnan().all()


def test_batches_for_several_steps_are_made_at_once(settings, pairs):
    mixed = MixedBatches(settings, settings.batches, pairs, CPU)
    mixed.steps_at_once = 3
    mixed.real = PairBatches(pairs, replace(settings.batches, batch_size=6), 0)
    made = [mixed.draw(step, 0, 1)[0] for step in range(4)]
    assert [len(batch.matches) for batch in made] == [4] * 4
    assert all(batch.sizes[:2].isfinite().all() and batch.sizes[2:].isnan().all() for batch in made)
    assert not any(same(a, b) for n, a in enumerate(made) for b in made[:n])


def test_batches_follow_from_seed_step_and_process_alone(settings, pairs):
    def batch(seed: int, step: int, rank: int, processes: int) -> Batch:
        return BatchSource(replace(settings, seed=seed), pairs, CPU, rank, processes).draw(step)[0]

    first = batch(0, 3, 0, 2)
    assert same(first, batch(0, 3, 0, 2))
    for other in ((1, 3, 0, 2), (0, 4, 0, 2), (0, 3, 1, 2)):
        assert not same(first, batch(*other))
    source = BatchSource(settings, pairs, CPU, 0, 1)
    in_order = [source.draw(step)[0] for step in range(3)]
    assert same(in_order[2], BatchSource(settings, pairs, CPU, 0, 1).draw(2)[0]), "whatever was drawn before"


def test_real_and_synthetic_halves_have_random_streams_of_their_own(settings, pairs, monkeypatch):
    from ananet.datasets import batches as real_data

    seen: dict[str, list[int]] = {"real": [], "synthetic": []}
    real = real_data.Draw

    def spied_draw(generator, batch_size):
        seen["real"].append(generator.initial_seed())
        return real(generator, batch_size)

    def spied_synthesize(batch_size, generator, *rest):
        seen["synthetic"].append(generator.initial_seed())
        return synthesize(batch_size, generator, *rest)

    synthesize = batch_data.synthesize
    monkeypatch.setattr(real_data, "Draw", spied_draw)
    monkeypatch.setattr(batch_data, "synthesize", spied_synthesize)
    small = BatchSettings(batch_size=4, matches=30)
    for seed in range(3):
        source = BatchSource(replace(settings, seed=seed, small_batches=small, small_share=0.5), pairs, CPU, 0, 1)
        for step in range(4):
            source.usual.draw(step, 0, 1)
            source.small.draw(step, 0, 1)
    assert len(seen["real"]) == len(seen["synthetic"]) == 24
    assert len({*seen["real"], *seen["synthetic"]}) == 48, "none is that of another seed, step, half or size"


def test_small_batches_come_in_their_share_of_the_steps(settings, pairs):
    small = BatchSettings(batch_size=8, matches=30, min_matches=10)
    settings = replace(settings, small_batches=small, small_share=0.25)
    sources = [BatchSource(settings, pairs, CPU, rank, 2) for rank in range(2)]
    drawn = [[source.draw(step) for source in sources] for step in range(80)]
    is_small = [len(batch.matches) == 8 for (batch, _), _ in drawn]
    assert 8 < sum(is_small) < 34
    assert is_small == [len(batch.matches) == 8 for _, (batch, _) in drawn], "processes take the same kind"
    for (batch, full), _ in drawn:
        assert full == bool(batch.mask.all())
        if len(batch.matches) == 8:
            assert batch.mask.sum(1).min() >= 10 and batch.matches.shape[1] == 30
    assert any(not full for (_, full), _ in drawn)
    assert sources[0].small.real.table.points is sources[0].usual.real.table.points, "one table serves both"


def test_without_a_share_there_are_no_small_batches(settings, pairs):
    small = BatchSettings(batch_size=8, matches=30)
    assert BatchSource(replace(settings, small_batches=small), pairs, CPU, 0, 1).small is None
    assert BatchSource(replace(settings, small_share=0.5), pairs, CPU, 0, 1).small is None


def test_labels_of_both_halves_follow_the_distance_of_the_run(settings, pairs):
    tight = replace(settings, inlier_distance=1e-6, batches=BatchSettings.unchanged(8, 128))
    batch, _ = BatchSource(tight, pairs, CPU, 0, 1).draw(0)
    assert torch.equal(batch.inlier, (batch.distance < 1e-6) & batch.mask)
    assert batch.inlier[:4].any() and batch.inlier[4:].any()


def test_scenes_kept_for_calibration_are_not_trained_on(settings, pairs):
    source = BatchSource(settings, pairs, CPU, 0, 1)
    names = pairs.scene_of_pairs()
    assert {names[number] for number in source.usual.real.order.tolist()} == {"a"}
