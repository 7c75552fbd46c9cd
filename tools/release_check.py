"""Build the wheel and the sdist, install each in an environment of its own, and try them.

    python tools/release_check.py [--full] [--keep FOLDER]

The wheel: import, `ananet list`, and `ananet demo` with its extra. The sdist: the same, and its own tests, in a short
form unless `--full`. Packages come from wherever pip is told to look; torch is the one that constraints.txt names.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Quick, and of every layer: geometry, weights, networks, pruners, files, a command.
SHORT = ("core/test_geometry.py", "weights", "io/test_files.py", "networks", "pruners", "cli/test_prune.py")
TEST_PACKAGES = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.100", "h5py>=3.11")
# What a wheel without would be useless, or not be what it says.
EXPECTED = ("ananet/py.typed", "ananet/weights/", "ananet/recipes/", "licenses/LICENSE", "entry_points.txt")


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command outside of the repository, so that nothing is imported from it."""
    print("$", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\nexit code {done.returncode}")
    return done.stdout


def environment(folder: Path, *packages: str) -> Path:
    """A new virtual environment with these packages; its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *packages, cwd=folder)
    return python


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist; the wheel is built from the sdist, so that both are complete."""
    python = environment(folder / "build", "build")
    run(python, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=folder)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [part for part in EXPECTED if not any(part in name for name in names)]
    if missing:
        raise SystemExit(f"{wheel.name}: expected {', '.join(missing)}, got none")
    foreign = [name for name in names if not name.startswith(("ananet/", "ananet-"))]
    if foreign:
        raise SystemExit(f"{wheel.name}: expected the package alone, got {', '.join(foreign[:9])}")


def try_out(python: Path, folder: Path) -> None:
    """What somebody does in the first minute."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    command = python.with_name("ananet")
    found = run(python, "-c", "import ananet; print(ananet.__version__, ananet.__file__)", cwd=folder)
    if not found.startswith(f"{version} ") or str(ROOT / "src") in found:
        raise SystemExit(f"expected an installed ananet {version}, got {found}")
    if "ananet-small" not in run(command, "list", cwd=folder):
        raise SystemExit("ananet list: expected the pruners, got none")
    print(run(command, "demo", "-o", folder / "demo.png", cwd=folder).strip())
    if not (folder / "demo.png").is_file():
        raise SystemExit("ananet demo: expected a picture, got none")


def test(python: Path, sdist: Path, folder: Path, full: bool) -> None:
    """The tests of the sdist, with the package that is installed."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.glob("ananet-*")
    chosen = ("tests",) if full else tuple(f"tests/{name}" for name in SHORT)
    print(run(python, "-m", "pytest", "-p", "no:cacheprovider", *chosen, cwd=root).splitlines()[-1])


def check(folder: Path, full: bool) -> None:
    start = time.monotonic()
    wheel, sdist = build(folder)
    check_contents(wheel)
    for archive in (wheel, sdist):
        print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB")
    for name, archive in (("wheel", wheel), ("sdist", sdist)):
        place = folder / name
        place.mkdir()
        extras = "dev" if full and archive is sdist else "demo"
        more = TEST_PACKAGES if archive is sdist else ()
        python = environment(place / "venv", f"ananet[{extras}] @ {archive.as_uri()}", *more)
        try_out(python, place)
        if archive is sdist:
            test(python, archive, place, full)
    print(f"wheel and sdist are well, {time.monotonic() - start:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all tests of the sdist, with all that they need")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="build here, an empty folder, and keep it")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True)
        check(arguments.keep.resolve(), arguments.full)
        return 0
    with tempfile.TemporaryDirectory(prefix="release-check-") as folder:
        check(Path(folder), arguments.full)
    return 0


if __name__ == "__main__":
    sys.exit(main())
