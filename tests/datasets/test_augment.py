"""Every change keeps what belongs together together: points, keypoint sizes and angles, pose, label."""

import math
from dataclasses import fields, replace

import pytest
import torch

from ananet.core import geometry
from ananet.datasets import augment
from ananet.datasets.augment import Draw, Problems
from ananet.datasets.base import Batch
from ananet.datasets.labels import BY_LINE, LabelRule
from tests.conftest import make_problem

PAIRS, MATCHES = 6, 80


def draw(seed: int = 0, batch_size: int = PAIRS) -> Draw:
    return Draw(torch.Generator().manual_seed(seed), batch_size)


def make_problems(inliers: int = 50, outliers: int = 30) -> Problems:
    """Different pairs, all cameras the same."""
    problems = [make_problem(inliers, outliers, seed=seed) for seed in range(PAIRS)]
    made = [problem.matches.to("cpu") for problem in problems]
    generator = torch.Generator().manual_seed(9)
    count = inliers + outliers
    K = made[0].K0.float().expand(PAIRS, 3, 3)
    size = torch.tensor([640.0, 480.0]).expand(PAIRS, 2)
    made_up = Problems(
        points0=torch.stack([one.points0 for one in made]).float(),
        points1=torch.stack([one.points1 for one in made]).float(),
        sizes=2 + 30 * torch.rand(PAIRS, count, 2, generator=generator),
        angles=2 * math.pi * torch.rand(PAIRS, count, 2, generator=generator),
        ratio=torch.stack([one.ratio for one in made]),
        mutual=torch.stack([one.mutual for one in made]),
        known=torch.rand(PAIRS, count, generator=generator) < 0.7,
        right=torch.zeros(PAIRS, count, dtype=torch.bool),
        mask=torch.ones(PAIRS, count, dtype=torch.bool),
        K0=K,
        K1=K,
        image_size0=size,
        image_size1=size,
        R=torch.stack([one.R for one in problems]).float(),
        t=torch.stack([one.t for one in problems]).float(),
        share=torch.full((PAIRS,), 0.5),
    )
    # Of the known matches near the line nine in ten are right.
    right = made_up.known & (made_up.distance() < 1e-4) & (torch.rand(PAIRS, count, generator=generator) < 0.9)
    return replace(made_up, right=right)


def with_tips(problems: Problems) -> Problems:
    """After the keypoints, as matches of their own, the points one size away in their directions."""

    def tip(points: torch.Tensor, n: int) -> torch.Tensor:
        size, angle = problems.sizes[..., n, None], problems.angles[..., n]
        return torch.cat([points, points + size * torch.stack([angle.cos(), angle.sin()], dim=-1)], dim=1)

    twice = {name: getattr(problems, name).repeat(1, 2) for name in ("ratio", "mutual", "known", "right", "mask")}
    return replace(
        problems,
        points0=tip(problems.points0, 0),
        points1=tip(problems.points1, 1),
        sizes=problems.sizes.repeat(1, 2, 1),
        angles=problems.angles.repeat(1, 2, 1),
        **twice,
    )


def assert_tips_fit(batch: Batch) -> None:
    """Sizes and angles say where the tips are."""
    keypoints, tips = batch.matches.chunk(2, dim=1)
    sizes, angles = batch.sizes[:, : keypoints.shape[1]], batch.angles[:, : keypoints.shape[1]]
    for n in range(2):
        step = tips[..., 2 * n : 2 * n + 2] - keypoints[..., 2 * n : 2 * n + 2]
        expected = sizes[..., n, None] * torch.stack([angles[..., n].cos(), angles[..., n].sin()], dim=-1)
        torch.testing.assert_close(step, expected, atol=1e-5, rtol=1e-3)


def assert_distance_fits(batch: Batch) -> None:
    E = geometry.essential_from_pose(batch.R, batch.t)
    distance = geometry.symmetric_epipolar_distance_squared(batch.matches[..., :2], batch.matches[..., 2:], E)
    torch.testing.assert_close(distance * batch.mask, batch.distance, atol=1e-5, rtol=1e-2)


@pytest.fixture
def problems() -> Problems:
    return make_problems()


@pytest.fixture
def batch(problems) -> Batch:
    return augment.as_batch(draw(), with_tips(problems), BY_LINE, 0.0)


