"""Progress of slow pruners."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from ananet.pruners.base import Pruner
from ananet.pruners.chain import Chain
from ananet.pruners.learned import LearnedPruner

# Below this many matches a network on a CPU takes a few seconds at most.
WORTH_A_BAR = 10_000


@contextmanager
def progress_bar(pruner: Pruner, count: int) -> Iterator[None]:
    """Show a bar on a terminal while networks prune `count` matches on a CPU, if that takes long.

    On a GPU only a first call takes long, and a line says so.
    """
    shown = sys.stderr.isatty() and (count > WORTH_A_BAR or torch.cuda.is_available())
    networks = _networks(pruner) if shown else []
    for network in networks:
        if network.calls is not None:
            network.calls.notify = partial(print, file=sys.stderr)
    slow = [network for network in networks if network.device.type == "cpu" and count > WORTH_A_BAR]
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
    return [pruner] if isinstance(pruner, LearnedPruner) else []
