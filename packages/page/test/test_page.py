"""The page that needs no server, as it is built, in a headless Chromium."""

import json
import shutil
import tomllib

import cv2
import numpy as np
import pytest
import torch

from ananet import Correspondences, load
from ananet.core.conflicts import penalize_conflicts
from ananet.features.matching import nearest_neighbours
from ananet.io.npz import read_matches
from tests.browser import download, kept, launched, needs_chromium, send, served_folder
from tests.photos import photo
from tools import build_page

pytestmark = needs_chromium
# Of a score at the threshold, and where a match is as near to one group of a network as to another, of all scores.
TOLERANCE, GROUPED_MEAN, GROUPED_SHARE = 1e-3, 0.02, 0.01


@pytest.fixture(scope="module")
def built():
    if not shutil.which("npm"):
        pytest.skip("no Node (apt-get install nodejs npm)")
    assert build_page.main() == 0
    return build_page.OUTPUT


@pytest.fixture(scope="module")
def browser():
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def address(built):
    with served_folder(built) as found:
        yield found


@pytest.fixture
def page(browser, address):
    yield from opened(browser, address)


def opened(browser, address, **options):
    context = browser.new_context(viewport={"width": 1100, "height": 900}, accept_downloads=True, **options)
    page = context.new_page()
    page.requested, failures = [], []
    page.on("pageerror", lambda error: failures.append(str(error)))
    context.on("request", lambda request: page.requested.append(request.url))
    page.goto(address)
    page.wait_for_selector("#examples:not([hidden])")
    yield page
    assert not failures
    assert all(url.startswith((address, "blob:", "data:")) for url in page.requested)
    context.close()


def try_example(page, name):
    page.get_by_role("button", name=name).click()
    page.wait_for_selector("#result:not([hidden]), #error:not([hidden])")


@pytest.mark.parametrize("name", ["ananet", "ananet-small"])
def test_decisions_are_those_of_python(page, tmp_path, name):
    page.select_option("#pruner", name)
    try_example(page, "Motorcycle")
    assert page.inner_text("#overlap").startswith("The photos show the same scene")
    stored = np.load(download(page, "npz", tmp_path))
    given = read_matches(tmp_path / "matches.npz")
    assert given.ratio is not None and given.keypoint_sizes0 is not None and given.angles0 is not None
    answer = load(name, device="cpu")(given)
    difference = np.abs(answer.scores - stored["scores"])
    other = (answer.mask != stored["mask"]) & (np.abs(answer.scores - 0.4) > TOLERANCE)
    grouped = 0 < answer_seeds(name) < len(given)
    assert difference.mean() < GROUPED_MEAN if grouped else difference.max() < TOLERANCE
    assert other.mean() <= (GROUPED_SHARE if grouped else 0)
    assert kept(page) == stored["mask"].sum() > 200
    # What the page needs is asked of its own server only; requests of workers are seen.
    assert any(url.endswith(".wasm") for url in page.requested) and any("opencv.js" in url for url in page.requested)

    named = json.loads(download(page, "json", tmp_path).read_text())
    assert set(named) == set(stored) and named["mask"] == stored["mask"].tolist()
    table = np.loadtxt(download(page, "csv", tmp_path), delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, :2], stored["points0"])
    assert cv2.imread(str(download(page, "picture", tmp_path))).std() > 20
    page.focus("#threshold")
    page.keyboard.press("End")
    assert kept(page) == 0


def answer_seeds(name):
    return load(name, device="cpu").network.settings.seeds


def test_orb_in_pixels_of_large_photos(page, tmp_path):
    """A photo and its half: keypoints, found at a megapixel, are those of the same places."""
    large = cv2.resize(photo(1000, 750), (2000, 1500), interpolation=cv2.INTER_CUBIC)
    for number, image in enumerate((large, cv2.resize(large, (1000, 750), interpolation=cv2.INTER_AREA))):
        cv2.imwrite(str(tmp_path / f"{number}.png"), image)
    page.select_option("#detector", "orb")
    send(page, tmp_path / "0.png", tmp_path / "1.png")
    stored = np.load(download(page, "npz", tmp_path))
    assert stored["image_size0"].tolist() == [2000, 1500] and stored["mask"].sum() > 50
    points0, points1 = (stored[name][stored["mask"]] for name in ("points0", "points1"))
    assert np.median(np.abs((points0 + 0.5) / 2 - 0.5 - points1)) < 1


