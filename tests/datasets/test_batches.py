from dataclasses import fields, replace

import pytest
import torch
from torch.utils.data import DataLoader

from ananet import InputError
from ananet.core import geometry
from ananet.datasets.base import Batch, LabelledPair
from ananet.datasets.batches import BatchSettings, PairBatches
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.formats.shards import PairShards
from ananet.datasets.labels import LabelRule
from tests.datasets.scenes import write_scene


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    write_scene(folder / "few", images=2, seed=0)
    write_scene(folder / "many", images=4, seed=7)
    settings = BuildSettings(max_keypoints=300, min_parallax=0.5)
    build_pairs(folder, folder / "out", settings, progress=False)
    return PairShards(folder / "out")


def distance_of(batch: Batch) -> torch.Tensor:
    E = geometry.essential_from_pose(batch.R, batch.t)
    return geometry.symmetric_epipolar_distance_squared(batch.matches[..., :2], batch.matches[..., 2:], E)


def same(a: Batch, b: Batch) -> bool:
    return all(
        torch.allclose(getattr(a, f.name), getattr(b, f.name), rtol=0, atol=0, equal_nan=True) for f in fields(Batch)
    )


def equal_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a[:, None] == b).all(-1)


def test_unchanged_batches_are_the_stored_pairs(pairs):
    batch = PairBatches(pairs, BatchSettings.unchanged(4, 250), seed=1)[0]
    assert batch.matches.shape == (4, 250, 4)
    torch.testing.assert_close(batch.distance, distance_of(batch) * batch.mask)
    assert torch.equal(batch.inlier, (batch.distance < 1e-4) & batch.mask)
    # Each row of a batch is a row of some stored pair.
    stored = torch.cat([pair.matches._as_tensors().normalized() for pair in pairs])
    apart, row = torch.cdist(batch.matches[0, :20].double(), stored.double()).min(1)
    assert apart.max() < 1e-5
    sizes = torch.cat([pair.matches._as_tensors().normalized_sizes() for pair in pairs])
    torch.testing.assert_close(batch.sizes[0, :20, 0], sizes[row, 0])
    assert batch.sizes.isfinite().all() and batch.angles.isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        {"swap": 1.0},
        {"roll": 1.0},
        {"mirror": 1.0},
        {"jitter": 1.0},
        {"outliers": 1.0},
        {"dropped_inliers": 1.0},
        {"far_points": 1.0},
        {"min_matches": 30},
    ],
)
def test_changes_keep_points_pose_and_labels_together(pairs, change):
    settings = {**vars(BatchSettings.unchanged(8, 250)), **change}
    batch = PairBatches(pairs, BatchSettings(**settings), seed=2)[0]
    plain = PairBatches(pairs, BatchSettings.unchanged(8, 250), seed=2)[0]
    assert not torch.equal(batch.matches, plain.matches)
    torch.testing.assert_close(batch.distance, distance_of(batch) * batch.mask, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(batch.R @ batch.R.mT, torch.eye(3).expand(8, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(batch.R), torch.ones(8))


def test_a_second_motion_takes_a_disc_of_the_first_image(pairs):
    plain = BatchSettings.unchanged(8, 250)
    before = PairBatches(pairs, plain, seed=2)[0]
    after = PairBatches(pairs, replace(plain, second_motion=1.0), seed=2)[0]
    assert torch.equal(after.R, before.R)
    for n in range(8):
        own, theirs = before.matches[n], before.matches[n - 1]
        from_own, from_theirs = (equal_rows(after.matches[n], rows).any(1) for rows in (own, theirs))
        assert (from_own | from_theirs).all()
        new = after.matches[n, from_theirs & ~from_own, :2]
        assert len(new) / 250 < 0.65  # few where the neighbour happens to be the same pair
        # Labels go with their matches.
        both = torch.cat([own, theirs])
        labels = torch.cat([before.inlier[n], before.inlier[n - 1]])
        assert torch.equal(after.inlier[n], labels[equal_rows(after.matches[n], both).long().argmax(1)])


def test_scale_changes_leave_labels_alone(pairs):
    for change in ({"uncalibrated": 1.0}, {"focal_change": 0.5}):
        settings = {**vars(BatchSettings.unchanged(8, 250)), **change}
        batch = PairBatches(pairs, BatchSettings(**settings), seed=2)[0]
        plain = PairBatches(pairs, BatchSettings.unchanged(8, 250), seed=2)[0]
        assert 0.2 < plain.inlier.float().mean() < 1
        assert batch.inlier.float().mean() == pytest.approx(plain.inlier.float().mean().item(), abs=0.1)


def test_inlier_ratio_falls_with_outliers_and_drops(pairs):
    plain = PairBatches(pairs, BatchSettings.unchanged(16, 250), seed=3)[0]
    for change in ({"outliers": 1.0}, {"dropped_inliers": 1.0}):
        settings = {**vars(BatchSettings.unchanged(16, 250)), **change}
        changed = PairBatches(pairs, BatchSettings(**settings), seed=3)[0]
        share = changed.inlier.sum() / changed.mask.sum()
        assert share < plain.inlier.sum() / plain.mask.sum() - 0.05


def test_outliers_are_left_out_up_to_all_of_them(pairs):
    settings = replace(BatchSettings.unchanged(16, 250), dropped_outliers=1.0)
    share = PairBatches(pairs, settings, seed=3)[0].inlier.float().mean(1)
    assert (share > 0.5).all() and (share == 1).any() and (share < 1).any()


def test_pairs_with_few_matches_are_repeated(pairs):
    settings = replace(BatchSettings.unchanged(4, 300), dropped_inliers=1.0)
    batch = PairBatches(pairs, settings, seed=3)[0]
    assert batch.mask.all() and batch.matches.shape[1] == int(pairs.table().pair_start.diff().max())
    assert any(len(rows.unique(dim=0)) < batch.matches.shape[1] - 50 for rows in batch.matches)


def test_scenes_are_drawn_evenly(pairs):
    # Translations that tell which scene a pair is of.
    marked = replace(pairs.table(), pair_translation=torch.eye(3)[pairs.pair_scene])
    batches = PairBatches(pairs, BatchSettings.unchanged(64, 10), table=marked)
    share = torch.cat([batches[number].t for number in range(8)]).mean(0)
    assert 0.4 < share[0] < 0.6
    assert share[:2].sum() == 1


def test_same_seed_same_batches_whatever_the_workers(pairs):
    batches = PairBatches(pairs, BatchSettings(4, 100), seed=5)
    expected = [batches[number] for number in range(4)]
    assert all(same(a, b) for a, b in zip(expected, (batches[n] for n in range(4)), strict=True))
    assert not same(expected[0], expected[1])
    assert not same(expected[0], PairBatches(pairs, BatchSettings(4, 100), seed=6)[0])
    for workers in (0, 2):
        loader = DataLoader(batches, batch_size=None, sampler=range(4), num_workers=workers)
        assert all(same(a, b) for a, b in zip(expected, loader, strict=True))


def test_small_problems_are_padded(pairs):
    settings = replace(BatchSettings.unchanged(32, 250), min_matches=10)
    batch = PairBatches(pairs, settings, seed=3)[0]
    counts = batch.mask.sum(1)
    assert counts.min() >= 10 and counts.max() <= 250 and len(counts.unique()) > 10
    assert counts.float().median() < 100, "small ones are as frequent as large ones"
    assert (batch.matches[~batch.mask] == 0).all() and not batch.inlier[~batch.mask].any()
    assert batch.inlier.any(1).all()


def test_some_points_lie_outside_of_the_second_image(pairs):
    batches = [
        PairBatches(pairs, replace(BatchSettings.unchanged(8, 250), far_points=p), seed=3)[0] for p in (0.0, 1.0)
    ]
    # Half of 320 x 240 pixels at a focal length of 280.
    outside = [((batch.matches[..., 2:].abs() > torch.tensor([160.5 / 280, 120.5 / 280])).any(-1)) for batch in batches]
    assert not outside[0].any()
    assert 0 < outside[1].float().mean() < 0.1


def test_inliers_of_the_given_distance_are_dropped_and_no_others(pairs):
    tight = 1e-6
    settings = replace(BatchSettings.unchanged(8, 300), dropped_inliers=1.0)
    batch = PairBatches(pairs, settings, seed=3, rule=LabelRule(tight))[0]
    assert torch.equal(batch.inlier, (batch.distance < tight) & batch.mask)
    left_out = 0
    for rows in batch.matches:
        # Of the pair that the rows come from, most are there.
        points = [pair.matches._as_tensors().normalized().double() for pair in pairs]
        found = [(torch.cdist(points_of, rows.double()) < 1e-6).any(1) for points_of in points]
        number = max(range(len(pairs)), key=lambda n, found=found: int(found[n].sum()))
        there, distance = found[number], pairs[number].distance
        # Those at the edge may be rounded to either side.
        assert there[distance > 1.01 * tight].all(), "what is no inlier here stays"
        assert (distance[there] < 1e-4).any()
        left_out += int((~there).sum())
    assert left_out > 20


def test_scenes_can_be_left_out(pairs):
    marked = replace(pairs.table(), pair_translation=torch.eye(3)[pairs.pair_scene])
    batch = PairBatches(pairs, BatchSettings.unchanged(64, 10), without=("few",), table=marked)[0]
    assert (batch.t == torch.eye(3)[1]).all()
    with pytest.raises(InputError, match="without: no scene other, expected some of few, many"):
        PairBatches(pairs, BatchSettings(), without=("other",))
    with pytest.raises(InputError, match="at least one pair outside of the excluded scenes few, many"):
        PairBatches(pairs, BatchSettings(), without=("few", "many"))


def with_depth(table, empty=(), unknown=0.0):
    """The table with depth: near the line every third match is accidental, some are unknown; some pairs are empty."""
    of_pair = torch.arange(table.pairs).repeat_interleave(table.pair_start.diff())
    number = torch.arange(len(table.index))
    is_empty = torch.isin(torch.arange(table.pairs), torch.tensor(empty, dtype=torch.int64))
    distance = torch.cat([pair.distance for pair in pairs_of(table)])
    known = (torch.rand(len(number), generator=torch.Generator().manual_seed(0)) >= unknown) | is_empty[of_pair]
    right = known & (distance < 1e-4) & (number % 3 > 0) & ~is_empty[of_pair]
    return replace(table, known=known, right=right, pair_share=torch.where(is_empty, 0.0, 0.5))


def pairs_of(table):
    return [
        LabelledPair.from_pose("", table.matches(n), table.pair_rotation[n], table.pair_translation[n])
        for n in range(table.pairs)
    ]


def test_batches_by_depth_have_the_labels_of_the_table(pairs):
    table = with_depth(pairs.table(), unknown=0.3)
    rule = LabelRule(labels="depth", accidental_weight=2.0)
    batches = PairBatches(pairs, BatchSettings.unchanged(8, 250), seed=1, rule=rule, table=table)
    batch = batches[0]
    near = batch.distance < 1e-4
    assert not batch.target[~near].any() and (batch.weight[~near] == 1).all()
    kinds = {(round(t, 3), w) for t, w in zip(batch.target[near].tolist(), batch.weight[near].tolist(), strict=True)}
    others, mutual = (round(share, 3) for share in batches.rule.unknown_target)
    assert kinds == {(1, 1), (0, 2), (others, 0), (mutual, 0)}
    for share, is_mutual in zip(batches.rule.unknown_target, (False, True), strict=True):
        of_pairs = torch.cat([pair.distance for pair in pairs_of(table)]) < 1e-4
        counted = of_pairs & table.known & (table.mutual == is_mutual)
        assert share == pytest.approx((counted & table.right).sum().item() / counted.sum().item(), abs=0.02)
    assert torch.equal(batch.matches, PairBatches(pairs, BatchSettings.unchanged(8, 250), seed=1)[0].matches)


def test_pairs_with_nothing_in_common_come_as_often_as_asked_for(pairs):
    names = pairs.scene_of_pairs()
    empty = [n for n, name in enumerate(names) if name == "many"][:2]
    table = with_depth(pairs.table(), empty)
    rule = LabelRule(labels="depth")

    def drawn(rule, **settings):
        changes = {**vars(BatchSettings(64, 100)), **settings}
        batches = PairBatches(pairs, BatchSettings(**changes), rule=rule, table=table)
        return [batches[number] for number in range(4)]

    for share in (0.0, 0.5, 1.0):
        found = drawn(rule, empty=share)
        is_empty = torch.cat([batch.share == 0 for batch in found])
        # Half of the draws are of the scene that has some.
        assert is_empty.float().mean() == pytest.approx(share / 2, abs=0.08)
        target, mask = (torch.cat([getattr(batch, name) for batch in found]) for name in ("target", "mask"))
        assert not target[is_empty].any() and mask[is_empty].all() and target[~is_empty].any(1).float().mean() > 0.95
    assert all((batch.share == 0.5).all() for batch in drawn(LabelRule(), empty=1.0)), "by the line there are none"
    kept = drawn(rule, empty=1.0, dropped_outliers=1.0, outliers=0.0, far_points=0.0)[0]
    counts = [len(rows.unique(dim=0)) for rows in kept.matches[kept.share == 0]]
    assert min(counts) > 90, "nothing is dropped of an empty pair"


def test_what_is_left_out_follows_the_label_by_depth(pairs):
    table = with_depth(pairs.table())

    def accidental_share(**change):
        settings = replace(BatchSettings.unchanged(16, 250), **change)
        batch = PairBatches(pairs, settings, seed=3, rule=LabelRule(labels="depth"), table=table)[0]
        near = batch.distance < 1e-4
        return ((batch.target == 0) & near).sum() / near.sum()

    assert accidental_share() == pytest.approx(1 / 3, abs=0.05)
    assert accidental_share(dropped_outliers=1.0) < 0.1
    assert accidental_share(dropped_inliers=1.0) > 0.4


def test_labels_by_depth_need_depth(pairs):
    table = replace(pairs.table(), pair_share=torch.full((len(pairs),), torch.nan))
    with pytest.raises(InputError, match="labels: expected pairs with known depth for 'depth', got none"):
        PairBatches(pairs, BatchSettings(), rule=LabelRule(labels="depth"), table=table)


def test_any_stored_pairs_give_batches(pairs, tmp_path):
    pytest.importorskip("h5py")
    from ananet.datasets.formats.oanet import OANetDump
    from tests.datasets.oanet_dumps import write_oanet_dump

    write_oanet_dump(tmp_path / "dump.h5", pairs)
    batch = PairBatches(OANetDump(tmp_path / "dump.h5"), BatchSettings(4, 100))[0]
    assert batch.matches.shape == (4, 100, 4) and batch.matches.isfinite().all()
    assert batch.sizes.isnan().all() and batch.angles.isnan().all(), "a dump does not know them"


def test_wrong_settings():
    for wrong in (
        {"batch_size": 0},
        {"swap": 2.0},
        {"jitter": -1.0},
        {"min_matches": 0},
        {"min_matches": 2001},
        {"far_points": 1.5},
        {"empty": 1.5},
        {"matches": 2.5},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            BatchSettings(**wrong)