@pytest.mark.parametrize("uncalibrated", [0.0, 1.0])
def test_sizes_are_normalised_as_points_are(problems, uncalibrated):
    batch = augment.as_batch(draw(), with_tips(problems), BY_LINE, uncalibrated)
    assert_tips_fit(batch)
    expected = problems.sizes / (500 if not uncalibrated else 0.7 * 640)
    torch.testing.assert_close(batch.sizes[:, :MATCHES], expected)


@pytest.mark.parametrize("name", ["swap", "mirror", "roll", "focal_change"])
def test_sizes_and_angles_follow_the_images(batch, name):
    assert_tips_fit(batch)
    changed = getattr(augment, name)(draw(1), batch, 1.0)
    assert not torch.equal(changed.matches, batch.matches)
    assert_tips_fit(changed)
    if name != "focal_change":
        assert_distance_fits(changed)
    assert torch.equal(changed.inlier, batch.inlier)


@pytest.mark.parametrize("name", ["swap", "mirror", "roll", "focal_change"])
def test_what_is_not_known_stays_unknown(batch, name):
    unknown = replace(
        batch, sizes=torch.full_like(batch.sizes, math.nan), angles=torch.full_like(batch.sizes, math.nan)
    )
    changed = getattr(augment, name)(draw(1), unknown, 1.0)
    assert changed.sizes.isnan().all() and changed.angles.isnan().all() and changed.matches.isfinite().all()


@pytest.mark.parametrize("name", ["swap", "mirror", "roll", "focal_change", "second_motion"])
def test_a_probability_of_nothing_changes_nothing(batch, name):
    changed = getattr(augment, name)(draw(1), batch, 0.0)
    for field in fields(Batch):
        torch.testing.assert_close(getattr(changed, field.name), getattr(batch, field.name), msg=field.name)


def test_a_swap_exchanges_the_images(batch):
    changed = augment.swap(draw(1), batch, 1.0)
    assert torch.equal(changed.matches, batch.matches[..., [2, 3, 0, 1]])
    assert torch.equal(changed.sizes, batch.sizes.flip(-1)) and torch.equal(changed.angles, batch.angles.flip(-1))
    torch.testing.assert_close(changed.R, batch.R.mT)


def test_a_mirror_turns_left_to_right(batch):
    changed = augment.mirror(draw(1), batch, 1.0)
    assert torch.equal(changed.matches, batch.matches * torch.tensor([-1, 1, -1, 1]))
    assert torch.equal(changed.sizes, batch.sizes)
    torch.testing.assert_close(torch.linalg.det(changed.R), torch.ones(PAIRS))


def test_each_camera_rolls_on_its_own(batch):
    changed = augment.roll(draw(1), batch, 1.0)
    by = (changed.angles - batch.angles)[:, 0]
    assert len(by.flatten().unique()) == 2 * PAIRS
    torch.testing.assert_close(changed.matches[..., :2].norm(dim=-1), batch.matches[..., :2].norm(dim=-1))


def test_a_second_motion_brings_all_that_belongs_to_a_match(batch):
    changed = augment.second_motion(draw(1), batch, 1.0)

    def rows(of: Batch, n: int) -> set[tuple[float, ...]]:
        more = torch.stack([of.ratio[n], of.inlier[n], of.target[n], of.weight[n]], 1)
        values = torch.cat([of.matches[n], of.sizes[n], of.angles[n], more], 1)
        return {tuple(row) for row in values.tolist()}

    for n in range(PAIRS):
        own, theirs, now = rows(batch, n), rows(batch, n - 1), rows(changed, n)
        assert now <= own | theirs
        assert 0.05 < len(now & theirs) / len(own) < 0.65
    assert torch.equal(changed.R, batch.R) and torch.equal(changed.t, batch.t)


def test_jitter_moves_points_by_some_pixels(problems):
    moved = augment.jitter(draw(1), problems, 0.5)
    for name in ("points0", "points1"):
        assert (getattr(moved, name) - getattr(problems, name)).std() == pytest.approx(0.5, rel=0.1)


def test_inliers_are_left_out_up_to_four_fifths(problems):
    inlier = problems.distance() < 1e-4
    keep = augment.drop_inliers(draw(1), inlier, problems.mask, 1.0)
    assert keep[~inlier].all()
    share = (keep & inlier).sum(1) / inlier.sum(1)
    assert share.min() > 0.05 and share.min() < 0.7 and len(share.unique()) > 1
    assert torch.equal(augment.drop_inliers(draw(1), inlier, problems.mask, 0.0), problems.mask)


