import numpy as np
import pytest

from ananet import InputError
from ananet.datasets.formats.homographies import HomographyScenes, read_homography, read_scene
from ananet.datasets.sources import open_source
from tests.datasets.planes import HOMOGRAPHIES, STEP, write_planes


@pytest.mark.parametrize("layout", ["oxford", "hpatches"])
def test_a_scene(tmp_path, layout):
    folder = write_planes(tmp_path / "wall", layout)
    first, second = read_scene(folder)
    assert (first.name, second.name, first.scene) == ("wall/1-2", "wall/1-3", "wall")
    names = {"oxford": ("img1.png", "img3.png"), "hpatches": ("1.ppm", "3.ppm")}[layout]
    assert (second.path0.name, second.path1.name) == names
    assert np.allclose(first.H, STEP) and np.allclose(second.H, HOMOGRAPHIES[3])


def test_scenes_of_a_folder(tmp_path):
    for name, layout in (("b", "hpatches"), ("a", "oxford")):
        write_planes(tmp_path / name, layout)
    (tmp_path / "notes").mkdir()
    (tmp_path / "README").write_text("")
    source = open_source(tmp_path)
    assert isinstance(source, HomographyScenes) and source.models == ("homography",) and not source.has_poses
    assert [pair.name for pair in source.pairs()] == ["a/1-2", "a/1-3", "b/1-2", "b/1-3"]
    assert [pair.scene for pair in open_source(tmp_path / "b").pairs()] == ["b", "b"]


def test_pairs_come_by_number(tmp_path):
    folder = write_planes(tmp_path / "a")
    for number in (10, 9):
        (folder / f"img{number}.png").write_bytes((folder / "img2.png").read_bytes())
        (folder / f"H1to{number}p").write_text("1 0 0 0 1 0 0 0 1")
    assert [pair.name for pair in read_scene(folder)] == ["a/1-2", "a/1-3", "a/1-9", "a/1-10"]


def test_a_photo_that_is_missing(tmp_path):
    folder = write_planes(tmp_path / "a")
    (folder / "img3.png").unlink()
    with pytest.raises(InputError, match=r"a: expected a photo img3 \(.ppm, .pgm, .png"):
        open_source(folder).pairs()


@pytest.mark.parametrize(
    "text", ["", "1 0 0 0 1 0 0 0", "1 0 0 0 1 0 0 0 x", "1 0 0 0 1 0 0 0 nan", "1 2 3 2 4 6 0 0 1"]
)
def test_what_is_no_homography(tmp_path, text):
    (tmp_path / "H1to2p").write_text(text)
    with pytest.raises(InputError, match="H1to2p: expected a homography of 3 x 3 numbers"):
        read_homography(tmp_path / "H1to2p")
