"""The npm package in Node and in a headless Chromium, against what Python stored."""

import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "packages" / "js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# In a container there is no namespace for the browser's own sandbox.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]

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


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=ROOT)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")
def test_browser(address):
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        failures = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(f"{address}/packages/js/test/browser.html")
        page.wait_for_function("window.found", timeout=250_000)
        found = page.evaluate("window.found")
        browser.close()
    assert not failures and not found["errors"]
    assert found["cases"] > 10
    assert "network: expected one of ananet, ananet-small" in found["refused"]
