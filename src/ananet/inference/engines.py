"""Inference of trained networks: fast engines for networks that have one; others run as they are."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ananet.networks import Network

if TYPE_CHECKING:
    from ananet.inference.calls import DeviceCalls

Progress = Callable[[int, int], object]
"""Called with how many steps are done, and how many there are."""


class Engine(Protocol):
    """Runs a network."""

    def __call__(self, matches: Tensor, lengths: Tensor | None = None, progress: Progress | None = None) -> Tensor:
        """[B x N] logits of being an inlier; 0 at padding.

        Args:
            matches: [B x N x (4 + side channels)].
            lengths: [B] how many matches of each pair are real, the first ones; None if all are.
            progress: a slow engine calls it after each of its steps; a quick one ignores it.
        """
        ...

    def device_calls(self, decision: float, unseen: float, conflict_odds: float) -> DeviceCalls | None:
        """Whole calls of a pruner on a GPU, as `DeviceCalls` takes them; None if the engine has no kernels for them."""
        return None


# By name of the network: "module:function" of (network, device) that gives an engine.
FAST_ENGINES = {"ananet": "ananet.inference.ananet:engine"}


def engine_for(network: Network, device: torch.device) -> Engine:
    """The fastest way to run a trained network on a device."""
    if network.name not in FAST_ENGINES:
        return PlainEngine(network, device)
    module, _, function = FAST_ENGINES[network.name].partition(":")
    return getattr(import_module(module), function)(network, device)


class PlainEngine(Engine):
    """The network as it is."""

    def __init__(self, network: Network, device: torch.device) -> None:
        self.network = network.eval().to(device)

    @torch.inference_mode()
    def __call__(self, matches: Tensor, lengths: Tensor | None = None, progress: Progress | None = None) -> Tensor:
        return self.network(matches, real_matches(matches, lengths))


def real_matches(matches: Tensor, lengths: Tensor | None) -> Tensor | None:
    """[B x N] mask, True where a match is real; None if all are."""
    return None if lengths is None else torch.arange(matches.shape[1], device=matches.device) < lengths[:, None]
