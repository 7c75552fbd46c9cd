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
    chosen = choose_device(device)
    parts = look_up(name)
    if len(parts) > 1:
        if options:
            raise InputError(f"{', '.join(options)}: several pruners take no options, got {name!r}")
        return Chain([load(part, device=chosen) for part in parts])
    (part,) = parts
    if isinstance(part, Path):
        if options:
            raise InputError(f"{', '.join(options)}: trained weights take no options, they carry their settings")
        return LearnedPruner(part, chosen)
    try:
        return CLASSICAL[part](**options)
    except TypeError as error:
        raise InputError(f"options of the pruner {part!r}: {error}") from None


def look_up(name: str) -> list[str | Path]:
    """What a name stands for: classical pruners by name and weight files, in the order in which they run.

    >>> look_up("none+lpm")
    ['all', 'lpm']
    """
    name = ALIASES.get(name, name)
    if name in CLASSICAL:
        return [name]
    path = bundled_path(name) if name in bundled() else Path(name)
    if path.is_file():
        return [path]
    if "+" in name:
        return [found for part in name.split("+") for found in look_up(part)]
    if path.suffix == ".safetensors":
        raise InputError(f"weights: no file {path}")
    raise InputError(f"pruner: expected one of {', '.join(list_pruners())} or a .safetensors file, got {name!r}")
