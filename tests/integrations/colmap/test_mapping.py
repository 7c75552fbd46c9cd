import pytest

from ananet.errors import InputError
from ananet.integrations.colmap.mapping import check_features, chunks, find_photos


def test_photos_of_subfolders(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b/2 x.JPG", "a.png", "c.tif", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert list(find_photos(tmp_path).items()) == [
        ("a.png", tmp_path / "a.png"),
        ("b/2 x.JPG", tmp_path / "b" / "2 x.JPG"),
        ("c.tif", tmp_path / "c.tif"),
    ]
    (tmp_path / "a.png").unlink()
    with pytest.raises(InputError, match="at least 3 photos in .*, got 2"):
        find_photos(tmp_path)
    with pytest.raises(InputError, match="photos: expected a folder"):
        find_photos(tmp_path / "c.tif")


def test_chunks():
    assert list(chunks([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]] and list(chunks([], 2)) == []


def test_photos_without_features():
    check_features(["a", "b", "c", "d"], {"a": 50, "b": 60, "c": 70})
    with pytest.raises(InputError, match="too few features: 2 of 4 photos have fewer than 50 keypoints"):
        check_features(["a", "b", "c", "d"], {"a": 50, "b": 60, "c": 49})
