"""benchmarks/hard_pairs.py: which pairs it lists, and how it fails."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from ananet.datasets.formats.shards import read_index, write_index
from ananet.io.pairs import read_pairs
from tests.datasets.depth_pairs import pair_with_depth, write_pairs

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "hard_pairs.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_lists_of_hard_pairs(tmp_path):
    easy, hard = pair_with_depth(0.5), pair_with_depth(right=6, unknown=4)
    shares = [0.9, 0.3, 0.4, 0.7, 0.8, 0.2, 0.5, 0.6]
    own = [replace(hard, share=share) for share in (*shares, shares[0], 0.1)]
    folder = write_pairs(tmp_path / "pairs", {"a": [*own, easy], "b": [easy, pair_with_depth(0)]})
    index = read_index(folder)
    names = [name for n in range(8) for name in (f"left {n}.jpg", f"right{n}.jpg")]
    # The ninth pair is the first in the other direction.
    index["scenes"][0]["images"][:18] = [*names, names[1], names[0]]
    write_index(folder, index)
    done = run(folder, tmp_path / "lists", "--pairs-per-scene", 4, "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    assert [path.name for path in (tmp_path / "lists").iterdir()] == ["a.txt"]
    assert [(row["hard"], row["listed"]) for row in json.loads(done.stdout)] == [(8, 4), (0, 0)]
    share_of = {(f"left {n}.jpg", f"right{n}.jpg"): share for n, share in enumerate(shares)}
    listed = [share_of[pair] for _, pair in read_pairs(tmp_path / "lists" / "a.txt")]
    for share, expected in zip(listed, ((0.2, 0.3), (0.4, 0.5), (0.6, 0.7), (0.8, 0.9)), strict=True):
        assert share in expected
    again = run(folder, tmp_path / "again", "--pairs-per-scene", 4)
    assert "largest share" in again.stdout
    assert (tmp_path / "again" / "a.txt").read_text() == (tmp_path / "lists" / "a.txt").read_text()


def test_wrong_arguments(tmp_path):
    folder = write_pairs(tmp_path / "pairs", {"a": [replace(pair_with_depth(), share=None)]})
    for arguments, message in [
        ((folder, folder), "expected a new or empty folder"),
        ((folder, tmp_path / "lists"), "expected pairs with known depth"),
        ((tmp_path / "none", tmp_path / "lists"), "no training pairs here"),
        ((folder, tmp_path / "lists", "--pairs-per-scene", 0), "--pairs-per-scene: expected"),
    ]:
        done = run(*arguments)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "lists").exists()
