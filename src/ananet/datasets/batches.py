"""Training batches from a pair table, drawn and augmented on the table's device.

Batch k of a seed is always the same: `DataLoader(batches, batch_size=None, num_workers=w)` gives the same batches for
any w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ananet._util.checks import Settings, check_share, check_whole_number
from ananet._util.seeds import generator
from ananet.core.cameras import camera_matrices
from ananet.datasets import augment
from ananet.datasets.augment import Draw, Problems
from ananet.datasets.base import RATIO_STEPS, Batch, PairTable
from ananet.datasets.labels import BY_LINE, LabelRule
from ananet.datasets.sources import StoredPairs, scene_numbers
from ananet.errors import InputError

# As many pairs, evenly spread, say how many unknown matches are right; so many are looked at together.
PAIRS_TO_COUNT, PAIRS_AT_ONCE = 2000, 32


@dataclass(frozen=True)
class BatchSettings(Settings):
    """How batches are drawn. Numbers below 1 are probabilities; 0 turns a change off."""

    batch_size: int = 32
    matches: int = 2000
    """Matches of a problem, sampled from those of the pair. If it has fewer, they are repeated: batches without padding
    train faster, and attention to every match twice equals attention to every match once."""
    min_matches: int | None = None
    """If given, problems have a random number of matches from this to `matches`, log-uniform, and padding."""
    swap: float = 0.5
    """How often the two images are swapped."""
    roll: float = 0.1
    """How often each camera is turned around its axis, by any angle."""
    mirror: float = 0.5
    """How often both images are mirrored."""
    uncalibrated: float = 0.3
    """How often points are normalised by image size instead of by the cameras."""
    focal_change: float = 0.2
    """Largest change of the scale of coordinates, as log, the same for both images: a wrong focal length."""
    jitter: float = 0.3
    """Typical noise on points, in pixels."""
    outliers: float = 0.3
    """How often up to half of the matches get wrong partners."""
    dropped_inliers: float = 0.3
    """How often up to four fifths of the inliers are left out."""
    dropped_outliers: float = 0.1
    """How often four fifths to all of the outliers are left out, so that clean input occurs too."""
    far_points: float = 0.1
    """How often up to a tenth of the matches end outside the image: undistorted corners, bad keypoints."""
    second_motion: float = 0.15
    """How often a part of the first image is replaced by that of another pair of the batch: two motions in one problem,
    with the inliers of both. R, t and E are those of the first."""
    empty: float = 0.0
    """How often a problem is a pair of photos that show nothing in common, of scenes that have such pairs; all its
    matches are wrong. With the label by epipolar distance there are none."""

    def check(self) -> None:
        for name in ("batch_size", "matches"):
            check_whole_number(name, getattr(self, name), 1)
        if self.min_matches is not None:
            check_whole_number("min_matches", self.min_matches, 1, self.matches)
        for name in self.changes():
            if name not in ("focal_change", "jitter"):
                check_share(name, getattr(self, name))
            elif not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name}: expected at least 0, got {getattr(self, name)}")

    @classmethod
    def changes(cls) -> list[str]:
        """Names of the settings that change pairs."""
        return [field.name for field in fields(cls) if field.name not in ("batch_size", "matches", "min_matches")]

    @classmethod
    def unchanged(cls, batch_size: int = 32, matches: int = 2000) -> BatchSettings:
        """Settings without any change, as for validation."""
        none: dict[str, Any] = dict.fromkeys(cls.changes(), 0.0)
        return cls(batch_size=batch_size, matches=matches, **none)


class PairBatches(Dataset[Batch]):
    """An endless sequence of batches; `batches[k]` is the k-th. All scenes are equally likely."""

    def __init__(
        self,
        pairs: StoredPairs,
        settings: BatchSettings,
        seed: int = 0,
        device: str | torch.device = "cpu",
        *,
        without: Sequence[str] = (),
        rule: LabelRule = BY_LINE,
        table: PairTable | None = None,
        stream: str = "pairs",
    ) -> None:
        """Draw batches from all scenes but those named in `without`; `rule` says which matches are right.

        `table` is the table of the pairs if it is already on the device. `stream` names the random numbers, for
        independent batches of one seed.
        """
        names = pairs.scene_of_pairs()
        scenes, scene_of_pair = scene_numbers(names)
        unknown = sorted(set(without) - set(scenes))
        if unknown:
            raise InputError(f"without: no scene {', '.join(unknown)}, expected some of {', '.join(scenes)}")
        table = pairs.table() if table is None else table
        lengths = table.pair_start.diff().tolist()
        wanted = [n for n, name in enumerate(names) if name not in without and lengths[n] > 0]
        empty = (table.pair_share == 0).tolist()
        usual_pairs, empty_pairs = [n for n in wanted if not empty[n]], [n for n in wanted if empty[n]]
        if not usual_pairs:
            but = f" outside of the excluded scenes {', '.join(without)}" if without else ""
            raise InputError(f"pairs: expected at least one pair{but}, got none")
        self.settings, self.seed, self.device, self.stream = settings, seed, torch.device(device), stream
        self.longest = max(lengths)
        self.table = table.to(device)
        # Pairs sorted by scene. Only scenes with usual pairs are drawn.
        scene_of = torch.tensor(scene_of_pair)
        drawn = scene_of[usual_pairs].bincount(minlength=len(scenes)) > 0
        self.order, self.scene_start, self.scene_count = _by_scene(usual_pairs, scene_of, drawn, device)
        self.empty_order, self.empty_start, self.empty_count = _by_scene(empty_pairs, scene_of, drawn, device)
        self.draws_empty = bool(rule.labels == "depth" and settings.empty and self.empty_count.any())
        self.matches = min(settings.matches, self.longest)
        """Matches per problem: no more than the largest pair has."""
        if rule.labels == "depth" and rule.unknown_target is None:
            rule = replace(rule, unknown_target=self._share_of_right(rule))
        self.rule = rule
        """With the targets of unknown matches, counted in the table."""

    def __getitem__(self, number: int) -> Batch:
        draw = Draw(generator(self.device, self.stream, self.seed, number), self.settings.batch_size)
        scene = draw.integers(len(self.scene_count))
        pair = self.order[self.scene_start[scene] + draw.integers(self.scene_count[scene])]
        if self.draws_empty:
            count = self.empty_count[scene]
            place = self.empty_start[scene] + draw.integers(count.clamp_min(1))
            empty = self.empty_order[place.clamp_max(len(self.empty_order) - 1)]
            pair = empty.where(draw.chance(self.settings.empty) & (count > 0), pair)
        return self._changed(draw, self._gather(pair))

    def _changed(self, draw: Draw, problems: Problems) -> Batch:
        settings = self.settings
        if settings.jitter:
            problems = augment.jitter(draw, problems, settings.jitter)
        inlier, keep = problems.labels(self.rule, problems.distance())[0] > 0.5, problems.mask
        if settings.dropped_inliers:
            keep = augment.drop_inliers(draw, inlier, keep, settings.dropped_inliers)
        if settings.dropped_outliers:
            keep = augment.drop_outliers(draw, inlier, keep, settings.dropped_outliers)
        # Of empty pairs all matches stay: none is an inlier.
        keep = keep.where((problems.share != 0)[:, None], problems.mask)
        problems = augment.sample(draw, problems, keep, self.matches)
        if settings.min_matches is not None:
            problems = augment.shorten(draw, problems, min(settings.min_matches, self.matches))
        if settings.outliers:
            problems = augment.wrong_partners(draw, problems, settings.outliers)
        if settings.far_points:
            problems = augment.far_points(draw, problems, settings.far_points)
        batch = augment.as_batch(draw, problems, self.rule, settings.uncalibrated)
        for name in ("focal_change", "roll", "mirror", "swap", "second_motion"):
            if amount := getattr(settings, name):
                batch = getattr(augment, name)(draw, batch, amount)
        return batch

    def _gather(self, pair: Tensor) -> Problems:
        """Return all matches of some pairs, padded to the longest pair of the table."""
        table = self.table
        images = table.pair_images[pair]
        start, end = table.pair_start[pair], table.pair_start[pair + 1]
        number = torch.arange(self.longest, device=pair.device)
        mask = number < (end - start)[:, None]
        # Padding reads match 0 of its pair and is masked out.
        number = number * mask
        flat = start[:, None] + number
        keypoint0 = table.image_start[images[:, 0]][:, None] + number
        keypoint1 = table.image_start[images[:, 1]][:, None] + table.index[flat]
        K0, K1 = camera_matrices(table.image_camera[images]).unbind(1)
        image_size0, image_size1 = table.image_size[images].unbind(1)
        return Problems(
            points0=table.points[keypoint0],
            points1=table.points[keypoint1],
            sizes=torch.stack([table.sizes[keypoint0], table.sizes[keypoint1]], dim=-1).float(),
            angles=torch.stack([table.angles[keypoint0], table.angles[keypoint1]], dim=-1).float(),
            ratio=table.ratio[flat].float() / RATIO_STEPS,
            mutual=table.mutual[flat],
            known=table.known[flat],
            right=table.right[flat],
            mask=mask,
            K0=K0,
            K1=K1,
            image_size0=image_size0,
            image_size1=image_size1,
            R=table.pair_rotation[pair],
            t=table.pair_translation[pair],
            share=table.pair_share[pair],
        )

    def _share_of_right(self, rule: LabelRule) -> tuple[float, float]:
        """Share of right ones among the known matches near the line, of those not mutual and of mutual ones."""
        with_depth = self.order[~self.table.pair_share[self.order].isnan()]
        counted = with_depth[:: max(1, -(-len(with_depth) // PAIRS_TO_COUNT))]
        right, known = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        for some in counted.split(PAIRS_AT_ONCE):
            p = self._gather(some)
            near = p.mask & p.known & (p.distance() < rule.inlier_distance)
            for mutual in (False, True):
                of_kind = near & (p.mutual == mutual)
                known[int(mutual)] += of_kind.sum().cpu()
                right[int(mutual)] += (of_kind & p.right).sum().cpu()
        if not known.any():
            how = "build them again, from scenes of at least 4 photos"
            raise InputError(f"labels: expected pairs with known depth for 'depth', got none; {how}")
        # One right and one wrong match more, so that no share is undefined.
        of_others, of_mutual = ((right + 1) / (known + 2)).tolist()
        return of_others, of_mutual


def _by_scene(
    pairs: list[int], scene_of: Tensor, drawn: Tensor, device: str | torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pairs sorted by scene, and for the drawn scenes where each starts and how many pairs it has."""
    numbers = torch.tensor(pairs, dtype=torch.int64)
    scenes = scene_of[numbers]
    counts = scenes.bincount(minlength=len(drawn))
    starts = counts.cumsum(0) - counts
    return numbers[scenes.argsort(stable=True)].to(device), starts[drawn].to(device), counts[drawn].to(device)
