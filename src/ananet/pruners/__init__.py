"""Every pruner by name. A new one is one file and one line here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ananet.errors import InputError
from ananet.pruners.base import Pruned, Pruner
from ananet.pruners.gms import GMS
from ananet.pruners.learned import LearnedPruner
from ananet.pruners.lpm import LPM
from ananet.pruners.robust import MAGSAC, RANSAC
from ananet.pruners.simple import KeepAll, Mutual, Ratio

CLASSICAL: dict[str, Callable[..., Pruner]] = {
    pruner.name: pruner for pruner in (KeepAll, Mutual, Ratio, GMS, LPM, RANSAC, MAGSAC)
}
ALIASES = {"none": "all"}
# Of the classical pruners that need no more than points, the one with the best mean F1 over many scenes.
DEFAULT = "lpm"

__all__ = ["LearnedPruner", "Pruned", "Pruner", "list_pruners", "load"]


def list_pruners() -> dict[str, str]:
    """Names that `load` takes, each with one line on what it does."""
    return {name: (pruner.__doc__ or "").splitlines()[0] for name, pruner in CLASSICAL.items()}


def load(pruner: str | Path | None = None, *, device: str | torch.device = "auto", **options: Any) -> Pruner:
    """A pruner, ready to be called.

    Args:
        pruner: a name that `list_pruners` knows, or the path of a weight file; None for the default.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... Classical pruners ignore it.
        options: settings of a classical pruner, such as `threshold`.

    >>> load("ratio", threshold=0.7)([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, 0.9]).mask
    array([ True, False])
    """
    name = str(pruner) if pruner is not None else DEFAULT
    name = ALIASES.get(name, name)
    chosen = _device(device)
    if name in CLASSICAL:
        try:
            return CLASSICAL[name](**options)
        except TypeError as error:
            raise InputError(f"options of the pruner {name!r}: {error}") from None
    if name.endswith(".safetensors") or Path(name).is_file():
        if options:
            raise InputError(f"{', '.join(options)}: a weight file takes no options, it carries its settings")
        return LearnedPruner(name, chosen)
    raise InputError(f"pruner: expected one of {', '.join(CLASSICAL)} or a .safetensors file, got {name!r}")


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device: expected 'auto', 'cpu' or a GPU that is here, got {device!r} ({reason})") from None
    return chosen
