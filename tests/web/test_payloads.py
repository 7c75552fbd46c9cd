import io
import json
import struct
import zipfile
import zlib

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from ananet import InputError
from ananet.cli.demo import motorcycle
from ananet.core import geometry
from ananet.io.images import as_photo, image_size
from ananet.pruners import load
from ananet.twoview import choose_cameras, match_photos
from ananet.web.limits import Limits
from ananet.web.payloads import (
    check_photo,
    match_result,
    matches_from_json,
    matches_from_npz,
    prune_result,
    read_cameras,
)
from tests.photos import photo
from tests.web.conftest import encoded

POINTS = np.random.default_rng(0).uniform(0, 600, (40, 2))
GOOD = {"points0": POINTS.tolist(), "points1": POINTS.tolist()}


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + struct.pack(">I4s", 9, b"IDAT")
    return b"\x89PNG\r\n\x1a\n" + chunks


def jpeg_header(width: int, height: int) -> bytes:
    frame = struct.pack(">BHHB", 8, height, width, 3) + bytes(9)
    return b"\xff\xd8\xff\xc0" + struct.pack(">H", 2 + len(frame)) + frame


def test_matches_as_json_and_npz_are_the_same(problem):
    m = problem.matches
    given = {name: getattr(m, name) for name in ("points0", "points1", "K0", "K1", "ratio", "mutual")}
    from_json, pruner = matches_from_json(
        json.dumps({name: values.tolist() for name, values in given.items()} | {"pruner": "lpm"}).encode(), Limits()
    )
    from_npz, _ = matches_from_npz(npz(**given), Limits())
    assert pruner == "lpm" and from_json.given_as_numpy and from_npz.given_as_numpy
    for name, values in given.items():
        np.testing.assert_allclose(getattr(from_npz, name), values)
        np.testing.assert_allclose(getattr(from_json, name), values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "body: expected a JSON object"),
        (b"{", "body: expected a JSON object"),
        (b"\xff\xfe\x00", "body: expected a JSON object"),
        (b"[" * 100_000, "body: expected a JSON object"),
        (b"[1]", "got list"),
        (json.dumps({"points0": []}).encode(), "expected points0, points1 and optionally K0.* got no points1"),
        (json.dumps(GOOD | {"path": "/etc/passwd"}).encode(), "indices, pruner, got path$"),
        (json.dumps(GOOD | {"points0": "abc"}).encode(), "points0: expected a list of numbers, got str"),
        (json.dumps(GOOD | {"points0": [[1], [2, 3]]}).encode(), "points0: expected lists of the same length"),
        (json.dumps(GOOD | {"points0": [["a", "b"]] * 40}).encode(), "points0: expected a list of numbers"),
        (json.dumps(GOOD | {"points0": [[None, 0]] * 40}).encode(), "points0: expected a list of numbers"),
        (json.dumps(GOOD | {"points0": [[10**400, 0]] * 40}).encode(), "points0: expected a list of numbers"),
        (json.dumps(GOOD | {"points0": [[float("nan"), 0]] * 40}).encode(), "points0: expected finite numbers"),
        (json.dumps(GOOD | {"points0": POINTS[1:].tolist()}).encode(), "expected the same number of rows"),
        (json.dumps(GOOD | {"pruner": 3}).encode(), "pruner: expected a name"),
        (json.dumps(GOOD | {"K0": [[1]]}).encode(), "K0 and K1: expected both"),
    ],
)
def test_wrong_json(data, message):
    with pytest.raises(InputError, match=message):
        matches_from_json(data, Limits())


def many_entries() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(100):
            archive.writestr(f"a{number}.npy", b"")
    return file.getvalue()


