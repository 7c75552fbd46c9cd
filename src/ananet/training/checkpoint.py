"""What a run writes: checkpoints, a JSONL log, and on request TensorBoard's files; a progress bar in a terminal.

A checkpoint is one safetensors file with weights, their running average, the optimiser's state and the step. Batches
follow from the seed and the step alone, so these are all a run needs to go on as if it had never stopped.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from tqdm import tqdm

from ananet._util.checks import is_number
from ananet.errors import InputError, MissingExtraError
from ananet.io.files import atomic_path, save_tensors


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


class Progress:
    """Logs to a JSONL file and to the screen; silent without a file, as in all processes but the first.

    A run that continues at `step` appends to its log. Lines of later steps, which a killed run left, are removed. So
    are the final scores, which it writes again.
    """

    def __init__(self, log: Path | None, steps: int, step: int, tensorboard: bool = False) -> None:
        self.start, self.started_at, self.steps = time.monotonic(), step, steps
        self.file: Any = None
        self.bar: Any = None
        self.board: Any = None
        if log is None:
            return
        _forget_after(log, step)
        self.file = log.open("a", buffering=1, encoding="utf-8")
        if sys.stderr.isatty():
            self.bar = tqdm(total=steps, initial=step, unit="step", smoothing=0.05)
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise MissingExtraError("tensorboard", "tensorboard") from None
            self.board = SummaryWriter(str(log.parent))

    def log(self, step: int, **values: float) -> None:
        if self.file is None:
            return
        seconds = time.monotonic() - self.start
        line = {"step": step, "seconds": round(seconds, 2), **{k: float(f"{v:.6g}") for k, v in values.items()}}
        self.file.write(json.dumps(line) + "\n")
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)
        if self.bar is not None:
            self.bar.update(step - self.bar.n)
            self.bar.set_postfix({name: f"{value:.4g}" for name, value in values.items()})
        else:
            left = seconds / max(step - self.started_at, 1) * (self.steps - step)
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            print(f"step {step}/{self.steps}  {shown}  {left / 60:.1f} min left", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """What takes a while and is not a step."""
        if self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        elif self.file is not None:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        for open_thing in (self.file, self.bar, self.board):
            if open_thing is not None:
                open_thing.close()


def _forget_after(log: Path, step: int) -> None:
    """Leaves the lines up to a step, whole ones only, without final scores."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            values = json.loads(line)
            is_final = isinstance(values, dict) and any(name.startswith("final_") for name in values)
            if line.endswith("\n") and values["step"] <= step and not is_final:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    with atomic_path(log) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")
