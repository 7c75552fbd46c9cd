"""Builds the header's tests, benchmark and example with CMake, with all warnings as errors, and runs them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD, ANSWERS = ROOT / "build" / "native", ROOT / "build" / "packages" / "answers"
PAGE = ROOT / "docs" / "anywhere.md"

if not shutil.which("cmake") or not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
    pytest.skip("no C++ compiler or no CMake (apt-get install g++ cmake)", allow_module_level=True)


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built() -> Path:
    run("cmake", "-S", ROOT / "native", "-B", BUILD, f"-DANANET_ANSWERS={ANSWERS}")
    run("cmake", "--build", BUILD, "--parallel", str(os.cpu_count()))
    return BUILD


@pytest.mark.parametrize("name", ["answers", "plain", "sanitized"])
def test_answers(built, name):
    """Those that Python stored: with vectors, with plain loops, and watched by the sanitizers."""
    run("ctest", "--test-dir", built, "--output-on-failure", "--tests-regex", f"^{name}$", "--no-tests=error")


def test_speed(built):
    """The benchmark runs; what it measures depends on the machine."""
    found = json.loads(run(built / "speed", ANSWERS / "ananet-small.safetensors", "500", "64", "2"))
    assert found["matches"] == 500
    assert 0 < found["pruner_ms"] < 1000


def test_example(built, tmp_path):
    program = built / "prune_matches"
    if not program.exists():
        pytest.skip("no OpenCV for C++ (apt-get install libopencv-dev)")
    cv2 = pytest.importorskip("cv2")
    from ananet.cli.demo import motorcycle

    pair = motorcycle()
    photos = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, image in zip(photos, (pair.image0, pair.image1), strict=True):
        cv2.imwrite(str(path), image)
    kept, _, matches = run(program, ANSWERS / "ananet-small.safetensors", *photos).split()[:3]
    # The example keeps 2000 keypoints; a fifth of the matches is right.
    assert 200 < int(kept) < int(matches) // 2


def test_version():
    """Of the CMake project: as of the Python package."""
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"VERSION {version[1]} " in (ROOT / "native" / "CMakeLists.txt").read_text()


@pytest.mark.skipif(not PAGE.exists(), reason="no page")
def test_page(tmp_path):
    """The program of the documentation."""
    (source,) = re.findall(r"```cpp\n(.*?)```", PAGE.read_text(encoding="utf-8").replace("\n    ", "\n"), re.DOTALL)
    (tmp_path / "page.cpp").write_text(source)
    compiler = next(path for name in ("c++", "g++", "clang++") if (path := shutil.which(name)))
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'native'}")
    run(compiler, *flags, tmp_path / "page.cpp", "-o", tmp_path / "page")
    shutil.copyfile(ANSWERS / "ananet-small.safetensors", tmp_path / "ananet-small.safetensors")
    done = subprocess.run([tmp_path / "page"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(r"\d+ of \d+ kept", done.stdout)
