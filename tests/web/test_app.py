import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import ananet
from ananet import InputError
from ananet.cli.web import examples
from ananet.web.app import Example, create_app
from ananet.web.limits import Limits
from tests.conftest import make_problem
from tests.photos import photo
from tests.web.conftest import encoded
from tests.web.test_payloads import npz, png_header

ADDRESS = "http://localhost"
NPZ = {"content-type": "application/x-npz"}


def as_json(matches) -> dict:
    names = ("points0", "points1", "K0", "K1", "ratio", "mutual")
    return {name: getattr(matches, name).tolist() for name in names}


def sent(left: bytes, right: bytes) -> dict:
    return {"photo0": ("left.jpg", left), "photo1": ("right.jpg", right)}


def test_json_gets_the_answer_of_the_pruner_itself(client, problem):
    answer = client.post("/v1/prune", json=as_json(problem.matches))
    expected = ananet.load(device="cpu")(problem.matches)
    found = answer.json()
    assert answer.status_code == 200 and found["pruner"] == expected.pruner == "ananet"
    np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-5)
    assert found["mask"] == expected.mask.tolist()
    assert found["threshold"] == pytest.approx(0.4)
    assert (np.array(found["scores"]) > found["threshold"]).tolist() == found["mask"]


def test_npz_gets_npz_unless_json_is_wanted(client, problem):
    m = problem.matches
    data = npz(points0=m.points0, points1=m.points1, image_size0=m.image_size0, image_size1=m.image_size1)
    answer = client.post("/v1/prune?pruner=lpm", content=data, headers=NPZ)
    found = np.load(io.BytesIO(answer.content))
    expected = ananet.load("lpm")(m)
    assert str(found["pruner"]) == "lpm" and (found["mask"] == expected.mask).all()
    assert found["scores"].dtype == np.float32 and (found["scores"] == expected.scores).all()
    as_text = client.post("/v1/prune?pruner=lpm", content=data, headers=NPZ | {"accept": "application/json"}).json()
    assert as_text["mask"] == expected.mask.tolist()
    back = client.post("/v1/prune?pruner=lpm", json=as_json(m), headers={"accept": "application/x-npz"})
    assert (np.load(io.BytesIO(back.content))["mask"] == expected.mask).all()


def test_many_clients_at_once(client):
    problems = [make_problem(40 + 5 * number, 30, seed=number).matches for number in range(6)]
    pruner = ananet.load(device="cpu")
    expected = [pruner(matches).mask.tolist() for matches in problems]
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda m: client.post("/v1/prune", json=as_json(m)), problems * 4))
    assert [answer.json()["mask"] for answer in answers] == expected * 4


def test_nothing_in_nothing_out(client):
    assert client.post("/v1/prune", json={"points0": [], "points1": []}).json()["mask"] == []


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({"json": {"points0": [[0, 0]]}}, 400, "expected points0, points1"),
        ({"json": {"points0": [[0, 0]], "points1": [[0, 0]]}}, 400, "expected camera matrices"),
        ({"content": b'{"points0": [[NaN, 0]], "points1": [[0, 0]]}'}, 415, "content-type: expected"),
        (
            {"content": npz(points0=np.array([{}], object), points1=np.zeros((1, 2))), "headers": NPZ},
            400,
            "real numbers",
        ),
        ({"json": {"points0": [], "points1": [], "pruner": "nonsense"}}, 400, "pruner: expected one of ananet"),
        ({"json": {"points0": [], "points1": [], "pruner": "/etc/passwd"}}, 400, "pruner: expected one of"),
        ({"json": {"points0": [], "points1": [], "pruner": "ransac@iterations=99999999"}}, 400, "pruner: expected"),
        (
            {"json": {"points0": [], "points1": [], "image_size0": [1] * 9000, "image_size1": [1, 1]}},
            400,
            "image_size0: expected (width",
        ),
    ],
)
def test_wrong_matches(client, request_, status, message):
    answer = client.post("/v1/prune", **request_)
    assert answer.status_code == status and message in answer.json()["error"]
    assert len(answer.json()["error"]) <= 1000


