"""The interface of all pruners, learned and classical, and their result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from ananet._util.devices import use_one_thread_after_fork
from ananet.core.correspondences import Array, Correspondences
from ananet.errors import InputError

Item = TypeVar("Item")

# Points farther from the median than this many pixels are outside any image.
MAX_DISTANCE = 1e6
# On a GPU `stream` batches pairs up to so many matches or so many pairs.
STREAMED_MATCHES, STREAMED_PAIRS = 262_144, 1024
# Default of `warm_up`: keypoints of photos of a megapixel and above.
USUAL_MATCHES = (4096,)
# Classical pruners express how clearly a match passed or failed as a logit within these limits.
MAX_LOGIT = 10.0


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruner's result: tensors on the points' device if the points were tensors, else numpy arrays."""

    mask: np.ndarray | Tensor
    """[N] bool: which matches to keep."""
    scores: np.ndarray | Tensor
    """[N] float32 in [0, 1): how likely each match is right, the sigmoid of its logit."""
    logits: np.ndarray | Tensor
    """[N] float32: the same before the sigmoid, 0 where undecided."""
    pruner: str = ""
    """Name of the pruner; of `auto`, the network that it chose."""

    @property
    def indices(self) -> np.ndarray | Tensor:
        """Indices of the kept matches, best first."""
        logits, mask = torch.as_tensor(self.logits), torch.as_tensor(self.mask)
        order = torch.argsort(logits, descending=True, stable=True)
        found = order[mask[order]]
        return found if isinstance(self.mask, Tensor) else found.numpy()

    def __repr__(self) -> str:
        by = f" by {self.pruner}" if self.pruner else ""
        return f"Pruned({int(self.mask.sum())} of {len(self.mask)} matches kept{by})"


