"""Files that ask for more than a machine has, and full disks: a clear error, within a bound of memory and time.

The files are read in a process whose memory, or whose size of files, the system limits.
"""

import json
import os
import sqlite3
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ananet.networks import save_network
from tests.datasets.formats import test_colmap
from tests.datasets.scenes import write_scene
from tests.integrations.colmap.databases import Writer
from tests.networks.networks import network

pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are set as on Linux")

SECONDS = 120
# Beyond what the imports take.
MEMORY = 256 * 2**20

READ = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from ananet import InputError
from ananet.datasets.formats.colmap import read_colmap
from ananet.evaluation.predictions import read_predictions
from ananet.features import load_detector
from ananet.io.images import read_image
from ananet.integrations.colmap import prune_database
from ananet.networks import load_network
from ananet.io.npz import read_matches
from ananet.training.checkpoint import read_checkpoint
from ananet.training.settings import TrainSettings

IMAGE = np.zeros((8, 8), np.uint8)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[1]),) * 2)
answers = {}
for name, (call, path) in json.load(sys.stdin).items():
    start = time.process_time()
    try:
        answers[name] = f"no error: {eval(call, globals(), {'path': Path(path)})!r:.200}"
    except InputError as error:
        answers[name] = str(error)[:500]
    except BaseException as error:
        answers[name] = f"wrong error: {error!r:.500}"
    if time.process_time() - start > 10:
        answers[name] = "too slow: " + answers[name]
