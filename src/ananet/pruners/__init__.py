"""Every pruner by name. A new one is one file and one line here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ananet.devices import choose_device
from ananet.errors import InputError
from ananet.pruners.base import Pruned, Pruner
from ananet.pruners.chain import Chain
from ananet.pruners.gms import GMS
from ananet.pruners.learned import LearnedPruner
from ananet.pruners.lpm import LPM
from ananet.pruners.robust import MAGSAC, RANSAC
from ananet.pruners.simple import KeepAll, Mutual, Ratio
from ananet.weights import bundled, bundled_path

CLASSICAL: dict[str, Callable[..., Pruner]] = {
    pruner.name: pruner for pruner in (KeepAll, Mutual, Ratio, GMS, LPM, RANSAC, MAGSAC)
}
ALIASES = {"none": "all"}
DEFAULT = "ananet"
# Where no weights are bundled: of the classical pruners that need no more than points, the best over many scenes.
FALLBACK = "lpm"

__all__ = ["LearnedPruner", "Pruned", "Pruner", "list_pruners", "load"]


def list_pruners() -> dict[str, str]:
    """Names that `load` takes, each with one line on what it does."""
    learned = {name: facts["summary"] for name, facts in bundled().items()}
    return learned | {name: (pruner.__doc__ or "").splitlines()[0] for name, pruner in CLASSICAL.items()}


def default_pruner() -> str:
    return DEFAULT if DEFAULT in bundled() else FALLBACK


def load(pruner: str | Path | None = None, *, device: str | torch.device = "auto", **options: Any) -> Pruner:
    """A pruner, ready to be called.

    Args:
        pruner: a name that `list_pruners` knows, or the path of a weight file; None for the default. Several joined
            by "+" work one after another: "mutual+ananet" shows the network mutual matches only.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... Classical pruners ignore it.
        options: settings of a classical pruner, such as `threshold`.

    >>> load("ratio", threshold=0.7)([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, 0.9]).mask
    array([ True, False])
    """
    name = str(pruner) if pruner is not None else default_pruner()
    name = ALIASES.get(name, name)
    chosen = choose_device(device)
    if name in CLASSICAL:
        try:
            return CLASSICAL[name](**options)
        except TypeError as error:
            raise InputError(f"options of the pruner {name!r}: {error}") from None
    path = bundled_path(name) if name in bundled() else Path(name)
    if "+" in name and not path.is_file():
        if options:
            raise InputError(f"{', '.join(options)}: several pruners take no options, got {name!r}")
        return Chain([load(part, device=chosen) for part in name.split("+")])
    if path.suffix == ".safetensors" or path.is_file():
        if options:
            raise InputError(f"{', '.join(options)}: trained weights take no options, they carry their settings")
        return LearnedPruner(path, chosen)
    raise InputError(f"pruner: expected one of {', '.join(list_pruners())} or a .safetensors file, got {name!r}")
