"""Trained networks as pruners."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ananet._util.checks import check_probability, is_number
from ananet._util.devices import choose_device, plain_calls
from ananet.core.conflicts import penalize_conflicts
from ananet.core.correspondences import Correspondences
from ananet.errors import InputError
from ananet.inference.calls import MATCHES_AT_ONCE, DeviceCalls
from ananet.inference.engines import Progress, engine_for, real_matches
from ananet.networks import ANANetSettings, Network, load_network
from ananet.networks.input import network_input, within_view
from ananet.pruners.base import MAX_LOGIT, STREAMED_MATCHES, USUAL_MATCHES, Pruned, Pruner, as_result, check_pairs

# The probability above which F1 is highest, and the odds that poses gain by most, both on scenes kept out of training.
THRESHOLD, CONFLICT_ODDS = 0.4, 30.0
# On a CPU, batching helps only small pairs: masks of padding double the time of the network.
MAX_BATCHED_ON_CPU = 250
# Matches that `stream` prunes at once on a CPU: few pairs, so that progress bars move.
STREAMED_ON_CPU = 8192
# Of matches: what networks may read beside the points.
SIDE_ATTRIBUTES = ("ratio", "mutual", "keypoint_sizes0", "keypoint_sizes1", "angles0", "angles1")


class LearnedPruner(Pruner):
    """A network that scores matches.

    Args:
        network: a trained network.
        device: where it runs.
        threshold: the probability above which a match is kept; "authors" for the decision of the network's authors, by
            the output of the balanced loss as it was before calibration.
        conflict_odds: of matches that share a point but lie apart in the other image, at most one is right. The odds
            of all but the best are divided by this. 1 means no penalty; with infinity, at most one match per
            point is kept.
        seeds: attend to so many groups of similar matches instead of to every match (ANA-Net only): time linear in the
            number of matches; 256 hardly change a result. 0 for every match, None as trained.
        label: what scores and decision are about: "right", the match shows one point of the scene, or "line", it lies
            near its epipolar line, the paper's label. None for right, where the weights tell it.
        side_input: whether a network that reads ratio, mutual flag, sizes and angles is shown those that are known;
            False shows it the points alone.
        name: of the pruner; by default that of the network.
        card: the model card of the weights.
    """

    def __init__(
        self,
        network: Network,
        device: str | torch.device = "auto",
        threshold: float | Literal["authors"] = THRESHOLD,
        conflict_odds: float = CONFLICT_ODDS,
        seeds: int | None = None,
        label: str | None = None,
        side_input: bool = True,
        *,
        name: str | None = None,
        card: dict[str, Any] | None = None,
    ) -> None:
        self.name = name or network.name
        self.card = card or {}
        if threshold == "authors":
            self.decision = authors_decision(network, self.card, label)
        else:
            self.decision = decision_at(threshold)
        self.conflict_odds = check_odds(conflict_odds)
        self.side_input = side_input
        self.progress: Progress | None = None
        """Called with the number of finished blocks and of all blocks, on a CPU."""
        network = network.telling(label)
        self.network = network if seeds is None else with_seeds(network, seeds)
        self.to(device)

    def to(self, device: str | torch.device) -> Self:
        self.device = choose_device(device)
        self.network = self.network.to(self.device)
        self.engine = engine_for(self.network, self.device)
        self.calls: DeviceCalls | None = None
        """Whole calls on a GPU, if the network has kernels for them."""
        if not plain_calls():
            self.calls = self.engine.device_calls(self.decision, self._wrong, self.conflict_odds)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # CUDA graphs, locks and page-locked memory stay where they are.
        return {name: value for name, value in vars(self).items() if name not in ("engine", "calls")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.to(self.device)

    @property
    def _wrong(self) -> float:
        """The logit of matches out of view."""
        return min(-MAX_LOGIT, self.decision)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        device: str | torch.device = "auto",
        threshold: float | Literal["authors"] = THRESHOLD,
        conflict_odds: float = CONFLICT_ODDS,
        seeds: int | None = None,
        label: str | None = None,
        side_input: bool = True,
    ) -> Self:
        """The network of a weight file that `ananet.networks.save_network` wrote."""
        network, card = load_network(path)
        given = device, threshold, conflict_odds, seeds, label, side_input
        return cls(network, *given, name=Path(path).stem, card=card)

    def logits(self, matches: Correspondences) -> Tensor:
        return self._logits([self._shown(matches)], self.progress)[0]

    def _shown(self, matches: Correspondences) -> Correspondences:
        """What the network may see of the matches."""
        return matches if self.side_input else matches.replace(**dict.fromkeys(SIDE_ATTRIBUTES))

    def batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        return self._start(pairs)()

    @property
    def _streamed_matches(self) -> int:
        return streamed_on(self.device)

    def _start(self, pairs: Sequence[Correspondences], *, alone: bool = False) -> Callable[[], list[Pruned]]:
        if self.calls is None:
            results = self._batch(pairs)
            return lambda: results
        pairs = [self._shown(pair) for pair in check_pairs(pairs, values=False)]
        # Where there is nothing to score, cameras or sizes may be missing too.
        scored = [number for number, pair in enumerate(pairs) if len(pair)]
        for pair in pairs:
            if not len(pair) and not pair._values_are_checked:
                pair._check_values()
        alone = alone and len(pairs) == 1
        waiting = self.calls.start([pairs[number] for number in scored], alone=alone) if scored else list

        def wait() -> list[Pruned]:
            found = dict(zip(scored, waiting(), strict=True))
            return [
                Pruned(*found[number], self.name) if number in found else as_result(pair, pair.points0[:, 0], self)
                for number, pair in enumerate(pairs)
            ]

        return wait

    def warm_up(self, matches: Sequence[int] = USUAL_MATCHES, progress: Progress | None = None) -> None:
        if self.calls is None:
            return
        shapes = self.calls.shapes_of(matches)
        for done, shape in enumerate(shapes, start=1):
            self.calls.record(shape)
            if progress is not None:
                progress(done, len(shapes))

    def _batch(self, pairs: Sequence[Correspondences]) -> list[Pruned]:
        """Eager reference path."""
        pairs = [self._shown(pair) for pair in check_pairs(pairs)]
        # Where there is nothing to score, cameras or sizes may be missing too.
        empty = {number: pair for number, pair in enumerate(pairs) if len(pair) == 0}
        results = {number: as_result(pair, pair.points0[:, 0], self) for number, pair in empty.items()}
        most = MAX_BATCHED_ON_CPU if self.device.type == "cpu" else MATCHES_AT_ONCE
        groups = list(groups_of_similar_size([len(pair) for pair in pairs], MATCHES_AT_ONCE, most))
        progress = self.progress

        def of_group(number: int) -> Progress | None:
            """Counts the steps of one group among those of all."""
            return progress and (lambda done, steps: progress(number * steps + done, len(groups) * steps))

        for number, group in enumerate(groups):
            found = self._logits([pairs[i] for i in group], of_group(number))
            for index, logits in zip(group, found, strict=True):
                results[index] = as_result(pairs[index], logits, self)
        return [results[index] for index in range(len(pairs))]

    def _logits(self, pairs: Sequence[Correspondences], progress: Progress | None) -> list[Tensor]:
        """The logits of several pairs in one pass, padded to the longest.

        Matches out of view are not shown to the network, and are wrong.
        """
        pairs = [pair.to(self.device) for pair in pairs]
        inputs = [network_input(pair, self.network.settings.side) for pair in pairs]
        inside = [within_view(pair, x[:, :4]) for pair, x in zip(pairs, inputs, strict=True)]
        found = self._scored([x[seen] for x, seen in zip(inputs, inside, strict=True)], progress)
        return [
            torch.full(seen.shape, self._wrong, device=self.device).masked_scatter_(seen, logits)
            for seen, logits in zip(inside, found, strict=True)
        ]

    def _scored(self, inputs: list[Tensor], progress: Progress | None) -> list[Tensor]:
        """[N] logits of each [N x channels] input."""
        padded = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        lengths = torch.tensor([len(x) for x in inputs], device=self.device) if len(inputs) > 1 else None
        logits = self.engine(padded, lengths, progress)
        logits = penalize_conflicts(logits, padded, self.conflict_odds, real_matches(padded, lengths))
        return [row[: len(x)] for row, x in zip(logits, inputs, strict=True)]


def with_seeds(network: Network, seeds: int) -> Network:
    """A network with the same weights that attends through so many seeds."""
    if not isinstance(network.settings, ANANetSettings):
        raise InputError(f"seeds: expected a network that attends to matches, such as ananet, got {network.name}")
    return network.with_settings(seeds=seeds)


def streamed_on(device: torch.device) -> int:
    """How many matches a network prunes at once in a stream."""
    return STREAMED_ON_CPU if device.type == "cpu" else STREAMED_MATCHES


def decision_at(threshold: float) -> float:
    """The logit of a probability."""
    threshold = check_probability("threshold", threshold)
    return math.log(threshold / (1 - threshold))


def authors_decision(network: Network, card: dict[str, Any], label: str | None) -> float:
    """The calibrated logit at which the network's authors decide, by the calibration that the model card records."""
    try:
        scale, shift = map(float, card["calibration"][label or network.labels[-1]])
    except (KeyError, TypeError, ValueError):
        why = "as these weights do not record how their scores were calibrated"
        raise InputError(f"threshold: expected a number, {why}, got 'authors'") from None
    return scale * decision_at(network.authors_probability) + shift


def check_odds(conflict_odds: float) -> float:
    if not is_number(conflict_odds) or not conflict_odds >= 1:
        raise InputError(f"conflict_odds: expected a number of at least 1, got {conflict_odds!r}")
    return conflict_odds


def groups_of_similar_size(lengths: Sequence[int], limit: int, most: int | None = None) -> Iterator[list[int]]:
    """Indices grouped so that a group, padded to its longest member, stays within the limit; empty ones are left out.

    Args:
        most: what is longer than this goes alone.

    >>> list(groups_of_similar_size([5, 100, 6, 90], limit=200))
    [[1, 3], [2, 0]]
    """
    group: list[int] = []
    for index in sorted((i for i in range(len(lengths)) if lengths[i]), key=lambda i: -lengths[i]):
        if group:
            longest = lengths[group[0]]
            too_large = (len(group) + 1) * longest > limit
            mostly_padding = lengths[index] * 2 < longest
            if too_large or mostly_padding or (most is not None and longest > most):
                yield group
                group = []
        group.append(index)
    if group:
        yield group
