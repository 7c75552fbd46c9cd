"""Checkpoints: one safetensors file with weights, their running average, the optimiser's state and the step.

Batches follow from the seed and the step alone, so these are all a run needs to go on as if it had never stopped.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ananet._util.checks import is_number
from ananet.errors import InputError
from ananet.io.files import save_tensors


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
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    save_tensors(path, copies, {"checkpoint": json.dumps(header)})


def load_checkpoint(
    path: Path, network: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, Any]]:
    """Fill network, average and optimiser; returns the step reached and the notes."""
    header, tensors = read_checkpoint(path)
    try:
        for name, value in tensors.items():
            if value.is_complex() or not value.isfinite().all():
                raise ValueError(f"{name}: expected finite real numbers, got {value.dtype}, NaN or infinity")
        for prefix, module in (("network", network), ("average", average)):
            found = _under(tensors, prefix)
            for name, own in module.state_dict().items():
                if found[name].dtype != own.dtype:
                    raise ValueError(f"{prefix}/{name}: expected {own.dtype}, got {found[name].dtype}")
            module.load_state_dict(found)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _under(tensors, "optimizer").items():
            number, key = name.split("/")
            state.setdefault(int(number), {})[key] = value
        _check_state(state, optimizer)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(f"checkpoint: {path} does not fit the run ({error})") from None
    return header["step"], header["notes"]


def _check_state(state: dict[int, dict[str, Tensor]], optimizer: torch.optim.Optimizer) -> None:
    """Raise for a state that would only fail in the optimiser's next step."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    unknown = sorted(set(state) - set(range(len(parameters))))
    if unknown:
        raise ValueError(f"optimizer: expected states of {len(parameters)} parameters, got one of number {unknown[0]}")
    for number, values in state.items():
        for key, value in values.items():
            shape = torch.Size() if key == "step" else parameters[number].shape
            if not value.is_floating_point() or value.shape != shape or (key == "step" and value < 0):
                expected = "a number of at least 0" if key == "step" else f"numbers of shape {tuple(shape)}"
                raise ValueError(f"optimizer/{number}/{key}: expected {expected}, got other values")
    first = 0
    for group in optimizer.param_groups:
        numbers = range(first, first + len(group["params"]))
        if len({frozenset(state[number]) for number in numbers if number in state}) > 1:
            raise ValueError("optimizer: expected states with the same entries, some have more than others")
        first = numbers.stop


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header (step, settings, notes) and all tensors of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise InputError(f"checkpoint: {path} cannot be read ({error})") from None
    try:
        header = json.loads(metadata["checkpoint"])
        best, seconds = header["notes"]["best"], header["notes"]["seconds"]
        good = type(header["step"]) is int and header["step"] >= 0 and isinstance(header["settings"], dict)
        good &= is_number(seconds) and 0 <= seconds < math.inf
        good &= best is None or (all(map(is_number, best.values())) and "average_precision" in best)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        good = False
    if not good:
        raise InputError(f"checkpoint: {path} is not a checkpoint of a training run")
    return header, tensors


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix + "/"): value for name, value in tensors.items() if name.startswith(prefix + "/")}
