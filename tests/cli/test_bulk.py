"""`ananet bulk`, without Ray; `tests/bulk` has the rest."""

import json

import pytest

from ananet.cli.main import main
from tests.bulk.problems import read_rows, write_npz

pytest.importorskip("pyarrow", reason="needs the extra 'bulk'")


def test_counts_are_printed(tmp_path, capsys):
    folder, output = write_npz(tmp_path / "in", 3), tmp_path / "out"
    (folder / "bad.npz").write_text("")
    command = ["bulk", str(folder), str(output), "--workers", "0", "--pruner", "lpm", "--pairs-per-part", "2"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = sum(sum(row["mask"]) for row in read_rows(output))
    assert found == {
        "parts": 2, "parts_skipped": 0, "pairs": 4, "failed": 1, "matches": 300, "kept": kept, "poses": 3,
        "output": str(output),
    }  # fmt: skip
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"4 pairs, 1 of them failed: kept {kept} of 300 matches, 3 poses; parts: 2, 2 of them" in out


def test_what_is_wrong_is_told(tmp_path, capsys):
    assert main(["bulk", str(tmp_path / "nothing"), str(tmp_path / "out")]) == 2
    assert "nothing: no such file or folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["bulk", str(tmp_path), str(tmp_path / "file")]) == 2
    assert "OUTPUT: expected a folder, got the file" in capsys.readouterr().err
    assert main(["bulk", str(tmp_path), str(tmp_path / "out"), "--focal", "-1"]) == 2
    assert "--focal" in capsys.readouterr().err
