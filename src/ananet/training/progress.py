"""Progress of a run: a JSONL log always, a progress bar in a terminal, TensorBoard on request."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ananet.errors import MissingExtraError
from ananet.io.files import atomic_path


class Progress:
    """Logs to a file and to the screen; silent without a file, as in all processes but the first.

    Args:
        log: JSONL file; a run that goes on goes on with it.
        steps: of the whole run.
        step: that it starts from. Lines of later steps, which a killed run left, are removed.
        tensorboard: whether to write TensorBoard's files beside the log.
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
    """Leaves the lines up to a step, whole ones only."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    with atomic_path(log) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")
