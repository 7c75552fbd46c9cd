"""Photos that share descriptors are found among many that share none."""

import numpy as np
import pytest

from ananet.features import Features, candidates
from ananet.features.candidates import count_agreeing, largest, promising_pairs

PHOTOS, WIDTH = 40, 64


def ring(shared=60, own=40, sizes=True):
    """Photos in a circle; each shows some points that the next one shows too, turned and larger, and some others."""
    rng = np.random.default_rng(0)
    links = rng.normal(size=(PHOTOS, shared, WIDTH))
    size, angle = rng.uniform(2, 9, (PHOTOS, shared)), rng.uniform(-3, 3, (PHOTOS, shared))
    photos = []
    for number in range(PHOTOS):
        count = 2 * shared + own
        before, after = number - 1, number
        described = np.concatenate([links[before], links[after], rng.normal(size=(own, WIDTH))])
        described = described + rng.normal(0, 0.05, described.shape)
        known = {}
        if sizes:
            seen = np.concatenate([1.5 * size[before], size[after], rng.uniform(2, 9, own)])
            turned = np.concatenate([angle[before] + 0.4, angle[after], rng.uniform(-3, 3, own)])
            known = {"sizes": seen, "angles": turned}
        order = rng.permutation(count)
        photos.append(Features(rng.uniform(0, 480, (count, 2)), described, (640, 480), **known)[order])
    return photos


@pytest.mark.parametrize("sizes", [True, False])
def test_neighbours_come_first(sizes):
    chosen = promising_pairs(ring(sizes=sizes), share=0.1, per_photo=1)
    neighbours = {tuple(sorted((n, (n + 1) % PHOTOS))) for n in range(PHOTOS)}
    assert len(chosen) == 78 and {tuple(pair) for pair in chosen[:PHOTOS].tolist()} == neighbours
    assert len(np.unique(chosen, axis=0)) == 78 and (chosen[:, 0] < chosen[:, 1]).all()


def test_all_pairs_of_small_collections():
    photos = ring()
    assert len(promising_pairs(photos[:11])) == 55 and len(promising_pairs(photos[:20])) == 100
    assert promising_pairs([]).shape == promising_pairs(photos[:1]).shape == (0, 2)


def test_every_photo_has_its_best_pairs(monkeypatch):
    """Photo 0 shares little with the next one and nothing with others, which share much."""
    photos = ring(own=0)
    photos[0] = photos[0][photos[0].sizes > 7]
    alike = [photos[2]] * 15
    chosen = promising_pairs([*photos[:2], *alike], share=0.5, per_photo=0)
    assert [0, 1] in chosen.tolist()
    monkeypatch.setattr(candidates, "BEST_OF_PHOTO", 0)
    assert [0, 1] not in promising_pairs([*photos[:2], *alike], share=0.5, per_photo=0).tolist()


def test_matches_that_turn_otherwise_do_not_count():
    photo = ring()[0]
    turned = np.random.default_rng(1).uniform(-3, 3, len(photo))
    other = Features(photo.points, photo.descriptors, photo.image_size, photo.sizes, turned)
    agreeing = count_agreeing([photo, photo, other], np.array([[0, 1], [0, 2]]))
    assert agreeing[0] == len(photo) and agreeing[1] < len(photo) / 3


def test_photos_without_keypoints():
    empty = Features(np.zeros((0, 2)), np.zeros((0, WIDTH)), (640, 480))
    assert count_agreeing([empty, empty, ring()[0]], np.array([[0, 1], [0, 2]])).tolist() == [0, 0]


def test_the_largest_keypoints():
    photo = Features(np.zeros((3, 2)), np.eye(3), (640, 480), sizes=np.array([1, 3, 2]))
    assert largest(photo, 2).sizes.tolist() == [3, 2]
    strongest = Features(np.array([[1, 1], [2, 2], [3, 3]]), np.eye(3), (640, 480))
    np.testing.assert_array_equal(largest(strongest, 2).points, [[1, 1], [2, 2]])
