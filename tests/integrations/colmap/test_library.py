import sys

import pytest

from ananet.errors import MissingExtraError
from ananet.integrations.colmap.library import import_pycolmap, quiet


def test_without_pycolmap_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingExtraError, match="pip install pycolmap .*extra 'colmap'"):
        import_pycolmap()


def test_colmap_is_as_loud_afterwards_as_before():
    pycolmap = pytest.importorskip("pycolmap")
    before = pycolmap.logging.minloglevel
    with pytest.raises(RuntimeError), quiet(pycolmap):
        assert pycolmap.logging.minloglevel == pycolmap.logging.Level.ERROR.value
        raise RuntimeError
    assert pycolmap.logging.minloglevel == before
