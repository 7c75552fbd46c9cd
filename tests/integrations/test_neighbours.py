import numpy as np
import torch

from ananet.features import matching
from ananet.integrations.neighbours import nearest_neighbours


def test_as_for_arrays():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(90, 16)).astype(np.float32), rng.normal(size=(70, 16)).astype(np.float32)
    found = nearest_neighbours(torch.from_numpy(a), torch.from_numpy(b))
    expected = matching.nearest_neighbours(a, b)
    np.testing.assert_array_equal(found.index, expected.index)
    np.testing.assert_array_equal(found.mutual, expected.mutual)
    np.testing.assert_allclose(found.ratio, expected.ratio, atol=1e-4)


def test_nothing_to_compare_with():
    one = nearest_neighbours(torch.randn(3, 4), torch.randn(1, 4))
    assert one.ratio.tolist() == [1, 1, 1] and int(one.mutual.sum()) == 1
    twice = nearest_neighbours(torch.zeros(1, 4), torch.zeros(2, 4))
    assert twice.ratio.tolist() == [1]
