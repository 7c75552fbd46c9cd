"""Prune the pairs of several clients as one batch, which takes less time than one pair after another."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_whole_number
from ananet.core.correspondences import Correspondences
from ananet.pruners import Pruned, Pruner

# Seconds that a pair waits for others; pairs and matches of a batch.
MAX_WAIT, MAX_PAIRS, MAX_MATCHES = 0.005, 16, 16 * 2048


@dataclass(frozen=True, eq=False)
class _Request:
    pruner: Pruner
    pair: Correspondences
    result: Future[Pruned] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """One thread that prunes for all clients: pairs that wait at the same time become one batch.

    Results that are cancelled before their batch starts are left out. A pair that cannot be pruned fails alone. While
    the thread is idle, a pair waits at most `max_wait` seconds. A pair with more than `max_matches` is a batch alone.

    >>> from ananet import load
    >>> batcher = Batcher()
    >>> pair = Correspondences([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, 0.9])
    >>> batcher.submit(load("ratio"), pair).result().mask
    array([ True, False])
    >>> batcher.close()
    """

    def __init__(self, max_wait: float = MAX_WAIT, max_pairs: int = MAX_PAIRS, max_matches: int = MAX_MATCHES) -> None:
        self.max_wait = check_positive("max_wait", max_wait, " of seconds")
        self.max_pairs = check_whole_number("max_pairs", max_pairs, 1)
        self.max_matches = check_whole_number("max_matches", max_matches, 1)
        # Pruned so far.
        self.batches, self.pairs, self.matches = 0, 0, 0
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ananet-pruning", daemon=True)
        self._thread.start()

    def submit(self, pruner: Pruner, pair: Correspondences) -> Future[Pruned]:
        request = _Request(pruner, pair)
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._waiting.append(request)
            self._changed.notify()
        return request.result

    def close(self) -> None:
        """Prune the pairs that wait, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            alive = [request for request in batch if request.result.set_running_or_notify_cancel()]
            # One batch per pruner, in order of arrival.
            for pruner in dict.fromkeys(request.pruner for request in alive):
                self._prune(pruner, [request for request in alive if request.pruner is pruner])

    def _next_batch(self) -> list[_Request]:
        """Wait for the next batch; empty once closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            while self._waiting and not self._closed and self._full() is None:
                left = self._waiting[0].since + self.max_wait - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            count = self._full() or len(self._waiting)
            return [self._waiting.popleft() for _ in range(count)]

    def _full(self) -> int | None:
        """Return how many of the first requests fill a batch; None while the batch is not full."""
        matches = list(accumulate(len(request.pair) for request in self._waiting))
        fitting = bisect_right(matches, self.max_matches)
        full = fitting < len(matches) or fitting >= self.max_pairs
        return min(max(fitting, 1), self.max_pairs) if full else None

    def _prune(self, pruner: Pruner, requests: Sequence[_Request]) -> None:
        pairs = [request.pair for request in requests]
        try:
            results = pruner.batch(pairs)
        except Exception as error:
            if len(requests) == 1:
                requests[0].result.set_exception(error)
                return
            # One pair is wrong, for example without cameras: prune each alone.
            for request in requests:
                self._prune(pruner, [request])
            return
        self.batches += 1
        self.pairs += len(pairs)
        self.matches += sum(map(len, pairs))
        for request, result in zip(requests, results, strict=True):
            request.result.set_result(result)


class SharedPruner(Pruner):
    """A pruner for all threads that sends its pairs to the batcher."""

    def __init__(self, pruner: Pruner, batcher: Batcher) -> None:
        self.pruner, self.batcher = pruner, batcher
        self.name, self.decision = pruner.name, pruner.decision

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.as_tensor(self.batch([matches])[0].logits)

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        futures = [self.batcher.submit(self.pruner, pair) for pair in pairs]
        return [future.result() for future in futures]
