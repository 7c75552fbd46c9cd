import pytest

from ananet import InputError
from ananet.files import atomic_path, check_output


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


def test_links_are_followed_and_special_files_left_alone(tmp_path):
    import os

    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with atomic_path(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="expected a file"), atomic_path(tmp_path / "pipe"):
        pass


def test_inputs_are_not_overwritten(tmp_path):
    (tmp_path / "in.txt").write_text("mine")
    with pytest.raises(InputError, match="is an input and would be overwritten"):
        check_output(tmp_path / "in.txt", tmp_path / "in.txt")
    check_output(tmp_path / "out.txt", tmp_path / "in.txt")


def test_bad_targets_are_named(tmp_path):
    for wrong in (tmp_path, tmp_path / "none" / "a.txt"):
        with pytest.raises(InputError, match="output: "), atomic_path(wrong):
            pass
