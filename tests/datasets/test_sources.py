import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ananet import InputError
from ananet.datasets.batches import BatchSettings, PairBatches
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.sources import (
    SOURCES,
    HomographyPhotos,
    PosedPhotos,
    Source,
    StoredPairs,
    open_posed_photos,
    open_source,
    open_stored_pairs,
    scene_numbers,
)
from tests.datasets.formats.test_labelled import write_case
from tests.datasets.planes import write_plane_matches, write_planes
from tests.datasets.scenes import write_scene


def write_dump(folder: Path) -> Path:
    from tests.datasets.formats.test_oanet import write_by_hand

    write_by_hand(folder / "dump.h5")
    return folder / "dump.h5"


def write_raw(folder: Path) -> Path:
    from tests.datasets.formats.test_oanet import write_raw_scene

    write_raw_scene(folder / "place")
    return folder


def write_pairs(folder: Path) -> Path:
    write_scene(folder / "scene", images=2)
    build_pairs(folder / "scene", folder / "pairs", BuildSettings(max_keypoints=100), progress=False)
    return folder / "pairs"


def write_list(folder: Path) -> Path:
    (folder / "list.txt").write_text("")
    return folder / "list.txt"


def write_labelled(folder: Path) -> Path:
    from tests.datasets.formats.test_labelled import write

    write(folder / "set" / "pair")
    return folder / "set"


def write_views(folder: Path) -> Path:
    for name in ("views.txt", "pairs.txt"):
        (folder / name).write_text("")
    return folder


WRITERS = {
    "training pairs": write_pairs,
    "OANet dump": write_dump,
    "OANet raw scenes": write_raw,
    "views and pairs": write_views,
    "posed scenes": lambda folder: write_scene(folder / "room", images=1),
    "MULTI": lambda folder: write_case(folder / "part-a" / "case1").parent,
    "labelled matches": write_labelled,
    "photos with homographies": lambda folder: write_planes(folder / "wall"),
    "matches of planes": lambda folder: write_plane_matches(folder / "evd" / "cat_pts.txt").parent,
    "pair list": write_list,
}


def test_every_kind_has_its_test():
    assert set(WRITERS) == set(SOURCES.names)


@pytest.mark.parametrize("name", WRITERS)
def test_data_is_recognised_by_what_lies_there(name: str, tmp_path: Path) -> None:
    if name.startswith("OANet"):
        pytest.importorskip("h5py")
    path = WRITERS[name](tmp_path)
    source = open_source(str(path))
    assert isinstance(source, Source) and type(source) is SOURCES[name]
    assert source.name == name and source.path == path and source.title == path.stem
    assert source.has_poses == (
        name not in ("MULTI", "labelled matches", "matches of planes", "photos with homographies")
    )
    assert source.models == (("essential", "fundamental") if source.has_poses else source.models)
    stored = name in ("training pairs", "OANet dump", "MULTI", "labelled matches", "matches of planes")
    photos = HomographyPhotos if name == "photos with homographies" else PosedPhotos
    assert isinstance(source, StoredPairs if stored else photos)
    if stored and source.has_poses:
        assert type(open_stored_pairs(path)) is type(source)
    else:
        with pytest.raises(InputError, match=f"pairs: expected training pairs, .* got .* \\({name}\\)"):
            open_stored_pairs(path)
    if photos is HomographyPhotos or stored:
        with pytest.raises(InputError, match=f"scenes: expected photos with known cameras, got .* \\({name}\\)"):
            open_posed_photos(path)
    else:
        assert type(open_posed_photos(path)) is type(source)


def test_photos_of_a_pair_list_lie_anywhere(tmp_path: Path) -> None:
    numbers = " ".join(map(str, [*np.eye(3).ravel(), *np.eye(3).ravel(), *np.eye(4).ravel()]))
    (tmp_path / "list.txt").write_text(f"a.jpg b.jpg {numbers}\n")
    for folder, expected in ((None, tmp_path), (tmp_path / "photos", tmp_path / "photos"), ("else", Path("else"))):
        (scene,) = open_source(tmp_path / "list.txt", image_folder=folder).scenes()  # type: ignore[attr-defined]
        assert scene.pairs[0].image0.path == expected / "a.jpg"


def test_the_title_does_not_depend_on_how_the_path_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scene(tmp_path / "room", images=1)
    monkeypatch.chdir(tmp_path / "room")
    for path in (".", "../room", "../room/"):
        assert open_source(path).title == "room"


def test_what_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="source: no such file or folder"):
        open_source(tmp_path / "nothing")
    with pytest.raises(InputError, match="source: expected one of: .*posed scenes .* none of these"):
        open_source(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match="none of these"):
        open_source(tmp_path / "a.png")
    (tmp_path / "index.json").write_text(json.dumps({"format": "else"}))
    with pytest.raises(InputError, match="expected format 'ananet-pairs'"):
        open_source(tmp_path)


def test_scenes_are_numbered_as_they_appear() -> None:
    assert scene_numbers(["b", "a", "b", "c", "a"]) == (["b", "a", "c"], [0, 1, 0, 2, 1])
    assert scene_numbers([]) == ([], [])


def test_several_folders_of_pairs_are_one(tmp_path):
    settings = BuildSettings(max_keypoints=150, min_parallax=0.5)
    write_scene(tmp_path / "scenes" / "walls", images=3)
    for name, detector in (("a", "sift"), ("b", "orb")):
        build_pairs(tmp_path / "scenes", tmp_path / name, replace(settings, detector=detector), progress=False)
    one, other = (open_stored_pairs(tmp_path / name) for name in ("a", "b"))
    both = open_stored_pairs(f"{tmp_path / 'a'},{tmp_path / 'b'}")
    assert len(both) == len(one) + len(other) and both.scene_of_pairs() == ["walls"] * len(both)
    np.testing.assert_array_equal(both[len(one)].matches.points1, other[0].matches.points1)
    with pytest.raises(IndexError):
        both[len(both)]
    assert both.fingerprint() not in (one.fingerprint(), other.fingerprint())
    table = both.table()
    assert table.pairs == len(both) and table.images == one.table().images + other.table().images
    batch = PairBatches(both, BatchSettings(batch_size=4, matches=64), seed=0)[0]
    assert batch.matches.shape[:2] == (4, 64)
    with pytest.raises(InputError, match="no such file or folder"):
        open_stored_pairs(f"{tmp_path / 'a'},{tmp_path / 'c'}")
