"""Time spent in each step of a job."""

import time


class Stopwatch:
    """Collects the milliseconds between laps.

    >>> watch = Stopwatch()
    >>> watch.lap("read")
    >>> list(watch.milliseconds)
    ['read']
    """

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        now = time.perf_counter()
        self.milliseconds[step] = (now - self._last) * 1000
        self._last = now
