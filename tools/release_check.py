"""Build the wheel and the sdist, install each in an environment of its own, and try them.

    python tools/release_check.py [--full] [--keep FOLDER]

The wheel: import, `ananet list`, and `ananet demo` with its extra; build/sbom.json lists all that was installed. The
sdist: the same, and its own tests, in a short form unless `--full`. Packages come from wherever pip is told to look;
torch is the one that constraints.txt names.

The packages without PyTorch: ananet-lite's wheel with its networks, the npm package, and the C++ header, each in a
call, and the page without a server, which is built; all but the first only where Node and a compiler are. `python
tools/export_packages.py onnx` must have run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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


LITE, JS, PAGE, NATIVE = (ROOT / name for name in ("packages/lite", "packages/js", "packages/page", "native"))
# In millions of bytes: of ananet-lite's wheel, and of an environment with it.
MAX_LITE_WHEEL, MAX_LITE_ENVIRONMENT = 6, 150
POINTS = "[[10, 20], [30, 40], [50, 10]]"
LITE_CALL = f"""
import ananet_lite
pruner = ananet_lite.load()
kept = pruner({POINTS}, {POINTS}, image_size0=(64, 48), image_size1=(64, 48))
print(ananet_lite.__version__, ananet_lite.list_pruners(), kept)
"""
JS_CALL = f"""
import {{ load }} from "ananet";
const pruner = await load();
const sizes = {{ imageSize0: [64, 48], imageSize1: [64, 48] }};
console.log((await pruner.prune({POINTS}, {POINTS}, sizes)).mask.length, "matches in Node");
"""


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


def check_lite(folder: Path, version: str) -> None:
    folder.mkdir()
    python = environment(folder / "build", "build")
    run(python, "-m", "build", "--outdir", folder / "dist", LITE, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    if not all(f"ananet_lite/networks/{name}.onnx" in names for name in ("ananet", "ananet-small")):
        raise SystemExit(f"{wheel.name}: expected its networks; run python tools/export_packages.py onnx")
    python = environment(folder / "venv", str(wheel))
    found = run(python, "-c", LITE_CALL, cwd=folder).strip()
    if not found.startswith(f"{version} "):
        raise SystemExit(f"expected ananet-lite {version}, got {found}")
    size, packages = wheel.stat().st_size / 1e6, megabytes(folder / "venv")
    print(f"{wheel.name}: {size:.1f} MB, environment {packages:.0f} MB, {found}")
    if size > MAX_LITE_WHEEL or packages > MAX_LITE_ENVIRONMENT:
        raise SystemExit(f"{wheel.name}: expected {MAX_LITE_WHEEL} and {MAX_LITE_ENVIRONMENT} MB at most")


def megabytes(folder: Path) -> float:
    """Of all files below a folder but pip and bytecode."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    left_out = {"pip", "setuptools", "__pycache__"}
    return sum(path.stat().st_size for path in files if not left_out & set(path.parts)) / 1e6


def check_npm(folder: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        print("no Node: the npm package was not tried")
        return
    folder.mkdir()
    run(npm, "pack", JS, "--pack-destination", folder, cwd=folder)
    (archive,) = folder.glob("ananet-*.tgz")
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    run(npm, "install", "--no-audit", "--no-fund", archive, cwd=folder)
    (folder / "call.js").write_text(JS_CALL, encoding="utf-8")
    print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB,", run(node, "call.js", cwd=folder).strip())


def check_page(folder: Path, version: str) -> None:
    folder.mkdir()
    stated = json.loads((PAGE / "package.json").read_text(encoding="utf-8"))["version"]
    if stated != version:
        raise SystemExit(f"{PAGE.relative_to(ROOT)}: expected version {version}, got {stated}")
    print(run(sys.executable, ROOT / "tools" / "build_page.py", cwd=folder).strip())


def check_header(folder: Path) -> None:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        print("no C++ compiler: the header was not tried")
        return
    folder.mkdir()
    weights = ROOT / "src" / "ananet" / "weights" / "ananet-small.safetensors"
    call = "ananet::Pruner::from_file(words[1])({}).mask.size() == 0"
    source = f"#include <ananet.hpp>\nint main(int, char** words) {{ return {call} ? 0 : 1; }}\n"
    (folder / "call.cpp").write_text(source, encoding="utf-8")
    run(compiler, "-std=c++17", "-O2", f"-I{NATIVE}", "call.cpp", "-o", "call", cwd=folder)
    run(folder / "call", weights, cwd=folder)
    print(f"ananet.hpp: {(NATIVE / 'ananet.hpp').stat().st_size / 1e3:.0f} kB, compiles and reads weights")


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
        if archive is wheel:
            (ROOT / "build").mkdir(exist_ok=True)
            run(python, ROOT / "tools" / "sbom.py", ROOT / "build" / "sbom.json", cwd=place)
        if archive is sdist:
            test(python, archive, place, full)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    check_lite(folder / "lite", version)
    check_npm(folder / "npm")
    check_page(folder / "page", version)
    check_header(folder / "header")
    print(f"all packages are well, {time.monotonic() - start:.0f} s")


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
