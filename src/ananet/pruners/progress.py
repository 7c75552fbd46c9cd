"""A sign of life from slow pruners."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ananet.pruners.base import Pruner
from ananet.pruners.chain import Chain
from ananet.pruners.learned import LearnedPruner

# Below this many matches a network on a CPU answers within a few seconds.
WORTH_A_BAR = 10_000


@contextmanager
def progress_bar(pruner: Pruner, count: int) -> Iterator[None]:
    """Show a bar on a terminal while networks prune so many matches on a CPU, if that takes long."""
    parts = pruner.pruners if isinstance(pruner, Chain) else [pruner]
    slow = [part for part in parts if isinstance(part, LearnedPruner) and part.device.type == "cpu"]
    if not slow or count <= WORTH_A_BAR or not sys.stderr.isatty():
        yield
        return
    from tqdm import tqdm

    before = [part.progress for part in slow]
    bars = []
    try:
        for part in slow:
            bar = tqdm(desc=part.name, unit="step", leave=False)
            bars.append(bar)

            def show(done: int, total: int, bar: tqdm = bar) -> None:
                bar.total = total
                bar.update(done - bar.n)

            part.progress = show
        yield
    finally:
        for bar in bars:
            bar.close()
        for part, progress in zip(slow, before, strict=True):
            part.progress = progress
