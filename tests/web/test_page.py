"""The page in a real browser: Chromium of the system's packages, driven by Playwright."""

import json
import shutil
import struct
import threading
import time
import zipfile
from contextlib import contextmanager

import cv2
import numpy as np
import pytest
import uvicorn

from ananet.cli.web import examples
from ananet.integrations.colmap.database import open_database
from ananet.io.npz import read_matches
from ananet.web.app import create_app
from tests.browser import download, kept, launched, needs_chromium, send
from tests.photos import photo
from tests.web.test_payloads import png_header

pytestmark = needs_chromium


@contextmanager
def served(app):
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def address():
    with served(create_app(device="cpu", examples=examples())) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with launched() as started:
        yield started


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


def picture(page) -> str:
    """The canvas, once all that was asked for is drawn."""
    drawn = "() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(canvas.toDataURL()))))"
    return page.evaluate(drawn)


def with_orientation(jpeg: bytes, turn: int) -> bytes:
    """A JPEG file with an EXIF block that says nothing but this."""
    tag = b"\x01\0" + struct.pack("<HHIHH", 0x0112, 3, 1, turn, 0) + bytes(4)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + tag
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


def test_two_photos_and_everything_about_them(page, folder, tmp_path):
    send(page, folder / "0.jpg", folder / "1.jpg")
    assert page.inner_text("#overlap").startswith("The photos show the same scene")
    assert "the focal length is not known" in page.inner_text("#pose")
    assert "The scene has depth" in page.inner_text("#model")
    page.click("#matrices summary")
    assert page.inner_text("#numbers").startswith("F = [[") and "R = " not in page.inner_text("#numbers")
    page.click("#matrices summary")
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
    scale = page.evaluate("view.scale")
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"view.scale > {1.5 * scale}")
    left = page.evaluate("view.x")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"], steps=3)
    page.mouse.up()
    assert page.evaluate("view.x") > left + 20

    page.focus("#threshold")
    page.keyboard.press("PageUp")
    stored = np.load(download(page, "npz", tmp_path))
    assert stored["mask"].sum() == kept(page) and stored["mask"].dtype == bool
    assert len(read_matches(tmp_path / "matches.npz")) == len(stored["scores"]) == 2435
    table = np.loadtxt(download(page, "csv", tmp_path), delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, :2], stored["points0"])
    assert (table[:, 4] == stored["mask"]).all()
    named = json.loads(download(page, "json", tmp_path).read_text())
    assert set(named) == set(stored) and named["mask"] == stored["mask"].tolist()
    assert cv2.imread(str(download(page, "picture", tmp_path))).std() > 20


def test_colmap_takes_the_download(page, folder, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    # Names as people have them: the same twice, with a blank.
    for number in (0, 1):
        (tmp_path / f"{number}").mkdir()
        shutil.copy(folder / f"{number}.jpg", tmp_path / f"{number}" / "my photo.jpg")
    send(page, tmp_path / "0" / "my photo.jpg", tmp_path / "1" / "my photo.jpg")
    count = kept(page)
    with zipfile.ZipFile(download(page, "colmap", tmp_path)) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path)
    names = ["my_photo.jpg", "second_my_photo.jpg"]
    for number, name in enumerate(names):
        assert (tmp_path / "images" / name).read_bytes() == (folder / f"{number}.jpg").read_bytes()

    # As `feature_importer` and `matches_importer` read them, which pycolmap does not have.
    path = tmp_path / "database.db"
    pycolmap.Database.open(path).close()
    pycolmap.import_images(path, tmp_path / "images")
    lines = (tmp_path / "matches.txt").read_text().split("\n")
    assert lines[0].split() == names and lines[-2:] == ["", ""]
    indices = np.array([line.split() for line in lines[1:-2]], np.uint32)
    with pycolmap.Database.open(path) as database:
        numbers = [database.read_image_with_name(name).image_id for name in names]
        for number, name in zip(numbers, names, strict=True):
            header, *rows = (tmp_path / "features" / f"{name}.txt").read_text().splitlines()
            assert header == f"{len(rows)} 128" and {len(row.split()) for row in rows} == {132}
            database.write_keypoints(number, np.array([row.split()[:4] for row in rows], np.float32))
        database.write_matches(*numbers, indices)
    (tmp_path / "pairs.txt").write_text(" ".join(names))
    pycolmap.verify_matches(path, tmp_path / "pairs.txt")
    with pycolmap.Database.open(path) as database:
        assert database.read_two_view_geometry_num_inliers()[1][0] > 0.8 * count

    # The same pixels and sizes as in the other downloads.
    stored = np.load(download(page, "npz", tmp_path))
    assert len(indices) == count == stored["mask"].sum()
    with open_database(path) as database:
        for column, number in enumerate(numbers):
            view, rows = database.view(number), indices[:, column]
            points, sizes = (stored[f"{name}{column}"][stored["mask"]] for name in ("points", "keypoint_sizes"))
            np.testing.assert_allclose(view.points[rows], points, atol=1e-3)
            np.testing.assert_allclose(view.sizes[rows], sizes, atol=1e-3)


