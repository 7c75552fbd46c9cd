"""Which cameras two photos have."""

import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.twoview.cameras import choose_cameras, parse_camera, read_camera

K = [[500.0, 0, 320], [0, 510, 240], [0, 0, 1]]
SIZES = (640, 480), (200, 100)


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


def test_text_of_a_camera_has_limits():
    for wrong in ("500,510,320", "inf,1,1,1", "nan,1,1,1", "1e12,1,1,1", "a,b,c,d"):
        with pytest.raises(InputError, match=r"K0: expected fx,fy,cx,cy, got "):
            parse_camera("K0", wrong)
    with pytest.raises(InputError, match=r"K0: expected positive focal lengths, got fx=-1, fy=2"):
        parse_camera("K0", "-1,2,3,4")


def test_given_cameras_come_before_exif():
    assert choose_cameras(*SIZES).to_dict() == {"source": None, "K0": None, "K1": None}
    assert choose_cameras(*SIZES).missing is None
    for missing in (0, 1):
        unknown = choose_cameras(*SIZES, **{f"exif_focal{1 - missing}": 500})
        assert unknown.source is None and unknown.missing == missing
    exif = choose_cameras(*SIZES, exif_focal0=500, exif_focal1=600)
    assert exif.source == "exif" and exif.K1[0].tolist() == [600, 0, 99.5]
    focal = choose_cameras(*SIZES, focal=700, exif_focal0=500, exif_focal1=600)
    assert focal.source == "given"
    np.testing.assert_array_equal(focal.K0, [[700, 0, 319.5], [0, 700, 239.5], [0, 0, 1]])
    np.testing.assert_array_equal(focal.K1, [[700, 0, 99.5], [0, 700, 49.5], [0, 0, 1]])
    for kind in (np.array, torch.tensor, list):
        given = choose_cameras(*SIZES, K0=kind(K), K1=kind(K), exif_focal0=500, exif_focal1=600)
        assert given.to_dict() == {"source": "given", "K0": K, "K1": K}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"K0": K}, "K0 and K1: expected both or neither, K1 is missing"),
        ({"focal": 500, "K0": K, "K1": K}, "focal: expected either focal or K0 and K1, got both"),
        ({"focal": -1}, "focal: expected a positive number of pixels, got -1"),
        ({"K0": K[:2], "K1": K}, r"K0: expected shape \(3, 3\), got \(2, 3\)"),
        ({"K0": "camera", "K1": K}, r"K0: expected a \[3 x 3\] camera matrix, got 'camera'"),
    ],
)
def test_wrong_cameras(given, message):
    with pytest.raises(InputError, match=message):
        choose_cameras(*SIZES, **given)
