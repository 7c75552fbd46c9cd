import dataclasses

import pytest
import torch

from ananet.core import geometry
from ananet.datasets.synthetic import SyntheticBatch, SyntheticSettings, synthesize
from ananet.errors import InputError

STATIC = SyntheticSettings(matches=200, moving=0.0)


def make(batch_size: int = 32, seed: int = 0, **changes: object) -> SyntheticBatch:
    settings = dataclasses.replace(STATIC, **changes)
    return synthesize(batch_size, torch.Generator().manual_seed(seed), settings)


def test_shapes_and_types() -> None:
    batch = make(3)
    assert batch.matches.shape == (3, 200, 4)
    for name in ("inlier", "correct", "mutual", "mask"):
        assert getattr(batch, name).shape == (3, 200) and getattr(batch, name).dtype == torch.bool
    assert batch.distance.shape == batch.ratio.shape == batch.body.shape == (3, 200)
    assert batch.R.shape == (3, 3, 3) and batch.t.shape == (3, 3)
    assert batch.focal0.shape == batch.focal1.shape == (3,)
    for field in dataclasses.fields(batch):
        if field.name not in ("sizes", "angles", "share"):
            assert torch.isfinite(getattr(batch, field.name)).all(), field.name
    for unknown in (batch.sizes, batch.angles):
        assert unknown.shape == (3, 200, 2) and unknown.isnan().all()
    assert batch.mask.all()


def test_same_seed_same_problems() -> None:
    first, again, other = make(4, seed=1), make(4, seed=1), make(4, seed=2)
    for field in dataclasses.fields(first):
        torch.testing.assert_close(
            getattr(first, field.name), getattr(again, field.name), rtol=0, atol=0, equal_nan=True
        )
    assert not torch.equal(first.matches, other.matches)


