"""The npm package in Node and in a headless Chromium, against what Python stored."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser import launched, needs_chromium, served_folder

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "packages" / "js"
if not shutil.which("npm"):
    pytest.skip("no Node (apt-get install nodejs npm)", allow_module_level=True)


def npm(*words: str) -> str:
    done = subprocess.run([shutil.which("npm"), *words], cwd=PACKAGE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"npm {' '.join(words)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def installed():
    if not (PACKAGE / "node_modules" / "onnxruntime-web").exists():
        npm("install", "--no-audit", "--no-fund", "--no-package-lock")


def test_node():
    assert "# fail 0" in npm("test")


def test_types():
    npm("run", "types")


def test_contents():
    listed = npm("pack", "--dry-run", "--json")
    names = set(re.findall(r'"path": "(.*?)"', listed))
    assert names == {
        "LICENSE", "README.md", "index.d.ts", "index.js", "networks/ananet-small.onnx", "networks/ananet.onnx",
        "package.json",
    }  # fmt: skip
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f'"version": "{version[1]}"' in (PACKAGE / "package.json").read_text()


@needs_chromium
def test_browser():
    with served_folder(ROOT) as address, launched() as browser:
        page = browser.new_page()
        failures = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(f"{address}/packages/js/test/browser.html")
        page.wait_for_function("window.found", timeout=250_000)
        found = page.evaluate("window.found")
    assert not failures and not found["errors"]
    assert found["cases"] > 10
    assert "network: expected one of ananet, ananet-small" in found["refused"]
