"""Where networks run."""

import os

import torch

from ananet.errors import InputError

# Environment variable: "plain" turns off whole calls in one CUDA graph, and the kernels around the network.
CALLS_VARIABLE = "ANANET_CALLS"


def plain_calls() -> bool:
    """Whether pruners on a GPU are asked to go the plain road around the network."""
    chosen = os.environ.get(CALLS_VARIABLE, "graph")
    if chosen not in ("graph", "plain"):
        raise InputError(f"{CALLS_VARIABLE}: expected 'graph' or 'plain', got {chosen!r}")
    return chosen == "plain"


def choose_device(device: str | torch.device) -> torch.device:
    """The device that is meant, tried out; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA GPU here")
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device: expected 'auto', 'cpu' or a GPU that is here, got {device!r} ({reason})") from None
    return chosen
