"""What detectors that are networks share: weights, sizes of images, the order of keypoints."""

import logging

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ananet import InputError
from ananet.features import load_detector, match
from ananet.features.learned import (
    SUPERPOINT_NOTICE,
    SuperPointNetwork,
    find_weights,
    inside,
    read_weights,
    sample,
    strongest_around,
    tell_once,
)
from tests.features.learned_detectors import (
    WEIGHTS_OF,
    nearest,
    random_detector,
    random_network,
    shapes,
    trained_detector,
)
from tests.photos import photo

NAMES = list(WEIGHTS_OF)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.mark.parametrize("name", NAMES)
def test_features_are_whole_and_strongest_first(name, folder):
    detector = random_detector(name, folder, max_keypoints=50)
    assert detector.device == torch.device("cpu")
    colour = photo(250, 201)
    for image in (colour, colour[..., 0]):
        found = detector.detect(image)
        assert len(found) == 50 and found.image_size == (250, 201)
        assert found.points.dtype == found.descriptors.dtype == found.scores.dtype == np.float32
        assert found.sizes is None and found.angles is None
        assert (np.diff(found.scores) <= 0).all()
        np.testing.assert_allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-5)
        # None lies in what the image was padded with.
        assert (found.points >= 0).all() and (found.points <= (249, 200)).all()
    fewer = random_detector(name, folder, max_keypoints=20).detect(colour)
    np.testing.assert_array_equal(fewer.points, detector.detect(colour).points[:20])


@pytest.mark.parametrize("name", NAMES)
def test_a_photo_shifted_by_whole_cells_has_the_same_keypoints(name, folder):
    detector = random_detector(name, folder, max_keypoints=10_000)
    image = photo(320, 288)
    whole, part = detector.detect(image), detector.detect(image[32:, 32:])
    # Away from the borders, beyond which there is nothing.
    middle = part.points[((part.points > 40) & (part.points < (200, 170))).all(axis=1)]
    step = np.abs(nearest(middle + 32, whole.points)).max(axis=1)
    # ALIKED enlarges its maps, and DISK normalises them, in a way that depends on the size of the image.
    exact = name in ("xfeat", "superpoint")
    assert len(middle) > 50 and (step < (0.05 if exact else 1.01)).mean() > (0.95 if exact else 0.8)


@pytest.mark.parametrize("name", NAMES)
def test_large_photos_are_scaled_down_and_points_are_theirs(name, folder):
    image = photo(128, 96)
    doubled = image.repeat(2, axis=0).repeat(2, axis=1)
    small = random_detector(name, folder).detect(image)
    large = random_detector(name, folder, longest_side=128).detect(doubled)
    assert large.image_size == (256, 192)
    # The centre of a pixel is the middle of the four that it became.
    np.testing.assert_allclose(large.points, 2 * small.points + 0.5, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 50), (3, 3, 3), (16, 16), (33, 5)])
@pytest.mark.parametrize("name", NAMES)
def test_tiny_images_are_no_error(name, shape, folder):
    found = random_detector(name, folder).detect(np.zeros(shape, np.uint8))
    assert found.image_size == (shape[1], shape[0])
    assert len(match(found, found)) == len(found)


@pytest.mark.parametrize("name", NAMES)
def test_trained_detectors_find_a_shifted_photo(name):
    detector = trained_detector(name, max_keypoints=500)
    image = shapes(640, 480)
    # XFeat looks for keypoints in cells of 8 pixels; half of them are others where the cells lie otherwise.
    shift = (24, 16) if name == "xfeat" else (21, 13)
    matches = match(*detector.batch([image, image[shift[1] :, shift[0] :]]))
    # Keypoints at the borders see other things.
    inner = ((matches.points0 > 60) & (matches.points0 < torch.tensor([580, 420]))).all(dim=1)
    error = (matches.points1 - matches.points0)[matches.mutual & inner].numpy() + np.array(shift)
    right = np.abs(error).max(axis=1) < 1.5
    assert right.sum() > 150 and right.mean() > 0.8
    assert np.abs(error[right].mean(axis=0)).max() < 0.1


def test_trained_superpoint_finds_the_same_places_in_a_turned_photo():
    """An origin at a pixel's corner would move them by a pixel.

    The other networks have no places that turn along: they learned where to put a keypoint beside what they see, 2 to 3
    pixels off, which is the same in all photos that are upright.
    """
    detector = trained_detector("superpoint", max_keypoints=500)
    image = shapes(640, 480)
    upright, turned = detector.detect(image), detector.detect(np.rot90(image, -1))
    expected = np.stack([479 - upright.points[:, 1], upright.points[:, 0]], axis=1)
    step = nearest(expected, turned.points)
    step = step[np.abs(step).max(axis=1) < 1.9]
    assert len(step) > 300
    assert np.abs(step.mean(axis=0)).max() < 0.2