def test_matches_are_those_of_the_library(page):
    numbers = np.random.default_rng(0)
    first = numbers.integers(0, 256, (60, 61), np.uint8)
    # Some of them again, some nearly, some twice.
    second = np.concatenate([first[10:40] ^ (numbers.random((30, 61)) < 0.1), first[:5], first[:5]]).astype(np.uint8)
    expected = nearest_neighbours(first, second)
    call = """async (sets) => { const { nearestNeighbours } = await import("./matching.js");
        const found = nearestNeighbours(...sets.map(([bytes, count]) => [Uint8Array.from(bytes), count]));
        return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, [...values]])); }"""
    found = page.evaluate(call, [[each.ravel().tolist(), len(each)] for each in (first, second)])
    assert found["index"] == expected.index.tolist()
    assert found["mutual"] == expected.mutual.astype(int).tolist()
    np.testing.assert_allclose(found["ratio"], expected.ratio, rtol=1e-6)

    size, logits = (640, 480), numbers.normal(size=60)
    points0, points1 = numbers.integers(0, 40, (2, 60, 2)) * 0.5
    call = """async ([points, size, logits]) => { const [width, height] = size;
        return (await import("./matching.js")).conflicting(points, [{ width, height }, { width, height }], logits); }"""
    found = page.evaluate(call, [[points0.tolist(), points1.tolist()], size, logits.tolist()])
    pair = Correspondences(points0, points1, image_size0=size, image_size1=size)
    given = torch.as_tensor(logits)[None]
    lowered = penalize_conflicts(given, torch.as_tensor(pair.normalized())[None].float(), np.e) < given
    assert found == lowered[0].tolist() and 0 < sum(found) < 60


def test_offline_after_the_first_visit(browser, built):
    context = browser.new_context()
    page = context.new_page()
    with served_folder(built) as address:
        page.goto(f"{address}/index.html")
        page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    # The server is gone.
    for path in ("/index.html", "/"):
        page.goto(address + path)
        try_example(page, "Motorcycle")
        assert kept(page) > 200
    context.close()


def test_errors_are_told(page, tmp_path):
    (tmp_path / "notes.jpg").write_text("no photo")
    cv2.imwrite(str(tmp_path / "tiny.png"), photo(8, 8)[:1, :1])
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((300, 400), 128, np.uint8))
    cv2.imwrite(str(tmp_path / "0.png"), photo(400, 300))
    page.click("#match")
    assert page.inner_text("#error") == "Choose two photos first."
    page.set_input_files("#photo0", tmp_path / "0.png")
    page.click("#match")
    assert page.inner_text("#error") == "Choose two photos first."
    for name, message in (
        ("notes.jpg", "notes.jpg: expected a photo, got a file that this browser cannot show as one"),
        ("tiny.png", "tiny.png: no keypoints found in this image of 1 x 1 pixels"),
        ("grey.png", "grey.png: no keypoints found in this image of 400 x 300 pixels"),
    ):
        page.set_input_files("#photo1", tmp_path / name)
        page.wait_for_selector(f"#error:has-text('{name}')")
        assert page.inner_text("#error") == message and not page.is_visible("#result")
    try_example(page, "Two different scenes")
    page.wait_for_selector("#result:not([hidden])")
    assert page.inner_text("#overlap").startswith("The photos do not seem to show the same scene")
    assert not page.is_visible("#error") and page.is_visible(".apart")


def test_a_page_opened_as_a_file_says_what_it_needs(browser, built):
    page = browser.new_page()
    page.goto(f"file://{built}/index.html")
    page.wait_for_selector("#error:has-text('python -m http.server')")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(browser, address, scheme):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    try_example(page, "Motorcycle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert not page.locator(".geometry >> visible=true").count()
    context.close()


def test_without_npm_there_is_no_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build_page, "OUTPUT", tmp_path / "page")
    (tmp_path / "page").mkdir()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert build_page.main() == 0 and not (tmp_path / "page").exists()
    assert "the site is built without the page that needs no server" in capsys.readouterr().out


def test_versions_move_together():
    version = tomllib.loads((build_page.ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in ("package.json", "package-lock.json"):
        assert json.loads((build_page.SOURCE / name).read_text())["version"] == version
    # The same engine as of the npm package.
    pinned = json.loads((build_page.SOURCE / "package.json").read_text())["dependencies"]["onnxruntime-web"]
    assert json.loads((build_page.JS / "package.json").read_text())["dependencies"]["onnxruntime-web"] == f"^{pinned}"
