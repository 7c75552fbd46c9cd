"""A sign of life from slow pruners."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ananet.inference.calls import DeviceCalls
from ananet.pruners.auto import Auto
from ananet.pruners.base import Pruner
from ananet.pruners.chain import Chain
from ananet.pruners.learned import LearnedPruner

# Below this many matches a network on a CPU answers within a few seconds.
WORTH_A_BAR = 10_000


@contextmanager
def progress_bar(pruner: Pruner, count: int) -> Iterator[None]:
    """Show a bar on a terminal while networks prune `count` matches on a CPU, if that takes long.

    On a GPU only a first call takes long, and a line says so.
    """
    terminal = sys.stderr.isatty()
    before_line, DeviceCalls.tell = DeviceCalls.tell, partial(print, file=sys.stderr) if terminal else None
    try:
        with _bar(pruner, terminal and count > WORTH_A_BAR):
            yield
    finally:
        DeviceCalls.tell = before_line


@contextmanager
def _bar(pruner: Pruner, shown: bool) -> Iterator[None]:
    # Only then, since a pruner that chooses among networks loads them all to be asked.
    slow = [network for network in _networks(pruner) if network.device.type == "cpu"] if shown else []
    if not slow:
        yield
        return
    from tqdm import tqdm

    before = [part.progress for part in slow]
    bars: dict[str, tqdm] = {}

    def show(name: str, done: int, total: int) -> None:
        # Made with the first step, which only one of several networks may take.
        bar = bars.get(name) or bars.setdefault(name, tqdm(desc=name, total=total, unit="step", leave=False))
        bar.update(done - bar.n)

    try:
        for part in slow:
            part.progress = partial(show, part.name)
        yield
    finally:
        for bar in bars.values():
            bar.close()
        for part, progress in zip(slow, before, strict=True):
            part.progress = progress


def _networks(pruner: Pruner) -> list[LearnedPruner]:
    """All networks that a pruner may run."""
    if isinstance(pruner, Chain):
        return [network for part in pruner.pruners for network in _networks(part)]
    if isinstance(pruner, Auto):
        return pruner.networks
    return [pruner] if isinstance(pruner, LearnedPruner) else []
