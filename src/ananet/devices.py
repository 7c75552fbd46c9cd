"""Where networks run."""

import torch

from ananet.errors import InputError


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