def test_outliers_are_left_out_but_something_stays(problems):
    inlier = problems.distance() < 1e-4
    keep = augment.drop_outliers(draw(1), inlier, problems.mask, 1.0)
    assert keep[inlier].all() and (keep & ~inlier).sum() < 0.25 * (~inlier).sum()
    none = torch.zeros_like(inlier)
    assert augment.drop_outliers(draw(1), none, problems.mask, 1.0).any(1).all()


def test_a_sample_takes_kept_matches_and_repeats_where_there_are_few(problems):
    keep = torch.arange(MATCHES) < torch.tensor([80, 40, 7, 1, 80, 0])[:, None]
    taken = augment.sample(draw(1), problems, keep, 40)
    assert taken.points0.shape == (PAIRS, 40, 2) and taken.sizes.shape == (PAIRS, 40, 2)
    assert taken.mask.sum(1).tolist() == [40, 40, 40, 40, 40, 0]
    for n, different in enumerate((40, 40, 7, 1, 40)):
        rows = torch.cat([taken.points0[n], taken.sizes[n], taken.angles[n], taken.ratio[n, :, None]], 1)
        allowed = torch.cat(
            [problems.points0[n], problems.sizes[n], problems.angles[n], problems.ratio[n, :, None]], 1
        )[keep[n]]
        assert len(rows.unique(dim=0)) == different
        assert (rows[:, None] == allowed).all(-1).any(1).all()


def test_short_problems_are_as_frequent_as_long_ones():
    problems = make_problems(50, 30)
    many = Draw(torch.Generator().manual_seed(0), 600)
    wide = replace(problems, mask=torch.ones(600, 2000, dtype=torch.bool))
    counts = augment.shorten(many, wide, 20).mask.sum(1).float()
    assert counts.min() >= 20 and counts.max() <= 2000
    # Half of them lie below the geometric mean.
    assert (counts < math.sqrt(20 * 2000)).float().mean() == pytest.approx(0.5, abs=0.07)
    mask = augment.shorten(draw(1), problems, 10).mask
    assert torch.equal(mask, torch.arange(MATCHES) < mask.sum(1, keepdim=True)), "the first ones stay"


def test_wrong_partners_bring_their_size_and_angle(problems):
    changed = augment.wrong_partners(draw(1), problems, 1.0)
    assert torch.equal(changed.points0, problems.points0)
    assert torch.equal(changed.sizes[..., 0], problems.sizes[..., 0])
    moved = (changed.points1 != problems.points1).any(-1)
    assert 0.05 < moved.float().mean() < 0.5
    for n in range(PAIRS):
        now = torch.cat([changed.points1[n], changed.sizes[n, :, 1:], changed.angles[n, :, 1:]], 1)
        seconds = torch.cat([problems.points1[n], problems.sizes[n, :, 1:], problems.angles[n, :, 1:]], 1)
        assert (now[:, None] == seconds).all(-1).any(1).all()
    assert changed.ratio[moved].median() > 0.9 and (changed.ratio <= 1).all()


def test_padding_gets_no_partners_and_is_nobodys_partner(problems):
    short = replace(problems, mask=torch.arange(MATCHES).expand(PAIRS, -1) < 20)
    changed = augment.wrong_partners(draw(1), short, 1.0)
    assert torch.equal(changed.points1[:, 20:], short.points1[:, 20:])
    for n in range(PAIRS):
        assert (changed.points1[n, :20, None] == short.points1[n, :20]).all(-1).any(1).all()


def test_far_points_leave_the_second_image(problems):
    changed = augment.far_points(draw(1), problems, 1.0)
    moved = (changed.points1 != problems.points1).any(-1)
    assert moved.any() and moved.float().mean() < 0.12
    size = torch.tensor([640.0, 480.0])
    far = changed.points1[moved]
    assert ((far < 0) | (far >= size)).any(-1).all()
    assert ((far >= -size) & (far <= 2 * size)).all(), "up to one image away"
    assert torch.equal(changed.points0, problems.points0)
    assert torch.equal(augment.far_points(draw(1), problems, 0.0).points1, problems.points1)


