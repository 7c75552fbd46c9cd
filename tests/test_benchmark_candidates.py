import numpy as np

from benchmarks import candidates


def test_true_pairs():
    rng, K = np.random.default_rng(0), np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
    points, views = rng.uniform([-2, -1.5, 4], [2, 1.5, 8], (60, 3)), []
    described = rng.normal(size=(60, 32)).astype(np.float32)
    for shift in (0.0, 0.5):
        local = points - [shift, 0, 0]
        pixels = (local @ K.T)[:, :2] / local[:, 2:]
        views.append(candidates.View(pixels, described, K, np.eye(3), np.array([-shift, 0, 0]), (640, 480)))
    elsewhere = candidates.View(rng.uniform(0, 480, (60, 2)), described, K, np.eye(3), np.zeros(3), (640, 480))
    first, second, third = candidates.count_all([*views, elsewhere]).tolist()
    assert first == [0, 1, 60, 60] and second[2] == 60 and second[3] < 10 and third[3] < 30
