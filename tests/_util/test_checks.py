"""Values checked by their types: what fits passes as Python's own kinds, what does not is named."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ananet import InputError
from ananet._util.checks import (
    Settings,
    check_positive,
    check_probability,
    check_share,
    check_whole_number,
    checked,
    describe,
    is_number,
    parsed,
)


@pytest.mark.parametrize("value", [0, -1.5, math.inf, np.float32(1), np.int8(3), Fraction(1, 2), 10**300])
def test_numbers(value):
    assert is_number(value)


@pytest.mark.parametrize(
    "value", [True, np.True_, math.nan, np.float32("nan"), "1", None, [1], 1j, np.ones(1), 10**400]
)
def test_what_is_no_number(value):
    assert not is_number(value)


def test_whole_numbers_within_bounds():
    found = check_whole_number("n", np.int64(3), 1, 5)
    assert found == 3 and type(found) is int
    for wrong in (0, 6, 2.0, "3", True, None, np.float64(3)):
        with pytest.raises(InputError, match="n: expected a whole number from 1 to 5, got"):
            check_whole_number("n", wrong, 1, 5)
    with pytest.raises(InputError, match="n: expected a whole number of at least 1, got 0"):
        check_whole_number("n", 0, 1)
    assert check_whole_number("n", 10**30, 1) == 10**30


def test_positive_numbers_shares_and_probabilities():
    assert check_positive("x", np.float32(0.5)) == 0.5
    for wrong in (0, -1, math.inf, math.nan, "1", None, True, 10**400):
        with pytest.raises(InputError, match="x: expected a positive number of pixels, got"):
            check_positive("x", wrong, " of pixels")
    assert check_probability("x", 0.5) == 0.5
    for wrong in (0, 1, -0.1, 1.1, math.nan, "0.5", None, True):
        with pytest.raises(InputError, match="x: expected a probability above 0 and below 1, got"):
            check_probability("x", wrong)
    for right in (0, 1, 0.5):
        check_share("x", right)
    for wrong in (-0.1, 1.1, math.nan, "0.5", None, True):
        with pytest.raises(InputError, match="x: expected a number from 0 to 1, got"):
            check_share("x", wrong)


@dataclass(frozen=True)
class Inner(Settings):
    depth: int = 1


@dataclass(frozen=True)
class Outer(Settings):
    steps: int = 10
    rate: float = 0.5
    scenes: tuple[str, ...] = ()
    limits: tuple[float, float] = (0.1, 0.9)
    form: Literal["round", "square"] = "round"
    seed: int | None = None
    folder: Path | None = None
    loud: bool = False
    inner: Inner = field(default_factory=Inner)

    def check(self) -> None:
        check_whole_number("steps", self.steps, 1)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.int32(3), int, 3),
        (3, float, 3.0),
        (np.float32(0.5), float, 0.5),
        (np.True_, bool, True),
        (["a", "b"], tuple[str, ...], ("a", "b")),
        ((), tuple[int, ...], ()),
        ([1, 2], tuple[float, float], (1.0, 2.0)),
        (None, int | None, None),
        (3, int | None, 3),
        ("a/b", Path, Path("a/b")),
        (Path("a"), Path | None, Path("a")),
        ("round", Literal["round", "square"], "round"),
        (None, Literal["round"] | None, None),
        ({"depth": 2}, Inner, Inner(2)),
        (Inner(3), Inner, Inner(3)),
        ("anything", Any, "anything"),
    ],
)
def test_what_fits_becomes_the_annotated_kind(value, kind, expected):
    found = checked("x", value, kind)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (1.0, int, "x: expected a whole number, got 1.0"),
        (True, int, "x: expected a whole number, got True"),
        ("1", float, "x: expected a number, got '1'"),
        (math.nan, float, "x: expected a number, got nan"),
        (1, bool, "x: expected true or false, got 1"),
        (1, str, "x: expected text, got 1"),
        ("ab", tuple[str, ...], "x: expected a list of texts, got 'ab'"),
        ([1, "a"], tuple[int, ...], "x: expected a whole number, got 'a'"),
        ([1.0], tuple[float, float], r"x: expected 2 numbers, got \[1.0\]"),
        ("a", int | None, "x: expected a whole number, got 'a'"),
        ("oval", Literal["round", "square"], "x: expected one of round, square, got 'oval'"),
        (1, Literal[True], "x: expected True, got 1"),
        (5, Path, "x: expected a path, got 5"),
        (5, Inner, "x: expected Inner, got 5"),
        ({"width": 5}, Inner, "unknown setting x.width: expected some of depth"),
        ({"depth": "a"}, Inner, "x.depth: expected a whole number, got 'a'"),
    ],
)
def test_what_does_not_fit_is_named(value, kind, message):
    with pytest.raises(InputError, match=message):
        checked("x", value, kind)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("4", int, 4),
        ("4", float, 4.0),
        ("1e-3", float, 1e-3),
        ("inf", float, math.inf),
        ("true", bool, True),
        ("false", bool, False),
        ("4/6/8", tuple[int, ...], (4, 6, 8)),
        ("4,6", tuple[int, ...], (4, 6)),
        ("4", tuple[int, ...], (4,)),
        ("0.5/1", tuple[float, float], (0.5, 1.0)),
        ("none", float | None, None),
        ("2", float | None, 2.0),
        ("huber", Literal["huber", "cauchy"] | None, "huber"),
        ("none", Literal["huber", "cauchy"] | None, None),
        ("a/b", str, "a/b"),
        ("a/b", Path, Path("a/b")),
        ("4", Any, "4"),
    ],
)
def test_text_is_read_by_its_kind(text, kind, expected):
    found = parsed("x", text, kind)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("high", float, "x: expected a number, got 'high'"),
        ("nan", float, "x: expected a number, got 'nan'"),
        ("4.5", int, "x: expected a whole number, got '4.5'"),
        ("9" * 5000, int, "x: expected a whole number, got '999"),
        ("True", bool, "x: expected true or false, got 'True'"),
        ("4/x", tuple[int, ...], "x: expected a whole number, got 'x'"),
        ("", tuple[int, ...], "x: expected a whole number, got ''"),
        ("1/2/3", tuple[float, float], "x: expected 2 numbers, got '1/2/3'"),
        ("none", float, "x: expected a number, got 'none'"),
        ("oval", Literal["round", "square"], "x: expected one of round, square, got 'oval'"),
        ("oval", Literal["round"] | None, "x: expected round, got 'oval'"),
    ],
)
def test_text_that_does_not_fit_is_named(text, kind, message):
    with pytest.raises(InputError, match=message):
        parsed("x", text, kind)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (bool, "true or false"),
        (float | None, "a number or none"),
        (tuple[str, ...], "a list of texts"),
        (tuple[float, float], "2 numbers"),
        (Literal["a", "b"], "one of a, b"),
        (Literal["a", "b"] | None, "one of a, b or none"),
        (Inner, "Inner"),
    ],
)
def test_kinds_in_words(kind, words):
    assert describe(kind) == words


def test_settings_from_names_and_values():
    settings = Outer.from_dict({"steps": 3, "scenes": ["a"], "folder": "x", "inner": {"depth": 7}, "seed": 1})
    assert settings == Outer(steps=3, scenes=("a",), folder=Path("x"), inner=Inner(7), seed=1)
    assert Outer.from_dict(settings.to_dict()) == settings
    assert Outer(rate=1).rate == 1.0 and type(Outer(rate=1).rate) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"setps": 3}, "unknown setting setps: expected some of steps, rate, "),
        ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
        ({"steps": "3"}, "steps: expected a whole number, got '3'"),
        ({"inner": {"depht": 1}}, "unknown setting inner.depht: expected some of depth"),
        ({"inner": {"depth": 1.5}}, "inner.depth: expected a whole number, got 1.5"),
        ({"inner": 4}, "inner: expected Inner, got 4"),
        ({5: 1}, "unknown setting 5: expected"),
        ([1], r"settings: expected names and values, got \[1\]"),
    ],
)
def test_wrong_settings_are_named(values, message):
    with pytest.raises(InputError, match=f"^{message}"):
        Outer.from_dict(values)