def single() -> bytes:
    file = io.BytesIO()
    np.save(file, POINTS)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "npz: not a readable .npz file"),
        (b"hello", "npz: not a readable .npz file"),
        (single(), "npz: expected an .npz file, got a single array"),
        (npz(points0=POINTS), "npz: expected arrays points0, points1"),
        (
            npz(points0=np.array([{}], dtype=object), points1=POINTS),
            "points0: expected real numbers, got an array of Py",
        ),
        (npz(points0=POINTS * np.nan, points1=POINTS), "points0: expected finite numbers"),
        (npz(points0=POINTS, points1=POINTS)[:-30], "npz: not a readable .npz file"),
        (npz(points0=np.zeros((20_000_000, 2), np.int8), points1=POINTS), "expected at most .* bytes of arrays"),
        (npz(points0=np.zeros((12_000, 2), np.int8), points1=POINTS), "points0: expected at most 10,000 matches"),
        (npz(points0=np.float64(3), points1=POINTS), r"points0: expected shape \(N, 2\)"),
        (many_entries(), "expected at most 64 arrays"),
    ],
)
def test_wrong_npz(data, message):
    with pytest.raises(InputError, match=message):
        matches_from_npz(data, Limits())


def test_too_many_matches():
    with pytest.raises(InputError, match="points0: expected at most 39 matches, got 40"):
        matches_from_json(json.dumps(GOOD).encode(), Limits(matches=39))
    assert len(matches_from_json(json.dumps(GOOD).encode(), Limits(matches=40))[0]) == 40


@pytest.mark.parametrize("kind", [".jpg", ".png", ".webp"])
def test_the_size_is_known_before_decoding(kind):
    assert image_size(encoded(photo(200, 120), kind)) == (200, 120)


def test_the_size_of_every_kind_of_webp():
    pixels = photo(200, 120)
    lossy = cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, 60])[1].tobytes()
    lossless = cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes()
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "webp", exif=Image.Exif().tobytes())
    extended = written.getvalue()
    assert [data[12:16] for data in (lossy, lossless, extended)] == [b"VP8 ", b"VP8L", b"VP8X"]
    assert image_size(lossy) == image_size(lossless) == image_size(extended) == (200, 120)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.jpg: expected a JPEG, PNG or WebP photo"),
        (b"hello, world", "a.jpg: expected a JPEG, PNG or WebP photo"),
        (b"\xff\xd8", "a.jpg: expected a JPEG, PNG or WebP photo"),
        (encoded(photo(), ".tiff"), "a.jpg: expected a JPEG, PNG or WebP photo"),
        (png_header(10_000, 10_000), "a.jpg: expected at most 40,000,000 pixels, got 100,000,000"),
        (jpeg_header(10_000, 10_000), "a.jpg: expected at most 40,000,000 pixels, got 100,000,000"),
        (png_header(0, 10), "a.jpg: expected a JPEG, PNG or WebP photo"),
        (png_header(64, 64), "a.jpg: not an image that OpenCV can read"),
        (jpeg_header(64, 64), "a.jpg: not an image that OpenCV can read"),
    ],
)
def test_wrong_photos(data, message):
    with pytest.raises(InputError, match=message):
        as_photo(data, name=check_photo("a.jpg", data, Limits()))


def test_names_of_files_are_shown_without_folders_and_odd_signs():
    for name in ("/home/me/a.jpg", "C:\\photos\\a.jpg", "a\n.jpg\x1b", "../../a.jpg"):
        with pytest.raises(InputError, match=r"^a.jpg: expected"):
            check_photo(name, b"", Limits())
    with pytest.raises(InputError) as caught:
        check_photo("x" * 5000, b"", Limits())
    assert len(str(caught.value)) < 200


def test_cameras():
    def chosen(fields):
        return choose_cameras((400, 300), (400, 300), **read_cameras(fields))

    assert chosen({}).source is None
    given = chosen({"focal": "500"})
    assert given.source == "given" and given.K0[0].tolist() == [500, 0, 199.5]
    given = chosen({"K0": "500,501,200,150", "K1": "600,600,200,150"})
    assert given.K0[1].tolist() == [0, 501, 150] and given.K1[0, 0] == 600
    for fields, message in (
        ({"focal": "abc"}, "focal: expected a number of pixels or auto, got 'abc'"),
        ({"focal": "-3"}, "focal: expected a positive number"),
        ({"focal": "nan"}, "focal: expected a positive number"),
        ({"focal": "1e300"}, "focal: expected a positive number"),
        ({"K0": "1,2,3,4"}, "K0 and K1: expected both or neither"),
        ({"K0": "1,2,3", "K1": "1,2,3,4"}, "K0: expected fx,fy,cx,cy"),
        ({"K0": "0,2,3,4", "K1": "1,2,3,4"}, "K0: expected positive focal lengths"),
        ({"K0": "1,2,3,4", "K1": "1,2,3,4", "focal": "3"}, "focal: expected either"),
    ):
        with pytest.raises(InputError, match=message):
            chosen(fields)