def test_poses_are_poses() -> None:
    batch = make(64)
    torch.testing.assert_close(batch.R @ batch.R.mT, torch.eye(3).expand(64, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(batch.R), torch.ones(64))
    torch.testing.assert_close(batch.t.norm(dim=1), torch.ones(64))


def test_right_matches_obey_the_pose() -> None:
    batch = make(64, noise=(1e-4, 1e-4))
    E = geometry.essential_from_pose(batch.R, batch.t)
    distance = geometry.symmetric_epipolar_distance_squared(batch.matches[..., :2], batch.matches[..., 2:], E)
    assert distance[batch.correct].max() < 1e-6
    # Right matches lie before both cameras, save those so far that a depth cannot be told.
    depth0, depth1 = geometry.depths(batch.matches[..., :2], batch.matches[..., 2:], batch.R, batch.t)
    assert ((depth0 > 0) & (depth1 > 0))[batch.correct].float().mean() > 0.99


def test_a_camera_that_only_turns_moves_all_right_matches_as_one() -> None:
    batch = make(64, still=1.0, noise=(1e-4, 1e-4))
    rays = torch.cat([batch.matches[..., :2], torch.ones_like(batch.matches[..., :1])], dim=-1) @ batch.R.mT
    shift = (rays[..., :2] / rays[..., 2:] - batch.matches[..., 2:]).norm(dim=-1)
    assert shift[batch.correct].median() < 0.01
    assert batch.inlier[batch.correct].all()


def test_labels_follow_the_distance() -> None:
    batch = make(moving=1.0)
    assert torch.equal(batch.inlier, batch.distance < 1e-4)
    E = geometry.essential_from_pose(batch.R, batch.t)
    static = geometry.symmetric_epipolar_distance_squared(batch.matches[..., :2], batch.matches[..., 2:], E)
    unmoved = ~batch.correct | (batch.body == 0)
    # t has length 1 in the batch and not inside, which rounds differently.
    near = static.sqrt().sub(batch.distance.sqrt()).abs()[unmoved]
    assert near.median() < 1e-5 and near.max() < 1e-2


def test_labels_follow_the_distance_that_is_asked_for() -> None:
    loose, tight = (
        synthesize(8, torch.Generator().manual_seed(0), STATIC, inlier_distance=limit) for limit in (1e-4, 1e-6)
    )
    assert torch.equal(loose.matches, tight.matches)
    assert torch.equal(tight.inlier, tight.distance < 1e-6)
    assert 0 < tight.inlier.sum() < loose.inlier.sum()


def test_moving_bodies_are_inliers_of_their_own_motion() -> None:
    batch = make(moving=1.0, noise=(1e-4, 1e-4), inlier_ratio=(0.5, 0.9))
    moved = batch.correct & (batch.body > 0)
    assert moved.float().mean() > 0.05
    assert batch.inlier[moved].float().mean() > 0.99
    E = geometry.essential_from_pose(batch.R, batch.t)
    static = geometry.symmetric_epipolar_distance_squared(batch.matches[..., :2], batch.matches[..., 2:], E)
    assert (static[moved] > 1e-4).float().mean() > 0.5
    assert (make().body == 0).all()


def test_share_of_right_matches() -> None:
    batch = make(256)
    share = batch.correct.float().mean(1)
    assert share.min() < 0.05 and share.max() > 0.8
    assert 0.2 < share.median() < 0.5
    exact = make(64, inlier_ratio=(0.1, 0.1)).correct.float().mean(1)
    assert exact.median().item() == pytest.approx(0.1, abs=0.005)
    assert exact.max() < 0.12


def test_side_information_tells_right_from_wrong_as_measured() -> None:
    batch = make(256)
    right, wrong = batch.correct, ~batch.correct
    assert batch.ratio.min() >= 0 and batch.ratio.max() <= 1
    assert 0.4 < batch.ratio[right].median() < 0.65
    assert 0.94 < batch.ratio[wrong].median() < 0.98
    assert batch.mutual[right].float().mean() > 0.85
    assert 0.1 < batch.mutual[wrong].float().mean() < 0.35


def test_wrong_matches_share_targets_and_at_most_one_is_mutual() -> None:
    batch = make(8, duplicates=0.0)
    for matches, mutual in zip(batch.matches, batch.mutual, strict=True):
        _, target, count = matches[:, 2:].unique(dim=0, return_inverse=True, return_counts=True)
        assert count.max() >= 3
        assert torch.zeros(len(count)).index_add(0, target, mutual.float()).max() <= 1


def test_keypoints_come_twice() -> None:
    points = make(1).matches[0, :, :2]
    assert 0.7 < len(points.unique(dim=0)) / len(points) < 0.95


def test_padding() -> None:
    batch = make(min_matches=50)
    counts = batch.mask.sum(1)
    assert counts.min() >= 50 and counts.max() <= 200 and len(counts.unique()) > 5
    padded = ~batch.mask
    assert (batch.matches[padded] == 0).all()
    for name in ("inlier", "correct", "mutual", "body", "distance", "ratio"):
        assert (getattr(batch, name)[padded] == 0).all(), name


@pytest.mark.parametrize(
    "changes", [{"near_planar": 1.0}, {"large_roll": 1.0}, {"unequal_cameras": 1.0}, {"matches": 1}]
)
def test_extreme_settings(changes: dict[str, float]) -> None:
    batch = make(**changes)
    assert torch.isfinite(batch.matches).all()


def test_unequal_cameras() -> None:
    assert (make(unequal_cameras=0.0).focal0 == make(unequal_cameras=0.0).focal1).all()
    different = make(unequal_cameras=1.0)
    assert (different.focal0 != different.focal1).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"inlier_ratio": (0.5, 1.5)},
        {"inlier_ratio": (0.5, 0.1)},
        {"baseline": (0.0, 1.0)},
        {"moving": 1.5},
        {"matches": 0},
        {"regions": 2},
        {"min_matches": 201},
    ],
)
def test_settings_are_checked(changes: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        dataclasses.replace(STATIC, **changes)


def test_batch_size_is_checked() -> None:
    with pytest.raises(InputError, match="batch_size"):
        make(0)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    batch = synthesize(8, torch.Generator("cuda").manual_seed(0), STATIC)
    assert batch.matches.is_cuda and torch.isfinite(batch.matches).all()
    assert batch.inlier[batch.correct].float().mean() > 0.95
