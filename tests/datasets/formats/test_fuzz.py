"""Every file that is read gives a value or an InputError, however it is damaged."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ananet import InputError
from ananet.datasets.base import join
from ananet.datasets.formats.colmap import read_posed_scene
from ananet.datasets.formats.homographies import read_scene as read_planes
from ananet.datasets.formats.labelled import read_case, read_plane_matches
from ananet.datasets.formats.pairlists import read_megadepth, read_pair_list
from ananet.datasets.formats.shards import PairShards, write_index, write_table
from ananet.evaluation.predictions import Prediction, Predictions, PredictionStore, read_predictions, write_predictions
from ananet.networks import load_network, save_network
from ananet.training.checkpoint import load_checkpoint, save_checkpoint
from ananet.training.settings import TrainSettings
from tests.datasets.formats import test_colmap, test_labelled, test_pairlists
from tests.datasets.formats.test_shards import scene, table_of
from tests.datasets.planes import write_plane_matches, write_planes
from tests.evaluation.test_predictions import ORIGIN
from tests.mutations import (
    Mutation,
    change_bytes,
    change_floats,
    change_hdf5,
    change_json,
    change_lines,
    change_safetensors,
    change_words,
    mutants,
)
from tests.networks.networks import network
from tests.training.test_checkpoint import NOTES, make, steps

MUTANTS = 100
SECONDS = 5
TEXT = (change_bytes, change_lines, change_words, change_words)
TENSORS = (change_safetensors, change_safetensors, change_safetensors, change_bytes)
BINARY = (change_bytes, change_floats)
HDF5 = (change_bytes, change_floats, change_hdf5, change_hdf5)


@dataclass(frozen=True)
class Format:
    """How a good example is written, which of its files are damaged and how, and what reads it."""

    write: Callable[[Path], Any]
    files: tuple[str, ...]
    mutations: tuple[Mutation, ...]
    read: Callable[[Path], Any]


def write_shards(folder: Path) -> None:
    tables = [table_of(3, 4, 13, seed=1), table_of(2, 1, 21, seed=2, known=False), table_of(2, 2, 5, seed=3)]
    write_table(folder / "pairs-000.safetensors", join(tables[:2]))
    write_table(folder / "pairs-001.safetensors", tables[2])
    scenes = [scene(name, table) for name, table in zip("abc", tables, strict=True)]
    shards = ["pairs-000.safetensors", "pairs-001.safetensors"]
    write_index(folder, {"settings": {"seed": 0}, "shards": shards, "scenes": scenes})


def read_shards(folder: Path) -> None:
    pairs = PairShards(folder)
    pairs.scene_of_pairs()
    for number in range(len(pairs)):
        try:
            pairs[number]
        except InputError:
            continue
    pairs.table()


def write_prediction_file(folder: Path) -> None:
    answers = [Prediction(np.arange(n) % 3 == 0, np.linspace(-5, 5, n, dtype=np.float32)) for n in (9, 0, 4)]
    made = Predictions(ORIGIN, ["a", "b", "c"], ["1", "2", "3"], answers, {"numpy": "2"})
    write_predictions(folder / "tiny.safetensors", made)


def read_prediction_file(folder: Path) -> None:
    found = read_predictions(folder / "tiny.safetensors")
    assert all(len(answer.mask) == len(answer.logits) for answer in found.results)
    store = PredictionStore(folder, {"tiny": ORIGIN}, 3)
    for number, name in enumerate("abc"):
        store.check(number, name, str(number + 1))
        store.given(number)


def write_checkpoint(folder: Path) -> None:
    made = make()
    steps(made[0], made[2], 1)
    save_checkpoint(folder / "last", 1, {"seed": 0}, *made, NOTES)


def read_run(folder: Path) -> None:
    made = make()
    step, notes = load_checkpoint(folder / "last", *made)
    assert step + notes["seconds"] >= 0 and (notes["best"] is None or notes["best"]["average_precision"] >= -1e308)
    steps(made[0], made[2], 1)


def read_weights(folder: Path) -> None:
    net, _ = load_network(folder / "w.safetensors")
    assert all(not value.is_complex() for value in net.state_dict().values())


def write_settings(folder: Path) -> None:
    (folder / "train.toml").write_text(
        'pairs = "data"\ncalibration_scenes = ["a", "b"]\nsteps = 100\nlearning_rate = 1e-3\nseed = 3\n'
        "small_share = 0.25\ncompile = false\ngeometric_weight = 0.0\ngeometric_from = 20000\naveraging = 0.999\n"
        '[network]\nname = "ananet"\nblocks = 3\nwidth = 64\nside = ["ratio", "mutual"]\n'
        "[batches]\nbatch_size = 8\nmatches = 100\nroll = 0.1\nfocal_change = 0.2\n[small_batches]\nmatches = 10\n"
    )


def write_list(folder: Path) -> None:
    row = test_pairlists.numbers(test_pairlists.K, test_pairlists.K, test_pairlists.matrix())
    (folder / "list.txt").write_text(f"a/0.jpg 1.jpg 0 3 {row}\nb.jpg c.jpg {row}\n")


def write_views(folder: Path) -> None:
    pose = test_pairlists.numbers(test_pairlists.R, test_pairlists.T)
    (folder / "views.txt").write_text(
        f"a.jpg {pose} PINHOLE 320 240 300 310 161 118\nb.jpg {pose} SIMPLE_RADIAL 320 240 300 160 120 0.1\n"
    )
    (folder / "pairs.txt").write_text("a.jpg b.jpg\nb.jpg a.jpg\n")


def write_text_scene(folder: Path) -> None:
    test_colmap.write_scene(folder / "place", ["a.jpg", "b.jpg"], "a.jpg b.jpg\nb.jpg a.jpg\n")


def write_binary_scene(folder: Path) -> None:
    test_colmap.write_binary_model(folder / "place" / "sparse", "OPENCV", "a.jpg")
    (folder / "place" / "images").mkdir()
    (folder / "place" / "images" / "a.jpg").write_bytes(b"photo")


def read_scene(folder: Path) -> None:
    for pair in read_posed_scene(folder / "place").all_pairs():
        pair.relative_pose()


def read_pairs(pairs: list[Any]) -> None:
    for pair in pairs:
        assert pair.relative_pose()[0].isfinite().all()


def read_homographies(folder: Path) -> None:
    for pair in read_planes(folder / "wall"):
        assert np.isfinite(np.linalg.inv(pair.H)).all()


def read_matches_of_a_plane(folder: Path) -> None:
    assert len(read_plane_matches(folder / "a_pts.txt").inlier) >= 4


CASE = tuple(f"case/{name}.txt" for name in ("1key_location", "2key_location", "match_idx", "gt_location"))
COLMAP = "place/sparse/"
FORMATS = {
    "shards": Format(write_shards, ("pairs-000.safetensors", "pairs-001.safetensors"), TENSORS, read_shards),
    "index": Format(write_shards, ("index.json",), (change_json, change_json, change_bytes), read_shards),
    "predictions": Format(write_prediction_file, ("tiny.safetensors",), TENSORS, read_prediction_file),
    "checkpoint": Format(write_checkpoint, ("last",), TENSORS, read_run),
    "weights": Format(
        lambda folder: save_network(folder / "w.safetensors", network(blocks=1, width=16, heads=2), {"data": "x"}),
        ("w.safetensors",),
        TENSORS,
        read_weights,
    ),
    "settings": Format(
        write_settings, ("train.toml",), TEXT, lambda folder: TrainSettings.from_toml(folder / "train.toml")
    ),
    "pair list": Format(
        write_list, ("list.txt",), TEXT, lambda folder: read_pairs(read_pair_list(folder / "list.txt", folder))
    ),
    "views": Format(write_views, ("views.txt", "pairs.txt"), TEXT, lambda folder: read_pairs(read_megadepth(folder))),
    "MULTI": Format(
        lambda folder: test_labelled.write_case(folder / "case"), CASE, TEXT, lambda folder: read_case(folder / "case")
    ),
    "homographies": Format(
        lambda folder: write_planes(folder / "wall"), ("wall/H1to2p", "wall/H1to3p"), TEXT, read_homographies
    ),
    "matches of planes": Format(
        lambda folder: write_plane_matches(folder / "a_pts.txt"), ("a_pts.txt",), TEXT, read_matches_of_a_plane
    ),
    "COLMAP text": Format(
        write_text_scene, (COLMAP + "cameras.txt", COLMAP + "images.txt", "place/pairs.txt"), TEXT, read_scene
    ),
    "COLMAP binary": Format(write_binary_scene, (COLMAP + "cameras.bin", COLMAP + "images.bin"), BINARY, read_scene),
}


def write_dump(folder: Path) -> None:
    from tests.datasets.formats import test_oanet

    test_oanet.write_by_hand(folder / "dump.h5", pairs=2)


def read_dump(folder: Path) -> None:
    from ananet.datasets.formats.oanet import OANetDump

    with closing(OANetDump(folder / "dump.h5")) as dump:
        for number in range(min(len(dump), 50)):
            try:
                dump[number]
            except InputError:
                continue


def write_raw(folder: Path) -> None:
    from tests.datasets.formats import test_oanet

    test_oanet.write_raw_scene(folder / "raw", "0 51 99")


def read_raw(folder: Path) -> None:
    from ananet.datasets.formats.oanet import read_raw_scene

    read_pairs(read_raw_scene(folder / "raw").all_pairs())


RAW = tuple(f"raw/{name}.txt" for name in ("images", "calibration", "visibility", "visibility0", "visibility2"))
FORMATS |= {
    "OANet dump": Format(write_dump, ("dump.h5",), HDF5, read_dump),
    "OANet raw lists": Format(write_raw, RAW, TEXT, read_raw),
    "OANet raw cameras": Format(write_raw, ("raw/camera0.h5",), HDF5, read_raw),
}


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Ends a reading that hangs."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    if sys.platform == "win32":
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def broken_readings(kind: Format, folder: Path, count: int, seed: int) -> list[tuple[str, int, BaseException]]:
    """What reading damaged files raised that it should not have raised: file, number of the mutant, error."""
    kind.write(folder)
    wrong: list[tuple[str, int, BaseException]] = []
    for place, name in enumerate(kind.files):
        path = folder / name
        good = path.read_bytes()
        share = -(-count // len(kind.files))
        for number, mutant in enumerate(mutants(good, share, seed + place, *kind.mutations)):
            # A new file, since a reader may have mapped the old one.
            path.unlink()
            path.write_bytes(mutant)
            try:
                with at_most(SECONDS):
                    kind.read(folder)
            except InputError:
                continue
            except BaseException as error:
                wrong.append((name, number, error))
        path.write_bytes(good)
    kind.read(folder)
    return wrong


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_a_value_or_an_input_error(name: str, tmp_path: Path) -> None:
    if name.startswith("OANet"):
        pytest.importorskip("h5py")
    wrong = broken_readings(FORMATS[name], tmp_path, MUTANTS, seed=0)
    assert not wrong, f"{len(wrong)} readings, the first: {wrong[0]!r}"
