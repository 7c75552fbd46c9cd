"""Every pruner by name. A new one is one file and one line here."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

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
from ananet.weights import bundled, weight_file

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
            by "+" work one after another: "mutual+ananet" shows the network mutual matches only. Options may come
            with the name, each after an "@": "ratio@threshold=0.7".
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... Classical pruners ignore it.
        options: settings of the pruner, such as `threshold` of the ratio test or of a network.

    >>> load("ratio", threshold=0.7)([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, 0.9]).mask
    array([ True, False])
    """
    name = str(pruner) if pruner is not None else default_pruner()
    chosen = choose_device(device)
    parts = look_up(name)
    if len(parts) > 1 and options:
        raise InputError(f"{', '.join(options)}: which of {name!r}? Give options with the names, as in 'a+b@option=1'")
    loaded = [_load_part(part._replace(options={**part.options, **options}), chosen) for part in parts]
    return loaded[0] if len(loaded) == 1 else Chain(loaded)


class Part(NamedTuple):
    """One of the pruners that a name stands for: a classical one by its name, or a weight file."""

    pruner: str | Path
    options: dict[str, Any]

    @property
    def name(self) -> str:
        plain = self.pruner.stem if isinstance(self.pruner, Path) else self.pruner
        return "@".join([plain, *(f"{option}={value}" for option, value in self.options.items())])

    @property
    def all_options(self) -> dict[str, Any]:
        """The given options, and the defaults of the others."""
        make = LearnedPruner if isinstance(self.pruner, Path) else CLASSICAL[self.pruner]
        parameters = signature(make).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not Parameter.empty} | self.options


def _load_part(part: Part, device: torch.device) -> Pruner:
    make = partial(LearnedPruner, part.pruner, device) if isinstance(part.pruner, Path) else CLASSICAL[part.pruner]
    known = [name for name in signature(make).parameters if name not in ("args", "kwargs")]
    unknown = [name for name in part.options if name not in known]
    if unknown:
        expected = f"some of {', '.join(known)}" if known else "none"
        raise InputError(f"options of the pruner {part.name!r}: expected {expected}, got {', '.join(unknown)}")
    loaded = make(**part.options)
    loaded.name = part.name
    return loaded


def look_up(name: str) -> list[Part]:
    """What a name stands for: pruners and their options, in the order in which they run.

    >>> look_up("none+ratio@threshold=0.7")
    [Part(pruner='all', options={}), Part(pruner='ratio', options={'threshold': 0.7})]
    """
    name = ALIASES.get(name, name)
    if name in CLASSICAL:
        return [Part(name, {})]
    if (path := weight_file(name)) is not None:
        return [Part(path, {})]
    # A path may hold either sign, so only now.
    if "+" in name:
        return [found for part in name.split("+") for found in look_up(part)]
    if "@" in name:
        name, _, option = name.rpartition("@")
        (part,) = look_up(name)
        return [part._replace(options={**part.options, **_option(option)})]
    if name.endswith(".safetensors"):
        raise InputError(f"weights: no file {name}")
    raise InputError(f"pruner: expected one of {', '.join(list_pruners())} or a .safetensors file, got {name!r}")


def _option(text: str) -> dict[str, float | bool]:
    name, _, value = text.partition("=")
    if value in ("true", "false"):
        return {name: value == "true"}
    try:
        return {name: int(value) if value.isdigit() else float(value)}
    except ValueError:
        raise InputError(f"pruner: expected an option as name=number after '@', got {text!r}") from None
