"""How values of shared arguments are read."""

from argparse import ArgumentParser

import numpy as np
import pytest

from ananet import InputError
from ananet.cli.arguments import add_cameras, check_cameras, numbers, print_json, read_camera, read_cameras

K = [[500.0, 0, 320], [0, 510, 240], [0, 0, 1]]
IMAGES = np.zeros((480, 640, 3), np.uint8), np.zeros((100, 200, 3), np.uint8)


def parse(*arguments):
    parser = ArgumentParser()
    add_cameras(parser, "cameras", "of two photos")
    return parser.parse_args([str(argument) for argument in arguments])


def test_a_camera_from_text_or_a_file(tmp_path):
    (tmp_path / "four.txt").write_text("500 510\n320, 240\n")
    np.savetxt(tmp_path / "nine.txt", K)
    for text in ("500,510,320,240", str(tmp_path / "four.txt"), str(tmp_path / "nine.txt")):
        np.testing.assert_array_equal(read_camera("--k0", text), K)
    (tmp_path / "three.txt").write_text("1 2 3")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    for wrong in ("", "1,2,3", "a,b,c,d", str(tmp_path / "three.txt"), str(tmp_path / "none.txt"), "500;510;1;2"):
        with pytest.raises(InputError, match="--k0: expected fx,fy,cx,cy or a text file with 4 or 9 numbers, got "):
            read_camera("--k0", wrong)
    with pytest.raises(InputError, match=r"--k0: expected a text file with 4 or 9 numbers, got .*photo.jpg"):
        read_camera("--k0", str(tmp_path / "photo.jpg"))


def test_cameras_of_two_photos():
    assert read_cameras(parse(), *IMAGES) == (None, None)
    K0, K1 = read_cameras(parse("--focal", 700), *IMAGES)
    np.testing.assert_array_equal(K0, [[700, 0, 319.5], [0, 700, 239.5], [0, 0, 1]])
    np.testing.assert_array_equal(K1, [[700, 0, 99.5], [0, 700, 49.5], [0, 0, 1]])
    K0, K1 = read_cameras(parse("--k0", "500,510,320,240"), *IMAGES)
    np.testing.assert_array_equal(K0, K)
    np.testing.assert_array_equal(K1, K)
    K0, K1 = read_cameras(parse("--k0", "500,510,320,240", "--k1", "1,2,3,4"), *IMAGES)
    assert K1[0, 0] == 1 and K0[0, 0] == 500


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
