"""Where networks run, and on how many threads."""

import ctypes
import os
import sys
import threading
from contextlib import suppress
from functools import cache

import torch

from ananet.errors import InputError

# Environment variable: "plain" turns off whole calls in one CUDA graph, and the kernels around the network.
CALLS_VARIABLE = "ANANET_CALLS"
# What OpenMP reads of how long a waiting thread spins, once, when torch is imported.
SPIN_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
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
        chosen = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        chosen = _checked_device(device)
    if chosen.type == "cpu":
        shorten_spinning()
    return chosen


def _checked_device(device: str | torch.device) -> torch.device:
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


@cache
def shorten_spinning() -> None:
    """Let waiting OpenMP threads sleep soon: threads that spin make a busy machine many times slower.

    GNU's OpenMP lets them spin 300,000 times, but 100 times where it has more threads than there are cores (its manual
    under GOMP_SPINCOUNT). Its variables come too late when torch is imported already, so this adds some threads that
    only sleep. Whoever has set a variable has chosen.
    """
    library = _openmp()
    if library is None or any(name in os.environ for name in SPIN_VARIABLES) or os.getpid() != _home_process:
        return
    # Together with those of torch one more than there are cores. The first one is the thread that starts them.
    count = max(2, len(os.sched_getaffinity(0)) - torch.get_num_threads() + 2)

    def keep() -> None:
        # All threads call something that does nothing. They end with the one that started them.
        library.GOMP_parallel(library.omp_get_thread_num, None, count, 0)
        threading.Event().wait()

    threading.Thread(target=keep, name="ananet-openmp", daemon=True).start()


def _openmp() -> ctypes.CDLL | None:
    """GNU's OpenMP, as torch uses it; None on other systems and for other builds of torch."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line}
        of_torch = [path for path in paths if "/torch" in path] or sorted(paths)
        return ctypes.CDLL(of_torch[0]) if of_torch else None
    return None
