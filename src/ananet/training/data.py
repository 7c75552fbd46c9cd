"""Batches for every step: real pairs mixed with synthetic problems, large ones and small ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from ananet._util.seeds import generator
from ananet.datasets.base import Batch
from ananet.datasets.batches import BatchSettings, PairBatches
from ananet.datasets.sources import StoredPairs
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.training.settings import TrainSettings

PROBLEMS_AT_ONCE = 512


class BatchSource:
    """The batch of every step; each process has its own."""

    def __init__(
        self, settings: TrainSettings, pairs: StoredPairs | None, device: torch.device, rank: int, processes: int
    ) -> None:
        self.settings, self.device, self.rank, self.processes = settings, device, rank, processes
        self.usual = MixedBatches(settings, settings.batches, pairs, device)
        self.small: MixedBatches | None = None
        if settings.small_batches is not None and settings.small_share:
            self.small = MixedBatches(settings, settings.small_batches, pairs, device, self.usual, "small ")

    def draw(self, step: int) -> tuple[Batch, bool]:
        """The batch of a step, and whether it is full: without padding the network does less work."""
        source = self.usual
        if self.small is not None:
            # Processes that share gradients take batches of the same kind.
            draw = generator("cpu", "kind", self.settings.seed, step)
            source = self.small if torch.rand(1, generator=draw) < self.settings.small_share else self.usual
        return source.draw(step, self.rank, self.processes)


class MixedBatches:
    """Batches of real pairs mixed with synthetic problems in a set share.

    On a GPU many problems are drawn in the time of few, so batches for several steps are made at once.
    """

    def __init__(
        self,
        settings: TrainSettings,
        batches: BatchSettings,
        pairs: StoredPairs | None,
        device: torch.device,
        table_of: MixedBatches | None = None,
        stream_prefix: str = "",
    ) -> None:
        # Mixes of the same pairs share the table on the device. Mixes of one seed have random streams of their own.
        total = batches.batch_size
        share = settings.synthetic_share if pairs is not None else 1.0
        self.steps_at_once = max(1, PROBLEMS_AT_ONCE // total) if device.type == "cuda" else 1
        self.stream_prefix, self.settings, self.device = stream_prefix, settings, device
        self.synthetic = round(share * total)
        self.real: PairBatches | None = None
        matches = batches.matches
        if pairs is not None and self.synthetic < total:
            own = replace(batches, batch_size=(total - self.synthetic) * self.steps_at_once)
            left_out = (*settings.calibration_scenes, *settings.excluded_scenes)
            known = table_of.real if table_of is not None else None
            self.real = PairBatches(
                pairs,
                own,
                settings.seed,
                device,
                without=left_out,
                rule=settings.label_rule() if known is None else known.rule,
                table=None if known is None else known.table,
                stream=f"{stream_prefix}pairs",
            )
            matches = self.real.matches
        self.problems = SyntheticSettings(matches=matches, min_matches=min(batches.min_matches or matches, matches))
        self.made = -1
        self.waiting: list[Batch] = []
        self.full: list[bool] = []

    def draw(self, step: int, rank: int, processes: int) -> tuple[Batch, bool]:
        turn, place = divmod(step, self.steps_at_once)
        if self.made != turn:
            self.waiting, self.made = self._make(turn * processes + rank), turn
            # Asking the GPU makes the CPU wait, so ask once for all.
            self.full = torch.stack([batch.mask.all() for batch in self.waiting]).tolist()
        return self.waiting[place], self.full[place]

    def _make(self, number: int) -> list[Batch]:
        kinds: list[list[Batch]] = []
        if self.real is not None:
            kinds.append(_split(self.real[number], self.steps_at_once))
        if self.synthetic:
            draw = generator(self.device, f"{self.stream_prefix}synthetic", self.settings.seed, number)
            count, distance = self.synthetic * self.steps_at_once, self.settings.inlier_distance
            kinds.append(_split(synthesize(count, draw, self.problems, distance), self.steps_at_once))
        return [_concatenate(parts) for parts in zip(*kinds, strict=True)]


def _split(batch: Batch, parts: int) -> list[Batch]:
    pieces = {f.name: getattr(batch, f.name).chunk(parts) for f in fields(Batch)}
    return [Batch(**{name: values[n] for name, values in pieces.items()}) for n in range(parts)]


def _concatenate(parts: Sequence[Batch]) -> Batch:
    return Batch(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Batch)})


def known_side_input(pairs: int, kinds: int, dropout: float, draw: torch.Generator) -> Tensor:
    """[B x kinds] bool: which kinds of side input every pair shows.

    Where something is withheld it is everything in half of the cases, since many have points alone, and else any of the
    kinds, or several, equally often.
    """
    device = draw.device
    withheld = torch.rand(pairs, 1, generator=draw, device=device) < dropout
    # The bits of a number above 0 say which.
    which = torch.randint(1, 2**kinds, (pairs, 1), generator=draw, device=device)
    which = torch.where(torch.rand(pairs, 1, generator=draw, device=device) < 0.5, 2**kinds - 1, which)
    return ~(withheld & ((which >> torch.arange(kinds, device=device)) & 1).bool())