class Pruner(ABC):
    """Decides which matches to keep.

    A subclass implements `logits`; a match is kept if its logit is above `decision`.
    """

    name: str
    """As `load` takes it."""
    decision: float = 0.0
    """The logit above which a match is kept."""
    progress: Callable[[int, int], object] | None = None
    """Called by networks on a CPU after each block, with the steps done and all steps."""

    @abstractmethod
    def logits(self, matches: Correspondences) -> Tensor:
        """[N] logits of being right, 0 where undecided. N is at least 1; attributes of the matches are tensors here."""

    def __call__(self, points0: Array | Correspondences, points1: Array | None = None, **given: Any) -> Pruned:
        """Prune one set of matches.

        Args:
            points0, points1: [N x 2] pixel coordinates, or one `Correspondences` in their place.
            given: K0 and K1, or image_size0 and image_size1; optionally ratio, mutual, ... See
                `Correspondences`.
        """
        use_one_thread_after_fork()
        return self._start([_as_correspondences(points0, points1, given)], alone=True)()[0]

    def __repr__(self) -> str:
        return f"<pruner {self.name}>"

    def to(self, device: str | torch.device) -> Self:
        """Move networks to a device; return the pruner itself. Classical pruners have no device."""
        return self

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        """Prune many image pairs, each with its own number of matches."""
        pairs = check_pairs(pairs)
        return [as_result(pair, self.logits(pair) if len(pair) else pair.points0[:, 0], self) for pair in pairs]

    def stream(self, pairs: Iterable[Correspondences]) -> Iterator[Pruned]:
        """Prune the pairs of an iterator, in order. Memory does not grow with their number.

        Networks prune several pairs at once, so some pairs are read before the first result comes. On a GPU the
        next pairs are read while it works.

        >>> from ananet import load
        >>> matches = (Correspondences([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, r]) for r in (0.9, 0.2))
        >>> [kept.mask.tolist() for kept in load("ratio").stream(matches)]
        [[True, False], [True, True]]
        """
        waiting: Callable[[], list[Pruned]] | None = None
        for some in _together(pairs, self._streamed_matches):
            started = self._start(some)
            if waiting is not None:
                yield from waiting()
            waiting = started
        if waiting is not None:
            yield from waiting()

    @property
    def _streamed_matches(self) -> int:
        """How many matches `stream` prunes at once: those of one pair, unless larger batches are faster."""
        return 1

    def _start(self, pairs: Sequence[Correspondences], *, alone: bool = False) -> Callable[[], list[Pruned]]:
        """Start what `batch` does; return a function that waits for the results. On a CPU they are ready at once.

        Args:
            alone: optimise for the latency of one pair, which rounds differently on a GPU.
        """
        results = self.batch(pairs)
        return lambda: results

    def warm_up(  # noqa: B027
        self, matches: Sequence[int] = USUAL_MATCHES, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Do now what a first call would have to wait for: on a GPU, compile kernels and record them.

        Args:
            matches: numbers of matches that will be asked for.
            progress: called with steps done and all steps.
        """


def stream_items(
    pruner: Pruner, items: Iterable[Item], matches_of: Callable[[Item], Correspondences | None]
) -> Iterator[tuple[Item, Pruned | None]]:
    """`Pruner.stream` for items that have matches: every item with its result, None if it has no matches."""
    under_way: deque[tuple[Item, bool]] = deque()
    nothing = Correspondences([], [])

    def matches() -> Iterator[Correspondences]:
        for item in items:
            found = matches_of(item)
            under_way.append((item, found is not None))
            yield nothing if found is None else found

    for result in pruner.stream(matches()):
        item, has_matches = under_way.popleft()
        yield item, result if has_matches else None


def _as_correspondences(
    points0: Array | Correspondences, points1: Array | None, given: dict[str, Any]
) -> Correspondences:
    if not isinstance(points0, Correspondences):
        if points0 is None or points1 is None:
            raise InputError(f"points{int(points0 is not None)}: expected an array of shape (N, 2), got nothing")
        return Correspondences._unchecked(points0, points1, **given)
    if points1 is not None or given:
        raise InputError("expected either Correspondences alone or points0 and points1, got both")
    return points0


def check_pairs(pairs: Sequence[Correspondences], *, values: bool = True) -> list[Correspondences]:
    """Check the input of `batch`; return it with tensors as attributes.

    Args:
        values: False if wrong values are found later, by a kernel.
    """
    use_one_thread_after_fork()
    if not isinstance(pairs, Sequence):
        raise InputError(f"pairs: expected a list of Correspondences, got {type(pairs).__name__}")
    for pair in _checked(pairs):
        if values and not pair._values_are_checked:
            pair._check_values()
    return [pair._as_tensors() for pair in pairs]


def _checked(pairs: Iterable[Correspondences]) -> Iterator[Correspondences]:
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Correspondences):
            raise InputError(f"pairs[{number}]: expected Correspondences, got {type(pair).__name__}")
        yield pair


def _together(pairs: Iterable[Correspondences], matches: int) -> Iterator[list[Correspondences]]:
    """Successive pairs in lists of about so many matches."""
    if isinstance(pairs, Correspondences) or not isinstance(pairs, Iterable):
        raise InputError(f"pairs: expected an iterable of Correspondences, got {type(pairs).__name__}")
    some: list[Correspondences] = []
    count = 0
    for pair in _checked(pairs):
        some.append(pair)
        count += 1 + len(pair)
        if count >= matches or len(some) == STREAMED_PAIRS:
            yield some
            some, count = [], 0
    if some:
        yield some


def as_result(pair: Correspondences, logits: Tensor, pruner: Pruner) -> Pruned:
    """A pruner's result from its logits; matches above its decision are kept."""
    decision = pruner.decision
    # Huge coordinates can overflow a network: such a match is undecided, and not kept.
    logits = torch.nan_to_num(logits.detach().to(torch.float32), nan=decision)
    # A sigmoid reaches 1 in float32; a probability should not.
    scores = logits.sigmoid().clamp(max=1 - 2.0**-24)
    mask, scores, logits = map(pair._as_given, (logits > decision, scores, logits))
    return Pruned(mask, scores, logits, pruner.name)


class PossibleMatchesPruner(Pruner):
    """A pruner that never sees matches far outside any image: they are wrong.

    Their coordinates would overflow single precision and spoil the results of all others.
    """

    @abstractmethod
    def _logits(self, matches: Correspondences) -> Tensor:
        """[N] logits of matches that may be inside the images."""

    def logits(self, matches: Correspondences) -> Tensor:
        possible = torch.ones(len(matches), dtype=torch.bool, device=matches.points0.device)
        for points in (matches.points0, matches.points1):
            possible &= ((points - points.median(dim=0).values).abs() <= MAX_DISTANCE).all(dim=1)
        if possible.all():
            return self._logits(matches)
        logits = torch.full(possible.shape, -MAX_LOGIT, dtype=torch.float64, device=possible.device)
        if possible.any():
            logits[possible] = self._logits(matches[possible]).to(logits)
        return logits


def margin(limit: Tensor | float, value: Tensor) -> Tensor:
    """log(limit / value) within the limits for logits: positive where a cost stays below its limit."""
    tiny = torch.finfo(value.dtype).tiny
    ratio = torch.as_tensor(limit).clamp_min(tiny) / value.clamp_min(tiny)
    return ratio.log().clamp(-MAX_LOGIT, MAX_LOGIT)
