"""One language for things by name."""

import math
from typing import Literal

import pytest

import ananet
from ananet import InputError
from ananet._util.names import Registry, labelled, option_text, options_of, read_options, split_options
from ananet.features import load_detector


class Lamp:
    """A thing with options."""

    name = "lamp"

    def __init__(
        self,
        watts: float = 40.0,
        colours: tuple[int, ...] = (1, 2),
        on: bool = False,
        shade: Literal["paper", "glass"] | None = None,
        device: str = "cpu",
    ) -> None:
        self.watts, self.colours, self.on, self.shade, self.device = watts, colours, on, shade, device


@pytest.fixture
def lamps() -> Registry[Lamp]:
    registry: Registry[Lamp] = Registry("light", {"fraction": "fractions:Fraction"})
    registry.add(Lamp)
    return registry


def test_made_by_name(lamps):
    lamp = lamps.make("lamp")
    assert (lamp.watts, lamp.name, lamp.device) == (40.0, "lamp", "cpu")
    lamp = lamps.make("lamp@watts=60@colours=3@on=true@shade=glass", device="gpu", unknown=3)
    assert (lamp.watts, lamp.colours, lamp.on, lamp.shade, lamp.device) == (60.0, (3,), True, "glass", "gpu")
    assert lamp.name == "lamp@watts=60.0@colours=3@on=true@shade=glass"
    assert Lamp.name == "lamp"


def test_values_go_along_with_texts(lamps):
    lamp = lamps.make("lamp@watts=60", options={"colours": [4, 5], "on": True})
    assert (lamp.watts, lamp.colours, lamp.on) == (60.0, (4, 5), True)
    again = lamps.make(lamp.name)
    assert again.name == lamp.name and vars(again) == vars(lamp)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("candle", {}, "light: expected one of lamp, fraction, got 'candle'"),
        ("", {}, "light: expected one of lamp, fraction, got ''"),
        (None, {}, "light: expected a name, got None"),
        ("lamp@watts", {}, "light: expected an option as name=value after '@', got 'watts'"),
        ("lamp@", {}, "light: expected an option as name=value after '@', got ''"),
        ("lamp@=3", {}, "light: expected an option as name=value after '@', got '=3'"),
        ("lamp@watts=", {}, "light: expected an option as name=value after '@', got 'watts='"),
        ("lamp@watts=much", {}, "watts: expected a number, got 'much'"),
        ("lamp@volts=1", {}, "unknown option volts of light 'lamp': it has watts, colours, on, shade"),
        ("lamp", {"volts": 1}, "unknown option volts of light 'lamp': it has watts, colours, on, shade"),
        ("lamp", {"watts": "60"}, "watts: expected a number, got '60'"),
        ("lamp@device=gpu", {}, "unknown option device of"),
    ],
)
def test_wrong_names_and_options_are_told(text, options, message, lamps):
    with pytest.raises(InputError, match=message):
        lamps.make(text, options=options)


def test_the_packages_own_are_imported_when_asked_for(lamps):
    from fractions import Fraction

    assert lamps["fraction"] is Fraction
    assert "fraction" in lamps and "lamp" in lamps and "candle" not in lamps and 3 not in lamps
    absent = Registry("thing", {"nowhere": "no_such_module:Thing"})
    assert absent.names == ["nowhere"]
    with pytest.raises(ModuleNotFoundError):
        absent["nowhere"]


def test_what_is_added_goes_first_and_may_take_a_name(lamps):
    @lamps.add
    class Torch(Lamp):
        name = "fraction"

    assert lamps["fraction"] is Torch
    assert lamps.names == ["lamp", "fraction"]
    assert lamps.outside_modules == [__name__]
    for wrong in (lambda: None, type("Nameless", (), {}), type("Numbered", (), {"name": 3})):
        with pytest.raises(InputError, match="light: expected a class or function with a name"):
            lamps.add(wrong)


def test_options_are_parameters_with_a_default():
    def make(path: str, device: str = "cpu", name: str = "x", size: int = 3, *, odds: float | None = None) -> None: ...

    found = options_of(make)
    assert list(found) == ["size", "odds"]
    assert found["size"].kind is int and found["size"].default == 3
    assert str(found["odds"]) == "a number or none, none unless given"
    assert options_of(type("Bare", (), {})) == {}
    assert read_options("thing", make, {"odds": "inf"}, {"size": 4}) == {"odds": math.inf, "size": 4}
    with pytest.raises(InputError, match="unknown option size of thing: it has none"):
        read_options("thing", lambda: None, {"size": "3"}, {})


@pytest.mark.parametrize(
    "options", [{}, {"a": 0.7}, {"a": 1e-05, "b": True}, {"a": (4, 6), "b": None, "c": "huber"}, {"a": math.inf}]
)
def test_labels_are_read_back(options):
    label = labelled("thing", options)
    assert split_options(label, "thing") == ("thing", {name: option_text(value) for name, value in options.items()})


def test_a_slip_of_the_hand_gets_a_hint():
    with pytest.raises(InputError, match="got 'syft'; did you mean 'sift'\\?"):
        load_detector("syft")
    with pytest.raises(InputError, match="got 'ananet-papr'; did you mean 'ananet-paper'\\?"):
        ananet.load("ananet-papr")
