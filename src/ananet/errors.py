"""The two ways a caller can be told that something on their side needs to change."""

from numbers import Real
from typing import Any


class InputError(ValueError):
    """An argument is wrong: the message names it, says what was expected and what came."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed: the message says which extra brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package}: pip install 'ananet[{extra}]'")


def is_number(value: Any) -> bool:
    """Whether it is a real number of Python's or numpy's kinds; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_probability(name: str, value: Any) -> None:
    """Raises unless the value is a number above 0 and below 1."""
    if not is_number(value) or not 0 < value < 1:
        raise InputError(f"{name}: expected a probability above 0 and below 1, got {value!r}")
