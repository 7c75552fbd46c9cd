"""Where networks run, and on how many threads."""

import os
import sys

import torch

from ananet.errors import InputError

# Environment variable: "plain" turns off whole calls in one CUDA graph, and the kernels around the network.
CALLS_VARIABLE = "ANANET_CALLS"
# Where threads of torch and OpenCV may have been started.
_home_process = os.getpid()


def plain_calls() -> bool:
    """Whether the eager reference path is selected for pruners on a GPU."""
    chosen = os.environ.get(CALLS_VARIABLE, "graph")
    if chosen not in ("graph", "plain"):
        raise InputError(f"{CALLS_VARIABLE}: expected 'graph' or 'plain', got {chosen!r}")
    return chosen == "plain"


def choose_device(device: str | torch.device) -> torch.device:
    """The device by name, checked to work; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device: expected 'auto', 'cpu' or 'cuda', got {device!r}") from None
    try:
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA GPU here")
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device: expected 'auto', 'cpu' or an available GPU, got {device!r} ({reason})") from None
    return chosen


def use_one_thread_after_fork() -> None:
    """Let torch and OpenCV work on one thread in a process that was forked.

    A fork copies only the calling thread, so waiting for the parent's other threads would never end.
    """
    global _home_process
    if os.getpid() == _home_process:
        return
    _home_process = os.getpid()
    torch.set_num_threads(1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(1)
