"""Values checked by their types: settings read from files, options read from names, arguments of functions.

>>> checked("steps", 3, int), checked("scenes", ["a"], tuple[str, ...]), parsed("neighbours", "4/6", tuple[int, ...])
(3, ('a',), (4, 6))
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import numpy as np

from ananet.errors import InputError

# Length of a value in an error text.
MAX_SHOWN = 100


def shown(value: Any) -> str:
    """A wrong value as an error text has it: its repr, shortened.

    >>> shown("a" * 200)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa... (202 characters)"
    """
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:60]}... ({len(text)} characters)"


def is_number(value: Any) -> bool:
    """Whether it is a real number of Python's or numpy's kinds; True, False, NaN and what no float holds are none."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:
        return False


def check_whole_number(name: str, value: Any, least: int, most: float = math.inf) -> int:
    """The value as int if it is a whole number of Python's or numpy's kinds within the bounds."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {int(most)}"
        raise InputError(f"{name}: expected a whole number {bounds}, got {shown(value)}")
    return int(value)


def check_positive(name: str, value: Any, unit: str = "") -> float:
    """The value as float if it is a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise InputError(f"{name}: expected a positive number{unit}, got {shown(value)}")
    return float(value)


def check_share(name: str, value: Any) -> None:
    """Raises unless the value is a number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        raise InputError(f"{name}: expected a number from 0 to 1, got {shown(value)}")


def check_probability(name: str, value: Any) -> float:
    """The value as float if it is a number above 0 and below 1."""
    if not is_number(value) or not 0 < value < 1:
        raise InputError(f"{name}: expected a probability above 0 and below 1, got {shown(value)}")
    return float(value)


def checked(name: str, value: Any, kind: Any) -> Any:
    """The value as the type that an annotation says: numpy numbers become Python's, lists become tuples."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _first_that_fits(name, kind, lambda choice: checked(name, value, choice))
    if kind is None or kind is type(None):
        fits = value is None
    elif origin is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in inner)
    elif origin is tuple:
        return _checked_tuple(name, value, kind, inner)
    elif is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, Mapping) and issubclass(kind, Settings):
            return kind.from_dict(value, f"{name}.")
        fits = isinstance(value, kind)
    elif kind is bool:
        fits, value = isinstance(value, bool | np.bool_), bool(value) if isinstance(value, np.bool_) else value
    elif kind in (int, float):
        fits = is_number(value) if kind is float else isinstance(value, Integral) and not isinstance(value, bool)
        value = kind(value) if fits else value
    elif kind is Path:
        fits, value = isinstance(value, str | Path), Path(value) if isinstance(value, str) else value
    else:
        fits = isinstance(value, origin or kind)
    if not fits:
        raise InputError(f"{name}: expected {describe(kind)}, got {shown(value)}")
    return value


def _checked_tuple(name: str, value: Any, kind: Any, inner: tuple[Any, ...]) -> tuple[Any, ...]:
    any_length = inner[-1:] == (Ellipsis,)
    if not isinstance(value, list | tuple) or (not any_length and len(value) != len(inner)):
        raise InputError(f"{name}: expected {describe(kind)}, got {shown(value)}")
    kinds = [inner[0]] * len(value) if any_length else inner
    return tuple(checked(name, one, of) for one, of in zip(value, kinds, strict=True))


def _first_that_fits(name: str, kind: Any, attempt: Callable[[Any], Any]) -> Any:
    failed = InputError(f"{name}: expected {describe(kind)}")
    for choice in reversed(get_args(kind)):
        # Of an optional value, what is wrong with the value says more than that it is not None.
        try:
            return attempt(choice)
        except InputError as error:
            failed = error
    raise failed


def parsed(name: str, text: str, kind: Any) -> Any:
    """A value of the annotated type from text: `true`, `0.5`, `4/6/8` (or with commas) for several, `none`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in inner and text == "none":
            return None
        return _first_that_fits(name, kind, lambda choice: parsed(name, text, choice))
    if origin is tuple:
        parts = text.replace(",", "/").split("/")
        kinds = [inner[0]] * len(parts) if inner[-1:] == (Ellipsis,) else list(inner)
        if len(kinds) != len(parts):
            raise InputError(f"{name}: expected {describe(kind)}, got {shown(text)}")
        return tuple(parsed(name, part, of) for part, of in zip(parts, kinds, strict=True))
    try:
        if kind is bool:
            return {"true": True, "false": False}[text]
        if kind in (int, float):
            return checked(name, kind(text), kind)
    except (KeyError, ValueError):
        raise InputError(f"{name}: expected {describe(kind)}, got {shown(text)}") from None
    return checked(name, text, kind)


def describe(kind: Any) -> str:
    """A type annotation in words.

    >>> describe(tuple[int, ...]), describe(float | None)
    ('a list of whole numbers', 'a number or none')
    """
    origin, inner = get_origin(kind), get_args(kind)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    several = {int: "whole numbers", float: "numbers", str: "texts"}
    if origin in (Union, types.UnionType):
        return " or ".join(describe(choice) for choice in inner)
    if kind is None or kind is type(None):
        return "none"
    if origin is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(str, inner))
    if origin is tuple:
        count = "a list of" if inner[-1:] == (Ellipsis,) else str(len(inner))
        return f"{count} {several.get(inner[0], 'values')}"
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def like(name: str, names: Iterable[str]) -> str:
    """The end of an error text for an unknown name: the known one that was probably meant, if there is one.

    >>> like("anannet", ["ananet", "ratio"])
    "; did you mean 'ananet'?"
    """
    found = get_close_matches(str(name)[:80], list(names), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


@dataclass(frozen=True)
class Settings:
    """Base of all settings: frozen, every field checked by its type, `check` for what types cannot say."""

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for field in fields(self):
            object.__setattr__(self, field.name, checked(field.name, getattr(self, field.name), kinds[field.name]))
        self.check()

    def check(self) -> None:
        """Raises where values of the right types are wrong."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Settings from a mapping, such as a section of a TOML file; an unknown name is an error."""
        if not isinstance(values, Mapping):
            raise InputError(f"{prefix or 'settings'}: expected names and values, got {values!r}")
        check_names(cls, values, prefix)
        try:
            return cls(**values)
        except InputError as error:
            raise InputError(f"{prefix}{error}") from None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_names(settings: type[Settings], names: Iterable[Any], prefix: str = "") -> None:
    """Raise if a name is not that of a setting."""
    known = [field.name for field in fields(settings)]
    unknown = sorted(str(name) for name in set(names) - set(known))
    if unknown:
        got = ", ".join(prefix + name for name in unknown)
        raise InputError(f"unknown setting {got}: expected some of {', '.join(known)}{like(unknown[0], known)}")
