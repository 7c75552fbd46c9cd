"""Muon for matrices between hidden features, AdamW for everything else.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with steps as long as AdamW's,
so that one learning rate serves both (Liu et al., "Muon is scalable for LLM training", 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

# A smaller side than this is an input or an output, not a set of features.
FEATURES = 32


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon` and AdamW as one optimizer; only matrices between hidden features decay."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, fused: bool = False) -> None:
        parameters = list(parameters)
        hidden = [p for p in parameters if p.dim() == 2 and min(p.shape) >= FEATURES]
        others = [p for p in parameters if p.dim() != 2 or min(p.shape) < FEATURES]
        self.parts: list[torch.optim.Optimizer] = []
        if hidden:
            self.parts.append(torch.optim.Muon(hidden, lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
        if others:
            self.parts.append(torch.optim.AdamW(others, lr, weight_decay=0.0, fused=fused))
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let both optimizers work on this one's state and parameter groups."""
        for number, part in enumerate(self.parts):
            part.state, part.param_groups = self.state, self.param_groups[number : number + 1]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss


OPTIMIZERS = {"adamw": torch.optim.AdamW, "muon": Muon}
