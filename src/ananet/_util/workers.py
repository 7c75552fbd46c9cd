"""Threads that share work between the cores: torch, OpenCV and PoseLib let other threads run while they compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import cv2
import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
# Items taken for each thread before their results are consumed.
AHEAD = 2


class Workers:
    """Threads that each work on one core; `worker_threads` makes them."""

    def __init__(self, pool: ThreadPoolExecutor, count: int) -> None:
        self.pool, self.count = pool, count

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in order, in constant memory: items are taken as their results are consumed."""
        running: deque[Future[Result]] = deque()
        for item in items:
            running.append(self.pool.submit(function, item))
            if len(running) >= AHEAD * self.count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


@contextmanager
def worker_threads(count: int | None = None) -> Iterator[Workers]:
    """So many threads, one per core for None. An error cancels what has not started.

    Many small pieces are done sooner side by side than one after the other on all cores, and results do not depend on
    the number of cores.
    """
    opencv_threads, torch_threads = cv2.getNumThreads(), torch.get_num_threads()
    # OpenCV and torch would start threads of their own in each of ours.
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    count = torch_threads if count is None else count
    pool = ThreadPoolExecutor(count, thread_name_prefix="ananet")
    try:
        yield Workers(pool, count)
    finally:
        pool.shutdown(cancel_futures=True)
        cv2.setNumThreads(opencv_threads)
        torch.set_num_threads(torch_threads)