@pytest.mark.parametrize("turn", range(1, 9))
def test_colmap_gets_pixels_of_the_file_whatever_its_orientation(page, turn):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[8:11, 50:53] = 255
    data = with_orientation(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes(), turn)
    upright = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    where = np.argwhere(upright[..., 0] > 128).mean(axis=0)[::-1]
    found = page.evaluate(
        """async ([data, where, width, height]) => {
        const file = new Blob([Uint8Array.from(data)]);
        return stored(where, { width, height }, await orientation(file)); }""",
        [list(data), where.tolist(), upright.shape[1], upright.shape[0]],
    )
    assert found == pytest.approx([51, 9])


def test_two_photos_dropped_at_once_and_a_match_pointed_at(page, folder):
    photos = [list((folder / f"{number}.jpg").read_bytes()) for number in (0, 1)]
    dropped = page.evaluate_handle(
        """(photos) => { const data = new DataTransfer();
        photos.forEach((bytes, i) => data.items.add(new File([Uint8Array.from(bytes)], `${i}.jpg`))); return data; }""",
        photos,
    )
    page.dispatch_event("#drop0", "drop", {"dataTransfer": dropped})
    page.wait_for_selector("#result:not([hidden])")
    assert page.inner_text("#drop0") == "0.jpg" and page.inner_text("#drop1") == "1.jpg"
    # The best match, at its end in the second photo.
    n, (x, y) = page.evaluate("() => { const n = shown().pop(); return [n, toCanvas(1, answer.points1[n])]; }")
    page.locator("#canvas").scroll_into_view_if_needed()
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.wait_for_selector("#hint:not([hidden])")
    told = page.inner_text("#hint")
    score, size, partner = page.evaluate(f"[answer.scores[{n}], answer.keypoint_sizes1[{n}], answer.points0[{n}]]")
    assert f"kept, score {score:.3f}" in told and f"and {size:.1f} px" in told
    assert f"({partner[0]:.1f}, {partner[1]:.1f}) to (" in told


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
    page.click("#matrices summary")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy")
    page.wait_for_selector("#copy:has-text('Copied')")
    found: dict = {}
    exec(page.evaluate("navigator.clipboard.readText()"), found)
    pose = page.evaluate("answer.pose")
    np.testing.assert_allclose(found["R"], pose["R"], atol=1e-6)
    np.testing.assert_allclose(found["t"], pose["t"], atol=1e-6)


def test_an_old_result_is_dimmed_while_the_next_one_is_made(page, folder):
    send(page, folder / "0.jpg", folder / "1.jpg")
    waiting = []
    page.route("**/v1/match", lambda route: waiting.append(route))
    page.set_input_files("#photo1", folder / "coffee.jpg")
    page.wait_for_selector("#busy:not([hidden])")
    page.wait_for_timeout(100)
    assert page.evaluate("$('result').inert") and float(page.evaluate("getComputedStyle($('result')).opacity")) < 0.5
    waiting[0].continue_()
    page.wait_for_selector("#overlap:has-text('do not seem')")
    assert not page.evaluate("$('result').inert") and not page.is_visible("#busy")


def test_another_pruner(page, folder):
    send(page, folder / "0.jpg", folder / "1.jpg")
    page.select_option("#pruner", "ratio")
    page.wait_for_selector("#facts:has-text('pruned by ratio')")
    assert page.inner_text("#threshold-value") == "0.50"


def test_a_service_with_a_token(browser, folder):
    with served(create_app(device="cpu", pruner="ratio", token="secret")) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#error:has-text('Enter the token of the service.')")
        page.fill("#token", "wrong")
        page.keyboard.press("Tab")
        page.wait_for_selector("#error:has-text('This is not the token of the service.')")
        page.fill("#token", "secret")
        page.keyboard.press("Tab")
        page.wait_for_selector("#pruner option", state="attached")
        assert not page.is_visible("#error")
        send(page, folder / "0.jpg", folder / "1.jpg")
        assert kept(page) > 100
        context.close()


def test_photos_that_do_not_overlap(page, folder):
    send(page, folder / "0.jpg", folder / "coffee.jpg")
    assert "do not seem to show the same scene" in page.inner_text("#overlap")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notes.jpg", "notes.jpg: expected a JPEG, PNG or WebP photo, got a file of another kind"),
        ("tiny.png", "tiny.png: no keypoints found in this image of 1 x 1 pixels"),
        ("huge.png", "huge.png: expected at most 40,000,000 pixels, got 100,000,000 (10000 x 10000)"),
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
    page.fill("#focal", "1000")
    send(page, folder / "0.jpg", folder / "1.jpg")
    page.click("#matrices summary")
    # Nothing sticks out to the side, and the photos lie one above the other.
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.locator("#canvas").bounding_box()
    assert box["height"] > box["width"]
    # A finger scrolls past the photos until they are larger than their place.
    assert page.evaluate("canvas.style.touchAction") == "pan-y"
    page.tap("#zoom-in")
    assert page.evaluate("canvas.style.touchAction") == "none"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(int(part) for part in ground[4:-1].split(",")) < 60) == (scheme == "dark")
    context.close()
