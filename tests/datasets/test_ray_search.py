import cv2
import numpy as np
import pytest

from ananet.datasets.depth import KeypointDepths, View
from ananet.datasets.ray_search import _peaks, search_along_rays
from tests.datasets.scenes import FOCAL, HEIGHT, WIDTH, K, write_scene

FAR, NEAR = 6.0, 4.0


@pytest.fixture(scope="module")
def views(tmp_path_factory) -> dict[int, View]:
    """Photos of two walls, with keypoints on a grid."""
    from ananet.datasets.formats.colmap import read_posed_scene
    from ananet.datasets.photos import read_posed_image

    scene = read_posed_scene(write_scene(tmp_path_factory.mktemp("search") / "walls", images=6))
    x, y = np.meshgrid(np.arange(20, WIDTH - 20, 12), np.arange(20, HEIGHT - 20, 12))
    points = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
    return {
        number: View(
            points,
            np.zeros((len(points), 2)),
            image.K,
            image.R,
            image.t,
            (WIDTH, HEIGHT),
            cv2.cvtColor(read_posed_image(image), cv2.COLOR_BGR2GRAY),
        )
        for number, image in enumerate(scene.images.values())
    }


def true_inverse(view: View) -> np.ndarray:
    """Of the walls: the near one covers what is right of x = 0.2 in the world."""
    assert view.K[0, 0] == FOCAL == K[0, 0]
    rays, centre = view.rays() @ view.R, -view.R.T @ view.t
    near, far = ((depth - centre[2]) / rays[:, 2] for depth in (NEAR, FAR))
    return 1 / np.where(centre[0] + near * rays[:, 0] > 0.2, near, far)


def known_depths(inverse: np.ndarray, known: np.ndarray) -> KeypointDepths:
    values = np.where(known, inverse, np.nan)[:, None].repeat(2, axis=1).astype(np.float32)
    return KeypointDepths(np.array([90, 91]), values, np.where(np.isnan(values), np.nan, 1e-4).astype(np.float32))


def test_patches_tell_the_depth(views):
    view = views[2]
    others = {number: other for number, other in views.items() if number != 2}
    true = true_inverse(view)
    known = np.arange(len(true)) % 4 == 0
    found = search_along_rays(view, others, known_depths(true, known))
    assert found.photos.tolist() == [90, 91, 0, 1, 3, 4, 5]
    depths = found.without()
    np.testing.assert_allclose(depths.inverse[known], true[known], rtol=1e-5)
    new = np.isfinite(depths.inverse) & ~known
    error = np.abs(depths.inverse - true)[new] / true[new]
    assert new.sum() > 0.5 * (~known).sum()
    # At the edge of the near wall patches show both.
    assert np.median(error) < 0.02 and (error > 0.1).mean() < 0.03


def test_nothing_is_searched_without_enough_photos_or_points(views):
    view, true = views[2], true_inverse(views[2])
    known = known_depths(true, np.arange(len(true)) % 4 == 0)
    two = {number: views[number] for number in (1, 3)}
    assert search_along_rays(view, two, known) is known
    blind = {number: View(**{**vars(other), "picture": None}) for number, other in views.items()}
    assert search_along_rays(view, blind, known) is known
    assert search_along_rays(blind[2], views, known) is known
    none = known_depths(true, np.zeros(len(true), bool))
    assert search_along_rays(view, views, none) is none
    everything = known_depths(true, np.ones(len(true), bool))
    assert search_along_rays(view, views, everything) is everything


def test_a_flat_photo_has_no_depth(views):
    flat = {n: View(**{**vars(v), "picture": np.full((HEIGHT, WIDTH), 100, np.uint8)}) for n, v in views.items()}
    true = true_inverse(views[2])
    known = np.arange(len(true)) % 4 == 0
    found = search_along_rays(flat[2], flat, known_depths(true, known)).without()
    assert np.isnan(found.inverse[~known]).all()


def test_a_peak_must_not_depend_on_one_photo():
    curves = np.zeros((3, 4, 30), np.float32)
    curves[:, :3, 10] = 0.9
    curves[1, 1:, 25] = 0.9  # as good as the first without its first photo
    curves[2, :, :] = 0.0
    peak, distinct = _peaks(curves)
    assert peak[0] == 10 and distinct.tolist() == [True, False, False]