@pytest.fixture(scope="module")
def pair():
    return motorcycle()


def result_of(pair, longest_side=1600, pruner="ratio", cameras=True):
    K = {"K0": pair.K0, "K1": pair.K1} if cameras else {}
    found = match_photos(pair.image0, pair.image1, pruner=pruner, longest_side=longest_side, motions=True, **K)
    return found, match_result(found)


def epipolar_distance(result, F):
    kept = np.array(result["mask"])
    points = [torch.tensor(result[name], dtype=torch.float64)[kept] for name in ("points0", "points1")]
    return geometry.epipolar_distance(*points, torch.as_tensor(F, dtype=torch.float64)).numpy()


def test_the_fundamental_matrix_belongs_to_the_points(pair):
    found, result = result_of(pair)
    np.testing.assert_allclose(result["points0"], found.matches.points0, atol=1e-4)
    assert result["threshold"] == 0.5 and result["mask"] == found.kept.mask.tolist()
    assert np.median(epipolar_distance(result, result["fundamental"])) < 1
    # Without cameras it comes from the matches alone.
    _, uncalibrated = result_of(pair, cameras=False)
    assert np.median(epipolar_distance(uncalibrated, uncalibrated["fundamental"])) < 1
    assert uncalibrated["pose"] is None and "focal length is not known" in uncalibrated["pose_summary"]


def test_reduced_photos_are_answered_in_their_own_pixels(pair):
    found, result = result_of(pair, longest_side=500)
    assert result["photos"][0]["width"] == 741 and np.max(result["points0"]) > 600
    np.testing.assert_allclose(result["keypoint_sizes0"], found.matches.keypoint_sizes0, atol=1e-4)
    # The truth, in pixels of the photos that were sent.
    E = geometry.essential_from_pose(torch.from_numpy(pair.R), torch.from_numpy(pair.t))
    F = geometry.fundamental_from_essential(E, torch.from_numpy(pair.K0), torch.from_numpy(pair.K1))
    assert np.median(epipolar_distance(result, F)) < 2
    assert np.median(epipolar_distance(result, result["fundamental"])) < 2
    angle = geometry.rotation_error(torch.tensor(result["pose"]["R"]).double(), torch.from_numpy(pair.R))
    assert float(angle) < 2


def test_the_answer_is_the_result_of_the_library(pair):
    found, result = result_of(pair)
    assert result.items() >= found.to_dict(matches=True).items()
    assert set(result) - set(found.to_dict(matches=True)) == {"conflicting"}
    assert result["motions"]["count"] >= 1 and len(result["motion_labels"]) == len(result["scores"])


def test_conflicting_matches_share_a_point_with_a_better_one(pair):
    _, result = result_of(pair)
    points0, points1 = np.array(result["points0"]), np.array(result["points1"])
    scores, conflicting = np.array(result["scores"]), np.array(result["conflicting"])
    assert 0 < conflicting.sum() < len(scores)
    for n in np.flatnonzero(conflicting)[:50]:
        same0 = (points0 == points0[n]).all(axis=1) & (np.linalg.norm(points1 - points1[n], axis=1) > 1)
        same1 = (points1 == points1[n]).all(axis=1) & (np.linalg.norm(points0 - points0[n], axis=1) > 1)
        assert scores[same0 | same1].max() >= scores[n]


def test_photos_apart(pair):
    result = match_result(match_photos(pair.image0, photo(640, 480), pruner="ratio"))
    assert not result["overlap"]["found"] and "do not seem to show the same scene" in result["overlap"]["summary"]
    assert result["motions"] is None and len(result["points0"]) == result["matches"]


def test_a_verdict_on_matches(problem):
    pruner = load("ratio")
    kept = pruner(problem.matches)
    result = prune_result(kept, pruner.decision)
    assert result["pruner"] == "ratio" and result["mask"] == kept.mask.tolist()
    assert result["scores"] == kept.scores.tolist()
