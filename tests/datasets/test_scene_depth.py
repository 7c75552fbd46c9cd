from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from ananet.datasets.scene_depth import NEIGHBOURS, _neighbours, in_pool
from tests.datasets.test_depth import run, view_of


def test_neighbours_match_or_stand_near():
    """Photos that match come first; where none does, those of similar pose."""
    rng = np.random.default_rng(1)
    world = np.stack([rng.uniform(-2, 2, 200), rng.uniform(-2, 2, 200), rng.uniform(4, 7, 200)], axis=1)
    views = [view_of(world, (0.6 * n, 0, 0), lost=0 if n < 3 else 200, seed=n) for n in range(5)]
    found = _neighbours(views, 100, run)
    assert [len(others) for others in found] == [4] * 5 and NEIGHBOURS > 4
    assert set(found[0][:2]) == {1, 2} and found[4][0] == 3
    assert _neighbours(views, 1, run)[0][0] == 1, "one pair is compared at a glance, the others by pose"
    assert _neighbours([], 9, run) == [] and _neighbours(views[:1], 9, run) == [[]]


def test_steps_run_in_a_pool_and_show_progress():
    with ThreadPoolExecutor(2) as pool, tqdm(disable=True) as bar:
        assert in_pool(pool, bar)("squares", lambda n: n * n, range(5)) == [0, 1, 4, 9, 16]
