"""Requests of several clients pruned together: a network takes less time for many pairs than for one after another."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ananet._util.checks import check_positive, check_whole_number
from ananet.core.correspondences import Correspondences
from ananet.pruners import Pruned, Pruner

# How long a pair waits for company, in seconds, and how much company it may get.
MAX_WAIT, MAX_PAIRS, MAX_MATCHES = 0.005, 16, 16 * 2048


@dataclass(frozen=True, eq=False)
class _Request:
    pruner: Pruner
    pair: Correspondences
    answer: Future[Pruned] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """One thread that prunes for all: pairs that are there at the same time become one batch.

    Whoever cancels an answer before its batch starts is left out of it. A pair that cannot be pruned fails alone.

    Args:
        longest_wait: seconds that a pair may wait for others while the thread has nothing else to do.
        most_pairs, most_matches: of a batch; a pair with more matches is a batch of its own.

    >>> from ananet import load
    >>> batcher = Batcher()
    >>> pair = Correspondences([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, 0.9])
    >>> batcher.submit(load("ratio"), pair).result().mask
    array([ True, False])
    >>> batcher.close()
    """

    def __init__(
        self, longest_wait: float = MAX_WAIT, most_pairs: int = MAX_PAIRS, most_matches: int = MAX_MATCHES
    ) -> None:
        self.longest_wait = check_positive("longest_wait", longest_wait, " of seconds")
        self.most_pairs = check_whole_number("most_pairs", most_pairs, 1)
        self.most_matches = check_whole_number("most_matches", most_matches, 1)
        self.batches, self.pairs, self.matches = 0, 0, 0
        """How many were pruned so far."""
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ananet-pruning", daemon=True)
        self._thread.start()

    def submit(self, pruner: Pruner, pair: Correspondences) -> Future[Pruned]:
        """The answer to come."""
        request = _Request(pruner, pair)
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._waiting.append(request)
            self._changed.notify()
        return request.answer

    def close(self) -> None:
        """Prune what waits, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            alive = [request for request in batch if request.answer.set_running_or_notify_cancel()]
            # Networks cannot mix; the order of arrival decides which one goes first.
            for pruner in dict.fromkeys(request.pruner for request in alive):
                self._prune(pruner, [request for request in alive if request.pruner is pruner])

    def _next_batch(self) -> list[_Request]:
        """What to prune next; nothing once closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            while self._waiting and not self._closed and self._full(self._waiting) is None:
                left = self._waiting[0].since + self.longest_wait - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            count = self._full(self._waiting) or len(self._waiting)
            return [self._waiting.popleft() for _ in range(count)]

    def _full(self, requests: Sequence[_Request]) -> int | None:
        """How many of the first requests make a full batch; None where more have room."""
        matches = 0
        for number, request in enumerate(requests):
            matches += len(request.pair)
            if matches > self.most_matches:
                return max(number, 1)
            if number + 1 == self.most_pairs:
                return self.most_pairs
        return None

    def _prune(self, pruner: Pruner, requests: Sequence[_Request]) -> None:
        pairs = [request.pair for request in requests]
        try:
            answers = pruner.batch(pairs)
        except Exception as error:
            if len(requests) == 1:
                requests[0].answer.set_exception(error)
                return
            # Cameras that are missing, say: nobody pays for another's mistake.
            for request in requests:
                self._prune(pruner, [request])
            return
        self.batches += 1
        self.pairs += len(pairs)
        self.matches += sum(map(len, pairs))
        for request, answer in zip(requests, answers, strict=True):
            request.answer.set_result(answer)


class SharedPruner(Pruner):
    """A pruner for any thread, whose calls join the batches of all others."""

    def __init__(self, pruner: Pruner, batcher: Batcher) -> None:
        self.pruner, self.batcher = pruner, batcher
        self.name, self.decision = pruner.name, pruner.decision

    def logits(self, matches: Correspondences) -> Tensor:
        return torch.as_tensor(self.batch([matches])[0].logits)

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        waiting = [self.batcher.submit(self.pruner, pair) for pair in pairs]
        return [answer.result() for answer in waiting]
