"""Every pruner by name. A new one is one file with a subclass of `Pruner`, and one line here."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ananet._util.checks import like, shown
from ananet._util.defaults import PRUNER
from ananet._util.devices import choose_device
from ananet._util.names import Option, Registry, labelled, options_of, read_options, split_options
from ananet.errors import InputError
from ananet.pruners.base import Pruner
from ananet.pruners.chain import Chain
from ananet.pruners.learned import LearnedPruner
from ananet.weights import bundled, weight_file

CLASSICAL: Registry[Pruner] = Registry(
    "pruner",
    {
        "all": "ananet.pruners.classical:KeepAll",
        "mutual": "ananet.pruners.classical:Mutual",
        "ratio": "ananet.pruners.classical:Ratio",
        "gms": "ananet.pruners.coherence:GMS",
        "lpm": "ananet.pruners.coherence:LPM",
        "lmf": "ananet.pruners.coherence:LMF",
        "code": "ananet.pruners.coherence:CODE",
        "ransac": "ananet.pruners.classical:RANSAC",
        "magsac": "ananet.pruners.classical:MAGSAC",
    },
)
"""Pruners that are not networks, by name; `@CLASSICAL.add` adds one."""
ALIASES = {"none": "all", "auto": PRUNER}
# Names of 0.2, and those that took their place.
FORMER = {"ananet-ratio": "ananet"}


def list_pruners() -> dict[str, str]:
    """The names that `load_pruner` accepts, each with a line that describes it."""
    return {name: found.summary for name, found in describe_pruners().items()}


class PrunerDescription(NamedTuple):
    summary: str
    options: dict[str, Option]


def describe_pruners() -> dict[str, PrunerDescription]:
    """What each pruner does, and its options, by name."""
    options = options_of(LearnedPruner.from_file)
    learned = {name: PrunerDescription(facts["summary"], options) for name, facts in bundled().items()}
    return {**learned, **{name: _describe(CLASSICAL[name]) for name in CLASSICAL.names}}


def _describe(make: Callable[..., Pruner]) -> PrunerDescription:
    return PrunerDescription((getdoc(make) or "").split("\n")[0], options_of(make))


def load_pruner(pruner: str | Path | None = None, *, device: str | torch.device = "auto", **options: Any) -> Pruner:
    """A pruner, ready to be called.

    Args:
        pruner: a name of `list_pruners`, or the path of a weight file. None and "auto" mean "ananet". Several joined by
            "+" run one after another: "mutual+ananet" shows the network mutual matches only. Options may follow the
            name, each after an "@": "ratio@threshold=0.7", "lpm@neighbours=4/6". A weight file may be given a name:
            "mine=weights.safetensors".
        device: "auto" (a GPU if there is one), "cpu", "cuda", ... Classical pruners ignore it.
        options: settings of the pruner, such as `threshold` of the ratio test or of a network.

    >>> load_pruner("ratio", threshold=0.7)([[0, 0], [9, 9]], [[1, 1], [5, 5]], ratio=[0.3, 0.9]).mask
    array([ True, False])
    """
    name = PRUNER if pruner is None else str(pruner)
    chosen = choose_device(device)
    parts = look_up(name)
    if options and len(parts) > 1:
        names = ", ".join(options)
        raise InputError(f"{names}: which of {shown(name)}? Give options with the names, as in 'a+b@option=1'")
    if options:
        parts = [parts[0].with_options({}, options)]
    loaded = [part.load(chosen) for part in parts]
    return loaded[0] if len(loaded) == 1 else Chain(loaded)


load = load_pruner


class Part(NamedTuple):
    """One of the pruners that a name stands for."""

    plain: str
    """Its name without options."""
    file: Path | None
    """Weights of a network."""
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return labelled(self.plain, self.options)

    @property
    def make(self) -> Callable[..., Pruner]:
        return CLASSICAL[self.plain] if self.file is None else LearnedPruner.from_file

    @property
    def all_options(self) -> dict[str, Any]:
        """The given options, and the defaults of the others."""
        return {name: option.default for name, option in options_of(self.make).items()} | self.options

    def with_options(self, texts: dict[str, str], values: dict[str, Any]) -> Part:
        read = read_options(f"pruner {self.plain!r}", self.make, texts, values)
        return self._replace(options=self.options | read)

    def load(self, device: torch.device) -> Pruner:
        given = () if self.file is None else (self.file, device)
        loaded = self.make(*given, **self.options)
        loaded.name = self.name
        return loaded


def look_up(name: str) -> list[Part]:
    """What a name stands for: pruners and their options, in the order in which they run.

    >>> look_up("none+ratio@threshold=0.7")
    [Part(plain='all', file=None, options={}), Part(plain='ratio', file=None, options={'threshold': 0.7})]
    """
    name = ALIASES.get(name, name)
    if name in CLASSICAL:
        return [Part(name, None, {})]
    if (path := weight_file(name)) is not None:
        return [Part(path.stem, path, {})]
    # A path may hold any of these signs, so only now.
    if "+" in name and all(parts := name.split("+")):
        return [found for part in parts for found in look_up(part)]
    if "@" in name:
        plain, texts = split_options(name, "pruner")
        (part,) = look_up(plain)
        return [part.with_options(texts, {})]
    if "=" in name:
        own, _, given = name.partition("=")
        (part,) = look_up(given)
        if part.file is None or not own:
            raise InputError(f"pruner: expected a name of your own and a weight file, as name=path, got {shown(name)}")
        return [part._replace(plain=own)]
    if name.endswith(".safetensors"):
        raise InputError(f"weights: no file {name[:1000]}")
    known = list_pruners()
    meant = f"; it is part of {FORMER[name]!r} now" if name in FORMER else like(name, known)
    raise InputError(f"pruner: expected one of {', '.join(known)} or a .safetensors file, got {shown(name)}{meant}")
