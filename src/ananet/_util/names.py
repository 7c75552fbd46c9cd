"""Things by name, with options: "ratio@threshold=0.7". One language for pruners, detectors, estimators and networks.

An option is a parameter with a default of whatever makes the thing; its annotation says how its text is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from ananet._util.checks import checked, describe, like, parsed, shown
from ananet.errors import InputError

Thing = TypeVar("Thing")
Make = TypeVar("Make", bound=Callable[..., Any])
# Where a thing runs is for the caller to say, not for the name.
NOT_OPTIONS = ("device", "name")


class Registry(Generic[Thing]):
    """Classes and functions by name. Those of the package are imported when they are first used.

    A new one has a `name`: list its module in the registry, or `add` it from outside the package.
    """

    def __init__(self, kind: str, homes: Mapping[str, str]) -> None:
        """`kind` names the things in error messages; `homes` has "module:class" by name."""
        self.kind = kind
        self._homes = dict(homes)
        self._added: dict[str, Callable[..., Thing]] = {}

    def add(self, make: Make) -> Make:
        """Make a class or function known by its `name`; works as a decorator."""
        name = getattr(make, "name", None)
        if not isinstance(name, str) or not name:
            raise InputError(f"{self.kind}: expected a class or function with a name, got {make!r}")
        self._added[name] = make
        return make

    @property
    def names(self) -> list[str]:
        """Of all things: those that were added, then the package's own."""
        return [*self._added, *(name for name in self._homes if name not in self._added)]

    @property
    def outside_modules(self) -> list[str]:
        """Modules that added something: worker processes import them to know the same names."""
        return sorted({make.__module__ for make in self._added.values()})

    def __contains__(self, name: object) -> bool:
        return name in self._added or name in self._homes

    def __getitem__(self, name: str) -> Callable[..., Thing]:
        if name in self._added:
            return self._added[name]
        if name not in self._homes:
            meant = like(name, self.names)
            raise InputError(f"{self.kind}: expected one of {', '.join(self.names)}, got {shown(name)}{meant}")
        module, _, attribute = self._homes[name].partition(":")
        return getattr(import_module(module), attribute)

    def make(self, text: str, *, options: Mapping[str, Any] | None = None, **fixed: Any) -> Thing:
        """Make what a text such as "sift@contrast_threshold=0.01" describes.

        Args:
            options: more of them, as Python values.
            fixed: arguments that are no options, such as the device; passed on where they are known.
        """
        if not isinstance(text, str):
            raise InputError(f"{self.kind}: expected a name, got {shown(text)}")
        name, texts = split_options(text, self.kind)
        make = self[name]
        values = read_options(f"{self.kind} {name!r}", make, texts, options or {})
        known = inspect.signature(make).parameters
        made = make(**values, **{name: value for name, value in fixed.items() if name in known})
        defaults = options_of(make)
        changed = {option: value for option, value in values.items() if value != defaults[option].default}
        made.name = labelled(name, changed)  # type: ignore[attr-defined]
        return made


class Option(NamedTuple):
    """A parameter that may come with a name."""

    kind: Any
    default: Any

    def __str__(self) -> str:
        return f"{describe(self.kind)}, {option_text(self.default)} unless given"


def options_of(make: Callable[..., Any]) -> dict[str, Option]:
    """The options of whatever makes a thing, by name."""
    function = make.__init__ if isinstance(make, type) else make  # type: ignore[misc]
    kinds = get_type_hints(function) if hasattr(function, "__annotations__") else {}
    return {
        parameter.name: Option(kinds.get(parameter.name, Any), parameter.default)
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is not inspect.Parameter.empty and parameter.name not in NOT_OPTIONS
    }


def read_options(
    what: str, make: Callable[..., Any], texts: Mapping[str, str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Options of a thing, checked: `texts` came with its name, `values` from Python."""
    known = options_of(make)
    unknown = [name for name in (*texts, *values) if name not in known]
    if unknown:
        has = ", ".join(known) or "none"
        given = ", ".join(name[:80] for name in unknown)
        raise InputError(f"unknown option {given} of {what}: it has {has}{like(unknown[0], known)}")
    read = {name: parsed(name, text, known[name].kind) for name, text in texts.items()}
    return read | {name: checked(name, value, known[name].kind) for name, value in values.items()}


def split_options(text: str, kind: str) -> tuple[str, dict[str, str]]:
    """A name and its options as texts.

    >>> split_options("gms@rotation=false@threshold=4", "pruner")
    ('gms', {'rotation': 'false', 'threshold': '4'})
    """
    name, *options = text.split("@")
    found = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not key or not equals or not value:
            raise InputError(f"{kind}: expected an option as name=value after '@', got {shown(option)}")
        found[key] = value
    return name, found


def labelled(name: str, options: Mapping[str, Any]) -> str:
    """The name with its options, as `split_options` reads it."""
    return "@".join([name, *(f"{key}={option_text(value)}" for key, value in options.items())])


def option_text(value: Any) -> str:
    """An option's value as `parsed` reads it.

    >>> option_text((4, 6, 8)), option_text(True), option_text(None)
    ('4/6/8', 'true', 'none')
    """
    if isinstance(value, tuple):
        return "/".join(map(option_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
