"""How values of shared arguments are read."""

from argparse import ArgumentParser

import numpy as np
import pytest

from ananet import InputError
from ananet.cli.arguments import add_cameras, check_cameras, numbers, print_json, read_cameras

K = [[500.0, 0, 320], [0, 510, 240], [0, 0, 1]]


def parse(*arguments):
    parser = ArgumentParser()
    add_cameras(parser, "cameras", "of two photos")
    return parser.parse_args([str(argument) for argument in arguments])


def test_cameras_of_two_photos():
    assert read_cameras(parse()) == {"K0": None, "K1": None, "focal": None}
    assert read_cameras(parse("--focal", 700))["focal"] == 700
    found = read_cameras(parse("--k0", "500,510,320,240"))
    np.testing.assert_array_equal(found["K0"], K)
    np.testing.assert_array_equal(found["K1"], K)
    found = read_cameras(parse("--k0", "500,510,320,240", "--k1", "1,2,3,4"))
    assert found["K1"][0, 0] == 1 and found["K0"][0, 0] == 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--focal", 700, "--k0", "1,2,3,4"], "--focal: expected either --focal or --k0 and --k1, got both"),
        (["--focal", 700, "--k1", "1,2,3,4"], "--focal: expected either --focal or --k0 and --k1, got both"),
        (["--focal", 0], "--focal: expected a positive number of pixels, got 0"),
        (["--focal", "nan"], "--focal: expected a positive number of pixels, got nan"),
        (["--k1", "1,2,3,4"], "--k1: expected together with --k0, got it alone"),
    ],
)
def test_options_that_contradict_each_other(arguments, message):
    with pytest.raises(InputError, match=message):
        check_cameras(parse(*arguments))


def test_numbers_with_commas():
    assert numbers("--scales", "1,0.6", float, "positive numbers") == [1.0, 0.6]
    assert numbers("--lengths", "2048", int, "whole numbers") == [2048]
    for wrong in ("", "1,", "0,1", "-1", "a", "nan", "1,nan", "1,inf"):
        with pytest.raises(InputError, match=f"--scales: expected positive numbers, got '{wrong}'"):
            numbers("--scales", wrong, float, "positive numbers")


def test_json_is_strict(capsys):
    print_json({"a": 1})
    assert capsys.readouterr().out == '{"a": 1}\n'
    with pytest.raises(ValueError, match="Out of range float"):
        print_json({"a": float("nan")})
