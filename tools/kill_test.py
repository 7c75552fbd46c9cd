"""Kill commands at random moments, run them again, and compare the end with that of a run nobody touched.

    python tools/kill_test.py [--times 30] [--seed 0] [COMMAND ...]

Everything is made on the spot: small rendered scenes with known cameras, and a COLMAP database of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

# So many times a run is killed before one may come to its end.
MAX_KILLS = 3
# What a run tells of its own time is no part of its result.
TIMES = ("seconds", "milliseconds", "date", "pairs_per_second")
SETTINGS = """
pairs = 'pairs'
steps = 40
warmup = 2
validate_every = 20
checkpoint_every = 5
log_every = 5
synthetic_share = 0.5
[network]
name = 'ananet'
blocks = 1
width = 16
heads = 2
[batches]
batch_size = 4
matches = 128
"""


@dataclass(frozen=True)
class Command:
    """A command to be killed; all paths are relative to a folder that holds a copy of the inputs."""

    arguments: tuple[str, ...]
    result: Callable[[Path], Any]
    """What is compared, from the folder."""


def tensors_of(path: Path) -> Any:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118 (not a dict)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if not str(name).startswith(TIMES)}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def result_of_build(folder: Path) -> Any:
    shards = {path.name: path.read_bytes() for path in (folder / "out").glob("*.safetensors")}
    # The order of all that is there, hidden files included: nothing may be left behind.
    names = sorted(path.name for path in (folder / "out").iterdir())
    return names, shards, without_times(json.loads((folder / "out" / "index.json").read_text()))


def result_of_training(folder: Path) -> Any:
    names = sorted(path.name for path in (folder / "run").iterdir())
    return names, tensors_of(folder / "run" / "weights.safetensors")


def result_of_evaluation(folder: Path) -> Any:
    found = sorted((folder / "predictions").rglob("*"))
    predictions = {path.name: tensors_of(path) for path in found if path.suffix == ".safetensors"}
    names = [path.relative_to(folder).as_posix() for path in found]
    return names, predictions, without_times(json.loads((folder / "scores.json").read_text()))


def result_of_colmap(folder: Path) -> Any:
    with sqlite3.connect(folder / "a.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tables = ("images", "keypoints", "descriptors", "matches", "two_view_geometries", "ananet_pruned")
        # Table names are ours.
        return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables}


def result_of_sfm(folder: Path) -> Any:
    """COLMAP numbers photos as they come out of its threads: only what does not depend on the order is compared."""
    with sqlite3.connect(folder / "model" / "database.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        query = "SELECT name, keypoints.data FROM images JOIN keypoints USING (image_id) ORDER BY name"
        keypoints = connection.execute(query).fetchall()
        tables = ("matches", "two_view_geometries", "ananet_pruned")
        # Table names are ours.
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]
    report = json.loads((folder / "model" / "report.json").read_text())
    models = sorted(path.name for path in (folder / "model" / "sparse" / "0").iterdir())
    return sorted(path.name for path in (folder / "model").iterdir()), models, keypoints, counts, report["registered"]


def result_of_bulk(folder: Path) -> Any:
    import pyarrow.parquet as parquet

    found = sorted((folder / "pruned").rglob("*"))
    rows = {path.name: parquet.read_table(path).to_pylist() for path in found if path.suffix == ".parquet"}
    return [path.relative_to(folder).as_posix() for path in found], rows


ORB = ("--detector", "orb", "--max-keypoints", "300")
EVALUATE = ("--device", "cpu", "--workers", "1", "--predictions", "predictions", "--scores", "scores.json")
COMMANDS = {
    "data build": Command(("data", "build", "scenes", "out", *ORB, "--workers", "1"), result_of_build),
    "train": Command(("train", "train.toml", "-o", "run", "--device", "cpu"), result_of_training),
    "evaluate": Command(
        ("evaluate", "scenes", "--pruner", "gms,ananet-small", "--estimator", "poselib", *ORB, *EVALUATE),
        result_of_evaluation,
    ),
    "colmap": Command(("colmap", "a.db", "--match", "--pruner", "ananet-small", "--device", "cpu"), result_of_colmap),
    "sfm": Command(
        ("sfm", "photos", "-o", "model", "--pruner", "ananet-small", "--cameras", "one", "--device", "cpu"),
        result_of_sfm,
    ),
    "bulk": Command(
        ("bulk", "matches", "pruned", "--pruner", "ananet-small", "--device", "cpu", "--pairs-per-part", "5"),
        result_of_bulk,
    ),
}


def write_inputs(folder: Path) -> None:
    import numpy as np

    from ananet.datasets.build import BuildSettings, build_pairs
    from ananet.features import load_detector
    from ananet.io.images import read_image
    from tests.datasets.scenes import write_scene
    from tests.datasets.test_sfm import write_views
    from tests.integrations.colmap.databases import Writer

    for number in range(8):
        write_scene(folder / "scenes" / f"scene-{number}", images=6, seed=10 * number)
    settings = BuildSettings(detector="orb", max_keypoints=300, min_parallax=0.5)
    build_pairs(folder / "scenes" / "scene-0", folder / "pairs", settings, progress=False)
    (folder / "train.toml").write_text(SETTINGS, encoding="utf-8")
    write_views(folder / "photos", views=6)
    (folder / "matches").mkdir()
    for number in range(100):
        points0, points1 = np.random.default_rng(number).uniform(0, 640, (2, 300, 2))
        size = (640, 640)
        np.savez(
            folder / "matches" / f"{number:03d}.npz",
            points0=points0,
            points1=points1,
            image_size0=size,
            image_size1=size,
        )
    writer = Writer(folder / "a.db")
    detector = load_detector("sift", max_keypoints=600)
    for path in sorted((folder / "scenes").rglob("*.png"))[:12]:
        found = detector.detect(read_image(path))
        descriptors = (found.descriptors * 255).clip(0, 255).astype("u1")
        writer.image(found.points, (1, 320, 240, (280.0, 280.0, 160.5, 120.5), 1), descriptors=descriptors)
    writer.close()


def start(command: Command, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "ananet", *command.arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(command: Command, process: subprocess.Popen[str]) -> None:
    """Waits for the end, which must be a good one."""
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"ananet {' '.join(command.arguments)}: exit code {process.returncode}: {errors}")


def timed(command: Command, folder: Path) -> tuple[float, float]:
    """Runs to the end; seconds in all, and until something is written."""
    before, began = modified(folder), time.monotonic()
    first = None
    with start(command, folder) as process:
        while process.poll() is None:
            time.sleep(0.01)
            if first is None and modified(folder) > before:
                first = time.monotonic() - began
        finish(command, process)
    duration = time.monotonic() - began
    return duration, duration / 2 if first is None else first


def modified(folder: Path) -> float:
    """When anything in it was last changed."""
    latest = 0.0
    for path in (folder, *folder.rglob("*")):
        # Temporary files come and go.
        with suppress(FileNotFoundError):
            latest = max(latest, path.stat().st_mtime)
    return latest


def test(name: str, inputs: Path, work: Path, times: int, draw: random.Random) -> None:
    """Kills the command so often; raises where the end differs."""
    command = COMMANDS[name]
    # The same place each time, as some results name it.
    folder = work / "run"
    shutil.copytree(inputs, folder)
    duration, first = timed(command, folder)
    expected = command.result(folder)
    shutil.rmtree(folder)
    killed = ended = compared = changed = 0
    while killed < times:
        shutil.copytree(inputs, folder)
        for _ in range(min(draw.randint(1, MAX_KILLS), times - killed)):
            before = modified(folder)
            with start(command, folder) as process:
                # Imports take most of the time; what matters comes once something is written.
                if draw.random() < 0.8:
                    while process.poll() is None and modified(folder) <= before:
                        time.sleep(0.005)
                    time.sleep(draw.uniform(0, duration - first))
                else:
                    time.sleep(draw.uniform(0, duration))
                process.send_signal(signal.SIGKILL)
                process.communicate()
            killed += 1
            ended += process.returncode == 0
            changed += modified(folder) > before
        with start(command, folder) as process:
            finish(command, process)
        if command.result(folder) != expected:
            raise SystemExit(f"{name}: after {killed} kills the end differs; see {folder}")
        compared += 1
        shutil.rmtree(folder)
    print(
        f"{name}: {killed} kills ({changed} of runs that had written something, {ended} too late), {compared} ends "
        f"compared, all equal; {duration:.1f} s undisturbed",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"some of {', '.join(COMMANDS)} (default: all)")
    parser.add_argument("--times", type=int, default=30, help="to kill each command (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.commands) - set(COMMANDS))
    if unknown:
        parser.error(f"COMMAND: expected some of {', '.join(COMMANDS)}, got {', '.join(unknown)}")
    work = Path(tempfile.mkdtemp(prefix="kill-test-"))
    (work / "inputs").mkdir()
    write_inputs(work / "inputs")
    for name in arguments.commands or COMMANDS:
        if name == "bulk" and find_spec("ray") is None:
            print("bulk: left out, there is no Ray here")
            continue
        test(name, work / "inputs", work, arguments.times, random.Random(arguments.seed))
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
