"""The commands: damaged inputs and arguments that make no sense end in an exit code and a sentence, never in a crash.

Inputs stay as they are, and so does an older output where there is no new one.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from ananet.cli.main import CRASHED, main
from ananet.networks import save_network
from tests.datasets.formats.test_fuzz import write_settings, write_shards
from tests.datasets.scenes import write_scene
from tests.fuzz.campaign import Case, target
from tests.fuzz.readers import FORMATS, change_database, change_npz, write_database, write_hloc_matches, write_npz
from tests.mutations import (
    change_bytes,
    change_floats,
    change_hdf5,
    change_json,
    change_safetensors,
    change_words,
    mutants,
)
from tests.networks.networks import network

MUTATIONS = {
    ".npz": change_npz,
    ".db": change_database,
    ".h5": change_hdf5,
    ".txt": change_words,
    ".toml": change_words,
    ".json": change_json,
    ".safetensors": change_safetensors,
    ".png": change_bytes,
}
NONSENSE = (
    "",
    ".",
    "..",
    "-1",
    "0",
    "1",
    "nan",
    "1e400",
    "9" * 400,
    "x",
    "x" * 5000,
    "nowhere/x.npz",
    "é\udcff",
    "a\0b",
)
NONSENSE += (
    "m.npz",
    "a.db",
    "scene",
    "m.npz@x=1",
    "ratio@threshold=x",
    "all+",
    "+",
    "--",
    "-h",
    "--json",
    "w.safetensors",
)
OUTPUT = b"an older output"
PHOTOS = ("scene/images/000.png", "scene/images/001.png")
ORB = ("--detector", "orb", "--max-keypoints", "100")
COMMANDS = (
    ("prune", "m.npz", "-o", "out.npz", "--pruner", "gms"),
    ("prune", "m.npz", "-o", "out.npz", "--pruner", "w.safetensors", "--json"),
    ("prune", "m.npz", "-o", "out.npz", "--pruner", "all", "--motions", "--json"),
    ("match", *PHOTOS, "-o", "out.png", *ORB, "--pruner", "mutual", "--json"),
    ("match", *PHOTOS, "-o", "out.png", *ORB, "--pruner", "gms", "--save", "out.npz", "--k0", "K.txt"),
    ("colmap", "a.db", "-o", "out.db", "--pruner", "gms", "--prune", "--json"),
    ("colmap", "a.db", "-o", "out.db", "--pruner", "gms", "--match"),
    ("hloc", "features.h5", "matches.h5", "-o", "out.h5", "--pruner", "gms"),
    ("data", "build", "scene", "out", *ORB, "--workers", "1", "--json"),
    ("data", "inspect", "pairs", "-o", "out.png"),
    ("evaluate", "labelled", "--pruner", "all", "--motions", "--json"),
    ("train", "train.toml", "-o", "out", "--device", "cpu", "--until", "1", "--json"),
    ("list",),
)


def write_inputs(folder: Path) -> None:
    folder.mkdir()
    write_npz(folder)
    write_database(folder)
    write_hloc_matches(folder)
    write_settings(folder)
    write_scene(folder / "scene", images=2)
    FORMATS["camera matrix"].write(folder)
    (folder / "pairs").mkdir()
    write_shards(folder / "pairs")
    (folder / "labelled").mkdir()
    FORMATS["labelled matches"].write(folder / "labelled")
    save_network(folder / "w.safetensors", network(blocks=1, width=16, heads=2), {})
    (folder / "train.toml").write_text(
        "pairs = 'pairs'\nsteps = 1\nwarmup = 1\nsynthetic_share = 0.5\n[network]\nname = 'ananet'\n"
        "blocks = 1\nwidth = 16\nheads = 2\n[batches]\nbatch_size = 2\nmatches = 16\n"
    )


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def call(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code and what was printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:
            # argparse's way to say that arguments are wrong, or that help was asked for.
            code = end.code if isinstance(end.code, int) else 2
    return code, out.getvalue(), err.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@target("commands")
def prepare(folder: Path) -> Case:
    write_inputs(folder / "inputs")

    def case(data: st.DataObject) -> None:
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder / "inputs", work)
        arguments = list(data.draw(st.sampled_from(COMMANDS)))
        kind = data.draw(st.sampled_from(("file", "file", "argument", "argument", "none")))
        if kind == "argument":
            place = data.draw(st.integers(1, len(arguments)))
            arguments[place : place + data.draw(st.integers(0, 1))] = [data.draw(st.sampled_from(NONSENSE))]
        read = [path for name in arguments for path in inputs_at(work / name)] if kind == "file" else []
        if read:
            path = data.draw(st.sampled_from(read))
            changes = (MUTATIONS[path.suffix], change_bytes, change_floats)
            (mutant,) = mutants(path.read_bytes(), 1, data.draw(st.integers(0, 2**40)), *changes)
            path.write_bytes(mutant)
        older = data.draw(st.booleans())
        outputs = [name for name in arguments if re.fullmatch(r"out\.\w+", name)]
        for name in outputs if older else []:
            (work / name).write_bytes(OUTPUT)
        before = contents(work)
        with working_in(work):
            code, out, err = call(arguments)
        after = contents(work)
        assert code != CRASHED and code in (0, 1, 2), f"{code}: {err}"
        assert "Traceback" not in err
        if code == 2:
            assert err.strip()
        elif "--json" in arguments and not out.startswith("usage"):
            json.loads(out, parse_constant=lambda word: (_ for _ in ()).throw(AssertionError(word)))
        for name, content in before.items():
            if name not in outputs or code == 2:
                assert after[name] == content, f"{name} was changed"
        left = [name for name in after if re.search(r"(^|/)\.[^/]*-[0-9a-f]{8}(\.|$)", name)]
        assert not left, f"left behind: {left}"
        if code == 2 and not older:
            assert not any(name in after for name in outputs), "an output of a run that failed"
        if "out.npz" in after and after["out.npz"] != OUTPUT and arguments[0] == "prune":
            with np.load(work / "out.npz") as answer:
                assert np.isfinite(answer["scores"]).all() and np.isfinite(answer["logits"]).all()

    return case


def inputs_at(path: Path) -> list[Path]:
    """The file, or the files in the folder, that a case may damage."""
    try:
        files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    except (OSError, ValueError):
        return []
    return [file for file in files if file.is_file() and file.suffix in MUTATIONS]