def test_labels_follow_the_distance_that_is_asked_for(problems):
    loose, tight = (augment.as_batch(draw(), problems, LabelRule(limit), 0.0) for limit in (1e-4, 1e-7))
    assert torch.equal(loose.inlier, loose.distance < 1e-4) and torch.equal(tight.inlier, loose.distance < 1e-7)
    assert tight.inlier.sum() < loose.inlier.sum()


def test_padding_is_zero(problems):
    short = replace(problems, mask=torch.arange(MATCHES).expand(PAIRS, -1) < 20)
    batch = augment.as_batch(draw(), short, BY_LINE, 0.5)
    for name in ("matches", "inlier", "target", "weight", "distance", "ratio", "mutual", "mask"):
        assert not getattr(batch, name)[:, 20:].any(), name


BY_DEPTH = LabelRule(labels="depth", unknown_weight=0.4, accidental_weight=2.0, unknown_target=(0.3, 0.8))


@pytest.mark.parametrize("name", ["swap", "mirror", "roll", "focal_change"])
def test_labels_by_depth_stay_with_their_matches(problems, name):
    batch = augment.as_batch(draw(), problems, BY_DEPTH, 0.0)
    assert torch.equal(batch.inlier, batch.target > 0.5)
    assert (batch.inlier != (batch.distance < 1e-4)).any()
    changed = getattr(augment, name)(draw(1), batch, 1.0)
    for field in ("inlier", "target", "weight", "share"):
        assert torch.equal(getattr(changed, field), getattr(batch, field)), field


def test_jitter_leaves_labels_by_depth_alone(problems):
    moved = augment.jitter(draw(1), problems, 3.0)
    assert torch.equal(moved.known, problems.known) and torch.equal(moved.right, problems.right)


@pytest.mark.parametrize("name", ["wrong_partners", "far_points"])
def test_what_was_moved_away_is_known_to_be_wrong(problems, name):
    changed = getattr(augment, name)(draw(1), problems, 1.0)
    moved = (changed.points1 - problems.points1).norm(dim=-1) > augment.SAME_PLACE
    assert (moved & problems.right).any() and (moved & ~problems.known).any()
    assert torch.equal(changed.known, problems.known | moved) and torch.equal(changed.right, problems.right & ~moved)


def test_a_partner_at_the_same_place_is_as_right_as_before(problems):
    twice = problems.pick(torch.zeros(PAIRS, MATCHES, dtype=torch.int64))
    changed = augment.wrong_partners(draw(1), twice, 1.0)
    assert torch.equal(changed.right, twice.right) and torch.equal(changed.known, twice.known)


def test_a_pair_with_nothing_in_common_gets_no_second_motion(problems):
    share = torch.tensor([0.0, 0.5, 0.5, 0.0, 0.5, 0.5])
    batch = augment.as_batch(draw(), replace(problems, share=share), BY_DEPTH, 0.0)
    changed = augment.second_motion(draw(1), batch, 1.0)
    assert not changed.target[share == 0].any() and torch.equal(changed.share, share)
    assert (changed.target.sum(1) < batch.target.sum(1))[[1, 4]].all(), "the disc of an empty pair is wrong"


def test_whole_numbers_stay_below_their_bound():
    below = torch.tensor([1, 2, 5])
    numbers = draw(0, 1000).integers(below, 3)
    assert (numbers >= 0).all() and (numbers < below).all()
    assert [len(column.unique()) for column in numbers.T] == [1, 2, 5]


@pytest.mark.parametrize("uncalibrated", [0.0, 1.0])
def test_the_true_geometry_is_that_of_the_matches_as_they_are_normalised(uncalibrated):
    problems = make_problems(inliers=80, outliers=0)
    batch = augment.as_batch(draw(), problems, BY_LINE, uncalibrated)
    for change in (
        lambda batch: batch,
        lambda batch: augment.focal_change(draw(1), batch, 0.5),
        lambda batch: augment.roll(draw(2), batch, 1.0),
        lambda batch: augment.mirror(draw(3), batch, 1.0),
        lambda batch: augment.swap(draw(4), batch, 1.0),
    ):
        batch = change(batch)
        found = geometry.symmetric_epipolar_distance_squared(batch.matches[..., :2], batch.matches[..., 2:], batch.E)
        # A few tenths of a pixel of noise, in focal lengths; a wrong geometry would be off by tenths of those.
        assert found.sqrt().median() < 1e-3 and found.max() < 1e-4
