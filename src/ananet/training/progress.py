"""What a run tells while it goes: a JSONL log always, a progress bar where tqdm is there, TensorBoard on request."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class Progress:
    """Logs to a file and to the screen; silent without a file, as in all processes but the first."""

    def __init__(self, log: Path | None, steps: int, step: int) -> None:
        self.file = None if log is None else log.open("a", buffering=1)
        self.start, self.started_at, self.steps = time.monotonic(), step, steps
        self.bar: Any = None
        self.board: Any = None
        if log is None:
            return
        if sys.stderr.isatty():
            self.bar = _bar(steps, step)
        try:
            from torch.utils.tensorboard import SummaryWriter  # an extra: pip install 'ananet[tensorboard]'

            self.board = SummaryWriter(str(log.parent))
        except ImportError:
            pass

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for open_thing in (self.file, self.bar, self.board):
            if open_thing is not None:
                open_thing.close()


def _bar(steps: int, step: int) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=steps, initial=step, unit="step", smoothing=0.05)
