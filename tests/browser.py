"""The system's Chromium, folders served to it, and the page for two photos."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# In a container there is no namespace for the browser's own sandbox. The rest keeps it from calling home.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--no-first-run"]
FLAGS += ["--disable-component-update", "--disable-sync"]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")


@contextmanager
def launched() -> Iterator:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served_folder(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def send(page, first, second):
    page.set_input_files("#photo0", first)
    page.set_input_files("#photo1", second)
    page.wait_for_selector("#result:not([hidden]), #error:not([hidden])")


def kept(page) -> int:
    return int(page.inner_text("#count").split()[0])


def download(page, kind: str, folder: Path) -> Path:
    with page.expect_download() as waiting:
        page.click(f"#save-{kind}")
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path
