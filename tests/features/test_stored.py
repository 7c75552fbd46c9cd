"""Features from files are what was written, at the size of the photo that asks for them."""

import numpy as np
import pytest

from ananet import InputError
from ananet.features import load_detector
from ananet.features.stored import StoredFeatures
from tests.photos import photo

IMAGE = photo(320, 240)


@pytest.fixture(scope="module")
def sift():
    return load_detector("sift", max_keypoints=80).detect(IMAGE)


def as_arrays(features):
    names = ("points", "descriptors", "image_size", "sizes", "angles", "scores")
    return {name: np.asarray(getattr(features, name)) for name in names}


def save(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def assert_same(found, expected):
    for name in ("points", "descriptors", "sizes", "angles", "scores"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-4)
    assert found.image_size == expected.image_size


@pytest.mark.parametrize("name", ["a.npz", "a.jpg.npz", "images/a.npz", "scene/images/a.jpg.npz"])
def test_a_folder_of_arrays(name, sift, tmp_path):
    photo_path = tmp_path / "photos/scene/images/a.jpg"
    save(tmp_path / "features" / name, **as_arrays(sift))
    stored = load_detector(f"stored@path={tmp_path / 'features'}")
    assert isinstance(stored, StoredFeatures)
    assert_same(stored.detect(IMAGE, photo_path), sift)
    few = load_detector("stored", path=tmp_path / "features", max_keypoints=10).detect(IMAGE, photo_path)
    assert_same(few, sift[:10])
    with pytest.raises(InputError, match=r"b\.jpg: no features of it in .*features"):
        stored.detect(IMAGE, tmp_path / "b.jpg")


def test_the_longest_name_counts(sift, tmp_path):
    save(tmp_path / "a.npz", **as_arrays(sift[:5]))
    save(tmp_path / "one/a.npz", **as_arrays(sift[:7]))
    stored = load_detector("stored", path=tmp_path)
    from_one = tmp_path / "photos/one/a.jpg"
    assert len(stored.detect(IMAGE, from_one)) == 7
    assert len(stored.detect(IMAGE, tmp_path / "photos/two/a.jpg")) == 5
    with pytest.raises(InputError, match=r"a\.npz would be the features of both .*two/a\.jpg and .*three/a\.jpg"):
        stored.detect(IMAGE, tmp_path / "photos/three/a.jpg")


def test_hlocs_file(sift, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "features.h5", "w") as file:
        group = file.create_group("images/a.jpg")
        order = np.random.default_rng(0).permutation(len(sift))
        group["keypoints"] = sift.points[order]
        group["descriptors"] = sift.descriptors[order].T.astype(np.float16)
        group["scores"] = sift.scores[order]
        group["image_size"] = np.array(sift.image_size)
    stored = load_detector("stored", path=tmp_path / "features.h5", max_keypoints=30)
    found = stored.detect(IMAGE, tmp_path / "images/a.jpg")
    # The strongest first, though they were stored otherwise.
    np.testing.assert_allclose(found.scores, sift.scores[:30])
    np.testing.assert_allclose(found.descriptors.sum(0), sift.descriptors[:30].sum(0), atol=0.02)
    assert found.sizes is None


def test_points_follow_the_size_of_the_photo(sift, tmp_path):
    save(tmp_path / "a.npz", **as_arrays(sift))
    stored = load_detector("stored", path=tmp_path)
    half = stored.detect(IMAGE[::2, ::2], tmp_path / "a.jpg")
    np.testing.assert_allclose(half.points, sift.points / 2 - 0.25, atol=1e-4)
    np.testing.assert_allclose(half.sizes, sift.sizes / 2, atol=1e-4)
    assert half.image_size == (160, 120)
    save(tmp_path / "b.npz", points=sift.points, descriptors=sift.descriptors)
    np.testing.assert_array_equal(stored.detect(IMAGE[::2, ::2], tmp_path / "b.jpg", (320, 240)).points, half.points)
    with pytest.raises(InputError, match=r"a\.npz: is for 320 x 240 pixels, .*a\.jpg has 240 x 320"):
        stored.detect(np.rot90(IMAGE), tmp_path / "a.jpg")


def test_little_is_enough(tmp_path):
    save(tmp_path / "a.npz", keypoints=np.zeros((3, 2)), descriptors=np.eye(3, 8))
    found = load_detector("stored", path=tmp_path).detect(IMAGE, tmp_path / "a.png")
    assert len(found) == 3 and found.image_size == (320, 240) and found.scores is None


def test_wrong_files_are_told(sift, tmp_path):
    for wrong in (None, tmp_path / "none", tmp_path / "none.h5"):
        with pytest.raises(InputError, match=r"features: expected a folder of \.npz files or hloc's \.h5, got"):
            load_detector("stored", path=wrong)
    stored = load_detector("stored", path=tmp_path)
    with pytest.raises(InputError, match="expected photos as files, got pixels"):
        stored.detect(IMAGE)
    for name, arrays, message in (
        ("nothing", {}, "expected points and descriptors, got nothing"),
        ("bare", {"points": sift.points}, "expected points and descriptors, got points"),
        (
            "other",
            {"points": sift.points, "descriptors": sift.descriptors[1:]},
            r"descriptors: expected shape \(80, D\)",
        ),
        ("objects", {"points": np.array([None])}, "points: expected real numbers, got an array of Python objects"),
    ):
        save(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(InputError, match=message):
            stored.detect(IMAGE, tmp_path / f"{name}.jpg")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(InputError, match=r"broken\.npz: not a readable \.npz file"):
        stored.detect(IMAGE, tmp_path / "broken.jpg")
