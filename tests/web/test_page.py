"""The page in a real browser: Chromium of the system's packages, driven by Playwright."""

import shutil
import threading
import time

import cv2
import numpy as np
import pytest
import uvicorn

from ananet.cli.web import examples
from ananet.stored_matches import read_matches
from ananet.web.app import create_app
from tests.photos import photo
from tests.web.test_uploads import png_header

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")


@pytest.fixture(scope="module")
def address():
    server = uvicorn.Server(
        uvicorn.Config(create_app(device="cpu", examples=examples()), port=0, log_level="warning", access_log=False)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # In a container there is no namespace for the browser's own sandbox.
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser, address):
    context = browser.new_context(viewport={"width": 1100, "height": 900}, accept_downloads=True)
    opened = context.new_page()
    failures, foreign = [], []
    opened.on("pageerror", lambda error: failures.append(str(error)))
    local = (address, "blob:", "data:")
    opened.on("request", lambda request: None if request.url.startswith(local) else foreign.append(request.url))
    opened.goto(address)
    opened.wait_for_selector("#pruner option", state="attached")
    yield opened
    assert not failures and not foreign
    context.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("photos")
    pairs = examples()
    for number, data in enumerate(pairs["motorcycle"].photos):
        (made / f"{number}.jpg").write_bytes(data)
    (made / "coffee.jpg").write_bytes(pairs["different"].photos[1])
    (made / "notes.jpg").write_text("no photo")
    cv2.imwrite(str(made / "tiny.png"), photo(8, 8)[:1, :1])
    (made / "huge.png").write_bytes(png_header(10_000, 10_000))
    return made


def send(page, first, second):
    page.set_input_files("#photo0", first)
    page.set_input_files("#photo1", second)
    page.wait_for_selector("#result:not([hidden]), #error:not([hidden])")


def picture(page) -> bytes:
    page.wait_for_timeout(100)
    return page.locator("#canvas").screenshot()


def kept(page) -> int:
    return int(page.inner_text("#count").split()[0])


def test_two_photos_and_everything_about_them(page, folder, tmp_path):
    send(page, folder / "0.jpg", folder / "1.jpg")
    assert page.inner_text("#overlap").startswith("The photos show the same scene")
    assert "Enter one to get it" in page.inner_text("#pose")
    first, count = picture(page), kept(page)
    assert count > 100

    # The slider needs no service.
    page.route("**/v1/*", lambda route: route.abort())
    page.focus("#threshold")
    for _ in range(5):
        page.keyboard.press("PageUp")
    fewer = kept(page)
    assert 0 < fewer < count and picture(page) != first
    page.keyboard.press("End")
    assert kept(page) == 0
    page.keyboard.press("Home")
    assert kept(page) > count
    page.unroute("**/v1/*")

    seen = [picture(page)]
    for name in ("removed", "conflicting", "motions"):
        page.check(f"#show-{name}")
        seen.append(picture(page))
        assert seen[-1] not in seen[:-1]
        page.uncheck(f"#show-{name}")

    # Keys: walk to a match, its epipolar lines, zoom, pan, and back.
    page.focus("#canvas")
    page.keyboard.press("n")
    assert "score" in page.inner_text("#hint") and "score" in page.inner_text("#spoken")
    before = picture(page)
    page.keyboard.press("Enter")
    lines = picture(page)
    assert lines != before
    page.keyboard.press("Escape")
    assert not page.is_visible("#hint")
    whole = picture(page)
    for key in ("+", "ArrowLeft"):
        page.keyboard.press(key)
        assert picture(page) != whole
    page.keyboard.press("0")
    assert picture(page) == whole

    # The mouse: a click away from all matches marks the place and draws its line.
    box = page.locator("#canvas").bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    assert picture(page) != whole
    page.mouse.wheel(0, -400)
    assert picture(page) != whole

    page.focus("#threshold")
    page.keyboard.press("PageUp")
    with page.expect_download() as waiting:
        page.click("#save-npz")
    waiting.value.save_as(tmp_path / "matches.npz")
    stored = np.load(tmp_path / "matches.npz")
    assert stored["mask"].sum() == kept(page) and stored["mask"].dtype == bool
    assert len(read_matches(tmp_path / "matches.npz")) == len(stored["scores"]) == 2000
    with page.expect_download() as waiting:
        page.click("#save-csv")
    waiting.value.save_as(tmp_path / "matches.csv")
    table = np.loadtxt(tmp_path / "matches.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, :2], stored["points0"])
    assert (table[:, 4] == stored["mask"]).all()
    with page.expect_download() as waiting:
        page.click("#save-picture")
    waiting.value.save_as(tmp_path / "matches.png")
    assert cv2.imread(str(tmp_path / "matches.png")).std() > 20


def test_pixels_of_the_canvas_are_where_the_photos_say(page, folder):
    """The epipolar line that the page draws is that of the service's matrix."""
    send(page, folder / "0.jpg", folder / "1.jpg")
    distance = page.evaluate(
        """() => { const n = answer.mask.indexOf(true), [x, y] = answer.points0[n], [u, v] = answer.points1[n];
        const [a, b, c] = epipolarLine(0, x, y); return Math.abs(a * u + b * v + c) / Math.hypot(a, b); }"""
    )
    assert distance < 10
    back = page.evaluate("() => { const p = toPhoto(...toCanvas(1, [100, 50])); return [p.photo, p.x, p.y]; }")
    assert back == pytest.approx([1, 100, 50])


def test_an_example_with_cameras(page):
    page.get_by_role("button", name="Motorcycle").click()
    page.wait_for_selector("#result:not([hidden])")
    assert "moved right" in page.inner_text("#pose")


def test_another_pruner(page, folder):
    send(page, folder / "0.jpg", folder / "1.jpg")
    page.select_option("#pruner", "ratio")
    page.wait_for_selector("#facts:has-text('pruned by ratio')")
    assert page.inner_text("#threshold-value") == "0.50"


def test_photos_that_do_not_overlap(page, folder):
    send(page, folder / "0.jpg", folder / "coffee.jpg")
    assert "do not seem to show the same scene" in page.inner_text("#overlap")
    assert page.is_disabled("#show-motions")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notes.jpg", "notes.jpg: expected a JPEG, PNG or WebP photo, got something else"),
        ("tiny.png", "tiny.png: no keypoints found in this image of 1 x 1 pixels"),
        ("huge.png", "huge.png: expected at most 40,000,000 pixels, got 10000 x 10000"),
    ],
)
def test_errors_are_told(page, folder, name, message):
    send(page, folder / "0.jpg", folder / name)
    assert page.inner_text("#error") == message
    assert not page.is_visible("#result")
    page.set_input_files("#photo1", folder / "1.jpg")
    page.wait_for_selector("#result:not([hidden])")
    assert not page.is_visible("#error")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(browser, address, folder, scheme):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    send(page, folder / "0.jpg", folder / "1.jpg")
    # Nothing sticks out to the side, and the photos lie one above the other.
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.locator("#canvas").bounding_box()
    assert box["height"] > box["width"]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(int(part) for part in ground[4:-1].split(",")) < 60) == (scheme == "dark")
    context.close()