def test_two_photos(client, photos):
    answer = client.post("/v1/match", files=sent(photos["left"], photos["right"]), data={"focal": "1000"})
    assert answer.status_code == 200
    found = answer.json()
    count = len(found["scores"])
    for name in (
        "points0",
        "points1",
        "mask",
        "ratio",
        "mutual",
        "keypoint_sizes0",
        "keypoint_sizes1",
        "indices",
        "conflicting",
    ):
        assert len(found[name]) == count
    assert found["overlap"]["found"] and found["kept"] == sum(found["mask"]) > 100
    assert found["pose"]["inliers"] > 50 and found["cameras"]["source"] == "given"
    assert found["photos"][0] == {"name": "left.jpg", "width": 741, "height": 500, "keypoints": count}


def test_large_photos_and_focal_lengths_from_exif(photos):
    def with_focal(jpeg):
        exif, file = Image.Exif(), io.BytesIO()
        exif.get_ifd(0x8769)[0xA405] = 36
        Image.open(io.BytesIO(jpeg)).save(file, "jpeg", exif=exif)
        return file.getvalue()

    with TestClient(create_app(pruner="ratio", device="cpu", limits=Limits(longest_side=500)), ADDRESS) as client:
        files = sent(with_focal(photos["left"]), with_focal(photos["right"]))
        found = client.post("/v1/match", files=files, data={"motions": "false"}).json()
    assert found["photos"][0]["width"] == 741 and np.max(found["points0"]) > 600 and found["motions"] is None
    assert found["cameras"]["source"] == "exif" and found["cameras"]["K0"][0] == [741, 0, 370]


def test_the_geometry_of_unknown_cameras(client, photos):
    files = sent(photos["left"], photos["right"])
    found = client.post("/v1/match", files=files, data={"focal": "auto", "motions": "false"}).json()
    assert found["cameras"]["source"] == "found" and found["model"] == "essential" and found["fundamental"]
    assert "Focal length found from the matches: " in found["pose_summary"]
    named = client.post("/v1/match", files=files, data={"model": "homography", "motions": "false"}).json()
    assert named["model"] == "homography" and named["homography"] and not named["criterion"]


def test_two_photos_that_do_not_overlap(client, photos):
    found = client.post("/v1/match", files=sent(photos["left"], photos["other"])).json()
    assert not found["overlap"]["found"] and found["pose"] is None
    assert "do not seem to show the same scene" in found["overlap"]["summary"]


@pytest.mark.parametrize(
    ("change", "data", "message"),
    [
        ({"photo0": ("notes.jpg", b"hello")}, {}, "notes.jpg: expected a JPEG, PNG or WebP photo"),
        ({"photo0": ("empty.jpg", b"")}, {}, "empty.jpg: expected a JPEG, PNG or WebP photo"),
        (
            {"photo0": ("tiny.png", encoded(photo(8, 8)[:1, :1], ".png"))},
            {},
            "tiny.png: no keypoints found in this image",
        ),
        ({"photo0": ("big.png", png_header(10_000, 10_000))}, {}, "big.png: expected at most 40,000,000 pixels"),
        ({"photo2": ("more.jpg", b"hello")}, {}, "Too many files"),
        ({}, {"detector": "stored@path=/etc"}, "detector: expected one of sift, orb"),
        ({}, {"pruner": "../weights.safetensors"}, "pruner: expected one of ananet"),
        ({}, {"focal": "far"}, "focal: expected a number of pixels or auto"),
        ({}, {"model": "homografy"}, "model: expected one of auto, essential, fundamental, homography"),
        ({}, {"motions": "maybe"}, "motions: expected true or false"),
        ({}, {"colour": "red"}, "form: expected photo0, photo1 and some of"),
        ({}, {"pruner": "x" * 100_000}, "exceeded maximum size"),
    ],
)
def test_wrong_photos(client, photos, change, data, message):
    answer = client.post("/v1/match", files=sent(photos["left"], photos["right"]) | change, data=data)
    assert answer.status_code == 400 and message in answer.json()["error"]


def test_photos_that_are_missing(client, photos):
    for files, data, message in (
        ({"photo0": ("a.jpg", photos["left"])}, {}, "photo1: expected a photo, got nothing"),
        ({"photo0": ("a.jpg", photos["left"])}, {"photo1": "text"}, "form: expected photo0"),
    ):
        assert message in client.post("/v1/match", files=files, data=data).json()["error"]
    assert client.post("/v1/match", json={}).status_code == 415


