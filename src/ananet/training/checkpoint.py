"""Checkpoints: one safetensors file with weights, their running average, the optimiser's state and the step.

Batches follow from the seed and the step alone, so these are all a run needs to go on as if it had never stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ananet.errors import InputError
from ananet.files import atomic_path


def save_checkpoint(
    path: Path,
    step: int,
    settings: dict[str, Any],
    network: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    notes: dict[str, Any],
) -> None:
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("network", network), ("average", average)):
        tensors |= {f"{prefix}/{name}": value for name, value in module.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": torch.as_tensor(value) for name, value in state.items()}
    header = {"step": step, "settings": settings, "notes": notes}
    with atomic_path(path) as temporary:
        save_file(
            {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()},
            temporary,
            {"checkpoint": json.dumps(header)},
        )


def load_checkpoint(
    path: Path, network: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, Any]]:
    """Fill network, average and optimiser; returns the step reached and the notes."""
    header, tensors = read_checkpoint(path)
    for prefix, module in (("network", network), ("average", average)):
        module.load_state_dict(_under(tensors, prefix))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimizer").items():
        number, key = name.split("/")
        state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return header["step"], header["notes"]


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header (step, settings, notes) and all tensors of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise InputError(f"checkpoint: {path} cannot be read ({error})") from None
    if "checkpoint" not in metadata:
        raise InputError(f"checkpoint: {path} is not a checkpoint of a training run")
    return json.loads(metadata["checkpoint"]), tensors


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix + "/"): value for name, value in tensors.items() if name.startswith(prefix + "/")}