def test_weights_are_found_and_read(tmp_path, monkeypatch):
    monkeypatch.setenv("ANANET_WEIGHTS", str(tmp_path))
    assert find_weights("xfeat") is None
    tensors = {"a.weight": torch.ones(2)}
    torch.save({"extractor": tensors}, tmp_path / "xfeat.pth")
    assert find_weights("xfeat") == tmp_path / "xfeat.pth"
    save_file(tensors, tmp_path / "xfeat.safetensors")
    assert find_weights("xfeat") == tmp_path / "xfeat.safetensors"
    for file in ("xfeat.pth", "xfeat.safetensors"):
        assert find_weights("disk", tmp_path / file) == tmp_path / file
        assert read_weights(tmp_path / file)["a.weight"].tolist() == [1, 1]
    with pytest.raises(InputError, match="weights: expected a file, got .*none.pth"):
        find_weights("xfeat", tmp_path / "none.pth")
    monkeypatch.setenv("ANANET_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="ANANET_WEIGHTS: expected a folder, got '.*nowhere'"):
        find_weights("xfeat")


def test_files_that_are_no_weights_are_told(tmp_path):
    for name, content in (("a.pth", b"nonsense"), ("a.safetensors", b"nonsense"), ("b.pth", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"weights: .*{name} cannot be read"):
            read_weights(tmp_path / name)
    torch.save([1], tmp_path / "list.pth")
    with pytest.raises(InputError, match="weights: expected tensors by name in .*list.pth, got list"):
        read_weights(tmp_path / "list.pth")
    # What would run code on reading is refused.
    torch.save({"a": logging.getLogger}, tmp_path / "code.pth")
    with pytest.raises(InputError, match="weights: .*code.pth cannot be read"):
        read_weights(tmp_path / "code.pth")
    with pytest.raises(InputError, match="expected a file that ends in .safetensors, .pth, .pt, got .*a.onnx"):
        read_weights(tmp_path / "a.onnx")


def test_weights_of_another_network_are_told(tmp_path):
    weights = random_network("superpoint").state_dict()
    path = tmp_path / "some.safetensors"
    for change, message in (
        ({"conv1a.weight": torch.ones(3)}, "expected weights of superpoint_v1, got .*some.safetensors .*size mismatch"),
        ({"more": torch.ones(3)}, "got .*some.safetensors: it has more"),
        ({"conv1a.weight": None}, "got .*some.safetensors: it lacks conv1a.weight"),
    ):
        save_file({name: value for name, value in (weights | change).items() if value is not None}, path)
        with pytest.raises(InputError, match=message):
            load_detector("superpoint", weights=path)


def test_what_to_do_without_a_network_is_told(monkeypatch):
    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.delenv("ANANET_WEIGHTS", raising=False)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"superpoint_v1.safetensors or .* ANANET_WEIGHTS; .*\(no route to host\)"):
        load_detector("superpoint")


def test_longest_side_is_checked(folder):
    with pytest.raises(InputError, match="longest_side: expected a whole number of at least 32, got 8"):
        random_detector("superpoint", folder, longest_side=8)


def test_points_inside():
    points = torch.tensor([[2.0, 2.0], [1.9, 5.0], [7.0, 5.0], [7.1, 5.0], [5.0, 3.1]])
    assert inside(points, (10, 6), 2).tolist() == [True, False, False, False, False]


def test_a_notice_comes_once(caplog):
    for _ in range(3):
        tell_once("a notice for this test")
    assert [record.message for record in caplog.records] == ["a notice for this test"]


def test_the_published_architecture():
    network = SuperPointNetwork()
    assert sum(p.numel() for p in network.parameters()) == 1_300_865
    probability, descriptors = network(torch.rand(2, 1, 40, 64))
    assert probability.shape == (2, 40, 64) and descriptors.shape == (2, 256, 5, 8)
    # A cell's 64 probabilities and that of no keypoint come to 1.
    cells = probability.unflatten(2, (8, 8)).unflatten(1, (5, 8)).sum(dim=(2, 4))
    assert ((cells > 0) & (cells < 1)).all()


def test_pixels_of_a_cell_come_row_by_row():
    network = SuperPointNetwork()
    with torch.no_grad():
        network.convPb.weight.zero_()
        network.convPb.bias.zero_()
        network.convPb.bias[8 * 2 + 5] = 9.0
        probability, _ = network(torch.rand(1, 1, 16, 16))
    assert probability[0].flatten().topk(4).indices.sort().values.tolist() == [
        16 * y + x for y in (2, 10) for x in (5, 13)
    ]


def test_the_strongest_around():
    values = torch.zeros(1, 7, 20)
    values[0, 3, [3, 5, 8, 12]] = torch.tensor([0.9, 0.8, 0.7, 0.75])
    # 0.8 is near 0.9; once it is out of the way, so is what it stood before.
    kept = strongest_around(values, 4)
    assert kept[0, 3].nonzero()[:, 0].tolist() == [3, 12]
    assert strongest_around(values, 1).equal(values)
    ridge = torch.zeros(1, 5, 12)
    ridge[0, 2] = torch.linspace(0.1, 0.9, 12)
    assert strongest_around(ridge, 2)[0, 2].nonzero()[:, 0].tolist() == [5, 8, 11]


def test_descriptors_between_cells():
    cells = torch.nn.functional.normalize(torch.rand(1, 256, 6, 9), dim=1)
    at_first = sample(cells, torch.tensor([[3.5, 3.5]]))
    torch.testing.assert_close(at_first[0], cells[0, :, 0, 0])


def test_the_licence_is_told(tmp_path, caplog):
    from ananet.features.learned import tell_once

    tell_once.cache_clear()
    assert random_detector("superpoint", tmp_path).licence == "non-commercial research only"
    random_detector("superpoint", tmp_path)
    assert [record.message for record in caplog.records] == [SUPERPOINT_NOTICE]


def test_wrong_options_are_told():
    with pytest.raises(ValueError, match="threshold: expected a number from 0 to 1"):
        load_detector("superpoint@threshold=2")
    with pytest.raises(ValueError, match="radius: expected a whole number of at least 0"):
        load_detector("superpoint@radius=-1")
