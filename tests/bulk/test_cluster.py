"""On a Ray of two workers, all tests on the same one."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ananet import Correspondences, InputError
from ananet.bulk import cluster, prune_in_bulk
from ananet.bulk.inputs import Pair
from tests.bulk.problems import read_rows, write_npz

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def two_workers():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = write_npz(tmp_path_factory.mktemp("pairs"), 60)
    (folder / "scene-1" / "031.npz").write_bytes(b"no archive")
    return folder


def actors() -> list[int]:
    """Processes of this test's actors."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::MapWorker") and os.getpid() in ancestors(int(path.parent.name)):
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        # The name in brackets may hold blanks.
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_worker_changes_nothing(two_workers, pairs, tmp_path):
    killed = {}

    def kill_one():
        while not list(tmp_path.glob("ray/part-*.parquet")):
            time.sleep(0.01)
        killed["pid"], *others = actors()
        os.kill(killed["pid"], signal.SIGKILL)
        killed["others"], killed["done"] = others, len(list(tmp_path.glob("ray/part-*.parquet")))

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    summary = prune_in_bulk(pairs, tmp_path / "ray", workers=2, pairs_per_part=2, device="cpu")
    thread.join()
    assert len(killed["others"]) == 1 and killed["done"] < 30

    expected = prune_in_bulk(pairs, tmp_path / "serial", workers=0, pairs_per_part=2, device="cpu")
    assert summary == expected
    assert (summary.parts, summary.counts.pairs, summary.counts.failed) == (30, 60, 1)
    found, serial = read_rows(tmp_path / "ray"), read_rows(tmp_path / "serial")
    assert len({row["source"] for row in found}) == len(found) == 60
    for row, reference in zip(found, serial, strict=True):
        assert {key: row[key] for key in ("source", "mask", "error")} == {
            key: reference[key] for key in ("source", "mask", "error")
        }
        np.testing.assert_allclose(row["scores"], reference["scores"], atol=1e-4)
        if row["R"] is not None:
            np.testing.assert_allclose(row["R"], reference["R"], atol=1e-4)
    (failed,) = (row for row in found if row["error"] is not None)
    assert failed["source"] == "scene-1/031.npz" and "not a readable .npz file" in failed["error"]
    # Nothing is left of what the killed process was writing.
    assert {path.name.partition("-")[0] for path in (tmp_path / "ray").iterdir()} == {"bulk.json", "part"}


def test_steps_apart_as_beside_gpus(two_workers):
    """Between them, pairs travel from process to process."""

    class Heavy:
        def __init__(self, failing):
            self.failing = failing

        def __call__(self, row):
            failed = [pair.failed(ValueError(self.failing)) for pair in row["pairs"]]
            return {"number": row["number"], "pairs": [*row["pairs"], *failed]}

    def before(row):
        matches = Correspondences(
            np.full((3, 2), row["number"]), np.zeros((3, 2)), image_size0=(9, 9), image_size1=(9, 9)
        )
        return row | {"pairs": [Pair("a", str(row["number"]), matches=matches)]}

    def after(row):
        pair, failed = row["pairs"]
        return {"seen": f"{pair.key} {pair.matches.points0.sum():g} {pair.matches.image_size0} {failed.error}"}

    rows = [{"number": number} for number in range(4)]
    engine = cluster.Cluster(ray, 1, "cpu")
    engine.steps_apart = True
    found = sorted(row["seen"] for row in engine.run(rows, before, (Heavy, "no"), after))
    assert found == [row["seen"] for row in cluster.Serial("cpu").run(rows, before, (Heavy, "no"), after)]
    assert found[2] == "2 12 (9.0, 9.0) ValueError: no"


def test_what_ends_a_step_is_told_in_a_line(two_workers):
    def before(row):
        raise OSError("disk full")

    with pytest.raises(RuntimeError, match="^OSError: disk full$"):
        list(cluster.Cluster(ray, 1, "cpu").run([{"value": 1}], before, None, dict))


def test_more_workers_than_there_is_room_for(two_workers, pairs, tmp_path):
    with pytest.raises(InputError, match="workers: expected 1 to 2 on a Ray of 2 CPUs and 0 GPUs, got 3"):
        prune_in_bulk(pairs, tmp_path, workers=3, device="cpu")
    with pytest.raises(InputError, match="device: expected 'auto' or 'cpu', as this Ray has no GPU"):
        prune_in_bulk(pairs, tmp_path, workers=2, device="cuda")


def test_without_ray(monkeypatch, pairs, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"ray\[data\]"):
        prune_in_bulk(pairs, tmp_path)


@pytest.mark.slow
def test_ray_of_its_own_says_nothing(tmp_path):
    write_npz(tmp_path / "in", 1)
    command = [sys.executable, "-m", "ananet", "bulk", "in", "out", "--workers", "1", "--pruner", "lpm"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("1 pairs, 0 of them failed")


def test_the_plain_loop_makes_the_heavy_step_once():
    made = []

    class Heavy:
        def __init__(self, name):
            made.append(name)

        def __call__(self, row):
            return {"value": row["value"] * 2}

    rows = [{"value": 1}, {"value": 2}]
    found = list(cluster.Serial("cpu").run(rows, lambda row: {"value": row["value"] + 1}, (Heavy, "a"), dict))
    assert (found, made) == ([{"value": 4}, {"value": 6}], ["a"])
