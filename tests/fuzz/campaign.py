"""What a fuzz case is, how many are run, and what counts as a failure.

A target prepares whatever its cases share and returns the function that runs one. A case ends in an answer, which the
target checks, or in an error of ours. Anything else, and a case that needs more than `SECONDS` of a core, is a bug.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ananet import InputError, MissingExtraError

SECONDS = 20
# A second of a core may take so many of the clock.
BUSY = 10

Case = Callable[[st.DataObject], Any]
Target = Callable[[Path], Case]
TARGETS: dict[str, Target] = {}


def target(name: str) -> Callable[[Target], Target]:
    """Adds a target to the campaign."""

    def add(prepare: Target) -> Target:
        TARGETS[name] = prepare
        return prepare

    return add


def run(name: str, folder: Path, cases: int, seed: int) -> Counter[str]:
    """Runs so many cases of a target; returns how many were answered and how many refused.

    A failure raises, with the smallest case that hypothesis finds.
    """
    case = TARGETS[name](folder)
    counts: Counter[str] = Counter(answered=0, refused=0)

    @hypothesis.seed(seed)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        try:
            with at_most(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                case(data)
        except (InputError, MissingExtraError):
            counts["refused"] += 1
        else:
            counts["answered"] += 1

    one()
    return counts


class HangError(AssertionError):
    """A case that takes too long."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ends what hangs, on a busy machine too. Code that swallows the interruption is caught by the clock."""

    def stop(*_: object) -> None:
        raise HangError(f"more than {seconds} s")

    start = time.process_time()
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, BUSY * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if time.process_time() - start > seconds:
            raise HangError(f"more than {seconds} s")
