"""`ananet colmap --prune` on a large database: time of reading and writing, memory, and safety against kills.

    python benchmarks/colmap.py                                                   # small, with 10 kills: minutes
    python benchmarks/colmap.py --photos 200 --pairs 4000 --matches 2000 --kills 100 --json

The database is synthetic: points seen by cameras in a circle, half of the matches of a pair right, the others random.
It and a quarter of it are pruned on the CPU in separate processes; both should need the same memory. SIGKILL is sent at
random times around the transaction. The database must then be unchanged or complete, and a second run must give the
same bytes as an undisturbed one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ananet.integrations.colmap import prune_database
from ananet.integrations.colmap.verification import import_pycolmap

WIDTH, HEIGHT, FOCAL = 1600, 1200, 1400.0
# Of the database that is killed: a run takes seconds.
KILLED = {"photos": 12, "pairs": 60, "matches": 300}
# Run in a separate process to measure its memory.
MEASURED = """
import dataclasses, json, resource, sys
from ananet.integrations.colmap import prune_database
import torch
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
summary = prune_database(sys.argv[1], sys.argv[2] or None, device="cpu", progress=sys.stderr.isatty())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(dataclasses.asdict(summary) | {"idle_mb": idle / 1024, "peak_mb": peak / 1024}))
"""


def synthesize(path: Path, photos: int, pairs: int, matches: int) -> None:
    """A database of photos that all show the same points, with the first so many pairs matched."""
    pycolmap = import_pycolmap()
    random = np.random.default_rng(0)
    points = random.uniform(-1, 1, (matches, 3))
    with pycolmap.Database.open(path) as database, pycolmap.DatabaseTransaction(database):
        parameters = [FOCAL, WIDTH / 2, HEIGHT / 2, -0.05]
        camera = pycolmap.Camera(model="SIMPLE_RADIAL", width=WIDTH, height=HEIGHT, params=parameters)
        camera.has_prior_focal_length = True
        number = database.write_camera(camera)
        images = []
        for photo in tqdm(range(photos), desc="photos", leave=False):
            image = database.write_image(pycolmap.Image(name=f"{photo:06d}.jpg", camera_id=number))
            database.write_keypoints(image, _keypoints(points, camera, photo, random))
            images.append(image)
        for first, second in tqdm(islice(combinations(images, 2), pairs), desc="pairs", total=pairs, leave=False):
            indices = np.stack([np.arange(matches)] * 2, axis=1)
            wrong = random.random(matches) < 0.5
            indices[wrong, 1] = random.permutation(indices[wrong, 1])
            database.write_matches(first, second, indices.astype(np.uint32))


def _keypoints(points: np.ndarray, camera: Any, photo: int, random: np.random.Generator) -> np.ndarray:
    """[N x 6] of points as a camera sees them that goes around them in small steps."""
    angle = 0.05 * photo
    R = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    seen = points @ R.T + [0, 0, 5]
    pixels = np.array(camera.img_from_cam(seen)) + random.normal(0, 0.5, (len(points), 2))
    return np.hstack([pixels, np.tile([2.0, 0, 0, 2.0], (len(points), 1))]).astype(np.float32)


def stored(path: Path) -> list[tuple[int, int, bytes]]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute("SELECT pair_id, rows, data FROM matches ORDER BY pair_id").fetchall()
    finally:
        connection.close()


def measure(work: Path, photos: int, pairs: int, matches: int, pruner: str) -> dict[str, Any]:
    """Seconds and memory of one run."""
    path = work / "measured.db"
    synthesize(path, photos, pairs, matches)
    size = path.stat().st_size
    command = [sys.executable, "-c", MEASURED, str(path), pruner]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    path.unlink()
    total = sum(found["seconds"].values())
    return {
        "pairs": pairs,
        "matches": matches,
        "database_mb": size / 2**20,
        "kept": found["after"] / found["before"],
        "seconds": total,
        "pairs_per_second": pairs / total,
        "io_share": (found["seconds"]["read"] + found["seconds"]["write"]) / total,
        "idle_mb": found["idle_mb"],
        "peak_mb": found["peak_mb"],
    }


class Kills:
    """Runs of the command on copies of one database."""

    def __init__(self, work: Path, pruner: str) -> None:
        self.original, self.path = work / "original.db", work / "killed.db"
        self.pruner = pruner
        synthesize(self.original, **KILLED)
        self.before = stored(self.original)
        self.begin, self.end = self._uninterrupted()
        self.done = stored(self.path)
        assert self.done != self.before

    def _start(self) -> subprocess.Popen[bytes]:
        for left in self.path.parent.glob(f"{self.path.name}*"):
            left.unlink()
        shutil.copy(self.original, self.path)
        command = [sys.executable, "-m", "ananet", "colmap", str(self.path), "--prune", "--device", "cpu"]
        command += ["--pruner", self.pruner] if self.pruner else []
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _uninterrupted(self) -> tuple[float, float]:
        """Seconds until the transaction begins, and until the end."""
        start = time.perf_counter()
        process = self._start()
        begin = 0.0
        while process.poll() is None:
            if not begin and self._locked():
                begin = time.perf_counter() - start
            time.sleep(0.02)
        assert process.returncode == 0
        return begin, time.perf_counter() - start

    def _locked(self) -> bool:
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            return False
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()

    def kill(self, moment: float) -> str:
        """What a kill found and left; raises if that is neither the old database nor the new one."""
        process = self._start()
        try:
            process.wait(moment)
            state = "after the end"
        except subprocess.TimeoutExpired:
            state = "in the transaction" if self._locked() else "before or after it"
            process.kill()
            process.wait()
        found = stored(self.path)
        if found not in (self.before, self.done):
            raise AssertionError(f"killed after {moment:.3f} s: the database is neither as it was nor done")
        pruner = self.pruner or None
        prune_database(self.path, pruner, device="cpu")
        if stored(self.path) != self.done:
            raise AssertionError(f"killed after {moment:.3f} s: the second run ended with other matches")
        return f"{state}, {'as it was' if found == self.before else 'done'}"


def kill_many(work: Path, pruner: str, count: int) -> dict[str, int]:
    """How often what was found."""
    kills = Kills(work, pruner)
    moments = np.random.default_rng(0).uniform(0.9 * kills.begin, 1.05 * kills.end, count)
    found = [kills.kill(float(moment)) for moment in tqdm(moments, desc="kills", leave=False)]
    return {state: found.count(state) for state in sorted(set(found))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--matches", type=int, default=2000, help="of a pair (default: 2000)")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--pruner", default="", help="default: the command's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"runs": [], "kills": {}}
    with tempfile.TemporaryDirectory() as work:
        for pairs in (max(1, arguments.pairs // 4), arguments.pairs) if arguments.pairs else ():
            run = measure(Path(work), arguments.photos, pairs, arguments.matches, arguments.pruner)
            result["runs"].append(run)
        if arguments.kills:
            result["kills"] = kill_many(Path(work), arguments.pruner, arguments.kills)
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for run in result["runs"]:
        print(
            f"{run['pairs']} pairs of {run['matches']} matches ({run['database_mb']:.0f} MB): {run['seconds']:.1f} s, "
            f"{run['pairs_per_second']:.1f} pairs/s, reading and writing {100 * run['io_share']:.1f} % of it, "
            f"{100 * run['kept']:.0f} % kept, {run['peak_mb']:.0f} MB of memory ({run['idle_mb']:.0f} MB before)"
        )
    for state, count in result["kills"].items():
        print(f"{count} kills {state}")


if __name__ == "__main__":
    main()
