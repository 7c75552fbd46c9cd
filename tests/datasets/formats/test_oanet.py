import copy
import pickle
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ananet.core import geometry
from ananet.core.correspondences import Correspondences
from ananet.datasets.base import LabelledPair
from ananet.datasets.formats.oanet import (
    GROUPS,
    OANetDump,
    OANetRawScenes,
    read_raw_scene,
)
from ananet.errors import InputError, MissingExtraError
from tests.datasets.oanet_dumps import write_oanet_dump

h5py = pytest.importorskip("h5py")
COUNT = 30
K0 = np.array([[500.0, 0, 321], [0, 510, 239], [0, 0, 1]])
K1 = np.array([[700.0, 0, 300], [0, 690, 250], [0, 0, 1]])


def pose() -> tuple[np.ndarray, np.ndarray]:
    cosine, sine = np.cos(0.2), np.sin(0.2)
    return np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]]), np.array([0.6, 0.0, 0.8])


def write_by_hand(path: Path, pairs: int = 4) -> dict[str, list[np.ndarray]]:
    """A dump as OANet's own code writes it, with half of the matches right."""
    random = np.random.default_rng(0)
    R, t = pose()
    written: dict[str, list[np.ndarray]] = {name: [] for name in GROUPS}
    for _ in range(pairs):
        X = random.uniform((-1, -1, 3), (1, 1, 5), (COUNT, 3))
        X1 = X @ R.T + t
        rays = np.concatenate([X[:, :2] / X[:, 2:], X1[:, :2] / X1[:, 2:]], axis=1)
        rays[COUNT // 2 :, 2:] = random.uniform(-0.5, 0.5, (COUNT - COUNT // 2, 2))
        points = torch.from_numpy(rays)
        E = geometry.essential_from_pose(torch.from_numpy(R), torch.from_numpy(t))
        distance = geometry.symmetric_epipolar_distance_squared(points[:, :2], points[:, 2:], E).numpy()
        values = {
            "xs": rays[None],
            "ys": distance[:, None],
            "Rs": R,
            "ts": t[:, None],
            "ratios": random.uniform(0, 1, COUNT),
            "mutuals": random.integers(0, 2, COUNT),
            "cx1s": K0[[0], [2]],
            "cy1s": K0[[1], [2]],
            "cx2s": K1[[0], [2]],
            "cy2s": K1[[1], [2]],
            "f1s": K0[[0, 1], [0, 1]][None],
            "f2s": K1[[0, 1], [0, 1]][None],
        }
        for name in GROUPS:
            written[name].append(values[name].astype(np.float32))
    with h5py.File(path, "w") as file:
        for name, items in written.items():
            for index, item in enumerate(items):
                file.create_dataset(f"{name}/{index}", data=item)
    return written


def test_reads_what_oanet_writes(tmp_path: Path) -> None:
    written = write_by_hand(tmp_path / "dump.hdf5")
    with closing(OANetDump(tmp_path / "dump.hdf5")) as dump:
        assert len(dump) == 4
        for index, pair in enumerate(dump):
            assert pair.name == str(index)
            assert pair.distance is not None and pair.R is not None and pair.t is not None
            np.testing.assert_allclose(pair.matches.normalized(), written["xs"][index][0], atol=1e-12)
            np.testing.assert_array_equal(pair.distance.numpy(), written["ys"][index][:, 0])
            np.testing.assert_array_equal(pair.matches.K1, K1)
            assert pair.inlier[: COUNT // 2].all()
            assert torch.equal(pair.inlier, pair.distance < 1e-4)
            assert pair.R.shape == (3, 3) and pair.t.shape == (3,)


def test_points_are_pixels(tmp_path: Path) -> None:
    written = write_by_hand(tmp_path / "dump.hdf5")
    pair = OANetDump(tmp_path / "dump.hdf5")[0]
    expected = written["xs"][0][0, :, :2] * [500, 510] + [321, 239]
    np.testing.assert_allclose(pair.matches.points0, expected, atol=1e-3)


def test_distances_are_those_of_the_pose(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "dump.hdf5")
    pair = OANetDump(tmp_path / "dump.hdf5")[1]
    assert pair.R is not None and pair.t is not None
    again = LabelledPair.from_pose("again", pair.matches, pair.R, pair.t)
    torch.testing.assert_close(again.distance, pair.distance, atol=1e-6, rtol=1e-3)


def test_indexing(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "dump.hdf5")
    dump = OANetDump(tmp_path / "dump.hdf5")
    assert [pair.name for pair in dump] == ["0", "1", "2", "3"]
    assert [pair.scene for pair in dump] == dump.scene_of_pairs() == [""] * 4
    for number in (4, -1):
        with pytest.raises(IndexError):
            dump[number]


def test_travels_to_another_process(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "dump.hdf5")
    dump = OANetDump(tmp_path / "dump.hdf5")
    assert copy.copy(dump)[0].name == "0"
    assert pickle.loads(pickle.dumps(dump))[2].name == "2"


def test_a_dump_is_a_table_for_training(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "dump.hdf5")
    dump = OANetDump(tmp_path / "dump.hdf5")
    table = dump.table()
    table.check("dump")
    assert table.pairs == 4 and table.images == 8 and len(table.index) == 4 * COUNT
    assert table.sizes.isnan().all() and table.angles.isnan().all()
    np.testing.assert_allclose(table.points[:COUNT], dump[0].matches.points0, atol=1e-3)
    # No size is stored: the principal point stands for the middle of the image.
    assert table.image_size[0].tolist() == [643, 479]


def test_write_then_read(tmp_path: Path) -> None:
    written = write_by_hand(tmp_path / "dump.hdf5")
    write_oanet_dump(tmp_path / "copy.hdf5", OANetDump(tmp_path / "dump.hdf5"))
    with h5py.File(tmp_path / "copy.hdf5") as file:
        assert set(file) == set(GROUPS)
        for name, items in written.items():
            for index, item in enumerate(items):
                data = file[name][str(index)]
                assert data.shape == item.shape and data.dtype == np.float32
                np.testing.assert_allclose(data, item, rtol=1e-6, atol=1e-7)


def test_writing_needs_all_there_is(tmp_path: Path) -> None:
    matches = Correspondences(np.zeros((3, 2)), np.zeros((3, 2)), K0=K0, K1=K1)
    pair = LabelledPair.from_pose("bare", matches, *map(torch.from_numpy, pose()))
    with pytest.raises(InputError, match="ratio of every pair, pair 'bare'"):
        write_oanet_dump(tmp_path / "dump.hdf5", [pair])
    assert not list(tmp_path.iterdir())


def test_ratio_without_a_second_neighbour(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "dump.hdf5")
    with h5py.File(tmp_path / "dump.hdf5", "a") as file:
        file["ratios/0"][:2] = [np.nan, 1.00001]
    ratio = OANetDump(tmp_path / "dump.hdf5")[0].matches.ratio
    assert ratio is not None and ratio[:2].tolist() == [1, 1]


def test_broken_dumps(tmp_path: Path) -> None:
    path = tmp_path / "dump.hdf5"
    with pytest.raises(InputError, match="no such file"):
        OANetDump(path)
    path.write_text("text")
    with pytest.raises(InputError, match="not a readable HDF5 file"):
        OANetDump(path)
    write_by_hand(path)
    with h5py.File(path, "a") as file:
        del file["ys/1"], file["ratios/2"]
        file["ratios/2"] = np.zeros(3)
    dump = OANetDump(path)
    with pytest.raises(InputError, match="ys/1: expected an array"):
        dump[1]
    with pytest.raises(InputError, match=f"ratios/2: expected {COUNT} numbers, got 3"):
        dump[2]
    dump.close()
    with h5py.File(path, "a") as file:
        del file["f1s"]
    with pytest.raises(InputError, match="missing f1s"):
        OANetDump(path)


def test_datasets_that_are_none_or_too_large(tmp_path: Path) -> None:
    path = tmp_path / "dump.hdf5"
    write_by_hand(path, pairs=5)
    with h5py.File(path, "a") as file:
        for name in ("xs/0", "Rs/1", "ys/2", "ts/3"):
            del file[name]
        # A few bytes that claim four terabytes.
        file.create_dataset("xs/0", (2**40,), "f4", chunks=True)
        file.create_group("Rs/1")
        file["ys/2"] = ["text"] * COUNT
        file["ts/3"] = np.array([0, np.nan, 1])
    dump = OANetDump(path)
    for number, message in (
        (0, "xs/0: expected at most"),
        (1, "Rs/1: expected an array, got"),
        (2, "ys/2: expected real numbers"),
        (3, "finite pose of pair 3"),
    ):
        with pytest.raises(InputError, match=message):
            dump[number]
    assert dump[4].name == "4"
    dump.close()
    with h5py.File(path, "a") as file:
        del file["ratios"]
        file["ratios"] = np.zeros(3)
    with pytest.raises(InputError, match="missing ratios"):
        OANetDump(path)


def write_raw_scene(folder: Path, visibility: str = "0 51 50") -> Path:
    folder.mkdir()
    for i in range(3):
        with h5py.File(folder / f"camera{i}.h5", "w") as file:
            file["K"] = np.array([[500.0, 0, 3], [0, 510, -4], [0, 0, 1]])
            file["R"], file["T"], file["imsize"] = np.eye(3), np.array([[i, 0.0, 0.0]]), np.array([[641, 481]])
        (folder / f"visibility{i}.txt").write_text("\n".join(visibility.split()))
    for name, item in (("images", "image{}.jpg"), ("calibration", "camera{}.h5"), ("visibility", "visibility{}.txt")):
        (folder / f"{name}.txt").write_text("".join(item.format(i) + "\n" for i in range(3)))
    return folder


def test_raw_scene(tmp_path: Path) -> None:
    scene = read_raw_scene(write_raw_scene(tmp_path / "place"))
    assert scene.name == "place" and len(scene.images) == 3
    image = scene.images["image2.jpg"]
    assert image.path == tmp_path / "place" / "image2.jpg"
    np.testing.assert_array_equal(image.K, [[500, 0, 323], [0, 510, 236], [0, 0, 1]])
    np.testing.assert_array_equal(image.t, [2, 0, 0])
    assert scene.pairs is not None
    assert sorted(pair.name for pair in scene.pairs) == ["image0.jpg-image1.jpg", "image2.jpg-image1.jpg"]
    assert all(pair.image1 is scene.images["image1.jpg"] for pair in scene.pairs)


def test_raw_scenes_are_a_source(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_raw_scene(tmp_path / name)
    (tmp_path / "notes").mkdir()
    source = OANetRawScenes(tmp_path)
    assert source.name == "OANet raw scenes"
    assert [scene.name for scene in source.scenes()] == ["a", "b"]
    assert [scene.name for scene in OANetRawScenes(tmp_path / "a").scenes()] == ["a"]
    assert OANetRawScenes.recognises(tmp_path) and not OANetRawScenes.recognises(tmp_path / "notes")


def test_raw_scene_draws_the_same_pairs_as_oanet(tmp_path: Path) -> None:
    folder = write_raw_scene(tmp_path / "place", "99 99 99")
    every = [(i, j) for i in range(3) for j in range(3) if i != j]
    np.random.seed(1234)
    expected = ["-".join(f"image{k}.jpg" for k in every[i]) for i in np.random.permutation(6)]
    pairs = read_raw_scene(folder).pairs
    assert pairs is not None and [pair.name for pair in pairs] == expected


def _drop_line(folder: Path) -> None:
    (folder / "calibration.txt").write_text("camera0.h5\n")


def _drop_camera(folder: Path) -> None:
    (folder / "camera1.h5").unlink()


def _drop_rotation(folder: Path) -> None:
    with h5py.File(folder / "camera1.h5", "a") as file:
        del file["R"]


def _turn_camera_around(folder: Path) -> None:
    with h5py.File(folder / "camera1.h5", "a") as file:
        file["K"][0, 0] = -500


def _harm_camera(folder: Path) -> None:
    (folder / "camera1.h5").write_bytes(b"text")


def _cut_rotation(folder: Path) -> None:
    with h5py.File(folder / "camera1.h5", "a") as file:
        del file["R"]
        file["R"] = np.eye(2)


def _write_words(folder: Path) -> None:
    (folder / "visibility1.txt").write_text("1\nmany\n2\n")


def _write_no_text(folder: Path) -> None:
    (folder / "images.txt").write_bytes(b"\xff\xfe")


def _name_what_is_no_file(folder: Path) -> None:
    (folder / "visibility.txt").write_text("visibility0.txt\nvisibility1.txt\n" + "9" * 5000)


def _drop_number(folder: Path) -> None:
    (folder / "visibility1.txt").write_text("1\n2\n")


def _drop_list(folder: Path) -> None:
    (folder / "images.txt").unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_drop_line, "as many images as calibrations"),
        (_drop_camera, "camera1.h5: no such file"),
        (_drop_rotation, "camera1.h5, /R: expected an array, got None"),
        (_turn_camera_around, "camera1.h5: expected positive focal lengths"),
        (_harm_camera, "camera1.h5: not a readable HDF5 file"),
        (_cut_rotation, r"camera1.h5: expected finite K \(3, 3\)"),
        (_drop_number, "expected 3 numbers, got 2"),
        (_write_words, "visibility1.txt: expected numbers"),
        (_write_no_text, "images.txt: expected a text file"),
        (_name_what_is_no_file, "no such file"),
        (_drop_list, "images.txt: no such file"),
    ],
)
def test_broken_raw_scenes(tmp_path: Path, harm: Any, message: str) -> None:
    folder = write_raw_scene(tmp_path / "place")
    harm(folder)
    with pytest.raises(InputError, match=message):
        read_raw_scene(folder)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match="pip install h5py .* extra 'h5'"):
        OANetDump(tmp_path / "dump.hdf5")
