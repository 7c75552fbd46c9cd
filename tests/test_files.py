import pytest

from ananet import InputError
from ananet.files import atomic_path


def test_success_replaces_the_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


def test_failure_leaves_what_was_there(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_bad_targets_are_named(tmp_path):
    for wrong in (tmp_path, tmp_path / "none" / "a.txt"):
        with pytest.raises(InputError, match="output: "), atomic_path(wrong):
            pass