def test_no_answer_tells_where_the_service_lives(client, photos):
    inside = (str(ananet.__path__[0]), "site-packages", "/home/", "/tmp/", "Traceback")
    bad = sent(b"hello", b"hello")
    for answer in (
        client.get("/v1/pruners"),
        client.get("/openapi.json"),
        client.get("/nothing/here"),
        client.get("/..%2f..%2fetc%2fpasswd"),
        client.post("/v1/match", files=bad),
        client.post("/v1/match", content=b"--x", headers={"content-type": "multipart/form-data; boundary=x"}),
        client.post("/v1/match", content=b"", headers={"content-type": "multipart/form-data"}),
        client.post("/v1/prune", content=b"PK\x03\x04", headers=NPZ),
        client.post("/v1/prune", json={"points0": [], "points1": [], "pruner": "mine.safetensors"}),
        client.put("/v1/prune"),
    ):
        assert not any(word in answer.text for word in inside), answer.text
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.status_code == 200 or set(answer.json()) == {"error"}
        assert answer.status_code < 500


def test_what_can_be_asked_for(client):
    known = client.get("/v1/pruners").json()
    assert known["default"] == "ananet" and set(known["pruners"]) == set(ananet.list_pruners())
    assert known["detectors"] == ["sift", "orb"] and known["limits"] == Limits().to_dict()
    assert client.get("/healthz").json()["status"] == "ok"


def test_metrics(client):
    client.post("/v1/prune", json={"points0": [], "points1": []})
    answer = client.get("/metrics")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert float(values['ananet_requests_total{route="/v1/prune",status="200"}']) >= 1
    assert float(values["ananet_pairs_total"]) >= float(values["ananet_batches_total"]) >= 1
    assert values["ananet_in_flight"] == "0"


def test_examples(photos):
    example = Example("A motorcycle", (photos["left"], photos["right"]), ("1,1,2,2", "1,1,2,2"))
    with TestClient(create_app(pruner="ratio", examples={"motorcycle": example}), ADDRESS) as client:
        assert client.get("/examples").json()[0]["name"] == "motorcycle"
        assert client.get("/examples/motorcycle/1.jpg").content == photos["right"]
        for wrong in ("/examples/motorcycle/2.jpg", "/examples/other/0.jpg"):
            assert client.get(wrong).status_code == 404


def test_the_one_who_starts_it_chooses(problem):
    with TestClient(create_app(pruner="mutual+ratio@threshold=0.7", detectors=["orb"]), ADDRESS) as client:
        known = client.get("/v1/pruners").json()
        assert known["default"] == "mutual+ratio@threshold=0.7" and known["detectors"] == ["orb"]
        found = client.post(
            "/v1/prune", content=json.dumps(as_json(problem.matches)), headers={"content-type": "application/json"}
        )
        expected = ananet.load("mutual+ratio@threshold=0.7")(problem.matches).mask
        assert found.json()["mask"] == expected.tolist()
    with pytest.raises(InputError, match="detectors: expected some of"):
        create_app(detectors=[])


def agree(documented, answered) -> None:
    """Compare a shortened example with an answer; texts in square brackets and "..." stand for what is left out."""
    if isinstance(documented, dict):
        for name, value in documented.items():
            if name != "milliseconds":
                agree(value, answered[name])
    elif isinstance(documented, list):
        for value, other in zip(documented, answered, strict=False):
            agree(value, other)
    elif isinstance(documented, float):
        assert documented == pytest.approx(answered, rel=0.02)
    elif isinstance(documented, str) and documented.endswith("..."):
        assert str(answered).startswith(documented[:-3]) or documented == "..."
    elif not (isinstance(documented, str) and documented.startswith("[")):
        assert documented == answered


def test_the_documented_examples_are_what_the_service_answers(client):
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
    body = re.search(r"-d '(\{.*\})'", page)[1]
    blocks = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", page, re.M | re.S)]
    agree(blocks[0], client.post("/v1/prune", content=body, headers={"content-type": "application/json"}).json())
    answer = client.post("/v1/match", files=sent(*examples()["motorcycle"].photos), data={"focal": "1000"}).json()
    agree(blocks[1], answer)
