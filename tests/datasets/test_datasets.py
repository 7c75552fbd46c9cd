"""What the package exports."""

import pytest

from ananet import datasets


def test_documented_names():
    assert all(getattr(datasets, name) is not None for name in datasets.__all__)
    assert datasets.open_source.__module__ == "ananet.datasets.sources"
    with pytest.raises(AttributeError, match=r"module 'ananet\.datasets' has no attribute 'nonsense'"):
        datasets.nonsense  # noqa: B018