print(json.dumps(answers))
"""


def write_bomb(path: Path, names: tuple[str, ...], shape: tuple[int, int], whole: bool) -> None:
    """An .npz with arrays of zeros of any size, in a file of a few megabytes; `whole`: the zeros are there."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in names:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_2_0(entry, {"descr": "<f8", "fortran_order": False, "shape": shape})
                for _ in range(shape[0] * shape[1] * 8 // 2**24 if whole else 1):
                    entry.write(bytes(2**24))


def write_png(path: Path, side: int) -> None:
    """A grey photo of any size, all of it black."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes((side + 1) * 64)) for _ in range(side // 64)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A safetensors file with another header."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def ask_for_a_giant(header: dict[str, Any]) -> None:
    settings = json.loads(header["__metadata__"]["settings"]) | {"width": 2**16, "blocks": 500}
    header["__metadata__"]["settings"] = json.dumps(settings)


def write_model(folder: Path, file: str, at: int) -> Path:
    """A COLMAP model, 2^60 in place of a count in one of its files."""
    test_colmap.write_binary_model(folder, "OPENCV", "a.jpg")
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[:at] + struct.pack("<Q", 2**60) + data[at + 8 :])
    return folder


def write_database(path: Path) -> None:
    writer = Writer(path)
    first, second = (writer.image(np.zeros((9, 2))) for _ in range(2))
    writer.matches(first, second, np.zeros((9, 2)))
    for table in ("keypoints", "matches"):
        writer.connection.execute(f"UPDATE {table} SET rows = {2**60}")
    writer.close()


def test_files_that_ask_for_more_than_there_is(tmp_path):
    """One process reads them all: imports take longer than the rest."""
    h5py = pytest.importorskip("h5py")
    stored = "load_detector('stored', path=path).detect(IMAGE, path.parent / 'a.jpg')"
    cases: dict[str, tuple[str, str, str]] = {}

    def add(name: str, call: str, path: Path, message: str) -> None:
        cases[name] = (call, str(path), message)

    write_bomb(tmp_path / "rows.npz", ("points0", "points1"), (2**27, 2), whole=False)
    add("rows of matches", "read_matches(path)", tmp_path / "rows.npz", "at most 50,000,000 rows")
    # Within the limits of the format, beyond those of the machine.
    write_bomb(tmp_path / "bomb.npz", ("points0", "points1"), (2**24, 2), whole=True)
    assert (tmp_path / "bomb.npz").stat().st_size < 4 * 2**20
    add("bomb of matches", "read_matches(path)", tmp_path / "bomb.npz", "not a readable .npz")
    (tmp_path / "features").mkdir()
    write_bomb(tmp_path / "features" / "a.npz", ("points", "descriptors"), (2**27, 2), whole=False)
    add("rows of features", stored, tmp_path / "features", "at most 50,000,000 rows")
    write_png(tmp_path / "a.png", 12_800)
    assert (tmp_path / "a.png").stat().st_size < 2**20
    add("photo", "read_image(path)", tmp_path / "a.png", "OpenCV")

    save_network(tmp_path / "w.safetensors", network(blocks=1, width=16, heads=2), {})
    weights = (tmp_path / "w.safetensors").read_bytes()
    headers = {
        "endless header": struct.pack("<Q", 2**63) + weights[8:],
        "long header": struct.pack("<Q", 2**40) + weights[8:],
        "no header": struct.pack("<Q", 2) + b"{}",
        "tensor of exabytes": with_header(weights, lambda h: next(iter(h.values())).update(shape=[2**40, 2**20])),
        "giant network": with_header(weights, ask_for_a_giant),
    }
    for name, data in headers.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(data)
        for call in ("load_network(path)", "read_predictions(path)", "read_checkpoint(path)"):
            add(f"{name}, {call}", call, path, "")

    test_colmap.write_binary_model(tmp_path / "model", "OPENCV", "a.jpg")
    observations = (tmp_path / "model" / "images.bin").read_bytes().index(b"a.jpg\0") + 6
    for name, file, at in (
        ("cameras", "cameras.bin", 0),
        ("images", "images.bin", 0),
        ("seen", "images.bin", observations),
    ):
        add(f"2^60 {name}", "read_colmap(path, path)", write_model(tmp_path / name, file, at), "cut short")
    write_database(tmp_path / "a.db")
    add("2^60 rows of a database", "prune_database(path, 'all')", tmp_path / "a.db", "expected")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("a.jpg")
        group.create_dataset("keypoints", (2**38, 2), "f4", chunks=True)
        group["descriptors"], group["image_size"] = np.zeros((8, 4)), np.array([8, 8])
    add("terabytes of HDF5", stored, tmp_path / "a.h5", "expected at most")
    (tmp_path / "a.toml").write_text("steps = " + "[" * 100_000)
    add("nested settings", "TrainSettings.from_toml(path)", tmp_path / "a.toml", "")

    given = json.dumps({name: case[:2] for name, case in cases.items()})
    done = subprocess.run(
        [sys.executable, "-c", READ, str(MEMORY)],
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    wrong = {
        name: answers[name]
        for name, (*_, message) in cases.items()
        if answers[name].startswith(("no error", "wrong error", "too slow")) or message not in answers[name]
    }
    assert not wrong, json.dumps(wrong, indent=1)


# A disk that is full, as a process sees it whose files may not grow beyond some bytes.
FULL = """
import json, os, resource, signal, sys
from contextlib import redirect_stderr
from io import StringIO
from ananet.cli.main import main
import ananet.integrations.colmap, ananet.twoview.motions, ananet.datasets.build, ananet.twoview.drawing
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for folder, arguments in json.load(sys.stdin):
    os.chdir(folder)
    with redirect_stderr(StringIO()) as errors:
        code = main(arguments)
    print(json.dumps([code, errors.getvalue()]), flush=True)
"""
PHOTOS = ("scene/images/000.png", "scene/images/001.png")
FULL_DISKS = {
    "prune": ("prune", "m.npz", "-o", "out.npz", "--pruner", "gms"),
    "match": ("match", *PHOTOS, "-o", "out.png", "--pruner", "mutual"),
    "colmap": ("colmap", "a.db", "--prune", "--pruner", "gms"),
    "colmap copy": ("colmap", "a.db", "-o", "out.db", "--prune", "--pruner", "gms"),
    "data build": ("data", "build", "scene", "pairs", "--max-keypoints", "500"),
}


def write_inputs(folder: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 600, (5_000, 2))
    np.savez(folder / "m.npz", points0=points, points1=points + rng.normal(0, 9, points.shape))
    write_scene(folder / "scene", images=2)
    writer = Writer(folder / "a.db")
    first, second = (writer.image(points) for _ in range(2))
    writer.matches(first, second, rng.integers(0, 5_000, (9_000, 2)))
    writer.close()
    for name in ("out.npz", "out.png", "out.db"):
        (folder / name).write_bytes(b"an older output")


def matches_of(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute("SELECT * FROM matches ORDER BY 1").fetchall()


def test_a_full_disk_takes_nothing_away(tmp_path):
    for name in FULL_DISKS:
        (tmp_path / name).mkdir()
        write_inputs(tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "a.db"}
    rows = matches_of(tmp_path / "prune" / "a.db")
    given = json.dumps([(str(tmp_path / name), arguments) for name, arguments in FULL_DISKS.items()])
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for name, (code, errors) in zip(FULL_DISKS, answers, strict=True):
        assert code == 2 and "Traceback" not in errors, f"{name}: {code} {errors}"
        assert any(file in errors for file in ("out.", "a.db", "pairs")), f"{name}: {errors}"
        assert matches_of(tmp_path / name / "a.db") == rows
    for path, content in before.items():
        assert path.read_bytes() == content, path
    left = [path.name for path in tmp_path.rglob(".*-????????.*")]
    assert not left, left
