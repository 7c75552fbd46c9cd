"""A failed write leaves what was there; broken files are named."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from safetensors import SafetensorError, safe_open

from ananet import InputError
from ananet.io import files
from ananet.io.files import (
    STALE_AFTER,
    atomic_path,
    check_output,
    only_process,
    read_json,
    remove_temporaries,
    save_tensors,
    write_json,
)


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
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with atomic_path(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="expected a regular file"), atomic_path(tmp_path / "pipe"):
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


def test_new_files_have_the_permissions_of_any_other(tmp_path):
    (tmp_path / "plain").write_text("x")
    with atomic_path(tmp_path / "a.txt") as temporary:
        # As a writer does that makes a private file and renames it.
        temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_is_renamed_is_on_the_disk(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda number: (steps.append("fsync"), fsync(number)))
    monkeypatch.setattr(type(tmp_path), "replace", lambda *paths: (steps.append("rename"), replace(*paths)))
    with atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert steps == ["fsync", "rename"]


def test_the_temporary_file_lies_beside_and_keeps_the_suffix(tmp_path):
    with atomic_path(tmp_path / "a.tar.gz") as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".gz" and temporary.name.startswith(".a.tar-")


def test_temporaries_of_killed_runs_are_removed(tmp_path):
    hour_ago = time.time() - STALE_AFTER - 60
    stale = [tmp_path / ".a[1]-0123abcd.txt"]
    others = [
        tmp_path / ".a[1]-0123abce.txt",  # being written
        tmp_path / ".a1-0123abcd.txt",  # of another output
        tmp_path / ".a[1]-0123abcd.png",
        tmp_path / ".a[1]-0123abcz.txt",
        tmp_path / ".a[1]-more-0123abcd.txt",
        tmp_path / "a[1]-0123abcd.txt",
    ]
    for path in (*stale, *others):
        path.write_text("half")
        if path != others[0]:
            os.utime(path, (hour_ago, hour_ago))
    write_json(tmp_path / "a[1].txt", 1)
    assert not any(path.exists() for path in stale)
    assert all(path.exists() for path in others)


def test_a_folder_without_permission_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="output: no permission to write to"):
        check_output(tmp_path / "a.txt")


def test_an_input_is_known_under_any_name(tmp_path):
    (tmp_path / "in.txt").write_text("mine")
    (tmp_path / "link.txt").symlink_to("in.txt")
    os.link(tmp_path / "in.txt", tmp_path / "twin.txt")
    for name in ("link.txt", "twin.txt", "../" + tmp_path.name + "/in.txt"):
        with pytest.raises(InputError, match="is an input and would be overwritten"):
            check_output(tmp_path / name, tmp_path / "in.txt")
    check_output(tmp_path / "in.txt", tmp_path / "not there")


def test_tensors_come_back(tmp_path):
    save_tensors(tmp_path / "a.safetensors", {"x": torch.arange(3)}, {"kind": "numbers"})
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.get_tensor("x").tolist() == [0, 1, 2] and file.metadata() == {"kind": "numbers"}


def test_a_full_disk_leaves_the_old_tensors(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"x": torch.zeros(3)}, {})
    before = path.read_bytes()

    def full(_, temporary, __):
        temporary.write_bytes(b"half")
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match=r"could not write .*a.safetensors: No space left on device"):
        save_tensors(path, {"x": torch.ones(3)}, {})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")
def test_a_full_disk_leaves_the_old_text(tmp_path):
    write_json(tmp_path / "a.json", "old")
    with pytest.raises(OSError, match="No space left"), atomic_path(tmp_path / "a.json") as temporary:
        temporary.unlink()
        temporary.symlink_to("/dev/full")
        temporary.write_text("new")
    assert read_json(tmp_path / "a.json") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_comes_back(tmp_path):
    value = {"a": [1, 2.5, None, True], "b": {"ö": "写真"}}
    write_json(tmp_path / "a.json", value, indent=2)
    assert read_json(tmp_path / "a.json") == read_json(str(tmp_path / "a.json")) == value
    assert (tmp_path / "a.json").read_text(encoding="utf-8").endswith("}\n")


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), {"a": [float("-inf")]}, object()])
def test_json_is_strict_and_written_whole_or_not(wrong, tmp_path):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "a.json", wrong)
    assert json.loads((tmp_path / "a.json").read_text()) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000], ids=["empty", "half", "binary", "deep", "long"]
)
def test_broken_json_is_named(content, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a.json: not a JSON file"):
        read_json(tmp_path / "a.json")


def test_a_folder_is_for_one_process_at_a_time(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom ananet.io.files import only_process\n"
        "with only_process(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(InputError, match="another process is writing here; wait for it"), only_process(tmp_path):
            pass
        # A process that dies leaves no lock behind.
        other.kill()
        other.wait()
    with only_process(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_on_a_file_that_is_gone_is_none(tmp_path, monkeypatch):
    """Between opening and locking, the process before may have removed the file, and the next one made another."""
    opened, lock = [], files._lock

    def slow_lock(file):
        opened.append(file)
        if len(opened) < 3:
            (tmp_path / ".lock").unlink()
        if len(opened) == 2:
            (tmp_path / ".lock").write_text("")
        return lock(file)

    monkeypatch.setattr(files, "_lock", slow_lock)
    with only_process(tmp_path):
        assert len(opened) == 3 and opened[0].closed and opened[1].closed
        assert os.path.samestat(os.fstat(opened[2].fileno()), (tmp_path / ".lock").stat())
    assert list(tmp_path.iterdir()) == []


def test_two_processes_are_never_in_one_folder_together(tmp_path):
    """Each enters many times; whoever is in makes a file that the other must not find."""
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom ananet.errors import InputError\n"
        "from ananet.io.files import only_process\nfolder, entered = Path(sys.argv[1]), 0\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "end = time.monotonic() + 1.0\n"
        "while time.monotonic() < end:\n"
        "    try:\n"
        "        with only_process(folder):\n"
        "            os.close(os.open(folder / 'in', os.O_CREAT | os.O_EXCL))\n"
        "            os.unlink(folder / 'in')\n"
        "            entered += 1\n"
        "    except InputError:\n"
        "        pass\n"
        "print(entered)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and int(out) > 0
    assert list(tmp_path.iterdir()) == []


def test_what_killed_runs_left_is_removed_however_new(tmp_path):
    for name in (".a-0123abcd.json", ".b.c-0123abce.safetensors", ".lock", "a-0123abcd.json", ".a-0123abc.json"):
        (tmp_path / name).write_text("")
    remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a-0123abc.json", ".lock", "a-0123abcd.json"]


def test_a_folder_is_free_again_after_a_failure(tmp_path):
    with pytest.raises(RuntimeError), only_process(tmp_path):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with only_process(tmp_path):
        pass
    (tmp_path / "other").mkdir()
    with only_process(tmp_path), only_process(tmp_path / "other"):
        pass
